"""Finds models (in a repository, a model folder, a model file, or built in), and loads them.

    REPOSITORY/MODEL/config.pbtxt (or config.yaml)      optional: the loader completes it
    REPOSITORY/MODEL/VERSION/model.onnx, ...            the newest version is served

A folder without numbered versions is itself a version. Clients reach nothing else: names are single path components.

Loading runs in a thread, so that other models continue. A model that fails to load raises UserError with the reason.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from inferometer.errors import UserError
from inferometer.serve import backends
from inferometer.serve.backends import configured
from inferometer.serve.kserve.messages import ModelConfig
from inferometer.serve.models import configs
from inferometer.serve.models.model import Model
from inferometer.serve.models.types import Loaded, Loader, Loading, reason
from inferometer.serve.offload import in_thread
from inferometer.tensors import TensorSpec, zeros

if TYPE_CHECKING:
    from inferometer.serve.models.registry import Models

_SUFFIXES = {".onnx": "onnxruntime", ".pt": "torch", ".pt2": "torch", ".pth": "torch", ".py": "python"}
_TRANSFORMERS = "config.json"


class ModelSource(msgspec.Struct, frozen=True):
    """Where a model can be found again when it is reloaded."""

    name: str
    path: Path | None = None
    """None if built in."""
    config: str = ""
    """Configuration in protobuf's text format, for a model that is part of the server, with its `loader`. Overrides do
    not apply to it."""
    loader: Loader | None = None


def sources(given: str) -> tuple[list[ModelSource], Path | None]:
    """Return the models that `given` names, and the repository if it is one."""
    if given in backends.BUILTIN:
        return [ModelSource(given)], None
    path = Path(given)
    if path.is_file():
        if path.suffix not in _SUFFIXES:
            remedy = f"the file name must end with one of {', '.join(_SUFFIXES)}"
            raise UserError(f"unknown kind of model file: {path}", remedy)
        folder = path.resolve().parent
        beside = folder.parent.name if folder.name.isdecimal() else folder.name
        return [ModelSource(beside or "model" if path.stem == "model" else path.stem, path)], None
    if not path.is_dir():
        known = ", ".join(sorted([*backends.BUILTIN, backends.SIMULATOR]))
        raise UserError(f"no such model: {given}", f"use a model file, a model folder, a repository, or one of {known}")
    if _is_model(path):
        return [ModelSource(path.resolve().name, path)], None
    found = [ModelSource(name, path / name) for name in listed(path)]
    if not found:
        remedy = "a model folder contains a config.pbtxt, a model file, or numbered version folders"
        raise UserError(f"{given} is neither a model nor a model repository", remedy)
    return found, path


def listed(repository: Path) -> list[str]:
    """Return the names of a repository's models; none if the repository is gone."""
    folders = [path for path in repository.glob("*") if is_name(path.name) and path.is_dir()]
    return sorted(path.name for path in folders if _is_model(path))


def is_name(name: str) -> bool:
    """Whether this is a single path component that clients can send."""
    return name.isprintable() and name[:1] not in ("", ".") and "/" not in name and "\\" not in name


def _is_model(folder: Path) -> bool:
    names = {path.name for path in folder.glob("*")}
    known = {*configs.FILES, _TRANSFORMERS, *(f"model{suffix}" for suffix in _SUFFIXES)}
    return bool(names & known) or any(name.isdecimal() for name in names)


def define(source: ModelSource, config_json: str = "", overrides: Sequence[str] = ()) -> Loading:
    """Return the model's current definition, with `config_json` instead of the configuration file if given."""
    name, path = source.name, source.path
    if config_json:
        with configs.explained("the configuration"):
            config = configs.from_tree(json.loads(config_json))
    elif path is None:
        config = configs.from_pbtxt(source.config or backends.BUILTIN[name])
    else:
        files = [path / each for each in configs.FILES if (path / each).is_file()]
        config = configs.read(files[0]) if files else ModelConfig()
    config.name = name
    if source.loader is not None:
        return Loading(name, config, backend=config.backend, loader=source.loader)
    configs.override(config, *overrides)
    backend = backends.backend_of(config)
    if path is None:
        return Loading(name, config, backend=backend)
    if path.is_file():
        path = path.resolve()
        return Loading(name, config, path.parent, path, backend=backend or _SUFFIXES[path.suffix])
    versions = {int(each.name): each for each in path.iterdir() if each.name.isdecimal() and each.is_dir()}
    wanted = sorted(config.version_policy.specific.versions)
    newest = max((version for version in versions if version in (wanted or versions)), default=1)
    if wanted and newest not in wanted:
        what = f"{path} contains none of the versions {wanted} of its version_policy"
        raise UserError(what, f"name one that exists: {sorted(versions)}")
    folder = versions.get(newest, path)
    backend, file = _backend(folder, backend, config.default_model_filename)
    named = {each.name: _named(path, each.label_filename) for each in config.output if each.label_filename}
    labels = {output: tuple(map(str.strip, text.read_text("utf-8").splitlines())) for output, text in named.items()}
    return Loading(name, config, folder, file, version=str(newest), backend=backend, labels=labels)


