"""Text generation token by token: the prompt is processed once; each further step computes one token with cached keys
and values.

    text_input   BYTES [1]    the prompt
    max_tokens   INT32 [1]    maximum number of tokens; default: the parameter `max_tokens` of the configuration (128)
    temperature  FP32 [1]     0 or omitted: always the most likely token
    top_p        FP32 [1]     sample from the most likely tokens that together have this probability
    seed         INT64 [1]    seed of the sampling; omitted: every request samples differently
    stop         BYTES [-1]   texts at which generation stops; they are not sent

    text_output  BYTES [1]    the text that a token adds; a token that ends inside a character waits for the rest

Generation ends at an end-of-text token of the model, at `max_tokens`, at a stop text, at the model's maximum context
length, or when the request is cancelled (the generator is closed).
"""

import inspect
import math
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from inferometer.errors import UserError
from inferometer.serve.backends import configured
from inferometer.serve.backends.tensors import use_threads
from inferometer.serve.models.types import Loaded, Loading, Parameters, Refused, Tensors
from inferometer.tensors import TensorSpec, from_numpy, to_numpy

PROMPT, PIECE = "text_input", "text_output"
_INPUTS = (
    TensorSpec(PROMPT, "BYTES", (1,)),
    TensorSpec("max_tokens", "INT32", (1,), optional=True),
    TensorSpec("temperature", "FP32", (1,), optional=True),
    TensorSpec("top_p", "FP32", (1,), optional=True),
    TensorSpec("seed", "INT64", (1,), optional=True),
    TensorSpec("stop", "BYTES", (-1,), optional=True),
)
_MOST = 128
_HALF = "\ufffd"  # what an incomplete character is decoded to
_MOST_HALVES = 8  # tokens; a character has at most 4 bytes, so more are not a character


class Language(msgspec.Struct):
    """A model, its tokenizer, and the maximum length of a text."""

    torch: Any
    device: Any
    model: Any
    tokenizer: Any
    longest: int | None
    threads: int


class Wish(msgspec.Struct, frozen=True):
    """The generation parameters of a request."""

    prompt: str
    tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()


def loaded(loading: Loading, language: Language) -> Loaded:
    config = loading.config
    if config.max_batch_size:
        raise UserError(
            f"model {loading.name}: max_batch_size is {config.max_batch_size}, but text is generated for one request at a time",
            "set it to 0; instance_group.count sets how many requests run concurrently",
        )
    config.model_transaction_policy.decoupled = True
    configured.declare(config.input, _INPUTS)
    configured.declare(config.output, [TensorSpec(PIECE, "BYTES", (1,))])
    configured.expect(loading, {spec.name for spec in _INPUTS}, {PIECE})
    most, ends = configured.whole(loading, "max_tokens", _MOST), _ends(language)

    def run(inputs: Tensors, parameters: Parameters) -> Iterator[Tensors]:
        wish = wished(inputs, most)
        return _answers(language, wish, ends)

    return Loaded(run=run)


def _ends(language: Language) -> frozenset[int]:
    """Return the tokens that end a text."""
    generation = getattr(language.model, "generation_config", None)
    found = getattr(generation, "eos_token_id", None)
    if found is None:
        found = language.model.config.eos_token_id
    if found is None:
        found = language.tokenizer.eos_token_id
    return frozenset(found if isinstance(found, list | tuple) else () if found is None else (found,))


# --- the request -----------------------------------------------------------------------------------------------------


def wished(inputs: Tensors, most: int) -> Wish:
    prompt = _texts(inputs, PROMPT)
    if len(prompt) != 1:
        raise Refused("INVALID_ARGUMENT", f"input '{PROMPT}': expected one text (got {len(prompt)})")
    tokens = _number(inputs, "max_tokens", most)
    temperature, top_p = float(_number(inputs, "temperature", 0.0)), float(_number(inputs, "top_p", 1.0))
    if tokens < 1:
        raise Refused("INVALID_ARGUMENT", f"input 'max_tokens': must be at least 1 (got {tokens})")
    if not (math.isfinite(temperature) and temperature >= 0):
        raise Refused("INVALID_ARGUMENT", f"input 'temperature': must be at least 0 (got {temperature})")
    if not 0 < top_p <= 1:
        raise Refused("INVALID_ARGUMENT", f"input 'top_p': must be in (0, 1] (got {top_p})")
    seed = int(_number(inputs, "seed", 0)) if "seed" in inputs else None
    stop = tuple(one for one in _texts(inputs, "stop") if one)
    return Wish(prompt[0], int(tokens), temperature, top_p, seed, stop)


