"""A language model: text generation and embeddings for the OpenAI endpoints, and text generation over KServe."""

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from inferometer.serve.backends import configured
from inferometer.serve.models.types import Emit, Finish, Inference, Loading, Refused, Tensors, TextPart, reason
from inferometer.serve.offload import Threads
from inferometer.serve.openai.requests import Fields, TextRequest, invalid, too_long
from inferometer.tensors import Tensor, TensorSpec, to_numpy
from inferometer.timing.clock import now

PROMPT = "text_input"
INPUTS = (
    TensorSpec(PROMPT, "BYTES", (1,)),
    TensorSpec("max_tokens", "INT32", (1,), optional=True),  # omitted: the parameter `max_tokens`
    TensorSpec("temperature", "FP32", (1,), optional=True),  # 0 or omitted: always the most likely token
    TensorSpec("top_p", "FP32", (1,), optional=True),  # sample from the likeliest tokens that have this probability
    TensorSpec("seed", "INT64", (1,), optional=True),  # omitted: every request samples differently
    TensorSpec("stop", "BYTES", (-1,), optional=True),  # texts at which generation stops; they are not sent
)
PIECE = "text_output"
"""BYTES [1]: the text that a token adds. A token that ends inside a character waits for the rest."""
_BATCH = 32
_LONGEST = 32
"""Characters per token of a text that is still tokenized, which takes about 300 bytes of memory per character. Words have 4 or 5."""


class LanguageModel:
    """A model with its tokenizer, which generates texts with `engine` or computes embeddings with `vectors`."""

    def __init__(self, name: str, model: Any, tokenizer: Any, max_len: int) -> None:
        """`max_len` is the maximum number of tokens of a text, including what is generated."""
        self.name, self.model, self.tokenizer, self.max_len = name, model, tokenizer, max_len
        self.max_tokens = 0  # over KServe, if the request sets none
        self.engine: Any = None
        self.vectors: Any = None
        self._offload: Threads | None = None

    def close(self) -> None:
        self.engine.close()
        if self._offload is not None:
            self._offload.close()

    def encode(self, asked: TextRequest) -> list[list[int]]:
        """Return the tokens of each text, or of the conversation in the tokenizer's chat template; in any thread."""
        sizes = [len(part) for part in asked.parts if isinstance(part, str)]
        size = sum(sizes) if asked.messages else max(sizes, default=0)
        if size > _LONGEST * self.max_len:
            why = f"a text of {size} characters exceeds the model's maximum of {self.max_len} tokens"
            raise Refused("INVALID_ARGUMENT", why, label="context_length_exceeded")
        if not asked.messages:
            return [list(self.tokenizer(one)["input_ids"]) if isinstance(one, str) else one for one in asked.parts]
        if not getattr(self.tokenizer, "chat_template", None):
            raise invalid(f"model {self.name} has no chat template; use /v1/completions")
        try:
            text = self.tokenizer.apply_chat_template(asked.messages, tokenize=False, add_generation_prompt=True)
        except Exception as error:  # whatever a template raises about messages that it does not accept
            raise invalid(f"the chat template: {reason(error).message:.300}") from None
        return [list(self.tokenizer(text, add_special_tokens=False)["input_ids"])]

    def begin(self, inputs: Tensors, first: Inference, emit: Emit, finish: Finish) -> Callable[[], None]:
        """Generate a text for the OpenAI endpoints or over KServe."""
        is_kserve = first.text is None
        asked: TextRequest = request_of(inputs, self.max_tokens) if is_kserve else first.text

        def encoded(prompts: Any, error: BaseException | None) -> None:
            if first.is_over:  # cancelled
                return
            try:
                if error is not None:
                    raise error
                prompt = prompts[0]
                if asked.api == "tokenize":
                    return received(TextPart(data=prompt, finish_reason="stop"))
                room = self.max_len - len(prompt)
                limit = min(asked.n_out, room) if is_kserve else asked.n_out or room
                if max(limit, 1) > room:
                    raise too_long(len(prompt), max(limit, 1), f"the model's maximum of {self.max_len} tokens")
                if not prompt:
                    raise invalid("the text has no tokens")
                self._check_tokens(prompt)
                generation.prompt, generation.limit = prompt, limit
                self.engine.generate(generation)
                received(TextPart(prompt_tokens=len(prompt)))
            except Exception as why:
                finish(reason(why))

        def received(part: TextPart | Refused) -> None:
            if isinstance(part, Refused):
                return finish(part)
            if part.started:
                first.started, first.queue_ns = part.started, part.started - first.queued
            if not is_kserve:
                emit(part)
            elif part.text:
                emit(piece(part.text.encode("utf-8", "replace")))
            if part.finish_reason:
                finish(None)

        def cancel() -> None:
            generation.is_over = True
            finish(None)

        generation = Generation(asked, received)
        self._offload = self._offload or Threads(asyncio.get_running_loop())
        self._offload.run(sum(map(len, asked.parts)), lambda: self.encode(asked), encoded)
        return cancel

    def run_texts(self, requests: Sequence[TextRequest]) -> list[TextPart | Refused]:
        """Compute the embeddings of all requests together, or tokenize their texts."""
        started, every = now(), list[list[int]]()
        made: list[TextPart | Refused] = []
        for asked in requests:
            try:
                texts = self.encode(asked)
                if asked.api == "embedding":
                    self._check(texts, asked.fields.dimensions)
                    every += texts
                data = texts if asked.api == "embedding" else texts[0]
                made.append(TextPart(prompt_tokens=sum(map(len, texts)), started=started, data=data))
            except Exception as error:
                made.append(reason(error))
        rows = (row for at in range(0, len(every), _BATCH) for row in self.vectors(every[at : at + _BATCH]))
        for asked, part in zip(requests, made, strict=True):
            if isinstance(part, TextPart) and asked.api == "embedding":
                part.data = [next(rows).tobytes() for _ in part.data]
        return made

    def _check(self, texts: list[list[int]], dimensions: int | None) -> None:
        """Raise Refused if there can be no embeddings of the texts."""
        longest, size = max(map(len, texts)), self.model.config.get_text_config().hidden_size
        if longest > self.max_len:
            why = f"{longest} tokens of an input exceed the model's maximum of {self.max_len} tokens"
            raise Refused("INVALID_ARGUMENT", why, label="context_length_exceeded")
        self._check_tokens([token for one in texts for token in one])
        if dimensions not in (None, size):
            raise invalid(f"dimensions must be {size}, the length of this model's vectors (got {dimensions})")

    def _check_tokens(self, tokens: list[int]) -> None:
        """Raise Refused for tokens that do not exist: on GPUs they would make every later computation fail."""
        vocabulary = self.model.config.get_text_config().vocab_size
        wrong = next((token for token in tokens if not 0 <= token < vocabulary), None)
        if wrong is not None:
            raise invalid(f"tokens must be in 0..{vocabulary - 1} (got {wrong})")


