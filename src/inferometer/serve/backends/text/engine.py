"""Schedules the texts of a model: which prompts are read and which texts get a token in each step.

One thread computes. Each step adds a token to every running text and reads a bounded number of prompt tokens, so that
new requests start soon and running ones do not stall. What a step produced is passed to the event loop in one call; on
GPUs the tokens of one step are turned into text while the next one is computed. Requests beyond the slots wait.
"""

import asyncio
import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from inferometer.serve.models.types import Refused, reason
from inferometer.serve.openai.model import FinishReason, Generation, StopTexts
from inferometer.timing.clock import now

_BELOW_ONE = 1 - 2**-23
_PATIENCE = 10.0
_SIMILAR = 32
"""Difference in length of prompts that are read together; the shorter ones are padded."""
_INCOMPLETE = "\ufffd"  # what an incomplete character is decoded to
_MOST_INCOMPLETE = 8  # tokens; a character has at most 4 bytes, so more are not a character


class _Row:
    """A text in progress."""

    __slots__ = ("filled", "is_over", "left", "limit", "made", "prompt", "random", "request", "slot", "stops", "text")

    def __init__(self, request: Generation, limit: int, text: "Text") -> None:
        self.request, self.prompt, self.text, self.stops = request, request.prompt, text, StopTexts(request.stop)
        self.random = random.Random(request.seed) if request.temperature else None
        self.slot, self.is_over = -1, False
        self.filled = 0
        """Positions in the cache."""
        self.left = self.limit = limit
        """Tokens that are not computed yet."""
        self.made = 0
        """Tokens that were processed."""

    @property
    def is_running(self) -> bool:
        return self.filled >= len(self.prompt)

    @property
    def excludes_end(self) -> bool:
        return self.limit - self.left < self.request.min_tokens


_Rows = list[_Row | None]
"""By slot."""
_Made = list[tuple[Sequence[_Row], Any]]
"""Texts, and a tensor with the next token of each."""
_Event = tuple[_Row, str, int, FinishReason | None, Refused | None]


