"""The rates of `load.sweep`: a burst of requests shows how fast the server completes them at most.

The burst is sent within 5 s. From the requests in flight, sampled every 0.5 s, follow the rates at which they became fewer; a percentile of these is
the saturation. The stages go from 1 request per second up to it.
"""

from typing import Any, Literal, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.compat.inference_perf.spec import Spec, at
from inferometer.config.fields import Seconds
from inferometer.config.schema import Config
from inferometer.errors import UserError
from inferometer.records import MISSING, Run, Snapshot
from inferometer.units import NS

_BURST = 5.0
_INTERVAL = 0.5


class Measure(Protocol):
    """Measures a run, as `conduct.measure` does; `watch` may stop it."""

    def __call__(self, config: Config, *, watch: Any) -> tuple[Run, Any]: ...


def with_sweep_stages(spec: Spec, measure: Measure) -> Spec:
    """The config with the stages of `load.sweep`, which are found by a run; unchanged if there is no sweep.

    The sweep stays in the config. The run is an ordinary one with a folder of its own, and is not reported.
    """
    if at(spec, "load.sweep") is None:
        return spec
    if at(spec, "load.type", "constant") not in ("constant", "poisson"):
        raise UserError("a sweep needs a load with a rate", "use load.type constant or poisson", "load.sweep")
    from inferometer.compat.inference_perf import translating  # noqa: PLC0415 - it imports this module

    requests, limit = int(at(spec, "load.sweep.num_requests", 2000)), float(at(spec, "load.sweep.timeout", 60))
    burst = {"rate": (requests + 0.5) / _BURST, "duration": _BURST}  # rate x duration is rounded down
    config = translating.to_config(translating.translate(_with_stages(spec, [burst])))
    client = msgspec.structs.replace(config.client, grace=Seconds(1))  # what is left after the time limit is of no use
    run, _ = measure(msgspec.structs.replace(config, client=client), watch=_stop_after(limit))
    rate = saturation(run, float(at(spec, "load.sweep.saturation_percentile", 95)), limit)
    rates = sweep_rates(at(spec, "load.sweep.type"), rate, int(at(spec, "load.sweep.num_stages", 5)))
    duration = at(spec, "load.sweep.stage_duration", 180)
    return _with_stages(spec, [{"rate": rate, "duration": duration} for rate in rates])


def saturation(run: Run, percentile: float, limit: float) -> float:
    """The rate at which the server completed the requests of a burst, in requests per second."""
    rows = run.records.rows
    sent, done = rows["sent"], rows["done"]
    was_sent = sent != MISSING
    end = min(float(done[was_sent].max(initial=0)) / NS + _INTERVAL, limit)
    times = np.arange(0, end + _INTERVAL / 2, _INTERVAL) * NS
    in_flight = _count(sent[was_sent], times) - _count(done[was_sent], times)
    slopes = -np.diff(in_flight) / _INTERVAL
    falling = slopes[slopes > 0]
    if not len(falling):
        what = "the requests in flight never became fewer, so the server's saturation is not known"
        raise UserError(what, "check that the server responds, or raise load.sweep.timeout", "load.sweep")
    return float(np.percentile(falling, percentile))


def sweep_rates(kind: str, highest: float, count: int) -> list[float]:
    """The rates of the stages: from 1 to the highest, evenly, or ever closer to the highest."""
    if kind == "linear":
        rates = np.linspace(1, highest, count)
    elif kind == "geometric":
        rates = 1 + highest - np.geomspace(highest, 1, count)
    else:
        raise UserError(f"{kind!r} is not a kind of sweep", "use linear or geometric", "load.sweep.type")
    return [round(float(rate), 3) for rate in rates]


def _count(instants: NDArray[np.int64], times: NDArray[np.float64]) -> NDArray[np.int64]:
    """How many of the instants are not later than each of the times."""
    return np.searchsorted(np.sort(instants), times, side="right")


def _with_stages(spec: Spec, stages: list[dict[str, Any]]) -> Spec:
    return spec | {"load": spec["load"] | {"stages": stages}}


def _stop_after(seconds: float) -> Any:
    """What stops the run after this many seconds."""

    def watch(snapshot: Snapshot) -> Literal["", "stop"]:
        return "stop" if snapshot.started and not snapshot.stopping and snapshot.elapsed > seconds else ""

    return watch
