"""Triton Inference Server: `tritonserver` with a model repository (`model`), measured over KServe v2.

It is on the PATH in NVIDIA's images. The package nvidia-pytriton contains it, too: `python` names an interpreter that has the package.
"""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import msgspec

from inferometer.config.engines import EngineSpec
from inferometer.engines.launching import (
    EngineError,
    Launch,
    ServerEngine,
    Start,
    dashed,
    free_port,
    interpreter,
    known_facts,
    local_model,
    program,
    visible_gpus,
)

_NAME = "tritonserver"
_INSTALL = "use NVIDIA's image, or pip install nvidia-pytriton"
_STUB = "triton_python_backend_stub"
_WHERE = """
import importlib.util, json, pathlib, sys, sysconfig
package = importlib.util.find_spec("pytriton").submodule_search_locations[0]
version = "%d.%d" % sys.version_info[:2]
programs = str(pathlib.Path(sys.executable).parent)
print(json.dumps([package, sysconfig.get_path("purelib"), sysconfig.get_config_var("LIBDIR"), version, programs]))
"""


class _Installed(msgspec.Struct, frozen=True):
    """A program, the flags it needs and its environment."""

    program: str
    args: dict[str, Any] = {}
    env: dict[str, str] = {}


def _launch(start: Start) -> Launch:
    spec, repository = start.spec, Path(local_model(start.model))
    models = sorted(path.parent.name for path in repository.glob("*/config.pbtxt"))
    if not models:
        raise EngineError(
            f"{repository} is not a model repository", "it has a folder MODEL/config.pbtxt for each model"
        )
    if spec.dtype:
        raise EngineError(f"dtype {spec.dtype}: a Triton model has the data types of its files", "remove `dtype`")
    installed = _installed(spec, start.folder)
    own = {"model-repository": repository, "http-port": start.port, "http-address": "127.0.0.1"}
    own |= {"metrics-port": free_port(), "metrics-address": "127.0.0.1", "allow-grpc": "false"}
    args = dashed(spec.args)
    if taken := sorted(args.keys() & own.keys()):
        raise EngineError(f"args.{taken[0]}: inferometer sets this flag itself", "remove it; `url` sets the address")
    given = {name: value for name, value in (own | installed.args | args).items() if value not in (None, False)}
    return Launch(
        command=(
            installed.program,
            *(f"--{name}" if value is True else f"--{name}={value}" for name, value in given.items()),
        ),
        url=f"http://127.0.0.1:{start.port}",
        env=visible_gpus(spec.device) | installed.env,
        ready="/v2/health/ready",
        server={"api": "kserve", "model": models[0]} if len(models) == 1 else {"api": "kserve"},
        milestones=(("weights loaded", r"successfully loaded '"), ("listening", r"Started HTTPService at")),
        facts=known_facts(device=spec.device),
        fact_lines=(("server version", r"\| server_version\s+\| ([\d.]+)"),),
    )


def _installed(spec: EngineSpec, folder: Path) -> _Installed:
    if spec.executable or (not spec.python and shutil.which(_NAME)):
        return _Installed(program(spec, _NAME, _INSTALL))
    if spec.python is None:
        raise EngineError(
            "tritonserver is not installed", f"{_INSTALL}, and set `executable` or `python`", "not installed"
        )
    python = interpreter(spec, "pytriton", _INSTALL)
    found = subprocess.run([python, "-c", _WHERE], capture_output=True, text=True, timeout=60, check=False)
    if found.returncode:
        raise EngineError(f"pytriton does not work: {found.stderr.strip()[-200:]}", _INSTALL, "not installed")
    package, packages, libraries, version, programs = msgspec.json.decode(found.stdout.splitlines()[-1], type=list[str])
    env = {
        "LD_LIBRARY_PATH": f"{libraries}:{packages}/nvidia_pytriton.libs",  # the backend's libpython before any other
        "PATH": f"{programs}:{os.environ.get('PATH', '')}",
        "PYTHONPATH": packages,
    }
    triton = Path(package) / "tritonserver"
    return _Installed(str(triton / "bin" / _NAME), {"backend-directory": _backends(triton, version, folder)}, env)


def _backends(triton: Path, version: str, folder: Path) -> Path:
    """The folder of backends, with the stub that the python backend runs for this version of Python."""
    if (triton / "backends/python" / _STUB).is_file():
        return triton / "backends"
    stub = triton / "python_backend_stubs" / version / _STUB
    if not stub.is_file():
        raise EngineError(
            f"pytriton has no python backend for Python {version}", "use another `python`", "not installed"
        )
    shutil.copytree(triton / "backends", folder / "backends", dirs_exist_ok=True)
    shutil.copy(stub, folder / "backends/python")
    return folder.resolve() / "backends"


ENGINE = ServerEngine(_launch, _INSTALL)
