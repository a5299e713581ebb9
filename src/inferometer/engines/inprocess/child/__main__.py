"""Starts the host by path, in an interpreter that does not have our package: only this folder of it can be imported there.

Python puts this folder first on its path, where a file could shadow a package of the same name, so it is taken off again.
"""

import importlib
import sys
import types
from pathlib import Path

PACKAGE = "inferometer.engines.inprocess.child"


def main() -> None:
    folder = Path(__file__).resolve().parent
    sys.path[:] = [each for each in sys.path if not each or Path(each).resolve() != folder]
    parts = PACKAGE.split(".")
    for count in range(1, len(parts) + 1):
        package = types.ModuleType(".".join(parts[:count]))
        package.__path__ = [str(folder)] if count == len(parts) else []
        sys.modules[package.__name__] = package
    importlib.import_module(f"{PACKAGE}.host").main(sys.argv[1])


if __name__ == "__main__":
    main()
