"""Execute a notebook with a real kernel, and write it with its outputs: execute.py IN OUT.

Run by the Python of this environment. The kernel is its own, too; the variable KERNEL_PYTHONPATH adds the folders in which the kernel
finds inferometer and its dependencies.
"""

import os
import sys

import nbformat
from nbclient import NotebookClient

_TIMEOUT_S = 120


def main(source: str, target: str) -> None:
    notebook = nbformat.read(source, as_version=4)
    nbformat.validate(notebook)
    kernel = os.environ | {"PYTHONPATH": os.environ.get("KERNEL_PYTHONPATH", "")}
    NotebookClient(notebook, timeout=_TIMEOUT_S, kernel_name="python3").execute(env=kernel)
    nbformat.write(notebook, target)


if __name__ == "__main__":
    main(*sys.argv[1:])
