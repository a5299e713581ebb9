"""Text models without a model, for the endpoints. One repeats the prompt's words, one per step, with given timing; the
other one's embeddings are the lengths of the texts.

Tokens are the words' positions in a growing list. Special words of the prompt change what is generated:
    <fail>   the generation fails there      <eos>   it ends there      <empty>   a token without text
    <exit>   the process ends there
"""

import asyncio
import os
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np

from inferometer.serve.backends.text.model import Generation, LanguageModel
from inferometer.serve.models.types import Loaded, Loading, Refused, TextPart
from inferometer.serve.openai.requests import TextRequest
from inferometer.timing.clock import now

CONFIG = """
    backend: "echo"
    input [{ name: "text_input", data_type: TYPE_STRING, dims: [ 1 ] }]
    output [{ name: "text_output", data_type: TYPE_STRING, dims: [ 1 ] }]
    model_transaction_policy { decoupled: true }
    parameters { key: "warmup" value { string_value: "0" } }
"""
VECTORS = CONFIG.replace("model_transaction_policy { decoupled: true }", "").replace("echo", "vectors")
MADE: dict[str, "Echo"] = {}
"""The models that were loaded."""


def load(loading: Loading) -> Loaded:
    MADE[loading.name] = echo = Echo(loading.name)
    return Loaded(begin=echo.begin, slots=0, max_len=echo.max_len)


def load_vectors(loading: Loading) -> Loaded:
    echo = Echo(loading.name)
    return Loaded(run=print, run_texts=echo.run_texts, max_len=echo.max_len)  # type: ignore[arg-type]


class Echo(LanguageModel):
    """A language model, its tokenizer and its engine."""

    step_s = 0.001

    def __init__(self, name: str) -> None:
        facts = SimpleNamespace(vocab_size=10_000, hidden_size=2)
        super().__init__(name, SimpleNamespace(config=SimpleNamespace(get_text_config=lambda: facts)), None, 100)
        self.engine, self.vectors = self, self._vectors
        self.seen: list[Generation] = []
        self.running: set[Generation] = set()
        self.cancelled: list[Generation] = []
        self.slots = 100
        self._words: list[str] = []

    def encode(self, asked: TextRequest) -> list[list[int]]:
        if "<unencodable>" in asked.parts:
            raise ValueError("cannot encode this")
        if asked.messages and asked.messages[-1]["role"] != "user":
            raise Refused("INVALID_ARGUMENT", "the last message must be the user's")
        chat = " ".join(f"[{message['role']}] {message['content']}" for message in asked.messages)
        texts = [chat] if chat else asked.parts
        return [[self.number(word) for word in one.split()] if isinstance(one, str) else one for one in texts]

    def number(self, word: str) -> int:
        if word not in self._words:
            self._words.append(word)
        return self._words.index(word)

    def _vectors(self, inputs: list[list[int]]) -> list[np.ndarray]:
        if any(self._words[token] == "<fail>" for one in inputs for token in one):
            raise ValueError("the model failed")
        return [np.array([len(one), 0.5], np.float32) for one in inputs]

    # --- the engine: one step per token ---

    def generate(self, request: Generation) -> None:
        if len(self.running) >= self.slots:
            raise Refused("RESOURCE_EXHAUSTED", "the queue is full")
        self.seen.append(request)
        self.running.add(request)
        self._later(request, iter(self._pieces(request)), request.limit, now())

    def _later(self, *state: object) -> None:
        asyncio.get_running_loop().call_later(self.step_s, lambda: self._step(*state))  # type: ignore[arg-type]

    def _step(self, request: Generation, pieces: Iterator[str], left: int, started: int) -> None:
        stops = request.stops
        if request.is_over:
            self.running.discard(request)
            self.cancelled.append(request)
            return
        piece = next(pieces, "<eos>")
        if piece == "<exit>":
            os._exit(3)
        if piece == "<fail>":
            self._end(request, Refused("INTERNAL", "the model failed"))
        elif piece == "<eos>":
            self._end(request, TextPart(stops.feed("", True), finish_reason="stop", started=started))
        else:
            text = stops.feed("" if piece == "<empty>" else piece, left == 1)
            if stops.stopped is not None:
                self._end(request, TextPart(text, 1, 0, "stop", stops.stopped, started))
            elif left == 1:
                self._end(request, TextPart(text, 1, 0, "length", started=started))
            else:
                request.received(TextPart(text, 1, started=started))
                self._later(request, pieces, left - 1, started)

    def _end(self, request: Generation, part: TextPart | Refused) -> None:
        self.running.discard(request)
        request.received(part)

    def _pieces(self, request: Generation) -> list[str]:
        words = [self._words[token] if token < len(self._words) else f"#{token}" for token in request.prompt]
        if request.ignore_eos:
            words = [word for word in words if word != "<eos>"] * 100
        return [word if word.startswith("<") else f" {word}" for word in words]
