"""Writes one tiny Llama for all engines: FOLDER, as transformers writes it, and FOLDER.gguf, with the same weights and the same
tokenizer, in float32. Greedy responses of engines that compute in float32 have the same tokens.

    python tools/real_servers/tiny_model.py FOLDER [--context 1024]

The folder is written with this interpreter if it has torch and transformers, else with that of the `transformers` or the `vllm`
environment; the GGUF with that of the `llama_cpp` environment (tools/real_servers/install.sh), and left out if there is none.
"""

import argparse
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
INSTALLED = Path(os.environ.get("INFEROMETER_REAL") or Path.home() / ".cache/inferometer/real")


def write(folder: Path, context: int = 1024) -> Path | None:
    """Write the folder, and return the path of the GGUF beside it; None if it cannot be written here."""
    subprocess.run([_torch_python(), HERE / "transformers/model.py", folder, str(context)], check=True)
    python = INSTALLED / "llama_cpp/bin/python"
    if not python.exists():
        return None
    path = folder.with_name(f"{folder.name}.gguf")
    subprocess.run([python, HERE / "llama_cpp/convert.py", folder, path], check=True)
    return path


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
    options = parser.parse_args()
    path = write(options.folder, options.context)
    print(options.folder, path or "(no GGUF: tools/real_servers/install.sh llama_cpp)")


if __name__ == "__main__":
    main()
