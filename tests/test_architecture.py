"""The folder list is the data path: who may import whom."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "inferometer"

BASE = {
    "apis",
    "errors",
    "units",
    "memory",
    "tensors",
    "types",
    "records",
    "series",
    "timing",
    "config",
    "open_files",
    "random_numbers",
    "",
}
"""What every folder may use ("" is the package itself: its version)."""

MAY_IMPORT = {
    "apis": set(),
    "errors": set(),
    "units": set(),
    "memory": {"errors"},
    "open_files": {"errors"},
    "random_numbers": set(),
    "tensors": {"errors", "units", "memory"},
    "types": {"tensors"},
    "records": {"series"},
    "series": set(),
    "timing": set(),
    "config": {"apis", "errors", "units"},
    "proto": set(),
    "workload": BASE,
    "schedule": BASE,
    "wire": BASE - {"config"},
    "probe": BASE | {"wire"},
    "store": BASE,
    "engine": BASE | {"wire", "store"},
    "fleet": BASE | {"workload", "schedule", "wire", "probe", "engine", "store"},
    "observe": BASE | {"wire", "probe", "analysis", "store"},
    "analysis": BASE,
    "report": BASE | {"schedule", "probe", "fleet", "analysis", "store"},
    "serve": BASE | {"workload", "wire", "proto"},
    "manifest": BASE | {"wire", "probe", "workload"},
    "conduct": BASE
    | {"workload", "schedule", "wire", "probe", "fleet", "observe", "analysis", "report", "store", "manifest"},
    "calibrate": BASE | {"conduct", "analysis"},
    "triton_client": BASE | {"wire", "probe", "conduct", "analysis"},
    "compare_protocols": BASE | {"probe", "conduct", "analysis", "store", "triton_client"},
    "infer": BASE | {"workload", "wire", "probe", "report"},
    "cli": BASE | {"probe", "conduct", "calibrate", "triton_client", "compare_protocols", "serve", "report", "infer"},
    "__main__": {"cli"},
}

NOT_IN_WIRE = {"socket", "asyncio", "time", "selectors", "threading", "subprocess", "uvloop"}


def imports(path: Path) -> set[str]:
    """The modules that a file imports, at its top or within functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 or path.parent != PACKAGE, path
            base = node.module or ""
            if node.level:
                parts = ["inferometer", *path.relative_to(PACKAGE).with_suffix("").parts][: -node.level]
                base = ".".join([*parts, base]) if base else ".".join(parts)
            found |= {f"{base}.{alias.name}" for alias in node.names} | {base}
    return found


def folder_of(module: str) -> str:
    name = module.removeprefix("inferometer").lstrip(".").partition(".")[0]
    return name if (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").exists() else ""


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_file_imports_only_what_its_folder_may(path: Path) -> None:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    home = "" if parts == ("__init__",) else parts[0]
    if home == "":
        return
    own = {folder_of(module) for module in imports(path) if module.partition(".")[0] == "inferometer"}
    assert own - {home} <= MAY_IMPORT[home] | {""}


@pytest.mark.parametrize("path", sorted((PACKAGE / "wire").rglob("*.py")), ids=lambda path: path.name)
def test_the_codecs_know_no_socket_and_no_clock(path: Path) -> None:
    assert not {module.partition(".")[0] for module in imports(path)} & NOT_IN_WIRE


def test_every_folder_has_a_rule_and_every_rule_a_folder() -> None:
    there = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    there |= {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    assert there == set(MAY_IMPORT)
