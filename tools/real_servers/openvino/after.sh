#!/bin/sh
# Removes torchvision, which does not match the CPU build of torch and then breaks every import of transformers.
set -eu

"$1/bin/python" -m pip uninstall --quiet --yes torchvision
"$1/bin/python" -c 'import openvino_genai; print("OpenVINO GenAI", openvino_genai.__version__)'
