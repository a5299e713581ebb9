"""Finds models (in a repository, a model folder, a model file, or built in), and loads them.

    REPOSITORY/MODEL/config.pbtxt (or config.yaml)      optional: the loader completes it
    REPOSITORY/MODEL/VERSION/model.onnx, ...            the newest version is served

A folder without numbered versions is itself a version. Clients reach nothing else: names are single path components.

Loading runs in a thread, so that other models continue. A model that fails to load raises UserError with the reason.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from inferometer.errors import UserError
from inferometer.serve import backends
from inferometer.serve.kserve.messages import ModelConfig
from inferometer.serve.models import configs
from inferometer.serve.models.model import Model
from inferometer.serve.models.types import Loaded, Loader, Loading, reason, sendable
from inferometer.serve.offload import in_thread
from inferometer.tensors import TensorSpec, zeros

if TYPE_CHECKING:
    from inferometer.serve.models.registry import Models

_SUFFIXES = {".onnx": "onnxruntime", ".pt": "torch", ".pt2": "torch", ".py": "python"}
_TRANSFORMERS = "config.json"
_SHOWN = 200


class ModelSource(msgspec.Struct, frozen=True):
    """Where a model can be found again when it is reloaded."""

    name: str
    path: Path | None = None
    """None if built in."""
    config: str = ""
    """Configuration in protobuf's text format, for a model that is part of the server, with its `loader`. Overrides do
    not apply to it."""
    loader: Loader | None = None


class Definition(Loading, frozen=True):
    """A model as found on disk."""

    version: str = "1"
    backend: str = ""
    labels: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    loader: Loader | None = None
    """None for the backend's loader."""


# --- sources ---------------------------------------------------------------------------------------------------------


def sources(given: str) -> tuple[list[ModelSource], Path | None]:
    """Return the models that `given` names, and the repository if it is one."""
    if given in backends.BUILTIN:
        return [ModelSource(given)], None
    path = Path(given)
    if path.is_file():
        return [_file_source(path)], None
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
    try:
        folders = [path for path in repository.iterdir() if is_name(path.name) and path.is_dir()]
    except OSError:
        return []
    return sorted(path.name for path in folders if _is_model(path))


def is_name(name: str) -> bool:
    """Whether this is a single path component that clients can send."""
    is_plain = not name.startswith(".") and not any(sign in name for sign in ("/", "\\", "\0"))
    return bool(name) and is_plain and sendable(name) == name


def _file_source(path: Path) -> ModelSource:
    if path.suffix not in _SUFFIXES:
        remedy = f"the file name must end with one of {', '.join(_SUFFIXES)}"
        raise UserError(f"unknown kind of model file: {path}", remedy)
    folder = path.resolve().parent
    beside = folder.parent.name if folder.name.isdecimal() else folder.name
    return ModelSource(beside or "model" if path.stem == "model" else path.stem, path)


def _is_model(folder: Path) -> bool:
    try:
        names = {path.name for path in folder.iterdir()}
    except OSError:  # loading it reports why it cannot be read
        return True
    known = {*configs.FILES, _TRANSFORMERS, *(f"model{suffix}" for suffix in _SUFFIXES)}
    return bool(names & known) or any(name.isdecimal() for name in names)


# --- definitions -----------------------------------------------------------------------------------------------------


def define(source: ModelSource, config_json: str = "") -> Definition:
    """Return the model's current definition, with `config_json` instead of the configuration file if given."""
    name, path = source.name, source.path
    config = configs.from_json(config_json) if config_json else None
    if path is None:
        config = config or configs.from_pbtxt(source.config or backends.BUILTIN[name])
        config.name = name
        backend = config.backend if source.loader else backends.backend_of(config)
        return Definition(name, config, backend=backend, loader=source.loader)
    if not path.exists():
        raise UserError(f"{path} no longer exists")
    if path.is_file():
        path, config = path.resolve(), config or ModelConfig()
        config.name = name
        backend = backends.backend_of(config) or _SUFFIXES[path.suffix]
        return Definition(name, config, path.parent, path, backend=backend)
    file = next((path / each for each in configs.FILES if (path / each).is_file()), None)
    config = config or (configs.read(file) if file else ModelConfig())
    if config.name not in ("", name):
        what = f"{path}: the name in its configuration, {config.name}, is not that of its folder"
        raise UserError(what, "remove the name, or make it equal to the folder's")
    config.name = name
    version, folder = _newest(path, config)
    backend, file = _backend(folder, config)
    labels = _labels(path, config)
    return Definition(name, config, folder, file, version=version, backend=backend, labels=labels)


def _newest(folder: Path, config: Any) -> tuple[str, Path]:
    numbered = [each for each in folder.iterdir() if each.name.isascii() and each.name.isdecimal() and each.is_dir()]
    wanted = set(config.version_policy.specific.versions)
    versions = {int(each.name): each for each in numbered if not wanted or int(each.name) in wanted}
    if wanted and not versions:
        raise UserError(f"{folder} contains none of the versions {sorted(wanted)} of its version_policy")
    newest = max(versions, default=1)
    return str(newest), versions.get(newest, folder)


