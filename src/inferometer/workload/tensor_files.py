"""Reads tensors from a file: numpy's .npy and .npz, and what perf_analyzer's --input-data accepts, a JSON file or a folder.

    {"data": [{"INPUT0": [1, 2, 3], "INPUT1": {"content": [4, 5], "shape": [2]}, "INPUT2": {"b64": "..."}}, ...]}

JSON: each entry of `data` is a request. A list of entries is a stream: a sequence, or requests to send one after the other.
If there is no such list, all entries form one stream; if there are some, an entry outside of them is its own stream. An entry may
leave out optional inputs. Beside base64, `"datatype": "FP64"` names that of the data, if it is not the model's. `validation_data` has the outputs that the response to each entry must have, in the same form.

Folder: one request, with a file for each input, named like the input. It holds raw numbers in the byte order of the
protocol or, for BYTES, one string per line.

In both, as with perf_analyzer, tensors have no batch dimension: a batch is made of consecutive entries. An .npy or .npz
file holds one request, including its batch dimension.
"""

import base64
import binascii
import io
import json
import math
from collections.abc import Sequence
from functools import cache, partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer import tensors
from inferometer.config.data import TensorInput, Tensors
from inferometer.errors import UserError
from inferometer.tensors import Tensor, TensorSpec
from inferometer.workload import image_tensors, input_files

Payload = tuple[Tensor, ...]
Entry = dict[str, Any]
_Input = tuple[str, str, tuple[int, ...], bool]
"""Name, datatype and shape of an input, and whether it is optional: a key of caches."""


@cache
def read(path: str) -> bytes:
    """The content of the file, read once."""
    try:
        return Path(path).expanduser().read_bytes()
    except OSError as error:
        raise UserError(f"data.fill: {path}: {error.strerror}", "give @FILE: .npy, .npz or JSON") from None


def content(path: str) -> bytes:
    """The content of the file, or of all files in the folder."""
    folder = Path(path).expanduser()
    if not folder.is_dir():
        return read(path)
    return b"".join(
        b"%b\0%b" % (one.name.encode(), one.read_bytes()) for one in sorted(folder.iterdir()) if one.is_file()
    )


def payloads(spec: Tensors) -> list[Payload]:
    """All requests in the file."""
    path = spec.file
    assert path is not None
    inputs = tuple((one.name, one.datatype, tuple(one.shape), one.optional) for one in spec.inputs)
    return _payloads(path, inputs, spec.batch)


def tensors_of(path: str, one: TensorInput, batch: int) -> list[Tensor]:
    """The tensors of one input in a file of its own, one per request: a JSON file may have several.

    If the shape of the input has open sizes, a file of raw data has the shape that fits.
    """
    return _tensors_of(path, (one.name, one.datatype, tuple(one.shape), False), batch)


@cache
def _tensors_of(path: str, given: _Input, batch: int) -> list[Tensor]:
    name, datatype, shape, _ = given
    key, spec = f"data.fill.{name}", TensorSpec(name, datatype, shape)
    if path.endswith((".json", ".npz")):
        return [payload[0] for payload in _payloads(path, (given,), batch)]
    data = input_files.read_bytes(path, key)
    if path.lower().endswith(image_tensors.SUFFIXES) and datatype != "BYTES":
        return [image_tensors.to_tensor([path], spec)[0]]
    try:
        return [input_files.from_file(path, data, spec, None if -1 in shape else shape)]
    except UserError as error:
        raise UserError(f"{path}: {error.what}", error.remedy, key) from None


@cache
def _payloads(path: str, inputs: tuple[_Input, ...], batch: int) -> list[Payload]:
    specs = [TensorInput(name, datatype, list(shape), optional) for name, datatype, shape, optional in inputs]
    if path.endswith((".npy", ".npz")):
        return [_from_arrays(path, specs)]
    if Path(path).expanduser().is_dir():
        return [_request(path, [_from_folder(path, specs)], 0, specs, batch)]
    entries = _entries(path)
    return [_request(path, entries, first, specs, batch) for first in range(0, len(entries), batch)]


def names(path: str) -> set[str]:
    """The inputs that the file has tensors for. An .npy file does not name its input."""
    if path.endswith(".npy"):
        return set()
    if path.endswith(".npz"):
        return set(_arrays(path, ()))
    folder = Path(path).expanduser()
    if folder.is_dir():
        return {one.name for one in folder.iterdir()}
    return {name for entry in _entries(path) for name in entry}


def streams(path: str) -> list[range]:
    """The indices of the entries of each stream in a JSON file; empty for other files."""
    if path.endswith((".npy", ".npz")) or Path(path).expanduser().is_dir():
        return []
    lengths = [len(stream) for stream in _parsed(path)]
    return [range(end - length, end) for end, length in zip(accumulate(lengths), lengths, strict=True)]


@cache
def _entries(path: str) -> list[Entry]:
    """The entries of all streams, stream by stream."""
    return [entry for stream in _parsed(path) for entry in stream]


