"""A language model behind the OpenAI endpoints: its tokenizer with the engine, or with an encoder for embeddings."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from inferometer.serve.backends.text.engine import Engine, check_tokens
from inferometer.serve.models.types import Refused, reason
from inferometer.serve.offload import Threads
from inferometer.serve.openai.model import Generation, Vectors

_BATCH = 32


class Language(msgspec.Struct):
    """A model, its tokenizer, and the maximum length of a text."""

    torch: Any
    hugging: Any
    device: Any
    model: Any
    tokenizer: Any
    longest: int | None
    threads: int


class TextModel:
    """Generates texts with an engine, or computes embeddings with `vectors`; see serve.openai.model.TextModel."""

    def __init__(
        self, name: str, language: Language, engine: Engine | None, vectors: Callable[..., Any] | None
    ) -> None:
        self.name, self._tokenizer, self._engine, self._vectors = name, language.tokenizer, engine, vectors
        self._vocabulary: int = language.model.config.get_text_config().vocab_size
        self.max_len = engine.length if engine is not None else language.longest or 1 << 30
        self.can_generate, self.can_embed = engine is not None, vectors is not None
        self._thread: Threads | None = None
        self._pending: deque[tuple[list[list[int]], Vectors]] = deque()

    def encode(self, texts: Sequence[str | list[int]]) -> list[list[int]]:
        return [list(self._tokenizer(one)["input_ids"]) if isinstance(one, str) else one for one in texts]

    def encode_chat(self, messages: Sequence[dict[str, str]]) -> list[list[int]]:
        if not getattr(self._tokenizer, "chat_template", None):
            raise Refused("INVALID_ARGUMENT", f"model {self.name} has no chat template; use /v1/completions")
        try:
            text = self._tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        except Exception as error:  # whatever a template raises about messages that it does not accept
            raise Refused("INVALID_ARGUMENT", f"the chat template: {reason(error).message:.300}") from None
        return [list(self._tokenizer(text, add_special_tokens=False)["input_ids"])]

    def generate(self, request: Generation) -> None:
        assert self._engine is not None  # can_generate
        self._engine.generate(request)

    def cancel(self, request: Generation) -> None:
        if self._engine is not None:
            self._engine.cancel(request)

    def embed(self, inputs: list[list[int]], then: Vectors) -> None:
        """Compute vectors in a thread, together with what other requests added while it was busy."""
        check_tokens([token for one in inputs for token in one], self._vocabulary)
        self._thread = self._thread or Threads(asyncio.get_running_loop(), 1, f"{self.name} embeddings")
        self._pending.append((inputs, then))
        self._thread.do(self._embed_pending, self._embedded)

    def _embed_pending(self) -> list[tuple[Vectors, list[Any] | None, Refused | None]]:
        taken: list[tuple[list[list[int]], Vectors]] = []
        while self._pending and sum(len(inputs) for inputs, _ in taken) < _BATCH:
            taken.append(self._pending.popleft())
        try:
            assert self._vectors is not None  # can_embed
            every = [one for inputs, _ in taken for one in inputs]
            rows = [row for at in range(0, len(every), _BATCH) for row in self._vectors(every[at : at + _BATCH])]
        except Exception as error:
            return [(then, None, reason(error)) for _, then in taken]
        return [(then, [rows.pop(0) for _ in inputs], None) for inputs, then in taken]

    def _embedded(self, made: Any, error: BaseException | None) -> None:
        for then, vectors, refused in made or ():
            then(vectors, refused)

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
        if self._thread is not None:
            self._thread.close()