class Engine:
    """The queue, the slots and the thread of a model."""

    def __init__(
        self, prepare: Callable[[], Any], decode: Callable[..., str], ends: frozenset[int], mode: Callable[[Any], Any]
    ) -> None:
        """Start the thread, in PyTorch's `mode`, which calls `prepare` for the decoder; raises what that raises."""
        self._decode, self._ends = decode, ends
        self._changed = threading.Condition()
        self._waiting: deque[_Row] = deque()
        self._pending: list[tuple[_Row, int]] = []
        """Tokens that were computed and not processed yet."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closed = False
        ready: Future[Any] = Future()
        self._thread = threading.Thread(target=mode(self._work), args=(prepare, ready), name="text engine", daemon=True)
        self._thread.start()
        self._decoder = ready.result()
        self.length: int = self._decoder.length

    # --- in the event loop ---

    def generate(self, request: Generation) -> None:
        """Accept a request; raises Refused if its prompt is invalid."""
        prompt, most = request.prompt, self.length
        if not prompt:
            raise Refused("INVALID_ARGUMENT", "the text has no tokens")
        if len(prompt) >= most:
            what = f"the text has {len(prompt)} tokens; the maximum, including the response, is {most}"
            raise Refused("INVALID_ARGUMENT", what)
        check_tokens(prompt, self._decoder.vocabulary)
        self._loop = self._loop or asyncio.get_running_loop()
        row = _Row(request, max(1, min(request.max_tokens, most - len(prompt))), Text(self._decode, prompt))
        request.state = row
        with self._changed:
            self._waiting.append(row)
            self._changed.notify()

    def cancel(self, request: Generation) -> None:
        """Forget a request: it is not called any more, and its slot is free at the next step."""
        row, request.state = request.state, None
        if isinstance(row, _Row):
            row.is_over = True

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join(_PATIENCE)  # a thread inside PyTorch must not outlive the interpreter

    def _send(self, events: list[_Event]) -> None:
        for row, text, count, why, refused in events:
            request = row.request
            if request.state is row and (count or text):
                request.tokens(text, count)
            if request.state is row and why:  # neither was cancelled
                request.state = None
                request.ended(why, refused)

    # --- in the thread ---

    def _work(self, prepare: Callable[[], Any], ready: "Future[Any]") -> None:
        try:
            self._decoder = prepare()
        except BaseException as error:
            ready.set_exception(error)
            return
        ready.set_result(self._decoder)
        rows: _Rows = [None] * self._decoder.slots
        while not self._is_closed:
            with self._changed:
                while not (self._waiting or self._pending or any(rows) or self._is_closed):
                    self._changed.wait()
            self._step(rows)
        # Unloading does not wait for requests of the OpenAI endpoints: end them, or their clients would wait forever.
        rest = [*(row for row in rows if row is not None), *self._waiting]
        self._fail(rows, rest, Refused("UNAVAILABLE", "the model was unloaded before the text was complete"))

    def _step(self, rows: _Rows) -> None:
        for row in rows:
            if row is not None and row.is_over:
                self._release(rows, row)
        self._compact(rows)
        if self._decoder.device.type == "cuda":
            made: _Made = []
            self._add_tokens(rows, made)
            self._process(self._pending)  # while the device computes
            self._read_prompts(rows, made)
            self._pending = self._fetched(rows, made)
        else:
            for compute in (self._read_prompts, self._add_tokens):
                made = []
                compute(rows, made)
                self._process(self._fetched(rows, made))

    def _compact(self, rows: _Rows) -> None:
        """Move running texts to the first slots, since a step computes all up to the last one."""
        for row in reversed([row for row in rows if row is not None]):
            free = rows.index(None) if None in rows else len(rows)
            if free > row.slot or not row.is_running:
                return
            self._decoder.move(row.slot, free, row.filled)
            rows[free], rows[row.slot], row.slot = row, None, free

    def _add_tokens(self, rows: _Rows, made: _Made) -> None:
        """Compute the next token of every running text."""
        running = [row for row in rows if row is not None and row.is_running]
        if not running:
            return
        positions = [-1] * (running[-1].slot + 1)
        for row in running:
            positions[row.slot] = row.filled
        try:
            tokens = self._decoder.decode(positions, _controls(rows[: len(positions)]))
        except Exception as error:
            self._fail(rows, running, error)
            return
        made.append((running, tokens if len(running) == len(positions) else tokens[[row.slot for row in running]]))
        for row in running:
            row.filled += 1
            self._count(rows, row)

    def _read_prompts(self, rows: _Rows, made: _Made, group: Sequence[_Row] = ()) -> None:
        """Compute a chunk of one prompt, or several short ones; the last chunk gives the first token."""
        group = group or [row for row in rows if row is not None and not row.is_running][:1] or self._admitted(rows)
        if not group:
            return
        start, end = group[0].filled, group[0].filled + self._decoder.budget
        is_last, chunks = all(end >= len(row.prompt) for row in group), [row.prompt[start:end] for row in group]
        slots, controls = [row.slot for row in group], _controls(group) if is_last else None
        try:
            tokens = self._decoder.prefill(slots, chunks, start, controls)
        except Exception as error:
            if len(group) == 1:
                self._fail(rows, group, error)
            else:
                for row in group:  # find the one that fails
                    self._read_prompts(rows, made, [row])
            return
        if is_last:
            made.append((group, tokens))
        for row in group:
            row.filled = min(end, len(row.prompt))
            if is_last:
                self._count(rows, row)

    def _admitted(self, rows: _Rows) -> list[_Row]:
        """Give slots to waiting requests, as long as their prompts are short and of similar length."""
        group: list[_Row] = []
        with self._changed:
            while self._waiting and None in rows:
                row = self._waiting[0]
                sizes = [len(one.prompt) for one in (*group, row)]
                if group and (max(sizes) * len(sizes) > self._decoder.budget or max(sizes) - min(sizes) > _SIMILAR):
                    break
                self._waiting.popleft()
                if not row.is_over:
                    row.slot = rows.index(None)
                    rows[row.slot] = row
                    row.request.started = now()
                    group.append(row)
        return group

    def _count(self, rows: _Rows, row: _Row) -> None:
        """Count a computed token; the last one frees the slot."""
        row.left -= 1
        if not row.left:
            self._release(rows, row)

    def _release(self, rows: _Rows, row: _Row) -> None:
        if rows[row.slot] is row:
            rows[row.slot] = None
            self._decoder.release(row.slot)

    def _fetched(self, rows: _Rows, made: _Made) -> list[tuple[_Row, int]]:
        try:
            return [(row, token) for group, tokens in made for row, token in zip(group, tokens.tolist(), strict=True)]
        except Exception as error:  # GPUs report errors when results are fetched
            self._fail(rows, [row for group, _ in made for row in group], error)
            return []

    def _process(self, made: list[tuple[_Row, int]]) -> None:
        """Turn tokens into text, end what is complete, and pass it to the event loop."""
        events: list[_Event] = []
        for row, token in made:
            if row.is_over:
                continue
            is_end = token in self._ends and not row.request.ignore_eos
            row.made += not is_end
            is_last = is_end or row.made == row.limit
            text = ("" if is_end else row.text.add(token)) + (row.text.rest() if is_last else "")
            if row.made >= row.request.min_tokens:
                text = row.stops.feed(text)
            row.request.stopped = row.stops.stopped
            is_stopped = is_end or row.stops.stopped is not None
            text += row.stops.rest() if is_last and row.stops.stopped is None else ""
            row.is_over = is_last or is_stopped
            events.append((row, text, int(not is_end), "stop" if is_stopped else "length" if is_last else None, None))
        self._pass(events)

    def _pass(self, events: list[_Event]) -> None:
        try:
            if events and self._loop is not None:
                self._loop.call_soon_threadsafe(self._send, events)
        except RuntimeError:  # the loop is closed
            self._is_closed = True

    def _fail(self, rows: _Rows, group: Sequence[_Row], error: Exception) -> None:
        """End texts with the reason; the others are not affected."""
        refused = reason(error)
        if type(error).__name__ == "OutOfMemoryError":
            refused = Refused("RESOURCE_EXHAUSTED", f"out of memory for this text: {refused.message:.200}")
        self._pass([(row, "", 0, "abort", refused) for row in group if not row.is_over])
        for row in group:
            self._release(rows, row)
            row.is_over = True


def check_tokens(tokens: list[int], vocabulary: int) -> None:
    """Raise Refused for tokens that do not exist: on GPUs they would make every later computation fail."""
    wrong = next((token for token in tokens if not 0 <= token < vocabulary), None)
    if wrong is not None:
        raise Refused("INVALID_ARGUMENT", f"tokens must be in 0..{vocabulary - 1} (got {wrong})")


def _controls(rows: Sequence[_Row | None]) -> Any:
    """Return what `sample` needs to know about each row; None if all are simply greedy."""
    if not any(row is not None and (row.random is not None or row.excludes_end) for row in rows):
        return None
    made = np.zeros((len(rows), 5), np.float32)
    for i, row in enumerate(rows):
        if row is not None:
            request, uniform = row.request, min(row.random.random(), _BELOW_ONE) if row.random is not None else 0
            made[i] = request.temperature, request.top_p, max(0, request.top_k), uniform, row.excludes_end
    return made


class Text:
    """Converts tokens to text incrementally. A token is decoded together with earlier ones, since its text may depend
    on them."""

    __slots__ = ("_decode", "_known", "_tokens")

    def __init__(self, decode: Callable[[Sequence[int]], str], prompt: Sequence[int]) -> None:
        self._decode = decode
        self._tokens = list(prompt[-8:])
        """Tokens whose text is not complete yet, after a few for context."""
        self._known = len(self._tokens)

    def add(self, token: int) -> str:
        """Return the new text; "" while a character is incomplete."""
        self._tokens.append(token)
        before, after = self._decode(self._tokens[: self._known]), self._decode(self._tokens)
        is_incomplete = after.endswith(_INCOMPLETE) and len(self._tokens) - self._known < _MOST_INCOMPLETE
        if is_incomplete or len(after) <= len(before):
            return ""
        self._tokens, self._known = self._tokens[self._known :], len(self._tokens) - self._known
        return after[len(before) :]

    def rest(self) -> str:
        """Return the remaining text at the end, including an incomplete character."""
        return self._decode(self._tokens)[len(self._decode(self._tokens[: self._known])) :]