@cache
def _parsed(path: str, key: str = "data") -> list[list[Entry]]:
    try:
        tree = json.loads(read(path), parse_float=partial(_finite, path))
        if key not in tree and key != "data":
            return []
        return _streams(tree[key])
    except (ValueError, KeyError, TypeError):
        raise UserError(
            f"data.fill: {path} is not JSON in the format of perf_analyzer's --input-data",
            'give {"data": [{"INPUT0": [...]}, ...]}, or an .npy or .npz file',
        ) from None


def _finite(path: str, text: str) -> float:
    """Parse a number; raise UserError instead of returning infinity when it is too large."""
    value = float(text)
    if math.isinf(value):
        raise UserError(
            f"data.fill: {path}: {text:.60} does not fit into any datatype", "write Infinity if you mean it"
        )
    return value


def _streams(data: Any) -> list[list[Entry]]:
    if not isinstance(data, list):
        raise ValueError
    is_one_stream = not any(isinstance(each, list) for each in data)
    streams = [data] if is_one_stream else [each if isinstance(each, list) else [each] for each in data]
    if not all(streams) or not all(isinstance(entry, dict) for stream in streams for entry in stream):
        raise ValueError
    return streams


def _request(path: str, entries: list[dict[str, Any]], first: int, specs: Sequence[TensorInput], batch: int) -> Payload:
    """`batch` consecutive entries, continuing at the start after the last, stacked if the model takes batches."""
    steps = [(first + j) % len(entries) for j in range(batch)]
    payload = []
    for one in specs:
        if one.optional and not any(one.name in entries[step] for step in steps):
            continue
        parts = [_tensor(path, entries[step], step, one) for step in steps]
        data = b"".join(part.data for part in parts)
        shape = parts[0].shape
        if any(part.shape != shape for part in parts):
            raise UserError(
                f"data.fill: {path}: the shapes of {one.name} differ within a batch",
                "give entries of a batch the same shape",
            )
        has_batch = len(one.shape) == len(shape) + 1
        if batch > 1 and not has_batch:
            raise UserError(f"data.fill: {path}: {one.name} already has a batch dimension", "leave data.batch at 1")
        payload.append(Tensor(one.name, one.datatype, (batch, *shape) if has_batch else shape, data))
    return tuple(payload)


# --- expected outputs ------------------------------------------------------------------------------------------------


def expected_names(path: str) -> set[str]:
    """The outputs that the file has `validation_data` for."""
    is_json = not path.endswith((".npy", ".npz")) and not Path(path).expanduser().is_dir()
    found = {
        name for stream in (_parsed(path, "validation_data") if is_json else ()) for entry in stream for name in entry
    }
    if not found:
        raise UserError(
            f"{path} has no validation_data to compare responses with",
            'add "validation_data": [{"OUTPUT0": [...]}, ...] with an entry for each one of data',
            "data.validate",
        )
    return found


def expected(spec: Tensors) -> list[Payload]:
    """The outputs that the response to each request must have. Their shapes are not known: they are flat."""
    path = spec.file
    assert path is not None
    streams, sent = _parsed(path, "validation_data"), _parsed(path)
    if [len(stream) for stream in streams] != [len(stream) for stream in sent]:
        counts = (sum(map(len, streams)), sum(map(len, sent)))
        raise UserError(
            f"{path}: validation_data has {counts[0]} entries for the {counts[1]} of data, or other sequences",
            "give an entry with the outputs for each entry of data",
            "data.validate",
        )
    entries = [entry for stream in streams for entry in stream]
    made = [_outputs(path, entry, step, spec.outputs) for step, entry in enumerate(entries)]
    batches = [[made[(first + j) % len(made)] for j in range(spec.batch)] for first in range(0, len(made), spec.batch)]
    return [_joined(batch) for batch in batches]


def _outputs(path: str, entry: Entry, step: int, outputs: Sequence[TensorInput]) -> dict[str, Tensor]:
    found = {}
    for one in outputs:
        if one.name in entry:
            value = entry[one.name]
            content = value["content"] if isinstance(value, dict) and "content" in value else value
            count = len(content) if isinstance(content, list) else -1
            spec = TensorInput(one.name, one.datatype, [count])
            found[one.name] = _expected_tensor(f"data.fill: {path}, validation_data {step}", content, spec)
    return found


def _expected_tensor(where: str, content: Any, spec: TensorInput) -> Tensor:
    try:
        if isinstance(content, dict):
            data = base64.b64decode(content["b64"], validate=True)
            size = tensors.datatype_of(spec.name, spec.datatype).size
            count = len(data) // size if size else tensors.count_bytes(data)
            return Tensor(spec.name, spec.datatype, (count,), data)
        return tensors.from_json(spec.name, spec.datatype, spec.shape, content)
    except UserError as error:
        raise UserError(f"{where}: {error.what}", error.remedy or "give values of the output's datatype") from None
    except (KeyError, TypeError, ValueError, binascii.Error):
        raise UserError(
            f"{where}: {spec.name} is neither a list nor base64", 'write [1, 2] or {"b64": "..."}'
        ) from None


