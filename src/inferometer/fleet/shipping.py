"""The files that a shard on another machine needs, and what they are called there: the encoded requests, the certificates of TLS, and the
tokenizer that counts the tokens of responses. An encoding of tiktoken is fetched by each machine itself.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from inferometer.engine.job import Job
from inferometer.errors import UserError
from inferometer.workload import chat_template, tokenizer
from inferometer.workload.encodings import files as tokenizer_files

_FOLDER = "files"


class ShippedFile(NamedTuple):
    source: Path | int
    """A file without a name is an open descriptor."""
    name: str
    """Relative to the shard's folder."""

    @property
    def size(self) -> int:
        return os.stat(self.source).st_size  # noqa: PTH116 - a Path has no descriptor

    def pieces(self, size: int) -> Iterator[tuple[int, bytes]]:
        """Yield the file piece by piece, each with where it starts; an empty file has one."""
        opened = os.dup(self.source) if isinstance(self.source, int) else os.open(self.source, os.O_RDONLY)
        try:
            offset = 0
            while (data := os.pread(opened, size, offset)) or not offset:
                yield offset, data
                offset += len(data)
                if len(data) < size:
                    return
        finally:
            os.close(opened)


def files_of(jobs: Sequence[Job]) -> list[ShippedFile]:
    """Return every file that the shards read. Raises UserError when one cannot be read."""
    found: dict[str, ShippedFile] = {}
    for job in jobs:
        _changed(job, lambda file: found.setdefault(file.name, file), "")
    for file in found.values():
        if isinstance(file.source, Path) and not os.access(file.source, os.R_OK):
            raise UserError(f"{file.source} cannot be read", "check its permissions: the nodes of the cluster need it")
    return list(found.values())


def moved(job: Job, folder: str) -> Job:
    """Return the job of a shard whose folder, on its own machine, is this one."""
    return _changed(job, lambda file: None, f"{folder}/")


def _changed(job: Job, note: Callable[[ShippedFile], object], prefix: str) -> Job:
    def move(source: Path | int, name: str) -> str:
        note(ShippedFile(source, f"{_FOLDER}/{name}"))
        return f"{prefix}{_FOLDER}/{name}"

    requests, tls, counter = job.requests, job.tls, job.tokenizer
    names = {name: getattr(requests, name) for name in ("tails", "sessions", "numbers")}
    requests = msgspec.structs.replace(requests, **{name: move(file, f"{file}") for name, file in names.items()})
    if tls is not None:
        paths = {name: path for name in ("ca", "cert", "key") if (path := getattr(tls, name))}
        tls = msgspec.structs.replace(
            tls, **{name: move(Path(path).expanduser(), name) for name, path in paths.items()}
        )
    if job.counts_tokens and counter is not None and (path := _tokenizer_path(counter)) is not None:
        counter = _moved_tokenizer(path, move)
    return msgspec.structs.replace(job, requests=requests, tls=tls, tokenizer=counter)


def _tokenizer_path(name: str) -> Path | None:
    """The local folder or file of a tokenizer, also of one from the hub; None: every machine has it, or gets it itself."""
    if name == tokenizer.BUILTIN_NAME or name.startswith(tokenizer.TIKTOKEN):
        return None
    path = Path(name).expanduser()
    return path if path.exists() else tokenizer.load(name).folder


def _moved_tokenizer(path: Path, move: Callable[[Path, str], str]) -> str:
    """Of a folder, which may be that of a whole model, only the tokenizer's own files are needed."""
    if path.is_file():
        return move(path, f"tokenizer/{path.name}")
    for file in sorted(path.iterdir()):
        if file.is_file() and any(file.match(pattern) for pattern in (*tokenizer_files.FORMATS, *chat_template.FILES)):
            there = move(file, f"tokenizer/{file.name}")
    return str(Path(there).parent)
