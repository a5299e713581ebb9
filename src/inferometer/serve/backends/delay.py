"""Identity with a configurable delay: the simulated tensor model (backend "sim").

Parameters of the configuration:

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
from inferometer.serve.backends.identity import pairs, passed_on
from inferometer.serve.models.queue import Alarms
from inferometer.serve.models.types import Emit, Finish, Loaded, Loading, Parameters, Tensors
from inferometer.timing.clock import now
from inferometer.units import NS, parse_seconds


def load(loading: Loading) -> Loaded:
    model = _Delay(loading)
    return Loaded(begin=model.begin, slots=configured.whole(loading, "slots", 1), close=model.close)


class _Delay:
    def __init__(self, loading: Loading) -> None:
        self._renamed = pairs(loading)
        self._delay, self._per_row, self._jitter = (_ns(loading, name) for name in ("delay", "per_row", "jitter"))
        self._answers = configured.whole(loading, "answers", 1)
        self._batched: bool = loading.config.max_batch_size > 0
        self._random = random.Random(loading.instance)
        self._alarms: Alarms | None = None

    def begin(self, inputs: Tensors, parameters: Parameters, emit: Emit, finish: Finish) -> Callable[[], None]:
        begin = now()
        alarms = self._alarms = self._alarms or Alarms(asyncio.get_running_loop())
        rows = next((tensor.shape[0] for tensor in inputs.values()), 1) if self._batched else 1
        step = self._delay + rows * self._per_row + int(self._random.random() * self._jitter)
        return _Responding(alarms, emit, finish, passed_on(inputs, self._renamed), begin, step, self._answers).end

    def close(self) -> None:
        if self._alarms is not None:
            self._alarms.close()


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
