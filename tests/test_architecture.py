"""The folders are the data path: which of them may import which. docs/explanation/architecture.md describes the same."""

import subprocess
import sys
from pathlib import Path

from import_graph import PACKAGE, folder_of, graph, home_of, imports, layers

FOUNDATION = {
    "apis", "campaign", "config", "errors", "memory", "open_files", "options", "portable_math", "printable", "processors", "random_numbers", "records", "replacing", "series", "server_metrics", "tensors", "timing", "tls", "types", "units",
}  # fmt: skip
"""What every folder may use."""

MAY_IMPORT = {
    # the foundation
    "apis": set(),
    "campaign": set(),
    "errors": {"printable"},
    "portable_math": set(),
    "printable": set(),
    "random_numbers": set(),
    "replacing": set(),
    "series": set(),
    "server_metrics": {"errors", "series", "units"},
    "timing": set(),
    "units": set(),
    "config": {"apis", "errors", "printable", "units"},
    "memory": {"errors"},
    "open_files": {"errors", "processors"},
    "options": {"apis", "config", "errors", "units"},
    "processors": set(),
    "records": {"series"},
    "tensors": {"errors", "memory", "units"},
    "tls": {"errors"},
    "types": {"tensors"},
    # the data path
    "workload": FOUNDATION,
    "schedule": FOUNDATION,
    "wire": FOUNDATION - {"config"},
    "store": FOUNDATION,
    "analysis": FOUNDATION,
    "probe": FOUNDATION | {"wire"},
    "engine": FOUNDATION | {"wire", "store"},
    "prepare": FOUNDATION | {"workload", "schedule", "wire", "probe", "engine", "store"},
    "fleet": FOUNDATION | {"workload", "schedule", "wire", "engine", "store"},
    "observe": FOUNDATION | {"wire", "probe", "analysis", "store"},
    "publish": FOUNDATION | {"observe", "analysis", "store", "wire"},
    "capacity_search": FOUNDATION | {"analysis"},
    "report": FOUNDATION | {"analysis", "store", "capacity_search"},
    "engines": FOUNDATION | {"wire", "probe"},
    "manifest": FOUNDATION | {"wire", "probe", "workload"},
    # where the folders meet
    "conduct": FOUNDATION
    | {
        "workload",
        "schedule",
        "wire",
        "probe",
        "prepare",
        "fleet",
        "observe",
        "publish",
        "analysis",
        "capacity_search",
        "report",
        "store",
        "manifest",
        "engines",
    },
    # commands
    "calibrate": FOUNDATION | {"conduct", "analysis"},
    "null_server": FOUNDATION,
    "triton_client": FOUNDATION | {"probe", "conduct", "analysis"},
    "compare_protocols": FOUNDATION | {"workload", "probe", "conduct", "analysis", "store", "triton_client"},
    "infer": FOUNDATION | {"workload", "wire", "probe", "report"},
    "preview": FOUNDATION | {"workload", "schedule", "report"},
    "serve": FOUNDATION | {"workload", "wire", "proto"},
    "proto": set(),
    "cli": FOUNDATION
    | {
        "workload",
        "probe",
        "conduct",
        "calibrate",
        "capacity_search",
        "compat",
        "triton_client",
        "compare_protocols",
        "serve",
        "report",
        "infer",
        "preview",
    },
    "__main__": {"cli"},
    # other tools' files and command lines
    "compat": FOUNDATION | {"workload", "wire", "probe", "observe", "conduct", "analysis", "store", "report"},
    # what the package offers to Python code
    "dummies": FOUNDATION | {"workload", "probe"},
    "public": FOUNDATION
    | {"workload", "wire", "probe", "conduct", "analysis", "capacity_search", "store", "report", "infer", "dummies"},
    "": {"analysis", "dummies", "errors", "public"},
}

FILES = sorted(PACKAGE.rglob("*.py"))


def short_name(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def test_files_import_only_what_their_folders_may() -> None:
    wrong = {}
    for path in FILES:
        home = home_of(path)
        used = {folder_of(module) for module in imports(path) if module.partition(".")[0] == "inferometer"}
        if others := used - {home, ""} - MAY_IMPORT.get(home, set()):
            wrong[short_name(path)] = others
    assert not wrong


def test_there_are_no_import_cycles() -> None:
    layers(graph())


def test_only_the_fleet_imports_the_engine() -> None:
    """What prepares a run knows the jobs of its shards, and nothing of how they do them."""
    assert {name for name, used in graph().items() if "engine" in used} == {"fleet", "prepare"}
    used = {module for path in (PACKAGE / "prepare").rglob("*.py") for module in imports(path)}
    assert all(module.startswith("inferometer.engine.job") for module in used if "inferometer.engine" in module)


SHARD = """
import sys
from inferometer.engine.job import Job
from inferometer.fleet import runner, worker
from inferometer.wire.calls import codec_of

codec_of("chat")
print(*(name for name in sys.modules if name.partition(".")[0] == "inferometer"))
"""


def test_a_shard_imports_little() -> None:
    """It starts within a fraction of a second, because its requests were made before: nothing of the workload, and no configuration."""
    result = subprocess.run([sys.executable, "-c", SHARD], capture_output=True, text=True, check=True)
    modules = result.stdout.split()
    folders = {module.split(".")[1] for module in modules if "." in module}
    assert not folders & {"workload", "config", "probe", "schedule", "prepare"}
    assert len(modules) <= 60


def test_codecs_know_neither_sockets_nor_clocks() -> None:
    forbidden = {"socket", "asyncio", "time", "selectors", "threading", "subprocess", "uvloop"}
    for path in sorted((PACKAGE / "wire").rglob("*.py")):
        assert not {module.partition(".")[0] for module in imports(path)} & forbidden, short_name(path)


def test_only_the_extra_otlp_imports_grpcio() -> None:
    """Our own HTTP/2 is behind everything else; grpcio is installed here only as a peer for tests."""
    grpcio = {"grpc", "grpc_health", "grpc_reflection"}
    users = {short_name(path) for path in FILES if {module.partition(".")[0] for module in imports(path)} & grpcio}
    assert users == {"publish/otlp_transport.py"}


def test_every_folder_has_a_rule_and_every_rule_a_folder() -> None:
    there = {path.name for path in PACKAGE.iterdir() if path.is_dir() and not path.is_symlink()} - {"__pycache__"}
    there |= {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    assert there == set(MAY_IMPORT) - {""}