def _backend(folder: Path, config: Any) -> tuple[str, Path | None]:
    """Return the backend and the model's file: the configured ones, or else those of model.* or of the only file that
    the backend can load."""
    backend, name = backends.backend_of(config), config.default_model_filename
    if name and (not is_name(name) or not (folder / name).is_file()):
        raise UserError(f"default_model_filename {name!r:.{_SHOWN}} is not a file in {folder}", "correct the name")
    kinds = {path: _SUFFIXES.get(path.suffix, "") for path in sorted(folder.iterdir())}
    files = [path for path, kind in kinds.items() if kind and backend in ("", kind)]
    found = [folder / name] if name else [path for path in files if path.stem == "model"][:1]
    if not found and not backend and (folder / _TRANSFORMERS).is_file():
        return "transformers", None
    found = found or files
    if backend:
        return backend, found[0] if len(found) == 1 else None
    if len(found) == 1 and kinds[found[0]]:
        return kinds[found[0]], found[0]
    remedy = "name its file model.onnx, model.pt or model.py, or set backend in config.pbtxt to one of "
    raise UserError(f"{folder}: cannot tell which backend this model needs", remedy + ", ".join(backends.LOADERS))


def _labels(folder: Path, config: Any) -> dict[str, tuple[str, ...]]:
    labels: dict[str, tuple[str, ...]] = {}
    for output in [each for each in config.output if each.label_filename]:
        name, file = output.label_filename, folder / output.label_filename
        if not file.resolve().is_relative_to(folder.resolve()):  # a client's configuration must not read other files
            raise UserError(f"label_filename {name!r:.{_SHOWN}} must be inside {folder}")
        try:
            labels[output.name] = tuple(line.strip() for line in file.read_text(encoding="utf-8").splitlines())
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"cannot read the label file {file}: {error}") from None
    return labels


# --- loading ---------------------------------------------------------------------------------------------------------


def wants_process(definition: Definition, is_shared: bool) -> bool:
    """Whether a model runs in a process of its own: if its parameter `process` is 1 or, unless it is 0, if several front
    ends share the model and its backend loads weights."""
    if definition.loader is not None:
        return False
    default = "1" if is_shared and definition.backend in backends.EXTRAS else "0"
    wanted = definition.parameter("process", default)
    if wanted not in ("0", "1"):
        raise UserError(f"model {definition.name}: parameter process must be 1 or 0 (got {wanted!r:.60})")
    return wanted == "1"


async def bring_up(definition: Definition, models: "Models") -> Model:
    name, config = definition.name, definition.config
    if config.max_batch_size < 0:
        raise UserError(f"model {name}: max_batch_size must be at least 0 (got {config.max_batch_size})")
    loaded: list[Loaded] = []
    try:
        for i, device in enumerate(configs.devices(config, models.device)):
            instance = msgspec.structs.replace(definition, device=device, instance=i)
            loaded.append(await in_thread(_load, instance))
        _complete(definition, config, models.device)
        platform = config.platform or backends.PLATFORMS.get(definition.backend, definition.backend)
        loaded[0].labels = {**loaded[0].labels, **definition.labels}
        return Model(models, config, definition.version, platform, loaded)
    except BaseException:
        for each in loaded:
            each.close()
        raise


def _load(definition: Definition) -> Loaded:
    """Load and warm up an instance."""
    name, config = definition.name, definition.config
    try:
        loaded = (definition.loader or backends.loader(definition.backend))(definition)
        inputs = configs.facts(config).inputs
    except ImportError as error:
        raise backends.missing(definition.backend, error) from None
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(f"model {name} failed to load: {reason(error).message}") from None
    try:
        if definition.parameter("warmup", "1") != "0":
            _warm_up(loaded, inputs)
    except (Exception, SystemExit) as error:
        loaded.close()
        what = f"model {name} failed its warm-up: {reason(error).message}"
        raise UserError(what, "parameters.warmup=0 disables the warm-up") from None
    return loaded


def _warm_up(loaded: Loaded, specs: Sequence[TensorSpec]) -> None:
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
            if close := getattr(made, "close", None):
                close()
    except Exception as error:
        if reason(error).code != "INVALID_ARGUMENT":  # refusing zeros is a valid response
            raise


def _complete(definition: Definition, config: Any, device: str) -> None:
    """Add the defaults that Triton's configurations contain."""
    config.name = definition.name
    config.backend = config.backend or definition.backend
    if not config.instance_group:
        config.instance_group.add(kind="KIND_GPU" if device.startswith("cuda") else "KIND_CPU", name=definition.name)
    for i, group in enumerate(config.instance_group):
        group.name = group.name or f"{definition.name}_{i}"
        group.count = group.count or 1
    if not config.version_policy.WhichOneof("policy_choice"):
        config.version_policy.latest.num_versions = 1
