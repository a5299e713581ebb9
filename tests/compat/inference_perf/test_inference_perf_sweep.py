"""load.sweep: from a burst to the rates of the stages."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import synthetic_run as made

from inferometer import conduct
from inferometer.compat.inference_perf.sweep import saturation, sweep_rates, with_sweep_stages
from inferometer.config.schema import Config
from inferometer.errors import UserError
from inferometer.records import Columns
from inferometer.serve.background import running
from inferometer.serve.settings import simulator
from inferometer.serve.sim.settings import Fixed
from tests.compat.inference_perf.specs import spec

SWEEP = {
    "type": "linear",
    "num_requests": 100,
    "timeout": 60,
    "num_stages": 3,
    "stage_duration": 7,
    "saturation_percentile": 95,
}


class _Run(msgspec.Struct):
    records: Any


class _Records(msgspec.Struct):
    rows: Columns


def burst(sent: Any, done: Any) -> Any:
    rows = made.blank(len(sent))
    rows["sent"] = np.rint(np.asarray(sent) * made.SECOND)
    rows["done"] = np.rint(np.asarray(done) * made.SECOND)
    return _Run(_Records(Columns.of(rows)))


def test_saturation_is_the_rate_at_which_the_backlog_shrinks() -> None:
    sent, done = np.linspace(0, 5, 1000, endpoint=False), np.arange(1000) / 40 + 0.1
    assert saturation(burst(sent, done), 95, 60) == pytest.approx(40, abs=2)


def test_backlog_that_never_shrinks_is_an_error() -> None:
    with pytest.raises(UserError) as raised:
        saturation(burst([0.0, 0.1], [70.0, 70.0]), 95, 60)
    assert raised.value.key == "load.sweep"


def test_rates_go_from_1_to_the_saturation() -> None:
    assert sweep_rates("linear", 41, 5) == [1, 11, 21, 31, 41]
    geometric = sweep_rates("geometric", 64, 4)
    assert geometric == [1, 49, 61, 64]


def test_sweep_is_measured_by_a_burst_of_its_requests(tmp_path: Path) -> None:
    given = spec(
        server={"base_url": "http://127.0.0.1:9", "model_name": "sim"},
        load={"stages": [], "sweep": SWEEP, "num_workers": 0},
    )
    bursts: list[Config] = []

    def measure(config: Config, *, watch: Any) -> Any:
        bursts.append(config)
        return burst(np.linspace(0, 5, 100, endpoint=False), np.arange(100) / 10 + 0.1), None

    swept = with_sweep_stages(given, measure)
    assert bursts[0].load.stages[0].requests == 100  # type: ignore[union-attr]
    assert swept["load"]["stages"][0] == {"rate": 1.0, "duration": 7} and len(swept["load"]["stages"]) == 3
    assert swept["load"]["stages"][2]["rate"] == pytest.approx(10, abs=2)
    assert swept["load"]["sweep"] == SWEEP


def test_without_a_sweep_nothing_is_measured() -> None:
    given = spec()
    assert with_sweep_stages(given, None) is given  # type: ignore[arg-type]


@pytest.mark.slow
def test_sweep_of_a_real_server(tmp_path: Path) -> None:
    with running(simulator(timing=Fixed(ttft=0.1, itl=0.0005, max_batch=4))) as url:
        load = {"stages": [], "sweep": SWEEP | {"num_requests": 400}, "num_workers": 0}
        given = spec(server={"base_url": url, "model_name": "sim"}, load=load)

        def measure(config: Config, *, watch: Any) -> Any:
            return conduct.measure(msgspec.structs.replace(config, output=str(tmp_path)), watch=watch)

        rates = [stage["rate"] for stage in with_sweep_stages(given, measure)["load"]["stages"]]
    assert rates[0] == 1 and 15 < rates[-1] < 60