def _texts(inputs: Tensors, name: str) -> list[str]:
    return configured.texts(name, inputs[name]) if name in inputs else []


def _number(inputs: Tensors, name: str, default: float) -> Any:
    if name not in inputs:
        return default
    found = to_numpy(inputs[name]).reshape(-1)
    if found.size != 1:
        raise Refused("INVALID_ARGUMENT", f"input '{name}': expected one number (got {found.size})")
    return found[0].item()


# --- the text --------------------------------------------------------------------------------------------------------


def _answers(language: Language, wish: Wish, ends: frozenset[int]) -> Iterator[Tensors]:
    prompt = list(language.tokenizer(wish.prompt)["input_ids"])
    longest = language.longest
    if not prompt:
        raise Refused("INVALID_ARGUMENT", f"input '{PROMPT}': the text has no tokens")
    if longest is not None and len(prompt) >= longest:
        raise Refused(
            "INVALID_ARGUMENT",
            f"input '{PROMPT}': the text has {len(prompt)} tokens; the maximum, including the response, is {longest}",
        )
    steps = wish.tokens if longest is None else min(wish.tokens, longest - len(prompt))
    text, held = Text(language.tokenizer, prompt), Held(wish.stop)
    for token in _tokens(language, prompt, wish, steps):
        if token in ends:
            break
        piece = held.add(text.add(token))
        if piece:
            yield _answer(piece)
        if held.stopped:
            return
    rest = held.add(text.rest())
    rest += "" if held.stopped else held.rest()
    if rest:
        yield _answer(rest)


def _answer(piece: str) -> Tensors:
    return {PIECE: from_numpy(PIECE, np.array([piece.encode("utf-8", "replace")], object), "BYTES")}


def _tokens(language: Language, prompt: Sequence[int], wish: Wish, steps: int) -> Iterator[int]:
    torch = language.torch
    use_threads(torch, language.threads)
    generator = torch.Generator(device="cpu")
    generator.seed() if wish.seed is None else generator.manual_seed(wish.seed)
    given, kept = torch.tensor([prompt], device=language.device), None
    last = {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(language.model.forward).parameters else {}
    for _ in range(steps):
        with torch.inference_mode():  # not around the yield: it would also apply to the code that runs meanwhile
            answer = language.model(input_ids=given, past_key_values=kept, use_cache=True, **last)
            kept = answer.past_key_values
            token = _chosen(torch, answer.logits[0, -1].to(torch.float32), wish, generator)
            given = torch.tensor([[token]], device=language.device)
        yield token


def _chosen(torch: Any, logits: Any, wish: Wish, generator: Any) -> int:
    if not wish.temperature:
        return int(logits.argmax())
    shares = (logits / wish.temperature).softmax(-1).cpu()
    if wish.top_p < 1:
        ordered, places = shares.sort(descending=True)
        ordered[ordered.cumsum(0) - ordered >= wish.top_p] = 0  # the first one is always kept
        shares = torch.zeros_like(shares).scatter_(0, places, ordered)
    return int(torch.multinomial(shares, 1, generator=generator))


class Text:
    """Converts tokens to text incrementally. A token is decoded together with earlier ones, since its text may depend
    on them."""

    def __init__(self, tokenizer: Any, prompt: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._tokens = list(prompt[-8:])
        """Tokens whose text is not complete yet, after a few for context."""
        self._known = len(self._tokens)

    def add(self, token: int) -> str:
        """Return the new text; "" while a character is incomplete."""
        self._tokens.append(token)
        before, after = self._decoded(self._tokens[: self._known]), self._decoded(self._tokens)
        is_half = after.endswith(_HALF) and len(self._tokens) - self._known < _MOST_HALVES
        if is_half or len(after) <= len(before):
            return ""
        self._tokens, self._known = self._tokens[self._known :], len(self._tokens) - self._known
        return after[len(before) :]

    def rest(self) -> str:
        """Return the remaining text at the end, including an incomplete character."""
        return self._decoded(self._tokens)[len(self._decoded(self._tokens[: self._known])) :]

    def _decoded(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False))


class Held:
    """Holds back text that may be the beginning of a stop text."""

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = stop
        self._text = ""
        self.stopped = False

    def add(self, text: str) -> str:
        if not self._stop:
            return text
        self._text += text
        found = [place for one in self._stop if (place := self._text.find(one)) >= 0]
        if found:
            self.stopped = True
            return self._text[: min(found)]
        keep = max(
            (size for one in self._stop for size in range(1, len(one)) if self._text.endswith(one[:size])), default=0
        )
        out, self._text = self._text[: len(self._text) - keep], self._text[len(self._text) - keep :]
        return out

    def rest(self) -> str:
        return self._text
