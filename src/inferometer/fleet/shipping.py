"""The files that a shard on another machine needs: which settings name them, and what they are called there.

Data files, corpora, tokenizers, tensors, and the certificates of TLS. Names on a hub are resolved here if the hub is not needed any
more afterwards; a dataset of a hub, and an encoding of tiktoken, are fetched by each machine itself.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from inferometer.config.data import Hub, PythonCode
from inferometer.config.schema import TLS, Config
from inferometer.errors import UserError
from inferometer.workload import chat_template, tokenizer
from inferometer.workload.datasets.python_code import rows_file
from inferometer.workload.encodings import files as tokenizer_files

_FOLDER = "files"
_PATHS = ("path", "corpus")
"""Settings of the data that name a file or a folder."""


class ShippedFile(NamedTuple):
    source: Path
    name: str
    """Relative to the shard's folder."""


def files_of(config: Config) -> list[ShippedFile]:
    """Return every file that the shards read. Raises UserError when one cannot be read."""
    found: list[ShippedFile] = []

    def note(source: Path, name: str, wanted: Callable[[Path], bool]) -> None:
        found.extend(ShippedFile(path, f"{name}{part}") for path, part in _contents(source, wanted))

    _changed(config, note, "")
    generated = [data for data in _structs(config.data) if isinstance(data, PythonCode)]
    found += [ShippedFile(path, path.name) for data in generated if (path := rows_file(data)).exists()]
    for file in found:
        if not os.access(file.source, os.R_OK):
            raise UserError(f"{file.source} cannot be read", "check its permissions: the nodes of the cluster need it")
    return found


def moved(config: Config, folder: str) -> Config:
    """Return the config for a shard whose folder, on its own machine, is this one."""
    return _changed(config, lambda source, name, wanted: None, f"{folder}/")


# --- which settings name files ---------------------------------------------------------------------------------------

Note = Callable[[Path, str, Callable[[Path], bool]], None]
"""Called with each file or folder, its name on the other machine, and which files of the folder are needed."""


def _changed(config: Config, note: Note, prefix: str) -> Config:
    numbers = iter(range(1 << 30))

    def move(value: str, wanted: Callable[[Path], bool] = lambda path: True) -> str:
        source = Path(value).expanduser()
        name = f"{_FOLDER}/{next(numbers)}/{source.name or 'root'}"
        note(source, name, wanted)
        return f"{prefix}{name}"

    def change(item: Any) -> Any:
        if isinstance(item, list):
            return [change(each) for each in item]
        if isinstance(item, dict):
            return {key: change(value) for key, value in item.items()}
        if not isinstance(item, msgspec.Struct):
            return item
        changes = {name: change(getattr(item, name)) for name in item.__struct_fields__}
        if not isinstance(item, Hub | PythonCode):
            changes |= {name: move(changes[name]) for name in _PATHS if isinstance(changes.get(name), str)}
        if "fill" in changes:
            changes["fill"] = _moved_fill(changes["fill"], move)
        if isinstance(name := changes.get("tokenizer"), str) and (path := _tokenizer_path(name)) is not None:
            changes["tokenizer"] = _moved_tokenizer(path, move)
        return msgspec.structs.replace(item, **changes)

    tls = {name: move(value) for name in ("ca", "cert", "key") if (value := getattr(config.server.tls, name))}
    server = msgspec.structs.replace(config.server, tls=msgspec.structs.replace(config.server.tls, **tls))
    return msgspec.structs.replace(config, data=change(config.data), server=server)


def _moved_fill(fill: Any, move: Callable[[str], str]) -> Any:
    """Tensors: `@FILE`, alone or by input."""
    if isinstance(fill, dict):
        return {name: _moved_fill(each, move) for name, each in fill.items()}
    return f"@{move(fill[1:])}" if isinstance(fill, str) and fill.startswith("@") else fill


def _tokenizer_path(name: str) -> Path | None:
    """The local folder or file of a tokenizer, also of one from the hub; None: every machine has it, or gets it itself."""
    if name in (tokenizer.BUILTIN_NAME, tokenizer.SERVER) or name.startswith(tokenizer.TIKTOKEN):
        return None
    path = Path(name).expanduser()
    return path if path.exists() else tokenizer.load(name).folder


def _moved_tokenizer(path: Path, move: Callable[[str, Callable[[Path], bool]], str]) -> str:
    """Of the folder, which may be that of a whole model, only the tokenizer's own files and its chat template are needed."""
    folder = path if path.is_dir() else path.parent

    def is_wanted(file: Path) -> bool:
        own = (path.name,) if folder != path else tuple(tokenizer_files.FORMATS)
        return file.parent == folder and any(file.match(pattern) for pattern in (*own, *chat_template.FILES))

    name = move(str(folder), is_wanted)
    return name if folder == path else f"{name}/{path.name}"


def _contents(source: Path, wanted: Callable[[Path], bool]) -> Iterator[tuple[Path, str]]:
    """Each file, and what comes after the name of the source."""
    if not source.is_dir():
        yield source, ""
        return
    for path in sorted(source.rglob("*")):
        if path.is_file() and wanted(path):
            yield path, f"/{path.relative_to(source)}"


def _structs(item: Any) -> Iterator[msgspec.Struct]:
    """The section, and all sections within it."""
    if isinstance(item, msgspec.Struct):
        yield item
        for name in item.__struct_fields__:
            yield from _structs(getattr(item, name))
    elif isinstance(item, list | tuple):
        for each in item:
            yield from _structs(each)


assert set(TLS.__struct_fields__) == {"verify", "ca", "cert", "key"}  # a new file of TLS must be shipped, too
