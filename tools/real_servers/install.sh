#!/bin/sh
# Puts a server or a client that we did not write into a virtual environment of its own, outside the repository.
#
#   tools/real_servers/install.sh llama_cpp        ->  ~/.cache/inferometer/real/llama_cpp
#
# INFEROMETER_REAL sets another folder. Does nothing if the pinned versions are already installed. A server's folder has a
# requirements.txt, which lists all dependencies if it contains the line `# pip: --no-deps`; and, if pip is not enough, an
# after.sh, which gets the path of the new environment and fails with a line that says what is missing.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
known=$(cd "$here" && echo */ | tr -d /)
name=${1:?which one? a folder beside this script: $known}
pins=$here/$name/requirements.txt
after=$here/$name/after.sh
target=${INFEROMETER_REAL:-$HOME/.cache/inferometer/real}/$name

[ -f "$pins" ] || { echo "install.sh: there is no $pins" >&2; exit 2; }
[ -f "$after" ] || after=
if cat "$pins" ${after:+"$after"} | cmp -s - "$target/installed.txt"; then
    echo "$target is up to date"
    exit 0
fi
unset PIP_CONSTRAINT # our own package's pins are not theirs
no_deps=
if grep -q '^# pip: --no-deps' "$pins"; then no_deps=--no-deps; fi
"${PYTHON:-python3}" -m venv --clear "$target"
"$target/bin/python" -m pip install --quiet --disable-pip-version-check $no_deps --requirement "$pins"
[ -z "$after" ] || sh "$after" "$target"
cat "$pins" ${after:+"$after"} >"$target/installed.txt"
echo "$target is ready"
