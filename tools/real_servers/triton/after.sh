#!/bin/sh
# Gives Triton's python backend the stub of this Python's version, and makes sure that all libraries are there.
set -eu

place=$1
about() { "$place/bin/python" -c "import sys, sysconfig; print($1)"; }
version=$(about '"%d.%d" % sys.version_info[:2]')
packages=$(about 'sysconfig.get_path("purelib")')
triton=$packages/pytriton/tritonserver
stub=$triton/python_backend_stubs/$version/triton_python_backend_stub

[ -f "$stub" ] || { echo "triton: there is no python backend for Python $version; set PYTHON to another" >&2; exit 1; }
cp "$stub" "$triton/backends/python/"
libraries=$(about 'sysconfig.get_config_var("LIBDIR")'):$packages/nvidia_pytriton.libs
set -- "$triton/bin/tritonserver" "$triton/backends/python/libtriton_python.so" "$triton/backends/python/triton_python_backend_stub"
missing=$(LD_LIBRARY_PATH=$libraries ldd "$@" | grep 'not found' | sort -u)
[ -z "$missing" ] || { echo "triton: libraries are missing (Debian: apt install libpython$version):" "$missing" >&2; exit 1; }
