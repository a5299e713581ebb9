"""A result for programs: JSON (times in seconds), and the outputs as numpy arrays."""

import base64
import io
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.errors import UserError
from inferometer.infer import time_split, tokens
from inferometer.infer.result import ClassScore, Response, Result
from inferometer.tensors import Tensor, to_numpy
from inferometer.units import NS

SCHEMA = 1


def to_json(result: Result, error: str = "") -> bytes:
    """The result as JSON; `error` says why a stream failed after these responses."""
    tree: dict[str, Any] = {
        "schema": SCHEMA,
        "url": result.url,
        "api": result.api,
        "model": result.model,
        "version": result.version,
        "timing": _timing(result),
    }
    if error:
        tree["error"] = error
    if result.kind == "tensors":
        tree["inputs"] = [_about(given.tensor) | {"source": given.source} for given in result.inputs]
        tree["responses"] = [_response(response) for response in result.responses]
    if result.output is not None:
        tree |= {"text": result.output.text, "tokens": tokens.measured(result)}
    if result.kind == "embeddings":
        tree["embeddings"] = result.vectors
        tree["tokens"] = {"input": result.usage.n_in if result.usage is not None else None}
    if result.kind == "method":
        tree["messages"] = [{"at": at / NS, "message": message} for at, message in result.messages]
    return msgspec.json.format(msgspec.json.encode(tree), indent=2) + b"\n"


def _timing(result: Result) -> dict[str, Any]:
    instants, server = result.instants, result.server
    tree: dict[str, Any] = {part.name: part.length / NS for part in time_split.parts(instants)}
    tree |= {
        "total": (instants.done - instants.connect_from) / NS,
        "request": (instants.done - instants.sent) / NS,
        "bytes_out": instants.bytes_out,
        "bytes_in": instants.bytes_in,
        "tls": instants.tls,
        "stamps": "kernel" if instants.by_kernel else "user",
    }
    tree["rtt"] = instants.rtt / NS if instants.rtt >= 0 else None
    if isinstance(server, str):
        tree["no_server"] = server
    elif server is not None:
        outside = time_split.outside_model(instants, server)
        tree["server"] = {
            "queue": server.queue / NS if server.queue >= 0 else None,
            "compute": server.compute / NS if server.compute >= 0 else None,
            **{name: None if ns is None else ns / NS for name, ns in msgspec.structs.asdict(outside).items()},
            "source": server.source,
            "requests": server.requests,
        }
    return tree


def _response(response: Response) -> dict[str, Any]:
    tree: dict[str, Any] = {
        "at": response.at / NS,
        "outputs": [_about(tensor) | {"data": _values(tensor)} for tensor in response.outputs],
    }
    if response.classes:
        tree["classes"] = {name: [list(map(_class, row)) for row in rows] for name, rows in response.classes.items()}
    return tree


def _class(found: ClassScore) -> dict[str, Any]:
    return {"score": found.score, "index": found.index, "label": found.label}


def _about(tensor: Tensor) -> dict[str, Any]:
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}


def _values(tensor: Tensor) -> list[Any]:
    """The elements, flat and row-major. BYTES are text if they are UTF-8, else {"b64": ...}; NaN and infinity are null."""
    values: list[Any] = to_numpy(tensor).reshape(-1).tolist()
    return [_text(raw) for raw in values] if tensor.datatype == "BYTES" else values


def _text(raw: bytes) -> str | dict[str, str]:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(raw).decode()}


# --- numpy -----------------------------------------------------------------------------------------------------------


def to_npz(result: Result) -> bytes:
    """The outputs by name; those of several responses as NAME.0, NAME.1 ..."""
    several = len(result.responses) > 1
    arrays = {
        f"{tensor.name}.{index}" if several else tensor.name: _array(tensor)
        for index, response in enumerate(result.responses)
        for tensor in response.outputs
    }
    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def _array(tensor: Tensor) -> NDArray[Any]:
    array = to_numpy(tensor)
    if tensor.datatype != "BYTES":
        return array
    if any(raw.endswith(b"\0") for raw in array.reshape(-1)):
        raise UserError(
            f"output {tensor.name}: an element ends in a zero byte, which an .npz file would drop", "use --json"
        )
    return array.astype(bytes)
