"""Their labels of failures, from our failure codes and the messages."""

import re

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.compat.inference_perf.error_types import error_type
from inferometer.records import Failure
from inferometer.wire.failures import meaning

_BY_STATUS = {
    429: "Rate Limit",
    500: "Internal Server Error",
    502: "Bad Gateway",
    503: "Service Unavailable",
    504: "Gateway Timeout",
}
_TIMEOUT = re.compile(r"time(d.?)?.?out", re.IGNORECASE)
_BY_TEXT = (
    (re.compile(r"context.?(window|length)|maximum context|max.?tokens|token.?limit", re.IGNORECASE), "Context Window"),
    (
        re.compile(
            r"(invalid|malformed).?json|json.?parse|unexpected.?token|expecting value|unterminated", re.IGNORECASE
        ),
        "Invalid JSON",
    ),
    (_TIMEOUT, "Timeout"),
    (re.compile(r"model.?not.?found|no such model", re.IGNORECASE), "Model Not Found"),
)
_TIMEOUTS = ("connect_timeout", "first_token_timeout", "idle_timeout", "total_timeout")
_CONNECTION = ("connect_refused", "connect_failed", "tls", "no_sockets", "closed", "reset", "stream_reset")


def error_message(failure: Failure) -> str:
    """The message, as a server put it into its error object if it did; if there is none, what happened."""
    return _given_message(failure) or meaning(failure.code)


def _given_message(failure: Failure) -> str:
    try:
        body = msgspec.json.decode(failure.message)
    except msgspec.DecodeError:
        return failure.message
    error = (body.get("error") or body) if isinstance(body, dict) else None
    return str(error["message"]) if isinstance(error, dict) and "message" in error else failure.message


def label(failure: Failure) -> str:
    """The label that their report counts the failure under."""
    status, message = _status(failure), _given_message(failure)
    if status:
        by_text = (name for pattern, name in _BY_TEXT if pattern.search(message))
        return f"{status} - {_BY_STATUS.get(status) or next(by_text, 'other')}"
    if failure.code in _TIMEOUTS or _TIMEOUT.search(message):
        return "Timeout"
    if failure.code in _CONNECTION or re.search("connect", message, re.IGNORECASE):
        return "Connection Error"
    return error_type(failure.code).lower()


def by_label(
    failures: tuple[Failure, ...], numbers: NDArray[np.int32], max_messages: int
) -> dict[str, dict[str, object]]:
    """Count the failed requests by label, the most frequent first. `numbers` is the column `failure` of these requests."""
    counts: dict[str, int] = {}
    messages: dict[str, dict[str, None]] = {}
    for number, count in zip(*(part.tolist() for part in np.unique(numbers, return_counts=True)), strict=True):
        failure = failures[number - 1]
        name = label(failure)
        counts[name] = counts.get(name, 0) + count
        own = messages.setdefault(name, {})
        if len(own) < max_messages:
            own[error_message(failure)] = None
    ordered = sorted(counts, key=lambda name: -counts[name])
    return {
        name: {"count": counts[name], "messages": [{"message": text} for text in messages[name]]} for name in ordered
    }


def _status(failure: Failure) -> int:
    """The HTTP status of a failure; 0 if it is not one."""
    code = failure.code.removeprefix("http_")
    return int(code) if code != failure.code and code.isdigit() else 0
