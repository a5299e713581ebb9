"""Descriptor sets: read from bytes or files, compiled from .proto files, or bundled with the package."""

import functools
import importlib
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from google.protobuf import descriptor_pb2, message

from inferometer.errors import UserError
from inferometer.wire.protobuf.schema import Schema

BUNDLED = Path(__file__).parents[2] / "proto"
"""The folder of the descriptor sets that the build makes."""
_WELL_KNOWN = "google/protobuf/"


def load(
    *sources: str | Path | bytes, include: Sequence[str | Path] = (), called: str = "the descriptor set"
) -> Schema:
    """Load a schema from descriptor sets.

    A source is the bytes of a descriptor set (which messages refer to as `called`), a file that contains one, or a .proto
    file, which is compiled.
    """
    files: dict[str, descriptor_pb2.FileDescriptorProto] = {}
    for source in sources:
        for file in _files(source, include, called):
            if files.setdefault(file.name, file) != file:
                raise UserError(
                    f"two descriptor sets contain different files named {file.name}", "load only one of them"
                )
    return Schema(_in_import_order(files))


@functools.cache
def bundled(name: str) -> Schema:
    """Load a schema that Inferometer includes: kserve, reflection, reflection_v1alpha or health."""
    return load(BUNDLED / f"{name}.binpb")


def _files(
    source: str | Path | bytes, include: Sequence[str | Path], called: str
) -> Sequence[descriptor_pb2.FileDescriptorProto]:
    shown = called if isinstance(source, bytes) else str(source)
    if isinstance(source, bytes):
        data = source
    elif Path(source).suffix == ".proto":
        data = compile(source, include)
    else:
        data = _read(Path(source))
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(data).file
    except message.DecodeError:
        files = None
    if not files or not all(file.name for file in files):
        raise UserError(
            f"{shown} is not a descriptor set",
            "give a .proto file, or make a set with protoc --include_imports --descriptor_set_out=FILE",
        )
    return files


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}", "check the path") from None


# --- imports ---------------------------------------------------------------------------------------------------------


def _in_import_order(files: dict[str, descriptor_pb2.FileDescriptorProto]) -> list[descriptor_pb2.FileDescriptorProto]:
    """Sort the files so that each follows those that it imports, which is the order a descriptor pool requires."""
    ordered: dict[str, descriptor_pb2.FileDescriptorProto] = {}
    pending = list(reversed(files.values()))
    entered: set[str] = set()
    while pending:
        file = pending[-1]
        missing = [name for name in file.dependency if name not in ordered]
        if file.name in ordered or not missing:
            ordered.setdefault(file.name, pending.pop())
        elif file.name in entered:
            raise UserError(f"{file.name} imports itself through {missing[0]}")
        else:
            entered.add(file.name)
            pending += [_imported(name, file.name, files) for name in missing]
    return list(ordered.values())


def _imported(
    name: str, importer: str, files: dict[str, descriptor_pb2.FileDescriptorProto]
) -> descriptor_pb2.FileDescriptorProto:
    if name in files:
        return files[name]
    if name.startswith(_WELL_KNOWN):
        try:  # the protobuf library includes these files; sets made by other tools often leave them out
            module = importlib.import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
            return descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
        except ImportError:
            pass
    raise UserError(
        f"the descriptor set contains {importer} but not {name}, which it imports",
        "make the set with protoc --include_imports",
    )


# --- .proto files ----------------------------------------------------------------------------------------------------


def compile(proto: str | Path, include: Sequence[str | Path] = ()) -> bytes:
    """Compile a .proto file and its imports to a descriptor set.

    Imports are searched in `include`, then in the folder of the file.
    """
    path = Path(proto)
    if not path.is_file():
        raise UserError(f"{path}: there is no such file", "check the path of the .proto file")
    try:
        from grpc_tools import protoc  # type: ignore[import-untyped] # noqa: PLC0415 - an extra
    except ImportError:
        raise UserError(
            f"{path}: compiling a .proto file needs grpcio-tools, which is not installed",
            "run pip install 'inferometer[proto]', or give a descriptor set made by protoc",
        ) from None
    folders = [*map(Path, include), path.parent, Path(protoc.__file__).parent / "_proto"]
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch, "set.binpb")
        options = [*(f"-I{folder.absolute()}" for folder in folders), "--include_imports"]
        with _stderr_into(Path(scratch, "errors")) as errors:
            failed = protoc.main(["protoc", *options, f"--descriptor_set_out={output}", str(path.absolute())])
        if failed:
            raise _compile_error(path, errors.read_text("utf-8", "replace"))
        return output.read_bytes()


@contextmanager
def _stderr_into(path: Path) -> Iterator[Path]:
    """Redirect stderr to a file: protoc runs in this process and reports its errors only there."""
    sys.stderr.flush()
    original = os.dup(2)
    try:
        with path.open("wb") as file:
            os.dup2(file.fileno(), 2)
        yield path
    finally:
        os.dup2(original, 2)
        os.close(original)


def _compile_error(path: Path, output: str) -> UserError:
    errors = [line for line in output.splitlines() if line.strip() and "warning:" not in line]
    what = "; ".join(line.removeprefix(f"{path.absolute().parent}{os.sep}") for line in errors[:3])
    if "File not found" in output or "was not found" in output:
        return UserError(f"{path} does not compile: {what}", "name the folder that its imports are relative to")
    return UserError(f"{path} does not compile: {what or 'protoc gave no reason'}", "fix the .proto file")
