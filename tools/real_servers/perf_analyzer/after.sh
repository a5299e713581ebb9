#!/bin/sh
# perf_analyzer wants two libraries that the Triton environment has under other names: they are linked into lib/perf_analyzer,
# which belongs on LD_LIBRARY_PATH:
#
#   LD_LIBRARY_PATH=PLACE/lib/perf_analyzer PLACE/bin/perf_analyzer ...
set -eu

place=$1
triton=$(dirname "$place")/triton
[ -f "$triton/installed.txt" ] || { echo "perf_analyzer: install triton first: tools/real_servers/install.sh triton" >&2; exit 1; }
libraries=$("$triton/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/nvidia_pytriton.libs
mkdir -p "$place/lib/perf_analyzer"
ln -sf "$libraries"/libb64-*.so.0d "$place/lib/perf_analyzer/libb64.so.0d"
ln -sf "$libraries"/libcudart-*.so.12.* "$place/lib/perf_analyzer/libcudart.so.12"
LD_LIBRARY_PATH=$place/lib/perf_analyzer "$place/bin/perf_analyzer" --version