class Generation:
    """One text to generate, and how far it is."""

    def __init__(self, asked: TextRequest, received: Callable[[TextPart | Refused], None]) -> None:
        """`received` is called in the event loop with each part of the text, or with why it failed."""
        fields = asked.fields
        stops = [fields.stop] if isinstance(fields.stop, str) else fields.stop or fields.stop_sequences or ()
        self.prompt, self.limit, self.received = list[int](), 0, received
        self.temperature = 1.0 if fields.temperature is None else fields.temperature
        self.top_p, self.top_k = fields.top_p or 1.0, max(fields.top_k or 0, 0)
        self.random = random.Random(fields.seed) if self.temperature else None
        """None: always the most likely token."""
        self.stops = StopTexts(tuple(filter(None, stops)))
        self.ignore_eos, self.min_tokens = fields.ignore_eos, fields.min_tokens
        self.is_over = False
        """Set at its end, or to cancel it: its slot is free at the next step."""

        # Set by the engine:
        self.text: Any = None  # turns tokens into text
        self.slot = self.started = -1
        self.filled = 0  # positions in the cache
        self.made = 0  # tokens that were processed

    @property
    def computed(self) -> int:
        """Tokens that were computed; 0 while the prompt is read."""
        return max(0, self.filled - len(self.prompt) + 1)


class StopTexts:
    """Cuts a text that arrives in pieces before the first of its stop texts: holds back as many characters as may be the
    start of one, like vLLM."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self.stops, self._kept, self._held = stops, max(map(len, stops), default=1) - 1, ""
        self.stopped: str | None = None
        """The stop text that was found: it and what follows are dropped."""

    def feed(self, piece: str, is_last: bool = False) -> str:
        """Return what is certain to precede any stop text; with the last piece, everything that was held back."""
        text = self._held + piece
        found = [(at, stop) for stop in self.stops if (at := text.find(stop)) >= 0]
        if found:
            (at, self.stopped), self._held = min(found), ""
            return text[:at]
        at = len(text) if is_last else max(len(text) - self._kept, 0)
        self._held = text[at:]
        return text[:at]


def declare(loading: Loading, inputs: Sequence[TensorSpec] = INPUTS) -> None:
    """Complete the configuration of a model that generates text."""
    loading.config.model_transaction_policy.decoupled = True
    configured.declare(loading, inputs, [TensorSpec(PIECE, "BYTES", (1,))])


def request_of(inputs: Tensors, max_tokens: int) -> TextRequest:
    """Return the request in the inputs; `max_tokens` is the default."""
    numbers = {name: to_numpy(inputs[name]).item() for name in inputs if name not in (PROMPT, "stop")}
    stop = configured.texts("stop", inputs["stop"]) if "stop" in inputs else None
    (prompt,) = configured.texts(PROMPT, inputs[PROMPT])
    try:
        fields = msgspec.convert({"max_tokens": max_tokens, "temperature": 0.0, "stop": stop} | numbers, Fields)
    except msgspec.ValidationError as error:
        raise invalid(f"the inputs are invalid: {error}") from None
    return TextRequest("completion", fields, [prompt], n_out=fields.max_tokens or 0)


def piece(text: bytes) -> Tensors:
    """Return the outputs of a response."""
    return {PIECE: Tensor(PIECE, "BYTES", (1,), len(text).to_bytes(4, "little") + text)}
