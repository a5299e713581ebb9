"""What went wrong, in words that the parent can act on."""

from typing import Any

_MEMORY = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "failed to allocate",
    "no available memory",
)
_LONGEST = 500


class Unusable(Exception):  # noqa: N818 - it is a reason, not a failure of ours
    """The engine cannot do what was asked; its text says why."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the host's or the device's memory was not enough. torch has several errors for it, and ONNX Runtime none of its own."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _MEMORY)


def explain(error: BaseException) -> dict[str, Any]:
    """The event for an error: its kind, a message of one line, and the package that is missing."""
    if is_out_of_memory(error):
        return {"event": "error", "kind": "out of memory", "message": one_line(error)}
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.partition(".")[0]
        return {"event": "error", "kind": "not installed", "message": one_line(error), "package": package}
    return {"event": "error", "kind": "failed", "message": one_line(error)}


def one_line(error: BaseException) -> str:
    """The error's text, shortened, with its type unless it is one of ours."""
    text = " ".join(str(error).split())[:_LONGEST]
    if isinstance(error, Unusable):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
