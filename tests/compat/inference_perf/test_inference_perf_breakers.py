"""inference-perf's circuit breakers, with made-up requests and in a run."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import synthetic_run as made

from inferometer import conduct
from inferometer.compat.inference_perf import breakers, translating
from inferometer.errors import UserError
from inferometer.records import Columns, Failure, Trip
from inferometer.serve.background import running
from inferometer.serve.settings import simulator
from inferometer.serve.sim.settings import Fixed
from tests.compat.inference_perf.specs import merged, spec

TIMEOUT = Failure("total_timeout", "too slow")
UNAVAILABLE = Failure("http_503", "busy")
CONSECUTIVE = {"type": "consecutive", "threshold": 3}
RATE = {"type": "rate_over_window", "window_sec": 2.5, "threshold": 0.8, "min_samples": 2}
ANY = "start_time >= `0`"


def breaker(*triggers: dict[str, Any], matches: str = ANY, rules: list[str] | None = None) -> breakers.Breakers:
    metrics = {"matches": [matches], "rules": ["error"] if rules is None else rules}
    entry = {"name": "b", "metrics": metrics, "triggers": list(triggers)}
    found = breakers.breakers_of(spec(circuit_breakers=[entry], load={"circuit_breakers": ["b"]}))
    assert found is not None
    return found


def feed(judge: breakers.Breakers, *failures: Failure | None, at: float = 1.0, stage: int = 0) -> Trip | None:
    rows = made.blank(len(failures))
    rows["done"] = np.rint((at + 0.01 * np.arange(len(failures))) * made.SECOND)
    rows["sent"] = rows["intended"] = rows["done"] - made.SECOND // 10
    rows["stage"] = stage
    return judge(Columns.of(rows), list(failures), at, stage)


def test_consecutive_hits_open_a_breaker() -> None:
    judge = breaker(CONSECUTIVE)
    assert feed(judge, TIMEOUT, TIMEOUT, None, TIMEOUT, TIMEOUT) is None
    trip = feed(judge, TIMEOUT)
    assert trip is not None and (trip.limit, trip.ended, trip.stage) == ("b", "stage", 0)


def test_open_breaker_ends_every_later_stage_once() -> None:
    judge = breaker(CONSECUTIVE)
    assert feed(judge, TIMEOUT, TIMEOUT, TIMEOUT) is not None
    assert feed(judge, None) is None
    assert feed(judge, stage=1) is not None and feed(judge, None, stage=1) is None


def test_rate_over_window_forgets_old_samples() -> None:
    judge = breaker(RATE)
    assert feed(judge, TIMEOUT, at=1.0) is None  # fewer than min_samples
    assert feed(judge, None, None, at=1.1) is None
    assert feed(judge, TIMEOUT, at=5.0) is None
    assert feed(judge, TIMEOUT, at=5.1) is not None


def test_requests_that_do_not_match_are_not_samples() -> None:
    judge = breaker(CONSECUTIVE, matches="error.error_type == 'TimeoutError'", rules=[])
    assert feed(judge, TIMEOUT, TIMEOUT, UNAVAILABLE, None) is None
    assert feed(judge, TIMEOUT) is not None


def test_records_have_the_fields_of_inference_perf() -> None:
    text = (
        "error.error_type == 'HTTP Error 503' && error.error_msg == 'busy' && stage_id == `0` && end_time > start_time"
    )
    judge = breaker(CONSECUTIVE, matches=text, rules=[])
    assert feed(judge, UNAVAILABLE, UNAVAILABLE, UNAVAILABLE) is not None


def test_breakers_without_a_name_in_the_load_are_not_used() -> None:
    entry = {"name": "b", "metrics": {"matches": [ANY]}, "triggers": [CONSECUTIVE]}
    assert breakers.breakers_of(spec(circuit_breakers=[entry])) is None


@pytest.mark.parametrize(
    ("text", "what"), [("request_data.prompt", "request_data"), ("error ==", "not JMESPath"), ("info.labels", "labels")]
)
def test_expressions_that_cannot_be_judged_are_refused(text: str, what: str) -> None:
    with pytest.raises(UserError) as raised:
        breaker(CONSECUTIVE, matches=text)
    assert what in raised.value.line and raised.value.key == "circuit_breakers.0.metrics.matches"


def test_a_missing_jmespath_is_an_error_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jmespath", None)
    with pytest.raises(UserError) as raised:
        breaker(CONSECUTIVE)
    assert raised.value.next_step == "pip install 'inferometer[inference-perf]'"


def test_breaker_ends_the_stages_of_a_run(tmp_path: Path) -> None:
    entry = {
        "name": "too_many",
        "metrics": {"matches": ["error.error_type == 'HTTP Error 503'"]},
        "triggers": [CONSECUTIVE],
    }
    with running(simulator(timing=Fixed(ttft=0.002, itl=0.0005), faults=("reject=503@100%",))) as url:
        given = spec(
            server={"base_url": url, "model_name": "sim"},
            circuit_breakers=[entry],
            load={
                "stages": [{"rate": 50, "duration": 30}] * 2,
                "interval": 0,
                "num_workers": 0,
                "circuit_breakers": ["too_many"],
            },
        )
        tree = merged(
            translating.translate(given).config, {"output": str(tmp_path), "observe": {"host": False, "prometheus": []}}
        )
        config = translating.to_config(translating.Translation(tree))
        run, _ = conduct.measure(config, ends=breakers.breakers_of(given))
    assert [trip.stage for trip in run.manifest.outcome.trips] == [0, 1]
    assert len(run.records.rows) < 500
