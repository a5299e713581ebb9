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
from functools import partial

from inferometer.serve.backends import configured
from inferometer.serve.backends.identity import pairs, passed_on
from inferometer.serve.models.alarms import Alarms
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
        send = partial(emit, passed_on(inputs, self._renamed))
        pending = [alarms.at(begin + i * step, send) for i in range(1, self._answers + 1)]
        pending.append(alarms.at(begin + max(self._answers, 1) * step, partial(finish, None)))

        def cancel() -> None:
            for alarm in pending:
                alarms.cancel(alarm)
            finish(None)

        return cancel

    def close(self) -> None:
        if self._alarms is not None:
            self._alarms.close()


def _ns(loading: Loading, name: str) -> int:
    try:
        return round(parse_seconds(loading.parameter(name, "0s")) * NS)
    except ValueError as error:
        raise loading.error(f"parameter {name}: {error}") from None
