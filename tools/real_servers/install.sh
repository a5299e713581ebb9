#!/bin/sh
# Puts a server that we did not write into a virtual environment of its own, outside the repository.
#
#   tools/real_servers/install.sh llama_cpp        ->  ~/.cache/inferometer/real/llama_cpp
#
# INFEROMETER_REAL names another place. Does nothing where the pinned versions are there already.
set -eu

name=${1:?which server? one of the folders beside this script: llama_cpp, transformers}
here=$(cd "$(dirname "$0")" && pwd)
pins=$here/$name/requirements.txt
place=${INFEROMETER_REAL:-$HOME/.cache/inferometer/real}/$name

[ -f "$pins" ] || { echo "install.sh: there is no $pins" >&2; exit 2; }
if cmp -s "$pins" "$place/installed.txt"; then
    echo "$place is up to date"
    exit 0
fi
unset PIP_CONSTRAINT # our own package's pins are not theirs
mkdir -p "$place"
"${PYTHON:-python3}" -m venv "$place"
"$place/bin/python" -m pip install --quiet --disable-pip-version-check --requirement "$pins"
cp "$pins" "$place/installed.txt"
echo "$place is ready"
