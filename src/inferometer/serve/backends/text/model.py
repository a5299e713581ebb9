"""A language model: text generation and embeddings for the OpenAI endpoints, and text generation over KServe:

text_input   BYTES [1]    the prompt
max_tokens   INT32 [1]    maximum number of tokens; default: the parameter `max_tokens` of the configuration (128)
temperature  FP32 [1]     0 or omitted: always the most likely token
top_p        FP32 [1]     sample from the most likely tokens that together have this probability
seed         INT64 [1]    seed of the sampling; omitted: every request samples differently
stop         BYTES [-1]   texts at which generation stops; they are not sent

text_output  BYTES [1]    the text that a token adds; a token that ends inside a character waits for the rest
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from inferometer.serve.backends import configured
from inferometer.serve.backends.text.generation import Generation
from inferometer.serve.models.types import Emit, Finish, Inference, Loading, Refused, Tensors, TextPart, reason
from inferometer.serve.offload import Threads
from inferometer.serve.openai.requests import Fields, TextRequest, invalid, too_long
from inferometer.tensors import Tensor, TensorSpec, to_numpy
from inferometer.timing.clock import now

PROMPT, PIECE = "text_input", "text_output"
INPUTS = (
    TensorSpec(PROMPT, "BYTES", (1,)),
    TensorSpec("max_tokens", "INT32", (1,), optional=True),
    TensorSpec("temperature", "FP32", (1,), optional=True),
    TensorSpec("top_p", "FP32", (1,), optional=True),
    TensorSpec("seed", "INT64", (1,), optional=True),
    TensorSpec("stop", "BYTES", (-1,), optional=True),
)
_BATCH = 32


class LanguageModel:
    """A model with its tokenizer, which generates texts with `engine` or computes embeddings with `vectors`."""

    def __init__(self, name: str, model: Any, tokenizer: Any, longest: int | None, threads: int) -> None:
        """`longest` is the maximum length of a text."""
        self.name, self.model, self.tokenizer, self.longest, self.threads = name, model, tokenizer, longest, threads
        self.max_len = longest or 1 << 30
        self.max_tokens = 0
        """Length of a text over KServe if the request sets none."""
        self.engine: Any = None
        self.vectors: Any = None
        self._offload: Threads | None = None

    def close(self) -> None:
        self.engine.close()
        if self._offload is not None:
            self._offload.close()

    def encode(self, asked: TextRequest) -> list[list[int]]:
        """Return the tokens of each text, or of the conversation; may be called in a thread."""
        if asked.messages:
            return [self.encode_chat(asked.messages)]
        return [list(self.tokenizer(one)["input_ids"]) if isinstance(one, str) else one for one in asked.parts]

    def encode_chat(self, messages: list[dict[str, str]]) -> list[int]:
        """Return the tokens of a conversation in the tokenizer's chat template."""
        if not getattr(self.tokenizer, "chat_template", None):
            raise invalid(f"model {self.name} has no chat template; use /v1/completions")
        try:
            text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except Exception as error:  # whatever a template raises about messages that it does not accept
            raise invalid(f"the chat template: {reason(error).message:.300}") from None
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def begin(self, inputs: Tensors, first: Inference, emit: Emit, finish: Finish) -> Callable[[], None]:
        """Generate a text for the OpenAI endpoints or over KServe."""
        is_kserve = first.text is None
        asked: TextRequest = request_of(inputs, self.max_tokens) if is_kserve else first.text
        generation: Generation | None = None

        def encoded(prompts: list[list[int]] | None, error: BaseException | None) -> None:
            nonlocal generation
            if first.is_over:  # cancelled
                return
            try:
                if prompts is None:
                    raise error or RuntimeError("there are no tokens")
                if asked.api == "tokenize":
                    received(TextPart(data=prompts[0], finish_reason="stop"))
                    return
                n_in = len(prompts[0])
                room = self.max_len - n_in
                n_out = min(asked.n_out, room) if is_kserve else asked.n_out or room
                if max(n_out, 1) > room:
                    raise too_long(n_in, max(n_out, 1), f"the model's maximum of {self.max_len} tokens")
                generation = Generation(asked, prompts[0], n_out, received)
                self.engine.generate(generation)
                received(TextPart(prompt_tokens=n_in))
            except Exception as why:
                finish(reason(why))

        def received(part: TextPart | Refused) -> None:
            if isinstance(part, Refused):
                finish(part)
                return
            if part.started:
                first.started, first.queue_ns = part.started, part.started - first.queued
            if not is_kserve:
                emit(part)
            elif part.text:
                emit(piece(part.text.encode("utf-8", "replace")))
            if part.finish_reason:
                finish(None)

        def cancel() -> None:
            if generation is not None:
                generation.is_over = True
            finish(None)

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
                made.append(TextPart(prompt_tokens=sum(map(len, texts)), started=started, data=texts))
            except Exception as error:
                made.append(reason(error))
        rows = (row for at in range(0, len(every), _BATCH) for row in self.vectors(every[at : at + _BATCH]))
        for asked, part in zip(requests, made, strict=True):
            if isinstance(part, TextPart):
                texts = part.data
                part.data = [next(rows).tobytes() for _ in texts] if asked.api == "embedding" else texts[0]
        return made

    def _check(self, texts: list[list[int]], dimensions: int | None) -> None:
        """Raise Refused if there can be no embeddings of the texts."""
        config, longest = self.model.config.get_text_config(), max(map(len, texts))
        if longest > self.max_len:
            why = f"{longest} tokens of an input exceed the model's maximum of {self.max_len} tokens"
            raise Refused("INVALID_ARGUMENT", why, label="context_length_exceeded")
        check_tokens([token for one in texts for token in one], config.vocab_size)
        if dimensions not in (None, config.hidden_size):
            size = config.hidden_size
            raise invalid(f"dimensions must be {size}, the length of this model's vectors (got {dimensions})")


def check_tokens(tokens: list[int], vocabulary: int) -> None:
    """Raise Refused for tokens that do not exist: on GPUs they would make every later computation fail."""
    wrong = next((token for token in tokens if not 0 <= token < vocabulary), None)
    if wrong is not None:
        raise invalid(f"tokens must be in 0..{vocabulary - 1} (got {wrong})")


# --- KServe ----------------------------------------------------------------------------------------------------------


def declare(loading: Loading, inputs: Sequence[TensorSpec] = INPUTS) -> None:
    """Complete the configuration of a model that generates text."""
    loading.config.model_transaction_policy.decoupled = True
    configured.declare(loading, loading.config.input, inputs)
    configured.declare(loading, loading.config.output, [TensorSpec(PIECE, "BYTES", (1,))])


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
