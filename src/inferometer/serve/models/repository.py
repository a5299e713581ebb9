"""Finds models: in a repository, a model folder, a model file, or built in.

    REPOSITORY/MODEL/config.pbtxt (or config.yaml)      optional: the loader completes it
    REPOSITORY/MODEL/VERSION/model.onnx, ...            the newest version is served

A folder without numbered versions is itself a version. Nothing outside a repository can be reached: names are single
path components, and links that leave it are refused.
"""

import os
from pathlib import Path
from typing import Any

import msgspec

from inferometer.errors import UserError
from inferometer.serve import backends
from inferometer.serve.kserve.messages import ModelConfig
from inferometer.serve.models import configs
from inferometer.serve.models.types import Loader, sendable

_SUFFIXES = {".onnx": "onnxruntime", ".pt": "torch", ".pt2": "torch", ".py": "python"}
_TRANSFORMERS = "config.json"
_SHOWN = 200


class ModelSource(msgspec.Struct, frozen=True):
    """Where a model can be found again when it is reloaded."""

    name: str
    path: Path | None = None
    """None if built in."""
    root: Path | None = None
    """The repository that it must not leave; None if the path was given by itself."""
    config: str = ""
    """Configuration in protobuf's text format, for a model that is part of the server, with its `loader`."""
    loader: Loader | None = None


class Definition(msgspec.Struct, frozen=True):
    """A model as found on disk."""

    name: str
    version: str
    config: Any
    backend: str
    folder: Path | None = None
    file: Path | None = None
    labels: dict[str, tuple[str, ...]] = {}
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
        raise UserError(
            f"no such model: {given}",
            f"use a model file, a model folder, a repository, or one of {', '.join(sorted([*backends.BUILTIN, backends.SIMULATOR]))}",
        )
    if _is_model(path):
        return [ModelSource(path.resolve().name, path)], None
    found = [ModelSource(name, path / name, path) for name in _names(path)]
    if not found:
        raise UserError(
            f"{given} is neither a model nor a model repository",
            "a model folder contains a config.pbtxt, a model file, or numbered version folders",
        )
    return found, path


def listed(repository: Path) -> list[str]:
    """Return the names of a repository's models, in a form that can be sent."""
    return [sendable(name) for name in _names(repository)]


def _names(repository: Path) -> list[str]:
    return sorted(
        path.name for path in repository.iterdir() if is_name(path.name) and path.is_dir() and _is_model(path)
    )


def is_name(name: str) -> bool:
    """Whether this is a single path component."""
    return bool(name) and not name.startswith(".") and not any(sign in name for sign in ("/", "\\", "\0"))


def _file_source(path: Path) -> ModelSource:
    if path.suffix not in _SUFFIXES:
        raise UserError(
            f"unknown kind of model file: {path}", f"the file name must end with one of {', '.join(_SUFFIXES)}"
        )
    name = path.stem
    if name == "model":
        folder = path.resolve().parent
        name = folder.parent.name if folder.name.isdecimal() else folder.name
    return ModelSource(name or "model", path)


def _is_model(folder: Path) -> bool:
    try:
        names = {path.name for path in folder.iterdir()}
    except OSError:  # loading it reports why it cannot be read
        return True
    return bool(
        names & {*configs.FILES, _TRANSFORMERS}
        or any(name.isdecimal() for name in names)
        or any(Path(name).suffix in _SUFFIXES and Path(name).stem == "model" for name in names)
    )


# --- definitions -----------------------------------------------------------------------------------------------------


def define(source: ModelSource, config_json: str = "") -> Definition:
    """Return the model's current definition, with `config_json` instead of the configuration file if given."""
    given = configs.from_json(config_json) if config_json else None
    if source.path is None:
        config = given or configs.from_pbtxt(source.config or backends.BUILTIN[source.name])
        config.name = source.name
        backend = config.backend if source.loader else backends.backend_of(config)
        return Definition(source.name, "1", config, backend, loader=source.loader)
    if source.name != sendable(source.name):
        raise UserError(f"the name of {source.path} is not valid UTF-8, so no client could request it", "rename it")
    if not source.path.exists():
        raise UserError(f"{source.path} no longer exists")
    if source.path.is_file():
        return _of_file(source, given)
    _check_inside(source)
    config = given or _config(source.path)
    if config.name not in ("", source.name):
        raise UserError(
            f"{source.path}: the name in its configuration, {config.name}, is not that of its folder",
            "remove the name, or make it equal to the folder's",
        )
    config.name = source.name
    version, folder = _newest(source.path, config)
    backend = backends.backend_of(config) or _guess(folder)
    file = _model_file(folder, backend, config)
    return Definition(source.name, version, config, backend, folder, file, _labels(source.path, config))


