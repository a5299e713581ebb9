"""The identity backend: output i is input i. The bytes are passed through, so that only the server is measured.

Also identity with a delay, the simulated tensor model (backend "sim"). Parameters of its configuration:

    delay      duration of each execution (0)
    per_row    additional time per row of the batch
    jitter     additional random time, uniform up to this value; seeded, so it is the same after every start
    slots      concurrent executions; 0: no limit (1)
    answers    number of responses of a decoupled model, one every `delay` (1)
"""

import asyncio
import random
from collections.abc import Callable

from inferometer.serve.backends import configured
from inferometer.serve.models.queue import Alarms
from inferometer.serve.models.types import Emit, Finish, Loaded, Loading, Parameters, Tensors
from inferometer.tensors import Tensor
from inferometer.timing.clock import now
from inferometer.units import NS, parse_seconds


def load(loading: Loading) -> Loaded:
    renamed = pairs(loading)
    return Loaded(instant=lambda inputs, parameters: passed_on(inputs, renamed), slots=0)


def pairs(loading: Loading) -> dict[str, str]:
    """Return the output for each input."""
    config = loading.config
    if not config.input and not config.output:
        config.input.add(name="INPUT0", data_type="TYPE_FP32", dims=[-1])
    if not config.output:
        for i, each in enumerate(config.input):
            config.output.add(name=f"OUTPUT{i}", data_type=each.data_type, dims=each.dims)
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
    renamed, batched, chance = pairs(loading), loading.config.max_batch_size > 0, random.Random(loading.instance)
    delay, per_row, jitter = (_ns(loading, name) for name in ("delay", "per_row", "jitter"))
    answers = configured.whole(loading, "answers", 1)
    made: list[Alarms] = []

    def begin(inputs: Tensors, parameters: Parameters, emit: Emit, finish: Finish) -> Callable[[], None]:
        start = now()
        if not made:  # loading does not run in the event loop
            made.append(Alarms(asyncio.get_running_loop()))
        rows = next((tensor.shape[0] for tensor in inputs.values()), 1) if batched else 1
        step = delay + rows * per_row + int(chance.random() * jitter)
        return _Responding(made[0], emit, finish, passed_on(inputs, renamed), start, step, answers).end

    def close() -> None:
        for alarms in made:
            alarms.close()

    return Loaded(begin=begin, slots=configured.whole(loading, "slots", 1), close=close)


class _Responding:
    """One execution: a response every `step`, then the end. (No self-referencing closures: they would be garbage cycles.)"""

    __slots__ = ("_alarms", "_due", "_emit", "_finish", "_left", "_outputs", "_step")

    def __init__(
        self, alarms: Alarms, emit: Emit, finish: Finish, outputs: Tensors, begin: int, step: int, answers: int
    ) -> None:
        self._alarms, self._emit, self._outputs = alarms, emit, outputs
        self._finish: Finish | None = finish
        """None once it has ended."""
        self._due, self._step, self._left = begin + step, step, answers
        alarms.at(self._due, self._next)

    def _next(self) -> None:
        if self._finish is None:
            return
        if self._left:
            self._left -= 1
            self._emit(self._outputs)
        if not self._left:
            self.end()
        else:
            self._due += self._step
            self._alarms.at(self._due, self._next)

    def end(self) -> None:
        """End it now; also cancels it."""
        finish, self._finish = self._finish, None
        if finish is not None:
            del self._outputs, self._emit  # the alarm refers to this until it is due, and must not keep tensors alive
            finish(None)


def _ns(loading: Loading, name: str) -> int:
    try:
        return round(parse_seconds(loading.parameter(name, "0s")) * NS)
    except ValueError as error:
        raise loading.error(f"parameter {name}: {error}") from None
