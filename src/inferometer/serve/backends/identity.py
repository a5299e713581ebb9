"""The identity backend: output i is input i. The bytes are passed through, so that only the server is measured.

Also identity with a delay, the simulated tensor model (backend "sim"). docs/how-to/serve-your-model.md describes its
parameters.
"""

import random
from collections.abc import Callable

from inferometer.serve.backends import configured
from inferometer.serve.models.types import Emit, Finish, Inference, Loaded, Loading, Tensors
from inferometer.tensors import Tensor
from inferometer.timing.clock import now
from inferometer.timing.deadlines import Entry
from inferometer.units import NS, parse_seconds


def load(loading: Loading) -> Loaded:
    renamed = pairs(loading)
    return Loaded(instant=lambda inputs, parameters: passed_on(inputs, renamed), slots=0)


def pairs(loading: Loading) -> dict[str, str]:
    """Return the output for each input."""
    config = loading.config
    inputs, outputs = ([(one.data_type, [*one.dims]) for one in fields] for fields in (config.input, config.output))
    if inputs != outputs:
        remedy = "configure one output per input, with the same data_type and dims"
        raise loading.error("the outputs do not match the inputs", remedy)
    return {given.name: made.name for given, made in zip(config.input, config.output, strict=True)}


def passed_on(inputs: Tensors, renamed: dict[str, str]) -> Tensors:
    outputs: Tensors = {}
    for tensor in inputs.values():
        name = renamed[tensor.name]
        outputs[name] = Tensor(name, tensor.datatype, tensor.shape, tensor.data)
    return outputs


def load_delay(loading: Loading) -> Loaded:
    renamed, is_batched, chance = pairs(loading), loading.config.max_batch_size > 0, random.Random(loading.instance)
    delay, per_row, jitter = (_ns(loading, name) for name in ("delay", "per_row", "jitter"))
    responses = configured.whole(loading, "answers", 1)

    def begin(inputs: Tensors, first: Inference, emit: Emit, finish: Finish) -> Callable[[], None]:
        rows = next((tensor.shape[0] for tensor in inputs.values()), 1) if is_batched else 1
        outputs, step = passed_on(inputs, renamed), delay + rows * per_row + int(chance.random() * jitter)
        return _Responding(first, emit, finish, outputs, step, responses).cancel

    return Loaded(begin=begin, slots=configured.whole(loading, "slots", 1))


class _Responding:
    """One execution: a response every `step`, then the end. (No self-referencing closures: they would be garbage cycles.)"""

    def __init__(
        self, first: Inference, emit: Emit, finish: Finish, outputs: Tensors, step: int, responses: int
    ) -> None:
        self._deadlines, self._emit, self._finish, self._outputs = first.owner.deadlines, emit, finish, outputs
        self._due, self._step, self._left = now() + step, step, responses
        self._entry: Entry | None = self._deadlines.at(self._due, self._next)

    def _next(self) -> None:
        self._left -= 1
        self._entry = None  # it refers to this method, and the cycle would keep the tensors
        self._emit(self._outputs)
        if self._left > 0:
            self._due += self._step
            self._entry = self._deadlines.at(self._due, self._next)
        else:
            self._finish(None)

    def cancel(self) -> None:
        self._left = 0
        if self._entry is not None:
            self._deadlines.cancel(self._entry)
        self._finish(None)


def _ns(loading: Loading, name: str) -> int:
    try:
        return round(parse_seconds(loading.parameter(name, "0s")) * NS)
    except ValueError as error:
        raise loading.error(f"parameter {name}: {error}") from None