def _backend(folder: Path, backend: str, name: str) -> tuple[str, Path | None]:
    """Return the backend and the model's file: the configured ones, or else those of model.* or of the only file that
    the backend can load."""
    paths = [path for path in sorted(folder.iterdir()) if path.suffix in _SUFFIXES]
    files = [path for path in paths if backend in ("", _SUFFIXES[path.suffix])]
    files = [path for path in files if path.suffix != ".pth"] or files  # beside a model, it has its weights
    found = [_named(folder, name)] if name else [path for path in files if path.stem == "model"][:1]
    if not found and not backend and (folder / _TRANSFORMERS).is_file():
        return "transformers", None
    found = found or files
    file = found[0] if len(found) == 1 else None
    backend = backend or (_SUFFIXES.get(file.suffix, "") if file else "")
    if not backend:
        remedy = "name its file model.onnx, model.pt or model.py, or set backend in config.pbtxt to one of "
        raise UserError(f"{folder}: cannot tell which backend this model needs", remedy + ", ".join(backends.LOADERS))
    return backend, file


def _named(folder: Path, name: str) -> Path:
    """Return a file that a configuration names. A client may send the configuration, so it must not reach other files."""
    if not is_name(name) or not (folder / name).is_file():
        raise UserError(f"{name!r:.200} is not a file in {folder}", "correct the name in the configuration")
    return folder / name


def wants_process(definition: Loading, is_shared: bool) -> bool:
    """Whether a model runs in a process of its own: if its parameter `process` is 1 or, unless it is 0, if several front
    ends share the model and its backend loads weights."""
    default = is_shared and definition.backend in backends.EXTRAS
    return definition.loader is None and configured.whole(definition, "process", int(default)) > 0


async def bring_up(definition: Loading, models: "Models") -> Model:
    """Load all instances of a model."""
    config, backend = definition.config, definition.backend
    loaded: list[Loaded] = []
    try:
        for i, device in enumerate(configs.devices(config, models.device)):
            instance = msgspec.structs.replace(definition, device=device, instance=i)
            loaded.append(await in_thread(_load, instance))
        _complete(definition, models.device)
        loaded[0].labels = {**loaded[0].labels, **definition.labels}
        platform = config.platform or backends.PLATFORMS.get(backend, backend)
        return Model(models, config, definition.version, platform, loaded)
    except BaseException:
        for each in loaded:
            each.close()
        raise


def _load(definition: Loading) -> Loaded:
    """Load and warm up an instance."""
    name, config = definition.name, definition.config
    try:
        loaded = (definition.loader or backends.loader(definition.backend))(definition)
        inputs, _ = configs.specs(config)
    except ImportError as error:
        raise backends.missing(definition.backend, error) from None
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(f"model {name} failed to load: {reason(error).message}") from None
    try:
        if definition.parameter("warmup", "1") != "0":
            _warm_up(loaded, inputs.values())
    except (Exception, SystemExit) as error:
        loaded.close()
        what = f"model {name} failed its warm-up: {reason(error).message}"
        raise UserError(what, "parameters.warmup=0 disables the warm-up") from None
    return loaded


def _warm_up(loaded: Loaded, specs: Iterable[TensorSpec]) -> None:
    """Run one row of zeros; the first response of a stream is enough. Skipped for models that need a text, because
    valid text is unknown, and for models that run in the loop, which have nothing to warm up."""
    needed = [spec for spec in specs if spec.datatype != "BYTES" or not spec.optional]
    if loaded.run is None or not needed or any(spec.datatype == "BYTES" for spec in needed):
        return
    sizes = [(spec.name, spec.datatype, [1 if size < 0 else size for size in spec.shape]) for spec in needed]
    try:
        made = loaded.run({size[0]: zeros(*size) for size in sizes}, {})
        if not isinstance(made, dict):
            next(iter(made), None)
    except Exception as error:
        if reason(error).code != "INVALID_ARGUMENT":  # refusing zeros is a valid response
            raise


def _complete(definition: Loading, device: str) -> None:
    """Add the defaults that Triton's configurations contain."""
    config = definition.config
    config.backend = config.backend or definition.backend
    if not config.instance_group:
        config.instance_group.add(kind="KIND_GPU" if device.startswith("cuda") else "KIND_CPU", name=definition.name)
    for i, group in enumerate(config.instance_group):
        group.name, group.count = group.name or f"{definition.name}_{i}", group.count or 1
    if not config.version_policy.WhichOneof("policy_choice"):
        config.version_policy.latest.num_versions = 1
