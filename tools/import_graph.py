"""Print which folder of the package imports which: `make graph`. tests/test_architecture.py checks the directions."""

import ast
import functools
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "inferometer"

Graph = dict[str, set[str]]


@functools.cache
def imports(path: Path) -> set[str]:
    """Return the modules that a file imports, at its top or inside functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide where a name comes from"
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module or ""}
    return found


def folder_of(module: str) -> str:
    """Return the folder or top-level module that a dotted name belongs to; "" is the package itself."""
    name = module.removeprefix("inferometer").lstrip(".").partition(".")[0]
    return name if (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").exists() else ""


def home_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return "" if parts == ("__init__",) else parts[0]


def graph() -> Graph:
    """Return the folders that each folder imports."""
    found: Graph = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        home = home_of(path)
        own = {folder_of(module) for module in imports(path) if module.partition(".")[0] == "inferometer"}
        found.setdefault(home, set()).update(own - {home, ""})
    found.pop("")
    return found


def layers(found: Graph) -> list[list[str]]:
    """Return the folders in layers, each of which imports only from those before it; ValueError: there is a cycle."""
    left, done, ordered = dict(found), set[str](), list[list[str]]()
    while left:
        layer = sorted(name for name, used in left.items() if used <= done)
        if not layer:
            raise ValueError(f"import cycle among {', '.join(sorted(left))}")
        ordered.append(layer)
        done |= set(layer)
        for name in layer:
            del left[name]
    return ordered


if __name__ == "__main__":
    found = graph()
    for number, layer in enumerate(layers(found)):
        for name in layer:
            print(f"{number}  {name:18s} {' '.join(sorted(found[name]))}")
