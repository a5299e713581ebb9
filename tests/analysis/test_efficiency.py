"""Cost and efficiency: each figure from its closed form, with the interval of the rate that it is made from."""

import msgspec
import pytest
import synthetic_run as made
from hypothesis import given
from hypothesis import strategies as st
from test_resources import gpu, run_with

from inferometer.analysis.efficiency import Efficiency, Estimate, cost_per_million
from inferometer.analysis.summary import Summary, summarise
from inferometer.records import Run, StagePlan


def with_cost(run: Run, **cost: object) -> Run:
    config = run.manifest.config | {"cost": cost}
    return msgspec.structs.replace(run, manifest=msgspec.structs.replace(run.manifest, config=config))


def summary_of(run: Run, **cost: object) -> tuple[Summary, Efficiency]:
    found = summarise(with_cost(run, **cost))
    assert found.efficiency is not None
    return found, found.efficiency


def closed() -> Run:
    return made.run(*made.closed_rows())


def test_without_price_gpus_and_energy_there_is_no_efficiency() -> None:
    found = summarise(closed())
    assert (found.efficiency, found.pareto) == (None, None)
    assert not [name for name in found.definitions if name.startswith("efficiency.")]


def test_cost_of_a_million_is_the_price_over_the_rate_with_the_ends_of_the_interval_swapped() -> None:
    summary, found = summary_of(closed(), price_per_hour=7.2)
    assert set(found.cost_per_million) == {"input_tokens", "output_tokens", "total_tokens", "requests"}
    for name, cost in found.cost_per_million.items():
        rate, (low, high) = getattr(summary.throughput, name), summary.throughput.ci[name]
        assert cost.value == pytest.approx(7.2 / 3600 / rate * 1e6)
        assert cost.ci == (pytest.approx(2000 / high), pytest.approx(2000 / low))
        assert cost.ci[0] <= cost.value <= cost.ci[1]
    assert found.price_per_hour == 7.2 and found.gpus is None and found.output_tokens_per_gpu is None
    assert summary.definitions["efficiency.cost_per_million"]


def test_rates_per_gpu_are_shares_of_the_rates() -> None:
    summary, found = summary_of(closed(), gpus=4)
    rates = summary.throughput
    for figure, name in ((found.output_tokens_per_gpu, "output_tokens"), (found.total_tokens_per_gpu, "total_tokens")):
        assert figure is not None and figure.value == pytest.approx(getattr(rates, name) / 4)
        assert figure.ci == tuple(pytest.approx(end / 4) for end in rates.ci[name])  # type: ignore[operator]
    assert found.cost_per_million == {} and found.price_per_hour is None and not found.is_observed


def test_a_user_sees_the_median_of_one_over_tpot() -> None:
    summary, found = summary_of(closed(), gpus=1)
    tpot = summary.metrics["tpot"]
    assert found.output_tokens_per_user is not None and tpot.p50
    assert found.output_tokens_per_user.value == pytest.approx(1 / tpot.p50, rel=1e-3)
    assert found.output_tokens_per_user.ci == summary.metrics["tps_user"].ci["p50"]


def test_few_values_still_have_a_median_for_the_user_but_no_bounds() -> None:
    rows, chunks = made.closed_rows(count=5, users=1)
    _, found = summary_of(made.run(rows, chunks, plan=(StagePlan(type="closed", open=False, concurrency=1),)), gpus=1)
    assert found.output_tokens_per_user is not None
    assert found.output_tokens_per_user.value == pytest.approx(100, rel=0.05)
    assert None in found.output_tokens_per_user.ci


def test_price_of_a_server_counts_for_each_url_and_that_of_a_gpu_for_each_gpu() -> None:
    several = {"url": ["http://127.0.0.1:8000", "http://127.0.0.1:8001"], "api": "completions", "stream": True}
    run = made.run(*made.closed_rows(), config={"server": several})
    assert summary_of(run, price_per_hour=5.0, gpus=8)[1].price_per_hour == 10.0
    assert summary_of(run, price_per_hour=5.0, per="gpu", gpus=8, currency="EUR")[1].price_per_hour == 40.0


def test_price_per_gpu_without_gpus_has_a_reason_instead_of_a_cost() -> None:
    _, found = summary_of(closed(), price_per_hour=2.5, per="gpu")
    assert found.cost_per_million == {} and found.price_per_hour is None
    assert found.reason == "the price is per GPU, but the number of GPUs is not known"