def _joined(batch: list[dict[str, Tensor]]) -> Payload:
    """The outputs of a batch, one entry after the other; only those that every entry has."""
    names = [name for name in batch[0] if all(name in one for one in batch)]
    joined = []
    for name in names:
        parts = [one[name] for one in batch]
        data = b"".join(part.data for part in parts)
        joined.append(Tensor(name, parts[0].datatype, (sum(part.shape[0] for part in parts),), data))
    return tuple(joined)


# --- one tensor ------------------------------------------------------------------------------------------------------

_GIVE_SHAPE = 'give its shape in data.shape, or beside the data: {"content": [...], "shape": [...]}'


def _tensor(path: str, entry: dict[str, Any], step: int, spec: TensorInput) -> Tensor:
    where = f"data.fill: {path}, entry {step}"
    if spec.name not in entry and "payload" in entry:
        raise UserError(
            f"data.fill: {path}: its entries are requests of OpenAI's API (`payload`), not tensors",
            "use {server.api} chat with data.type: jsonl, and one prompt or list of messages per line",
        )
    if spec.name not in entry:
        raise UserError(f"{where} has no {spec.name}", f"it has {', '.join(entry) or 'no tensors'}")
    value = entry[spec.name]
    shape = value.get("shape") if isinstance(value, dict) else None
    content = value.get("content") if isinstance(value, dict) and "content" in value else value
    try:
        if isinstance(content, dict):
            datatype = value.get("datatype", spec.datatype)
            own = TensorInput(spec.name, datatype, spec.shape)
            tensor = _raw(base64.b64decode(content["b64"], validate=True), own, shape)
            same = datatype == spec.datatype
            return tensor if same else tensors.from_numpy(spec.name, tensors.to_numpy(tensor), spec.datatype)
        if isinstance(content, bytes):
            return _raw(content, spec, shape)
        return _listed(content, spec, shape)
    except UserError as error:
        raise UserError(f"{where}: {error.what}", error.remedy or _GIVE_SHAPE) from None
    except (KeyError, TypeError, ValueError, binascii.Error):
        raise UserError(
            f"{where}: {spec.name} is neither a list nor base64", 'write [1, 2] or {"b64": "..."}'
        ) from None


def _raw(data: bytes, spec: TensorInput, shape: Sequence[int] | None) -> Tensor:
    tensor = Tensor(spec.name, spec.datatype, tuple(shape) if shape is not None else _without_batch(spec), data)
    try:
        tensors.check(tensor)
    except UserError:
        if shape is not None:
            raise
        # The model takes no batches, or the data includes the batch dimension.
        tensor = Tensor(spec.name, spec.datatype, tuple(spec.shape), data)
        tensors.check(tensor)
    return tensor


def _listed(content: Any, spec: TensorInput, shape: Sequence[int] | None) -> Tensor:
    count = np.size(np.array(content, dtype=object)) if shape is None else 0
    if shape is None:
        shape = _without_batch(spec)
        if tensors.elements(shape) != count:
            shape = spec.shape  # the data includes the batch dimension
    return tensors.from_json(spec.name, spec.datatype, shape, content)


def _without_batch(spec: TensorInput) -> tuple[int, ...]:
    return tuple(spec.shape[1:])


def _from_folder(path: str, specs: Sequence[TensorInput]) -> dict[str, Any]:
    """The folder's only entry: bytes, or a list of strings, for each input."""
    entry: dict[str, Any] = {}
    for one in specs:
        file = Path(path).expanduser() / one.name
        if not file.is_file():
            raise UserError(f"data.fill: the folder {path} has no file {one.name}", "name the files like the inputs")
        data = read(str(file))
        entry[one.name] = data.splitlines() if one.datatype == "BYTES" else data
    return entry


# --- numpy -----------------------------------------------------------------------------------------------------------


def _from_arrays(path: str, specs: Sequence[TensorInput]) -> Payload:
    arrays = _arrays(path, specs)
    payload = []
    for one in specs:
        if one.name not in arrays:
            raise UserError(f"data.fill: {path} has no {one.name}", f"it has {', '.join(arrays)}")
        try:
            payload.append(tensors.from_numpy(one.name, arrays[one.name], one.datatype))
        except UserError as error:
            raise UserError(f"data.fill: {path}: {error.what}", error.remedy) from None
    return tuple(payload)


def _arrays(path: str, specs: Sequence[TensorInput]) -> dict[str, NDArray[Any]]:
    try:
        loaded = np.load(io.BytesIO(read(path)), allow_pickle=False)
        if path.endswith(".npz"):
            return {name: loaded[name] for name in loaded.files}
    except (ValueError, OSError, EOFError) as error:
        raise UserError(
            f"data.fill: {path} cannot be read: {error}", "save it with numpy.save or numpy.savez"
        ) from None
    if len(specs) != 1:
        raise UserError(
            f"data.fill: {path} holds one array, but the model has {len(specs)} inputs",
            "save an .npz with the inputs by name",
        )
    return {specs[0].name: loaded}
