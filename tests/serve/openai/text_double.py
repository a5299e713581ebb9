"""A text model without a model, for the endpoints: it repeats the prompt's words, one per step, with given timing.

Tokens are the words' positions in a growing list. Special words of the prompt change what is generated:
    <fail>   the generation fails there      <eos>   it ends there      <empty>   a token without text
    <exit>   the process ends there
"""

import asyncio
import os
from collections.abc import Iterator, Sequence

import numpy as np

from inferometer.serve.models.types import Loaded, Loading, Refused
from inferometer.serve.openai.model import FinishReason, Generation, StopTexts, Vectors
from inferometer.timing.clock import now

CONFIG = """
    backend: "echo"
    input [{ name: "text_input", data_type: TYPE_STRING, dims: [ 1 ] }]
    output [{ name: "text_output", data_type: TYPE_STRING, dims: [ 1 ] }]
    parameters { key: "warmup" value { string_value: "0" } }
"""
MADE: dict[str, "Echo"] = {}
"""The models that were loaded."""


def load(loading: Loading) -> Loaded:
    MADE[loading.name] = Echo(loading.name)
    return Loaded(begin=lambda inputs, parameters, emit, finish: finish(None), text=MADE[loading.name])


class Echo:
    max_len = 100
    can_generate = can_embed = True
    step_s = 0.001

    def __init__(self, name: str) -> None:
        self.name = name
        self.seen: list[Generation] = []
        self.running: set[Generation] = set()
        self.cancelled: list[Generation] = []
        self.slots = 100
        self._words: list[str] = []

    def encode(self, texts: Sequence[str | list[int]]) -> list[list[int]]:
        if "<unencodable>" in texts:
            raise ValueError("cannot encode this")
        return [[self._number(word) for word in one.split()] if isinstance(one, str) else one for one in texts]

    def encode_chat(self, messages: Sequence[dict[str, str]]) -> list[list[int]]:
        if messages[-1]["role"] != "user":
            raise Refused("INVALID_ARGUMENT", "the last message must be the user's")
        return self.encode([" ".join(f"[{message['role']}] {message['content']}" for message in messages)])

    def generate(self, request: Generation) -> None:
        if len(self.running) >= self.slots:
            raise Refused("RESOURCE_EXHAUSTED", "the queue is full")
        self.seen.append(request)
        self.running.add(request)
        request.started = now()
        self._later(request, iter(self._pieces(request)), StopTexts(request.stop), request.max_tokens)

    def cancel(self, request: Generation) -> None:
        self.running.discard(request)
        self.cancelled.append(request)

    def embed(self, inputs: list[list[int]], then: Vectors) -> None:
        if any(self._words[token] == "<fail>" for one in inputs for token in one):
            then(None, Refused("INTERNAL", "the model failed"))
        else:
            then([np.array([len(one), 0.5], np.float32) for one in inputs], None)

    # --- one step per token ---

    def _later(self, *state: object) -> None:
        asyncio.get_running_loop().call_later(self.step_s, lambda: self._step(*state))  # type: ignore[arg-type]

    def _step(self, request: Generation, pieces: Iterator[str], stops: StopTexts, left: int) -> None:
        if request not in self.running:
            return
        piece = next(pieces, "<eos>")
        if piece == "<fail>":
            self._end(request, "abort", Refused("INTERNAL", "the model failed"))
        elif piece == "<exit>":
            os._exit(3)
        elif piece == "<eos>":
            self._rest(request, stops, "stop")
        else:
            request.tokens(stops.feed("" if piece == "<empty>" else piece), 1)
            request.stopped = stops.stopped
            if stops.stopped is not None:
                self._end(request, "stop", None)
            elif left == 1:
                self._rest(request, stops, "length")
            else:
                self._later(request, pieces, stops, left - 1)

    def _rest(self, request: Generation, stops: StopTexts, reason: FinishReason) -> None:
        if held := stops.rest():
            request.tokens(held, 0)
        self._end(request, reason, None)

    def _end(self, request: Generation, reason: FinishReason, refused: Refused | None) -> None:
        self.running.discard(request)
        request.ended(reason, refused)

    def _pieces(self, request: Generation) -> list[str]:
        words = [self._words[token] if token < len(self._words) else f"#{token}" for token in request.prompt]
        if request.ignore_eos:
            words = [word for word in words if word != "<eos>"] * 100
        return [word if word.startswith("<") else f" {word}" for word in words]

    def _number(self, word: str) -> int:
        if word not in self._words:
            self._words.append(word)
        return self._words.index(word)
