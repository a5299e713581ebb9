"""Inference of KServe v2 over HTTP (POST /v2/models/M/infer), in JSON and with the binary tensor extension.

With the extension, a body is the JSON object followed by the raw tensors in the same order; the header
Inference-Header-Content-Length says where the JSON ends. A response may have some tensors in the JSON and others after it.
`decode` reads a complete response; `CountedResponse` is for the hot path, which only needs to know whether it is an error.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from inferometer.errors import UserError
from inferometer.tensors import Tensor, check, from_json, json_fields
from inferometer.types import Fail, Received
from inferometer.wire.compression import KNOWN, decompressed, start_of
from inferometer.wire.failures import bounded, excerpt
from inferometer.wire.http1 import error_message, not_json
from inferometer.wire.kserve.control_requests import model_path
from inferometer.wire.kserve.infer import (
    InferOptions,
    InferResponse,
    Parameters,
    ShmOutput,
    region_of,
    regions,
    requested,
    whole_number,
)

JSON_LENGTH = "Inference-Header-Content-Length"

# --- requests --------------------------------------------------------------------------------------------------------


def infer_path(model: str, version: str = "") -> str:
    return model_path(model, version) + "/infer"


def encode(tensors: Sequence[Tensor], options: InferOptions) -> tuple[dict[str, str], bytes]:
    """Encode a request: its headers (without Content-Length) and its body."""
    parts = [_input(*pair, options.binary) for pair in zip(tensors, regions(tensors, options), strict=True)]
    tree: dict[str, Any] = {"id": options.id} if options.id else {}
    tree["inputs"] = [part for part, _ in parts]
    outputs = [_output(name, parameters, options.binary) for name, parameters in requested(options)]
    parameters = dict(options.parameters)
    if outputs:
        tree["outputs"] = outputs
    elif options.binary:
        parameters = {"binary_data_output": True} | parameters
    if parameters:
        tree["parameters"] = parameters
    head = msgspec.json.encode(tree)
    if not options.binary:
        return {"Content-Type": "application/json"}, head
    headers = {"Content-Type": "application/octet-stream", JSON_LENGTH: str(len(head))}
    return headers, b"".join((head, *(raw for _, raw in parts)))


def _input(tensor: Tensor, region: Parameters, is_binary: bool) -> tuple[dict[str, Any], bytes | memoryview]:
    """The JSON of an input, and its raw data after the JSON."""
    tree: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape}
    if region:
        return tree | {"parameters": region}, b""
    if not is_binary:
        return tree | json_fields(tensor), b""
    check(tensor)
    return tree | {"parameters": {"binary_data_size": len(tensor.data)}}, tensor.data


def _output(name: str, parameters: Parameters, is_binary: bool) -> dict[str, Any]:
    if is_binary and "shared_memory_region" not in parameters:
        parameters = parameters | {"binary_data": True}
    return {"name": name, "parameters": parameters} if parameters else {"name": name}


# --- responses -------------------------------------------------------------------------------------------------------


def decode(status: int, headers: Mapping[str, str], body: bytes) -> InferResponse:
    """Decode a complete response; raises UserError with the server's error message or the reason why it is malformed."""
    fields = {name.lower(): value.strip() for name, value in headers.items()}
    body = _plain(fields.get("content-encoding", "").lower(), body)
    if status != 200:
        raise UserError(f"the server responded with status {status}: {error_message(body)}")
    end = _json_length(fields.get(JSON_LENGTH.lower(), ""), len(body))
    try:
        tree = json.loads(body[:end])
    except (ValueError, RecursionError) as error:
        raise _malformed(f"not JSON ({error})", body) from None
    if not isinstance(tree, dict):
        raise _malformed("not a JSON object", body)
    if tree.get("error") is not None:
        raise UserError(f"the server returned status 200 with an error: {error_message(body[:end])}")
    try:
        return InferResponse(
            model=str(tree.get("model_name") or ""),
            version=str(tree.get("model_version") or ""),
            id=str(tree.get("id") or ""),
            outputs=_outputs(tree["outputs"], body, end),
            parameters=dict(tree.get("parameters") or {}),
        )
    except KeyError as error:
        raise _malformed(f"{error} is missing", body) from None
    except (TypeError, ValueError, AttributeError) as error:
        raise _malformed(str(error), body) from None


def json_of(header: Callable[[str], str], body: bytes) -> bytes:
    """The JSON that a body, which may be compressed, starts with; `header` returns its headers."""
    plain = _plain(header("content-encoding").lower(), body)
    return plain[: _json_length(header(JSON_LENGTH), len(plain))]


