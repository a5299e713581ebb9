"""Schedules the texts of a model: which prompts are read and which texts get a token in each step.

One thread computes. Each step adds a token to every running text and reads a bounded number of prompt tokens, so that
new requests start soon and running ones do not stall. What a step produced is passed to the event loop in one call; on
GPUs the tokens of one step are turned into text while the next one is computed. Requests beyond the slots wait.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from inferometer.serve.backends.text.model import Generation
from inferometer.serve.models.types import Refused, TextPart, reason
from inferometer.timing.clock import now

_BELOW_ONE = 1 - 2**-23
_CONTEXT = 8
"""Tokens of the prompt that the text of the first tokens may depend on."""
_SIMILAR = 32
"""Difference in length of prompts that are read together; the shorter ones are padded."""

_Made = list[tuple[list[Generation], Any]]
"""Texts, and a tensor with the next token of each."""


class Engine:
    """The queue, the slots and the thread of a model, in which all private methods run."""

    def __init__(self, prepare: Callable[[], Any], tokenizer: Tokenizer) -> None:
        """Start the thread, which calls `prepare` for the decoder; raises what that raises."""
        self._tokenizer = tokenizer
        self._waiting: deque[Generation] = deque()
        self._reading: list[Generation] = []
        """Texts whose prompts are being read, in slots behind those that run."""
        self._running: list[Generation] = []  # by slot
        self._pending: list[tuple[Generation, int]] = []  # tokens that were computed and not processed yet
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed, self._is_closed = threading.Event(), False
        ready: Future[Any] = Future()
        work = torch.inference_mode()(self._work)
        self._thread = threading.Thread(target=work, args=(prepare, ready), name="text engine", daemon=True)
        self._thread.start()
        self._decoder = ready.result()

    def generate(self, row: Generation) -> None:
        """Accept a text, in the event loop."""
        self._loop = self._loop or asyncio.get_running_loop()
        row.text = DecodeStream(ids=row.prompt[-_CONTEXT:], skip_special_tokens=True)
        self._waiting.append(row)
        self._changed.set()

    def close(self) -> None:
        self._is_closed = True
        self._changed.set()
        self._thread.join(10)  # seconds: a thread inside PyTorch must not outlive the interpreter

    def _work(self, prepare: Callable[[], Any], ready: "Future[Any]") -> None:
        try:
            ready.set_result(prepare())
        except BaseException as error:
            ready.set_exception(error)
            return
        while not self._is_closed:
            if not (self._waiting or self._reading or self._running or self._pending):
                self._changed.wait()
                self._changed.clear()
            try:
                self._step()
            except Exception as error:  # the thread must go on, and nobody else would end these texts
                self._pending = []
                self._fail(self._reading + self._running, error)
        self._process(self._pending)

    def _step(self) -> None:
        if self._decoder.device.type == "cuda":
            made = self._add_tokens()
            self._process(self._pending)  # while the device computes
            made += self._read_prompts()
            self._pending = self._fetched(made)
        else:
            self._process(self._fetched(self._read_prompts()))
            self._process(self._fetched(self._add_tokens()))

    def _compact(self) -> None:
        """Move the last texts to the slots of those that are over, since a step computes all up to the last one."""
        rows = self._running
        for slot in reversed(range(len(rows))):
            if rows[slot].is_over or rows[slot].computed == rows[slot].limit:
                last = rows.pop()
                if slot < len(rows):
                    self._decoder.move(len(rows), slot, last.filled)
                    rows[slot] = last

    def _add_tokens(self) -> _Made:
        """Compute the next token of every running text."""
        self._compact()
        if not self._running:
            return []
        rows = self._running.copy()
        try:
            tokens = self._decoder.decode([row.filled for row in rows], _controls(rows))
        except Exception as error:
            return self._fail(rows, error)
        for row in rows:
            row.filled += 1
        return [(rows, tokens)]

    def _read_prompts(self) -> _Made:
        """Compute a chunk of one prompt, or several short ones; the last chunk gives the first token."""
        self._compact()
        rows = self._reading = [row for row in self._reading if not row.is_over] or self._admitted()
        if not rows:
            return []
        start, size = rows[0].filled, self._decoder.budget
        chunks = [row.prompt[start : start + size] for row in rows]
        is_last = all(start + size >= len(row.prompt) for row in rows)
        try:
            controls = _controls(rows) if is_last else None
            tokens = self._decoder.prefill([row.slot for row in rows], chunks, start, controls)
        except Exception as error:
            return self._fail(rows, error)
        for row, chunk in zip(rows, chunks, strict=True):
            row.filled += len(chunk)
        if not is_last:
            return []
        for row in rows:
            if row.slot > len(self._running):  # others have ended since its first chunk
                self._decoder.move(row.slot, len(self._running), row.filled)
            self._running.append(row)
        self._reading = []
        return [(rows, tokens)]

    def _admitted(self) -> list[Generation]:
        """Give slots to waiting requests, as long as their prompts are short and of similar length."""
        group: list[Generation] = []
        while self._waiting and len(self._running) + len(group) < self._decoder.slots:
            row = self._waiting[0]
            sizes = [len(one.prompt) for one in (*group, row)]
            if group and (max(sizes) * len(sizes) > self._decoder.budget or max(sizes) - min(sizes) > _SIMILAR):
                break
            self._waiting.popleft()
            if not row.is_over:
                row.slot, row.started = len(self._running) + len(group), now()
                group.append(row)
        return group

    def _fetched(self, made: _Made) -> list[tuple[Generation, int]]:
        try:
            return [(row, token) for group, tokens in made for row, token in zip(group, tokens.tolist(), strict=True)]
        except Exception as error:  # GPUs report errors when results are fetched
            return self._fail([row for group, _ in made for row in group], error)

    def _process(self, made: Iterable[tuple[Generation, int]]) -> None:
        """Turn tokens into text, end what is complete, and pass it to the event loop."""
        events = []
        for row, token in made:
            if row.is_over:
                continue
            is_end = token in self._decoder.ends and not row.ignore_eos
            row.made += not is_end
            is_last = is_end or row.made == row.limit
            text = "" if is_end else self._text(row, token)
            if row.made >= row.min_tokens:
                text = row.stops.feed(text, is_last)
            stopped = row.stops.stopped
            is_stopped = is_end or stopped is not None
            if is_last or is_stopped:
                row.is_over = True
            why: Any = "stop" if is_stopped else "length" if is_last else None
            part = TextPart(text, int(not is_end), finish_reason=why, stopped=stopped, started=row.started)
            events.append((row, part))
        self._pass(events)

    def _text(self, row: Generation, token: int) -> str:
        try:
            return row.text.step(self._tokenizer, token) or ""
        except Exception:  # tokens that are bytes, and not valid UTF-8, change the text before them: start anew
            row.text = DecodeStream(skip_special_tokens=True)
            return row.text.step(self._tokenizer, token) or ""

    def _pass(self, events: Sequence[tuple[Generation, TextPart | Refused]]) -> None:
        def send() -> None:
            for row, part in events:
                row.received(part)

        if events and self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(send)

    def _fail(self, group: list[Generation], error: Exception) -> list[Any]:
        """End texts with the reason; the others are not affected. Return an empty list, since they get no tokens."""
        refused = reason(error)
        self._pass([(row, refused) for row in group if not row.is_over])
        for row in group:
            row.is_over = True
        return []


def _controls(rows: list[Generation]) -> Any:
    """Return what `sample` needs to know about each row; None if all are simply greedy."""
    excludes_end = [row.computed < row.min_tokens for row in rows]
    if not any(excludes_end) and all(row.random is None for row in rows):
        return None
    made = np.zeros((len(rows), 5), np.float32)
    for i, row in enumerate(rows):
        uniform = min(row.random.random(), _BELOW_ONE) if row.random is not None else 0
        made[i] = row.temperature, row.top_p, row.top_k, uniform, excludes_end[i]
    return made
