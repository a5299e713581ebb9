"""An engine for openai_front that needs no model: it generates the tokens after the last one of the prompt, and 0 is the end.

Token N is the word wN, but 200 and 201 are the two halves of an é. A prompt that starts with 250 makes it slow.
`python counting_engine.py PORT`.
"""

import sys
import time
from collections.abc import Sequence
from typing import Any

from openai_front import Event, Sampling, serve

SLOW = 250
STEP_S = 0.01


class Counting:
    context = 1000

    def __init__(self) -> None:
        self._running: dict[int, tuple[list[int], Sampling]] = {}
        self._last = 0
        self.cancelled = 0

    def encode(self, text: str, is_chat: bool) -> list[int]:
        if text == "cancelled":
            return [self.cancelled]
        return [int(word.removeprefix("w")) for word in text.split()]

    def decode(self, ids: Sequence[int]) -> str:
        octets = b"".join({200: b"\xc3", 201: b"\xa9"}.get(each, f" w{each}".encode()) for each in ids)
        return octets.decode("utf-8", "replace")

    def render(self, messages: list[dict[str, Any]]) -> str:
        return " ".join(str(message["content"]) for message in messages)

    def add(self, ids: Sequence[int], sampling: Sampling) -> int:
        if ids[-1] == 666:
            raise RuntimeError("no room")
        self._last += 1
        self._running[self._last] = ([*ids], sampling)
        return self._last

    def cancel(self, key: int) -> None:
        self.cancelled += 1
        del self._running[key]

    def step(self) -> list[Event]:
        events = []
        for key, (ids, given) in list(self._running.items()):
            if ids[0] == SLOW:
                time.sleep(STEP_S)
            if ids[-1] == 555:
                self._running.clear()
                raise RuntimeError("the engine broke")
            ids.append((ids[-1] + 1) % 300)
            sampling = given._replace(max_tokens=given.max_tokens - 1)
            self._running[key] = (ids, sampling)
            is_end = ids[-1] == 0 and not sampling.ignore_eos
            finish = "stop" if is_end else "length" if not sampling.max_tokens else ""
            events.append(Event(key, ids[-1], finish))
            if finish:
                del self._running[key]
        return events


if __name__ == "__main__":
    serve(Counting(), "counting", "127.0.0.1", int(sys.argv[1]))
