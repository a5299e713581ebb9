"""Writes one tiny Llama for all engines, with random weights in float32, and what each of them needs of it:

    python tools/real_servers/tiny_model.py FOLDER [--context 1024] [--for llama_cpp openvino onnxruntime_genai]

FOLDER is as transformers writes it. Beside it come FOLDER.gguf, FOLDER-openvino and FOLDER-onnx, with the same weights and the same
tokenizer, so that greedy responses of all engines have the same tokens. Each is made with the environment of that name
(tools/real_servers/install.sh); the folder with this interpreter if it has torch and transformers, else with that of the
`transformers` or the `vllm` environment.
"""

import argparse
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
INSTALLED = Path(os.environ.get("INFEROMETER_REAL") or Path.home() / ".cache/inferometer/real")
SUFFIXES = {"llama_cpp": ".gguf", "openvino": "-openvino", "onnxruntime_genai": "-onnx"}
"""What the name of the model ends with for each environment."""


def write(folder: Path, context: int = 1024) -> None:
    """Write the folder."""
    _run(_torch_python(), HERE / "transformers/model.py", folder, str(context))


def convert(folder: Path, environment: str) -> Path:
    """Convert the folder for the engine of an environment, and return the path of the result, which is beside it."""
    programs = INSTALLED / environment / "bin"
    if not programs.is_dir():
        raise SystemExit(f"tiny_model.py: {environment} is not installed: tools/real_servers/install.sh {environment}")
    path = folder.with_name(folder.name + SUFFIXES[environment])
    if environment == "llama_cpp":
        _run(programs / "python", HERE / "llama_cpp/convert.py", folder, path)
    elif environment == "openvino":
        task = ("--task", "text-generation-with-past", "--weight-format", "fp32")
        _run(programs / "optimum-cli", "export", "openvino", "-m", folder, *task, path)
    else:
        cache = folder.with_name(f"{folder.name}-onnx-cache")
        builder = ("-m", "onnxruntime_genai.models.builder", "-p", "fp32", "-e", "cpu")
        _run(programs / "python", *builder, "-m", folder, "-i", folder, "-o", path, "-c", cache)
    return path


def _run(*command: str | Path) -> None:
    """Run a converter without the network. What it prints is shown only if it fails."""
    done = subprocess.run(
        command, env=os.environ | {"HF_HUB_OFFLINE": "1"}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{command[0]} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def _torch_python() -> str:
    if all(importlib.util.find_spec(package) for package in ("torch", "transformers")):
        return sys.executable
    for name in ("transformers", "vllm"):
        if (python := INSTALLED / name / "bin/python").exists():
            return str(python)
    raise SystemExit(
        "tiny_model.py: torch and transformers are not installed: tools/real_servers/install.sh transformers"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--for", dest="environments", nargs="*", choices=SUFFIXES, default=[])
    options = parser.parse_args()
    write(options.folder, options.context)
    print(options.folder)
    for environment in options.environments:
        print(convert(options.folder, environment))


if __name__ == "__main__":
    main()
