"""A language model behind the OpenAI endpoints, and text generation over KServe (`begin`):

text_input   BYTES [1]    the prompt
max_tokens   INT32 [1]    maximum number of tokens; default: the parameter `max_tokens` of the configuration (128)
temperature  FP32 [1]     0 or omitted: always the most likely token
top_p        FP32 [1]     sample from the most likely tokens that together have this probability
seed         INT64 [1]    seed of the sampling; omitted: every request samples differently
stop         BYTES [-1]   texts at which generation stops; they are not sent

text_output  BYTES [1]    the text that a token adds; a token that ends inside a character waits for the rest
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from inferometer.serve.backends import configured
from inferometer.serve.backends.text.engine import check_tokens
from inferometer.serve.models.types import Begin, Emit, Finish, Loading, Parameters, Refused, Tensors, reason
from inferometer.serve.offload import Threads
from inferometer.serve.openai.model import Generation, Vectors
from inferometer.tensors import Tensor, TensorSpec, to_numpy

PROMPT, PIECE = "text_input", "text_output"
INPUTS = (
    TensorSpec(PROMPT, "BYTES", (1,)),
    TensorSpec("max_tokens", "INT32", (1,), optional=True),
    TensorSpec("temperature", "FP32", (1,), optional=True),
    TensorSpec("top_p", "FP32", (1,), optional=True),
    TensorSpec("seed", "INT64", (1,), optional=True),
    TensorSpec("stop", "BYTES", (-1,), optional=True),
)
_LIMITS: dict[str, tuple[Callable[[float], bool], str]] = {
    "max_tokens": (lambda value: value >= 1, "at least 1"),
    "temperature": (lambda value: math.isfinite(value) and value >= 0, "at least 0"),
    "top_p": (lambda value: 0 < value <= 1, "in (0, 1]"),
}
_BATCH = 32


class LanguageModel:
    """A model with its tokenizer. Behind the OpenAI endpoints (openai.model.TextModel), it generates texts with `engine` or
    computes embeddings with `vectors`."""

    def __init__(self, name: str, model: Any, tokenizer: Any, longest: int | None, threads: int) -> None:
        """`longest` is the maximum length of a text."""
        self.name, self.model, self.tokenizer, self.longest, self.threads = name, model, tokenizer, longest, threads
        self.max_len, self.can_generate, self.can_embed = longest or 1 << 30, False, False
        self.engine: Any = None
        self.vectors: Any = None
        self._thread: Threads | None = None
        self._pending: deque[tuple[list[list[int]], Vectors]] = deque()

    def encode(self, texts: Sequence[str | list[int]]) -> list[list[int]]:
        return [list(self.tokenizer(one)["input_ids"]) if isinstance(one, str) else one for one in texts]

    def encode_chat(self, messages: Sequence[dict[str, str]]) -> list[list[int]]:
        if not getattr(self.tokenizer, "chat_template", None):
            raise Refused("INVALID_ARGUMENT", f"model {self.name} has no chat template; use /v1/completions")
        try:
            text = self.tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        except Exception as error:  # whatever a template raises about messages that it does not accept
            raise Refused("INVALID_ARGUMENT", f"the chat template: {reason(error).message:.300}") from None
        return [list(self.tokenizer(text, add_special_tokens=False)["input_ids"])]

    def generate(self, request: Generation) -> None:
        self.engine.generate(request)

    def cancel(self, request: Generation) -> None:
        self.engine.cancel(request)

    def embed(self, inputs: list[list[int]], then: Vectors) -> None:
        """Compute vectors in a thread, together with what other requests added while it was busy."""
        check_tokens([token for one in inputs for token in one], self.model.config.get_text_config().vocab_size)
        self._thread = self._thread or Threads(asyncio.get_running_loop(), 1, f"{self.name} embeddings")
        self._pending.append((inputs, then))
        self._thread.do(self._embed_pending, self._embedded)

    def _embed_pending(self) -> list[tuple[Vectors, list[Any] | None, Refused | None]]:
        taken: list[tuple[list[list[int]], Vectors]] = []
        while self._pending and sum(len(inputs) for inputs, _ in taken) < _BATCH:
            taken.append(self._pending.popleft())
        try:
            every = [one for inputs, _ in taken for one in inputs]
            rows = [row for at in range(0, len(every), _BATCH) for row in self.vectors(every[at : at + _BATCH])]
        except Exception as error:
            return [(then, None, reason(error)) for _, then in taken]
        return [(then, [rows.pop(0) for _ in inputs], None) for inputs, then in taken]

    def _embedded(self, made: Any, error: BaseException | None) -> None:
        for then, vectors, refused in made or ():
            then(vectors, refused)

    def close(self) -> None:
        if self.engine is not None:
            self.engine.close()
        if self._thread is not None:
            self._thread.close()


# --- KServe ----------------------------------------------------------------------------------------------------------


def declare(loading: Loading, inputs: Sequence[TensorSpec] = INPUTS) -> None:
    """Complete the configuration of a model that generates text."""
    loading.config.model_transaction_policy.decoupled = True
    configured.declare(loading, loading.config.input, inputs)
    configured.declare(loading, loading.config.output, [TensorSpec(PIECE, "BYTES", (1,))])


def begin(model: LanguageModel, most: int) -> Begin:
    """Return what starts the generation of a text; `most` is the default for max_tokens."""

    def start(inputs: Tensors, parameters: Parameters, emit: Emit, finish: Finish) -> Callable[[], None]:
        request = Generation(
            model.encode([prompt_text(inputs)])[0],
            tokens=lambda text, count: emit(piece(text.encode("utf-8", "replace"))) if text else None,
            ended=lambda why, refused: finish(refused),
            max_tokens=int(number(inputs, "max_tokens", most)),
            temperature=float(number(inputs, "temperature", 0.0)),
            top_p=float(number(inputs, "top_p", 1.0)),
            seed=int(number(inputs, "seed", 0)) if "seed" in inputs else None,
            stop=tuple(one for one in configured.texts("stop", inputs["stop"]) if one) if "stop" in inputs else (),
        )
        try:
            model.generate(request)
        except Refused as refused:
            raise Refused(refused.code, f"input '{PROMPT}': {refused.message}") from None

        def cancel() -> None:
            model.cancel(request)
            finish(None)

        return cancel

    return start


def prompt_text(inputs: Tensors) -> str:
    texts = configured.texts(PROMPT, inputs[PROMPT])
    if len(texts) != 1:
        raise Refused("INVALID_ARGUMENT", f"input '{PROMPT}': expected one text (got {len(texts)})")
    return texts[0]


def number(inputs: Tensors, name: str, default: float) -> Any:
    """Return the value of an input that is one number."""
    if name not in inputs:
        return default
    found = to_numpy(inputs[name]).reshape(-1)
    if found.size != 1:
        raise Refused("INVALID_ARGUMENT", f"input '{name}': expected one number (got {found.size})")
    value = found[0].item()
    if name in _LIMITS and not _LIMITS[name][0](value):
        raise Refused("INVALID_ARGUMENT", f"input '{name}': must be {_LIMITS[name][1]} (got {value})")
    return value


def piece(text: bytes) -> Tensors:
    """Return the outputs of a response."""
    return {PIECE: Tensor(PIECE, "BYTES", (1,), len(text).to_bytes(4, "little") + text)}