def test_observed_gpus_that_worked_are_the_default_and_energy_gives_tokens_per_joule() -> None:
    idle = tuple(
        msgspec.structs.replace(each, value=each.value * 0) if each.name == "gpu_use" else each for each in gpu(2)
    )
    run = run_with(*gpu(0), *gpu(1, watts=100.0), *idle)
    summary, found = summary_of(run, price_per_hour=3.0, per="gpu")
    assert (found.gpus, found.is_observed, found.price_per_hour) == (2, True, 6.0)
    rates = summary.throughput
    assert rates.output_tokens and found.output_tokens_per_joule is not None
    assert found.output_tokens_per_joule.value == pytest.approx(rates.output_tokens / 900)
    low, high = rates.ci["output_tokens"]
    assert found.output_tokens_per_joule.ci == (pytest.approx(low / 900), pytest.approx(high / 900))  # type: ignore[operator]
    assert summary_of(run, gpus=1)[1].gpus == 1


def test_gpus_of_another_machine_than_the_servers_do_not_count() -> None:
    run = run_with(*gpu(0), host={"cpus": 2, "has_server": False})
    assert summarise(run).efficiency is None


def test_inferences_of_a_tensor_server_have_a_cost_and_a_rate_per_gpu() -> None:
    rows = made.blank(600)
    rows["intended"] = made.np.arange(600) * 10 * made.MS
    rows["sent"], rows["done"] = rows["intended"], rows["intended"] + 7 * made.MS
    rows["n_in"] = rows["n_out"] = -1
    rows["counted_by"], rows["open_loop"] = 0, 1
    server = {"url": "grpc://127.0.0.1:8001", "model": "resnet", "api": "kserve", "stream": False}
    plan = (StagePlan(type="constant", open=True, rate=100.0, duration=6.0),)
    summary, found = summary_of(
        made.run(rows, plan=plan, config={"server": server}, server={"batch": 4}), price_per_hour=3.6, gpus=2
    )
    rate = summary.throughput.inferences
    assert rate == pytest.approx(400, rel=0.01)
    assert found.inferences_per_gpu is not None and found.inferences_per_gpu.value == pytest.approx(rate / 2)
    assert set(found.cost_per_million) == {"inferences", "requests"}
    assert found.cost_per_million["inferences"].value == pytest.approx(1000 / rate)
    assert found.output_tokens_per_user is None


def test_an_overloaded_stage_has_costs_but_no_rate_per_user() -> None:
    rows, chunks = made.open_rows()
    rows["done"] += rows["intended"]  # every response takes longer than the one before
    rows["last_token"] += rows["intended"]
    run = made.run(rows, chunks, plan=(made.OPEN,))
    summary, found = summary_of(run, price_per_hour=1.0, cheapest_at=50)
    assert summary.overload is not None and summary.overload.status == "overloaded"
    assert found.output_tokens_per_user is None
    assert summary.pareto is not None and list(summary.pareto.left_out.values()) == ["overloaded"]
    assert (
        summary.pareto.cheapest_at[0].answers[0].reason
        == "no measured level has output tokens/s/user that may be quoted"
    )


def test_each_stage_has_its_own_efficiency_and_the_run_that_of_all() -> None:
    rows, chunks = made.closed_rows()
    rows["stage"] = rows["id"] >= 300
    plan = tuple(StagePlan(type="closed", open=False, name=name, concurrency=8, requests=300) for name in "ab")
    summary, found = summary_of(made.run(rows, chunks, plan=plan), price_per_hour=1.0)
    costs = [stage.efficiency.cost_per_million["output_tokens"].value for stage in summary.stages if stage.efficiency]
    assert len(costs) == 2 and min(costs) <= found.cost_per_million["output_tokens"].value <= max(costs)
    assert summary.pareto is not None and [point.label for point in summary.pareto.points] in (["a", "b"], ["b", "a"])


def test_a_run_without_rates_says_why_there_are_no_costs() -> None:
    _, found = summary_of(made.run(*made.closed_rows(count=8)), price_per_hour=1.0)
    assert found.cost_per_million == {} and found.reason.startswith("there are no rates")


@given(
    st.floats(0.01, 1e3),
    st.floats(0.1, 1e6),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_cost_falls_when_the_rate_grows(price: float, rate: float, below: float, above: float) -> None:
    found = cost_per_million(price, Estimate(rate, (rate * (1 - below), rate * (1 + above))))
    low, high = found.ci
    assert low is not None and low <= found.value * (1 + 1e-12)
    assert (high is None) == (rate * (1 - below) == 0)
    assert high is None or high >= found.value * (1 - 1e-12)
