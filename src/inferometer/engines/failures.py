"""Why a server ended, or did not get ready: from its exit status and its log to a reason and one line in words."""

import re
import signal
from collections.abc import Sequence
from typing import NamedTuple

from inferometer.campaign import Reason

_LONGEST = 200
_SHELL_NOT_FOUND = 127
_SIGNALLED = 128


class _Cause(NamedTuple):
    reason: Reason
    words: str
    pattern: re.Pattern[str]


def _cause(reason: Reason, words: str, *patterns: str) -> _Cause:
    return _Cause(reason, words, re.compile("|".join(patterns), re.IGNORECASE))


_CAUSES = (
    _cause(
        "out of memory",
        "out of memory",
        r"\bMemoryError\b",
        r"out of memory",
        r"cannot allocate memory|can't allocate memory|unable to allocate",
        r"bad_alloc",
        r"oom-?kill",
        r"no available memory for the cache blocks",
        r"(kv cache|memory).{0,60}(is|are) (larger|greater|more) than.{0,40}(available|free)",
        r"not enough (\w+ )?memory",
        r"(available|free) memory .{0,120}is less than",
        r"Failed core proc\(s\):.*-9\b",
    ),
    _cause(
        "port taken",
        "the port is taken",
        r"address (is )?already in use",
        r"\bErrno 98\b|\bEADDRINUSE\b",
        r"port \d+ is (already )?in use",
        r"couldn't bind HTTP server socket",
    ),
    _cause(
        "not installed",
        "a package is missing",
        r"^(\w+: )?(ModuleNotFoundError|ImportError): No module named",
        r"No module named '?[\w.]+'?\)?$",
        r"^\S+: (line \d+: )?\S+: (command )?not found$",
    ),
    _cause(
        "failed",
        "a flag that it does not have",
        r"unrecognized arguments?:",
        r"no such option",
        r"unexpected argument",
        r"invalid argument: -",
        r"unrecognized option",
        r"error: argument --?[\w/-]+",
    ),
    _cause(
        "failed",
        "the model was not found",
        r"Repository Not Found|RepositoryNotFoundError",
        r"Repo id must be in the form",
        r"is not a local folder and is not a valid model identifier",
        r"failed to open GGUF file",
        r"we couldn't connect to .* to load (this file|the files)",
        r"does not appear to have a file named",
        r"no such (file or directory: .*(config\.json|\.safetensors|\.gguf|\.xml|\.onnx)|model|folder)",
        r"outgoing traffic has been disabled|LocalEntryNotFoundError",
    ),
    _cause("failed", "the model's file cannot be read", r"invalid magic characters"),
    _cause(
        "failed",
        "the hub cannot be reached",
        r"(Failed to resolve|Name or service not known|Temporary failure in name resolution|Max retries exceeded)",
    ),
    _cause(
        "failed",
        "there is no such device",
        r"Torch not compiled with CUDA enabled",
        r"No CUDA GPUs are available|Found no NVIDIA driver|no CUDA-capable device",
        r"Failed to infer device type",
    ),
)
"""What the line of a log that gives the cause looks like. The last such line counts, and the first of these that it matches."""

_HARMLESS = re.compile(r"\b(DEBUG|INFO|WARN|WARNING)\b|^\s*(DEBUG|INFO|WARNING):|^[\d.]+ [IWD] ")
"""Lines that are not errors, although they may speak of some."""
_ERROR = re.compile(
    r"^\s*([\w.]*(Error|Exception|Exit)\b.*|.*\b(ERROR|FATAL|CRITICAL|error|Error|fatal|panicked at)\b.*)"
)
_PREFIX = re.compile(
    r"^(\(\w+[^()]*\) )?((ERROR|CRITICAL|FATAL)\s*:?\s+)?(\d\d-\d\d \d\d:\d\d:\d\d )?(\[[\w.]+:\d+\] )?([\d.]{8,} [EF] )?"
)
"""What loggers put before a message: process, level, time, source line."""


def explain(status: int | None, lines: Sequence[str]) -> tuple[Reason, str]:
    """The reason, and one line that says why, given the exit status (128 + a signal; None: it still runs) and what it has printed.

    More of the log is better than its tail: some programs print a page of help after the error.
    """
    errors = [line.rstrip() for line in lines if line.strip() and not _HARMLESS.search(line)]
    for line in reversed(errors):
        for cause in _CAUSES:
            if cause.pattern.search(line):
                return cause.reason, f"{cause.words}: {_cleaned(line)}"
    if status is not None and status > _SIGNALLED:
        return _signalled(status - _SIGNALLED)
    if status == _SHELL_NOT_FOUND:
        return "not installed", "the program was not found"
    last = errors[-1] if errors and status is not None else ""
    said = next((line for line in reversed(errors) if _ERROR.match(line)), last)
    return "failed", _cleaned(said)


def _signalled(number: int) -> tuple[Reason, str]:
    if number == signal.SIGKILL:
        return "out of memory", "killed by signal 9, which is what the kernel does when memory runs out"
    try:
        name = signal.Signals(number).name
    except ValueError:
        return "died", f"ended by signal {number}"
    return "died", f"ended by {name}"


def _cleaned(line: str) -> str:
    text = line.strip()
    text = _PREFIX.sub("", text, count=1).strip()
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
