"""The workload as JSON lines, which `data: {type: jsonl}` reads back: the same prompts, messages, turns and output lengths."""

from typing import Any

import msgspec

from inferometer.errors import UserError
from inferometer.tensors import Tensor
from inferometer.types import Request
from inferometer.units import NS


def line(request: Request, class_: str | None = None) -> bytes:
    """Return the line of one request. Raises UserError when the format cannot express it."""
    row: dict[str, Any] = _turns(request) if request.later else _prompt(request)
    row["output"] = request.n_out
    if class_ is not None:
        row["class"] = class_
    return msgspec.json.encode(row) + b"\n"


def _prompt(request: Request) -> dict[str, Any]:
    payload = request.payload
    if isinstance(payload, str):
        return {"prompt": payload}
    if isinstance(payload, list) and all(isinstance(each, dict) and "role" in each for each in payload):
        return {"messages": payload}
    if isinstance(payload, list) and all(isinstance(each, int) for each in payload):
        raise _inexpressible("prompts of token ids")
    raise _inexpressible("tensors" if isinstance(payload, tuple | Tensor) else "messages of a gRPC method")


def _turns(request: Request) -> dict[str, Any]:
    """A session whose turns are texts of the user, which differ in nothing but the text."""
    texts = [_user_text(request.payload), *(_user_text(turn.messages) for turn in request.later)]
    if None in texts:
        raise _inexpressible("sessions with messages other than the user's")
    if any(turn.payload is not None or turn.response is not None for turn in request.later):
        raise _inexpressible("sessions with recorded responses")
    if len({request.n_out, *(turn.n_out for turn in request.later)}) > 1:
        raise _inexpressible("sessions whose turns request different numbers of tokens")
    thinks = {turn.think for turn in request.later}
    if len(thinks) > 1:
        raise _inexpressible("sessions with different think times between their turns")
    return {"turns": texts} | ({"think": think / NS} if (think := thinks.pop()) else {})


def _user_text(payload: object) -> str | None:
    if isinstance(payload, list):
        payload = payload[0].get("content") if len(payload) == 1 and payload[0].get("role") == "user" else None
    return payload if isinstance(payload, str) else None


def _inexpressible(what: str) -> UserError:
    return UserError(
        f"--jsonl: a line of JSON cannot express {what}", "leave it out; the config itself is reproducible"
    )