def _of_file(source: ModelSource, given: Any) -> Definition:
    assert source.path is not None
    path = source.path.resolve()
    config = given or ModelConfig()
    config.name = source.name
    backend = backends.backend_of(config) or _SUFFIXES[path.suffix]
    return Definition(source.name, "1", config, backend, path.parent, path)


def _config(folder: Path) -> Any:
    for name in configs.FILES:
        if (folder / name).is_file():
            return configs.read(folder / name)
    return ModelConfig()


def _newest(folder: Path, config: Any) -> tuple[str, Path]:
    versions = {
        int(path.name): path
        for path in folder.iterdir()
        if path.name.isascii() and path.name.isdecimal() and path.is_dir()
    }
    wanted = set(config.version_policy.specific.versions)
    if wanted:
        versions = {number: path for number, path in versions.items() if number in wanted}
        if not versions:
            raise UserError(f"{folder} contains none of the versions {sorted(wanted)} of its version_policy")
    if not versions:
        return "1", folder
    newest = max(versions)
    return str(newest), versions[newest]


def _guess(folder: Path) -> str:
    for path in sorted(folder.iterdir()):
        if path.suffix in _SUFFIXES and path.stem == "model":
            return _SUFFIXES[path.suffix]
    if (folder / _TRANSFORMERS).is_file():
        return "transformers"
    found = {_SUFFIXES[path.suffix] for path in folder.iterdir() if path.suffix in _SUFFIXES}
    if len(found) == 1:
        return found.pop()
    raise UserError(
        f"{folder}: cannot tell which backend this model needs",
        f"name its file model.onnx, model.pt or model.py, or set backend in config.pbtxt to one of {', '.join(backends.LOADERS)}",
    )


def _model_file(folder: Path, backend: str, config: Any) -> Path | None:
    """Return the file with its usual name, the configured name, or the only file of the backend's kind."""
    if config.default_model_filename:
        if not is_name(config.default_model_filename):
            raise UserError(
                f"default_model_filename {config.default_model_filename!r:.{_SHOWN}} must be a plain file name"
            )
        file: Path = folder / config.default_model_filename
        if not file.is_file():
            raise UserError(f"{file} does not exist", "correct default_model_filename in the configuration")
        return file
    suffixes = [suffix for suffix, name in _SUFFIXES.items() if name == backend]
    if backend == "torch":
        suffixes.append(".py")
    for suffix in suffixes:
        if (folder / f"model{suffix}").is_file():
            return folder / f"model{suffix}"
    found = [path for path in folder.iterdir() if path.suffix in suffixes and path.is_file()]
    return found[0] if len(found) == 1 else None


def _labels(folder: Path, config: Any) -> dict[str, tuple[str, ...]]:
    labels: dict[str, tuple[str, ...]] = {}
    for output in config.output:
        if not output.label_filename:
            continue
        file = folder / output.label_filename
        if Path(output.label_filename).is_absolute() or not file.resolve().is_relative_to(folder.resolve()):
            raise UserError(f"label_filename {output.label_filename!r:.{_SHOWN}} must be inside {folder}")
        try:
            if file.exists() and not file.is_file():
                raise UserError(
                    f"the label file {file} is not a regular file",
                    "label_filename names a text file with one line per class",
                )
            labels[output.name] = tuple(line.strip() for line in file.read_text(encoding="utf-8").splitlines())
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"cannot read the label file {file}: {error}") from None
    return labels


def _check_inside(source: ModelSource) -> None:
    """Raise UserError if a link in a repository's model leads out of the repository."""
    if source.root is None or source.path is None:
        return
    root, seen = source.root.resolve(), set[Path]()
    for folder, folders, files in os.walk(source.path, followlinks=True):
        for path in (Path(folder), *(Path(folder, name) for name in (*folders, *files))):
            if path.is_symlink() and not path.resolve().is_relative_to(root):
                raise UserError(
                    f"{path} is a link to a target outside the repository {source.root}", "copy the file instead"
                )
        there = {name: Path(folder, name).resolve() for name in folders}
        folders[:] = [name for name, place in there.items() if place not in seen]  # links may form cycles
        seen.update(there.values())
