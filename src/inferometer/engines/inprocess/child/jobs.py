"""The requests of a level, and what is recorded about them. Times are nanoseconds of CLOCK_MONOTONIC, which the parent shares."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

now = time.monotonic_ns
_MOST_FAILURES = 100
"""Requests that may fail one after the other before a level is given up: one that ends by time would never end."""


@dataclass
class Options:
    """How to load an engine."""

    type: str
    mode: str
    model: str
    dtype: "str | None"
    device: "str | None"
    compile: bool
    args: dict[str, Any]
    max_batch: int
    """The largest batch, or the most requests in flight, that will be measured."""
    traces: str
    """Folder for the files of the engine's own profiler."""
    task: str = "auto"
    """Encoders: what the model is loaded as."""
    config_of: str = ""
    """Encoders: the folder whose config.json is that of an .onnx file."""

    def arguments(self) -> dict[str, Any]:
        """The flags as Python arguments."""
        return {name.replace("-", "_"): value for name, value in self.args.items()}


@dataclass
class Request:
    prompt: "str | list[int] | list[dict[str, Any]]"
    n_out: int
    """Output tokens; 0: until the model ends."""
    n_in: int = 0
    """Tokens of the prompt by the workload's count; 0: not counted."""

    @property
    def length(self) -> int:
        """The length to sort by, without tokenizing."""
        if self.n_in or not isinstance(self.prompt, list):
            return self.n_in or len(self.prompt)
        return sum(len(each["content"]) if isinstance(each, dict) else 1 for each in self.prompt)


@dataclass
class Job:
    """A level: which requests, how many at a time, and until when."""

    requests: list[Request]
    level: int = 1
    count: int = 0
    """Requests to make; 0: as many as the duration allows. If there are fewer requests, they are used again."""
    duration: int = 0
    """Nanoseconds after which no request is started; 0: no limit."""
    sort: bool = False
    chat: bool = False
    """Put prompts that are texts into the model's chat template, too."""
    ignore_eos: bool = True
    """Generate exactly the requested number of tokens, if there is one."""

    @classmethod
    def read(cls, command: dict[str, Any]) -> "Job":
        with Path(command["requests"]).open(encoding="utf-8") as lines:
            requests = [Request(**json.loads(line)) for line in lines]
        return cls(requests, **command.get("job", {}))

    def each(self) -> Iterator[tuple[int, int, Request]]:
        """Yield the requests until the level ends: a number, in the order of sending, and which one of the requests it is."""
        order = list(range(len(self.requests)))
        if self.sort:
            order.sort(key=lambda index: self.requests[index].length)
        begin, number = now(), 0
        while (not self.count or number < self.count) and (not self.duration or now() - begin < self.duration):
            index = order[number % len(order)]
            yield number, index, self.requests[index]
            number += 1

    def batches(self, size: int) -> Iterator[list[tuple[int, int, Request]]]:
        """The same, in batches. The time is looked at before each batch."""
        begin = now()
        batch: list[tuple[int, int, Request]] = []
        for each in replace(self, duration=0).each():
            if not batch and self.duration and now() - begin >= self.duration:
                return
            batch.append(each)
            if len(batch) == size:
                yield batch
                batch = []
        if batch:
            yield batch


@dataclass
class Row:
    """What became of one request."""

    id: int
    request: int
    """Which one of the requests it is."""
    sent: int
    done: int = 0
    first: "int | None" = None
    """When its first token was there; None if the engine does not say."""
    last: "int | None" = None
    n_in: int = -1
    n_out: int = -1
    n_want: int = 0
    arrivals: list[int] = field(default_factory=list)
    """When each token, or several at once, was there; empty if the engine does not say."""
    tokens: list[int] = field(default_factory=list)
    """How many each time."""
    cached: int = -1
    failure: str = ""
    message: str = ""


class Recording:
    """What is recorded in a level. Only the thread of the engine adds to it."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.began = self.ended = 0
        self.in_flight = self.tokens = self.failed = 0
        self.useful = self.processed = 0
        """Tokens of prompts and outputs in static batches, without and with padding."""
        self.notes: list[str] = []
        self._failed_in_a_row = 0

    def add(self, row: Row) -> None:
        """Add a request that has ended. Raises RuntimeError if nothing but failures came for long."""
        self.rows.append(row)
        self.failed += bool(row.failure)
        self.tokens += max(row.n_out, 0)
        self._failed_in_a_row = self._failed_in_a_row + 1 if row.failure else 0
        if self._failed_in_a_row >= _MOST_FAILURES:
            raise RuntimeError(f"{_MOST_FAILURES} requests failed one after the other: {row.message}")

    def progress(self) -> dict[str, int]:
        return {
            "completed": len(self.rows) - self.failed,
            "failed": self.failed,
            "in_flight": self.in_flight,
            "tokens": self.tokens,
        }

    def totals(self) -> dict[str, Any]:
        padding = 1 - self.useful / self.processed if self.processed else None
        return {"began": self.began, "ended": self.ended, "padding": padding, "notes": list(dict.fromkeys(self.notes))}

    def write(self, path: Path) -> None:
        """Write the rows, one line each."""
        with path.open("w", encoding="utf-8") as lines:
            for row in sorted(self.rows, key=lambda row: row.id):
                lines.write(json.dumps(vars(row)) + "\n")