def _plain(encoding: str, body: bytes) -> bytes:
    if encoding in ("", "identity"):
        return body
    if encoding not in KNOWN:
        raise UserError(f"the response is compressed with {encoding!r}, which is not supported")
    try:
        return decompressed(body)
    except ValueError as error:
        what = f"is not, or is cut short after {len(body)} bytes: {error}"
        raise UserError(f"the response claims to be compressed with {encoding}, but {what}") from None


def _malformed(what: str, body: bytes) -> UserError:
    start = excerpt(body)
    return UserError(
        f"the response is not an inference response: {bounded(what)}; it starts with {start}",
        "check that it is a KServe v2 server",
    )


def _json_length(field: str, size: int) -> int:
    if not field:
        return size
    if not (field.isascii() and field.isdigit()):
        raise UserError(f"the response's {JSON_LENGTH} is {field!r:.40}, not a number")
    if len(field) > 18 or int(field) > size:
        raise UserError(f"the response's {JSON_LENGTH} is {field:.40}, but the complete response has {size} bytes")
    return int(field)


def _outputs(trees: Any, body: bytes, at: int) -> list[Tensor | ShmOutput]:
    """Read the outputs; the raw ones start at position `at` of the body."""
    outputs: list[Tensor | ShmOutput] = []
    for tree in trees:
        name, datatype, shape = str(tree["name"]), str(tree["datatype"]), tuple(map(whole_number, tree["shape"]))
        parameters = tree.get("parameters") or {}
        if "binary_data_size" in parameters:
            size = whole_number(parameters["binary_data_size"])
            if size < 0 or at + size > len(body):
                raise UserError(
                    f"output {name}: {size} bytes are announced, but {len(body) - at} bytes of the response are left"
                )
            outputs.append(Tensor(name, datatype, shape, body[at : at + size]))
            at += size
        elif (ref := region_of(parameters)) is not None:
            outputs.append(ShmOutput(name, datatype, shape, ref))
        else:
            outputs.append(from_json(name, datatype, shape, tree["data"], parameters.get("content_type")))
    if at != len(body):
        raise UserError(f"the response has {len(body) - at} bytes after its last output")
    for output in outputs:
        if isinstance(output, Tensor):
            check(output)
    return outputs


# --- the hot path ----------------------------------------------------------------------------------------------------

_MAX_KEPT = 4096
_ERROR_FIRST = re.compile(rb'\s*\{\s*"error"\s*:\s*[^n\s]')  # null is not an error


class CountedResponse:
    """The body of a response, JSON or binary, whose outputs are not read: only its size, and whether it is an error.

    Only the start of the body is kept. An unescaped `"outputs"` in it is the key of an inference response, because inside a
    string it would have backslashes.
    """

    __slots__ = ("_head", "_keeps", "_size", "pieces")

    is_stream = False
    reads_compressed = True

    def __init__(self, keeps: bool = False) -> None:
        """`keeps`: the whole body is kept, in `pieces`."""
        self._keeps = keeps
        self.reset()

    def reset(self) -> None:
        self._size = 0
        self._head = b""
        self.pieces: list[bytes] = []

    def feed(self, pieces: Sequence[bytes], stamps: Sequence[int], into: Received) -> Fail | None:
        if self._keeps:
            self.pieces += pieces
        for piece in pieces:
            if self._size < _MAX_KEPT:
                self._head += piece[: _MAX_KEPT - self._size]
            self._size += len(piece)
        return None

    def finish(self, into: Received) -> Fail | None:
        head, is_complete = self._head, self._size <= _MAX_KEPT
        if head[:2] == b"\x1f\x8b" or head[:1] == b"\x78":
            head = start_of("gzip", head, _MAX_KEPT)
            is_complete = is_complete and len(head) < _MAX_KEPT
        is_object = head.lstrip()[:1] == b"{"
        if is_object and b'"outputs"' in head and not _ERROR_FIRST.match(head):
            return None
        if is_object and not is_complete and b'"model_name"' in head:
            return None  # the part before the outputs is longer than what is kept
        return _failure(head, is_complete)


def _failure(head: bytes, is_complete: bool) -> Fail:
    """Describe a body that is not an inference response."""
    if not head.strip():
        return Fail("truncated", "the body is empty")
    if head.lstrip()[:1] not in (b"{", b"["):
        return not_json(head, "")
    if _ERROR_FIRST.match(head):
        return Fail("error_body", error_message(head))
    try:
        tree = json.loads(head)
    except (ValueError, RecursionError) as error:
        what = str(error) if is_complete else "no outputs"
        return Fail("malformed_json", bounded(f"{what}: {excerpt(head)}"))
    if isinstance(tree, dict) and tree.get("error") is not None:
        return Fail("error_body", error_message(head))
    return Fail("malformed_json", bounded(f"no outputs: {excerpt(head)}"))
