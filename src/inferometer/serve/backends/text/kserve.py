"""Text generation over KServe:

text_input   BYTES [1]    the prompt
max_tokens   INT32 [1]    maximum number of tokens; default: the parameter `max_tokens` of the configuration (128)
temperature  FP32 [1]     0 or omitted: always the most likely token
top_p        FP32 [1]     sample from the most likely tokens that together have this probability
seed         INT64 [1]    seed of the sampling; omitted: every request samples differently
stop         BYTES [-1]   texts at which generation stops; they are not sent

text_output  BYTES [1]    the text that a token adds; a token that ends inside a character waits for the rest
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from inferometer.serve.backends import configured
from inferometer.serve.backends.text.language import TextModel
from inferometer.serve.models.types import Begin, Emit, Finish, Parameters, Refused, Tensors
from inferometer.serve.openai.model import Generation
from inferometer.tensors import TensorSpec, from_numpy, to_numpy
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
_LIMITS: dict[str, tuple[Callable[[float], bool], str]] = {
    "max_tokens": (lambda value: value >= 1, "at least 1"),
    "temperature": (lambda value: math.isfinite(value) and value >= 0, "at least 0"),
    "top_p": (lambda value: 0 < value <= 1, "in (0, 1]"),
}


def begin(model: TextModel, most: int) -> Begin:
    """Return what starts the generation of a text; `most` is the default for max_tokens."""

    def start(inputs: Tensors, parameters: Parameters, emit: Emit, finish: Finish) -> Callable[[], None]:
        texts = configured.texts(PROMPT, inputs[PROMPT])
        if len(texts) != 1:
            raise Refused("INVALID_ARGUMENT", f"input '{PROMPT}': expected one text (got {len(texts)})")
        request = Generation(
            model.encode(texts)[0],
            tokens=lambda text, count: emit(_piece(text)) if text else None,
            ended=lambda why, refused: finish(refused),
            arrived=now(),
            max_tokens=int(_number(inputs, "max_tokens", most)),
            temperature=float(_number(inputs, "temperature", 0.0)),
            top_p=float(_number(inputs, "top_p", 1.0)),
            seed=int(_number(inputs, "seed", 0)) if "seed" in inputs else None,
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


def _number(inputs: Tensors, name: str, default: float) -> Any:
    if name not in inputs:
        return default
    found = to_numpy(inputs[name]).reshape(-1)
    if found.size != 1:
        raise Refused("INVALID_ARGUMENT", f"input '{name}': expected one number (got {found.size})")
    value = found[0].item()
    if name in _LIMITS and not _LIMITS[name][0](value):
        raise Refused("INVALID_ARGUMENT", f"input '{name}': must be {_LIMITS[name][1]} (got {value})")
    return value


def _piece(text: str) -> Tensors:
    return {PIECE: from_numpy(PIECE, np.array([text.encode("utf-8", "replace")], object), "BYTES")}
