"""From a campaign's record and its runs to the results: levels over rounds, parity, who is left out, encoders."""

import math
import statistics

import made_campaign
import msgspec
import pytest
from made_campaign import AGREES, MODEL, Maker, encoders, generators, run_of

from inferometer.analysis.engine_results import EngineResults, summarise_campaign
from inferometer.analysis.resources import EnergyUse, GpuUse, ProcessUse, ResourceUse
from inferometer.campaign import EngineRecord, LevelRecord


@pytest.fixture(scope="module")
def found() -> EngineResults:
    return generators().results()


def engine(found: EngineResults, name: str):  # type: ignore[no-untyped-def]
    return next(each for each in found.engines if each.name == name)


def test_levels_are_the_mean_of_their_rounds(found: EngineResults) -> None:
    level = engine(found, "vllm").levels[1]
    rates = [run_of(4, 1 + 0.01 * number, seed=number)[1].throughput.output_tokens for number in (0, 1)]
    assert (level.name, level.repeats, level.valid, level.left_out) == ("concurrency 4", 2, True, 0)
    assert level.throughput.output_tokens.value == pytest.approx(statistics.mean(rates))
    half = 12.7062 * statistics.stdev(rates) / math.sqrt(2)
    assert level.throughput.output_tokens.ci[1] == pytest.approx(statistics.mean(rates) + half, rel=1e-4)
    assert level.counts.ok == 480 and level.counts.output_tokens == 10 and level.counts.input_tokens == 64
    assert level.ttft.p50 == pytest.approx(0.0502, abs=0.001) and level.ttft.ci["p50"][0] < level.ttft.p50


def test_a_single_round_has_the_intervals_of_its_run() -> None:
    level = Maker(1).measured("vllm").results().engines[0].levels[0]
    summary = run_of(1)[1]
    assert level.throughput.output_tokens.ci == summary.throughput.ci["output_tokens"]
    assert level.e2e.ci["p95"] == summary.metrics["e2e"].ci["p95"] and "p99" in level.e2e.unsupported


def test_scaling_is_relative_to_the_lowest_level(found: EngineResults) -> None:
    one, four, sixteen = engine(found, "llamacpp").levels
    assert one.scaling.value == 1.0
    assert four.scaling.value == pytest.approx(0.5, rel=0.01)  # two at a time
    assert sixteen.scaling.value == pytest.approx(2 / 16, rel=0.01)
    low, high = sixteen.scaling.ci
    assert low <= sixteen.scaling.value <= high


def test_what_was_not_measured_is_missing(found: EngineResults) -> None:
    level = engine(found, "transformers batched").levels[1]
    assert level.ttft is None and level.tpot is None and level.e2e is not None
    assert level.resources is None and level.energy_per_token is None and level.output_tokens_per_gpu is None
    assert level.padding == pytest.approx(0.12) and engine(found, "vllm").levels[1].padding is None


def test_cost_follows_from_the_price(found: EngineResults) -> None:
    level = engine(found, "vllm").levels[0]
    assert level.cost_per_million.value == pytest.approx(3.6e6 / 3600 / level.throughput.output_tokens.value, rel=1e-3)


def test_utilisation_uses_the_engines_data_type(found: EngineResults) -> None:
    assert engine(found, "vllm").levels[0].mfu > 0 and engine(found, "vllm").levels[0].mbu > 0
    assert engine(found, "transformers batched").levels[0].mfu is None  # float32, but the peak is that of bfloat16


def test_failed_and_disagreeing_engines_cannot_be_recommended(found: EngineResults) -> None:
    assert engine(found, "sglang").status == "failed" and engine(found, "sglang").log_tail
    assert engine(found, "llamacpp").status == "ok" and "must be the same" in engine(found, "llamacpp").excluded
    for each in found.recommendation:
        assert each.engine == "vllm" and {"sglang", "llamacpp"} <= set(each.left_out)
    assert {each.use for each in found.recommendation} == {"interactive", "offline", "single user", "cost"}


def test_an_engine_that_is_pending_was_not_measured() -> None:
    maker = Maker(1).measured("vllm")
    maker.engines.append(EngineRecord(name="late", type="late", mode="serve"))
    found = maker.results(interrupted=True)
    assert engine(found, "late").status == "failed" and engine(found, "late").reason == "not measured"
    assert any("interrupted" in note for note in found.notes)


def test_rounds_that_are_not_valid_are_left_out_as_long_as_one_is() -> None:
    maker = Maker(2).measured("vllm", levels=(4,))
    run, summary = maker.runs["vllm-4-1"]
    failed = msgspec.structs.replace(summary.checks[0], name="read_delay", status="fail", message="late reads")
    bad = msgspec.structs.replace(summary, checks=(failed,), quotable={"latency": False, "throughput": True})
    maker.runs["vllm-4-1"] = (run, bad)
    level = maker.results().engines[0].levels[0]
    assert (level.repeats, level.left_out, level.valid) == (1, 1, True) and level.problems == (
        "read delay: late reads",
    )
    maker.runs["vllm-4-0"] = (maker.runs["vllm-4-0"][0], bad)
    level = maker.results().engines[0].levels[0]
    assert (level.repeats, level.valid, level.failed_checks) == (2, False, ("read_delay",))
    assert level.quotable == {"latency": False, "throughput": True}


def test_levels_without_a_run_and_profiled_ones() -> None:
    maker = Maker(1).measured("vllm", levels=(1,))
    more = (
        LevelRecord(by="concurrency", level=64, error="it died: out of memory"),
        LevelRecord(by="concurrency", level=8, run="vllm-1-0", is_profiled=True),
    )
    maker.engines[0] = msgspec.structs.replace(maker.engines[0], levels=(*maker.engines[0].levels, *more))
    found = maker.results()
    assert [level.level for level in found.engines[0].levels] == [1, 64]
    dead = found.engines[0].levels[1]
    assert not dead.valid and dead.repeats == 0 and dead.problems == ("it died: out of memory",)
    assert dead.throughput.output_tokens is None and dead.counts is None
    assert any("was profiled" in note for note in found.notes)


# --- parity ----------------------------------------------------------------------------------------------------------


def parity(maker: Maker) -> dict[str, str]:
    return {f"{each.kind} {each.name}": each.text for each in maker.results().parity}


FACTS = {
    "dtype": "bfloat16",
    "max length": "2048",
    "prefix cache": "off",
    "speculation": "off",
    "chat template": "none",
}


def test_equal_workloads_and_settings_have_no_mismatch() -> None:
    assert parity(Maker(1).measured("a", facts=FACTS).measured("b", 2.0, facts=FACTS)) == {}


def test_settings_that_differ_are_called_out_and_unknown_ones_listed() -> None:
    found = parity(Maker(1).measured("a", facts=FACTS).measured("b", facts={"dtype": "float32"}))
    assert (
        found["setting dtype"] == "dtype differs (less precision is faster and changes outputs): a bfloat16, b float32"
    )
    assert found["unknown speculation"] == "speculation is not known for b"


def test_two_names_of_one_data_type_are_not_a_difference() -> None:
    other = FACTS | {"dtype": "torch.bfloat16", "prefix cache": "Off"}
    assert parity(Maker(1).measured("a", facts=FACTS).measured("b", 2.0, facts=other)) == {}


def test_token_counts_that_differ_say_by_how_much_and_who_counted() -> None:
    maker = Maker(1).measured("a", facts=FACTS, levels=(4,)).measured("b", 1.7, facts=FACTS, levels=(4,))
    run, _ = maker.runs["b-4-0"]
    run.records.rows["n_in"][:] = 80
    try:
        text = parity(maker)["input tokens concurrency 4"]
    finally:
        run.records.rows["n_in"][:] = 64
    assert (
        text.startswith("concurrency 4: input tokens per request differ by 25 %: a 64 (counted by") and "b 80" in text
    )


def test_different_prompts_and_numbers_of_requests_are_flagged() -> None:
    maker = Maker(1).measured("a", facts=FACTS, levels=(4,)).measured("b", facts=FACTS, levels=(4,))
    run, summary = maker.runs["b-4-0"]
    other = msgspec.structs.replace(run.manifest, workload={"digest": "sha256:1"})
    shorter = made_campaign.made.run(*made_campaign.made.closed_rows(100))
    maker.runs["b-4-0"] = (msgspec.structs.replace(run, manifest=other), summary)
    assert "did not get the same prompts" in parity(maker)["prompts concurrency 4"]
    maker.runs["b-4-0"] = (shorter, summary)
    assert parity(maker)["requests concurrency 4"].endswith("a 240, b 100")


def test_a_shared_prefix_cache_is_said() -> None:
    maker = Maker(1).measured("a", facts=FACTS, levels=(1,))
    levels = tuple(msgspec.structs.replace(each, cache="shared") for each in maker.engines[0].levels)
    maker.engines[0] = msgspec.structs.replace(maker.engines[0], levels=levels)
    assert list(parity(maker)) == ["cache prefix cache"]


def test_all_against_the_reference_means_that_it_may_be_wrong() -> None:
    wrong = made_campaign.NONSENSE
    maker = Maker(1).measured("a", outputs=wrong).measured("b", outputs=AGREES).measured("c", outputs=AGREES)
    assert any("it may be the one that is wrong" in note for note in maker.results().notes)


# --- encoders --------------------------------------------------------------------------------------------------------


def test_encoders_have_a_line_per_batch_size_and_length() -> None:
    found = summarise_campaign(encoders(), {})
    line = found.engines[0].encoder[0]
    seconds = encoders().engines[0].encoder[0].seconds
    assert (line.batch, line.length, line.count, line.repeats) == (1, 32, 60, 1)
    assert line.mean == pytest.approx(statistics.mean(seconds)) and line.sd == pytest.approx(statistics.stdev(seconds))
    assert (line.min, line.max) == (min(seconds), max(seconds)) and line.median == sorted(seconds)[29]
    assert line.throughput.value == pytest.approx(1 / line.mean)
    low, high = line.throughput.ci
    assert low < line.throughput.value < high and "p99" in line.unsupported
    assert line.energy_per_sequence == pytest.approx(0.02 * 32 / 60) and line.memory == 410 << 20


def test_the_fastest_encoder_whose_outputs_are_right_is_recommended() -> None:
    found = summarise_campaign(encoders(), {})
    one, batches = found.recommendation
    assert (one.use, batches.use) == ("encoder, one input", "encoder, batches")
    for each in (one, batches):
        assert each.engine == "torch compiled" and each.is_clear and each.ratio == pytest.approx(1 / 0.6, rel=0.02)
        assert each.left_out == {"onnxruntime": "no batch size and length is valid"}
    assert "0.4, more than 0.05" in found.engines[2].encoder[0].problems[0]


def test_encoders_over_several_rounds_are_paired() -> None:
    record = encoders()
    engines = tuple(
        msgspec.structs.replace(
            each,
            encoder=tuple(
                msgspec.structs.replace(
                    level, repeat=number, seconds=tuple(x * (1 + number / 2) for x in level.seconds)
                )
                for number in range(3)
                for level in each.encoder
            ),
        )
        for each in record.engines
    )
    found = summarise_campaign(msgspec.structs.replace(record, engines=engines), {})
    ratio = found.recommendation[0].ratios[0]
    assert ratio.method == "paired" and ratio.ci[1] - ratio.ci[0] < 0.01  # what changes from round to round cancels out
    assert found.rounds == 3 and found.engines[0].encoder[0].count == 180
    assert not any("one round" in note for note in found.notes)


def test_the_model_and_device_are_passed_on(found: EngineResults) -> None:
    assert found.model == MODEL and found.device.tflops == 989.0 and found.definitions["mfu"]


def test_encoders_have_levels_too() -> None:
    first, *_, last = summarise_campaign(encoders(), {}).engines[0].levels
    assert (first.by, first.level, first.length, first.name) == ("batch", 1, 32, "batch 1, length 32")
    assert first.e2e.p50 is not None and first.e2e.ci["p50"][0] <= first.e2e.p50 and first.ttft is None
    assert last.throughput.sequences.value == pytest.approx(8 / last.e2e.mean)
    assert last.throughput.requests.value == pytest.approx(1 / last.e2e.mean)


def test_resources_are_those_of_the_engines_processes_and_the_gpus_that_worked() -> None:
    maker = Maker(2).measured("vllm", levels=(4,))
    for number in (0, 1):
        run, summary = maker.runs[f"vllm-4-{number}"]
        gpus = {
            "0": GpuUse(use=0.5 + 0.2 * number, memory_max=(30 + number) * 2.0**30, power=400.0),
            "1": GpuUse(use=0.0, memory_max=2.0**30, power=60.0),
        }
        used = ResourceUse(
            span=10.0,
            is_servers_machine=True,
            processes={"1": ProcessUse(cpu=1.0 + number, memory_max=5e8), "2": ProcessUse(cpu=0.5, memory_max=1e8)},
            gpus=gpus,
            energy=EnergyUse(4600.0, 10.0, 0.4 + 0.2 * number),
        )
        maker.runs[f"vllm-4-{number}"] = (run, msgspec.structs.replace(summary, resources=used))
    found = maker.results()
    level = found.engines[0].levels[0]
    used = level.resources
    assert used is not None and used.cpu == pytest.approx(2.0) and used.memory == 6e8
    assert used.gpu_memory == 31 * 2.0**30 and used.gpu_use == pytest.approx(0.6) and used.power == 460.0
    assert level.energy_per_token == pytest.approx(0.5)
    energy = next(each for each in found.recommendation if each.use == "energy")
    assert energy.engine == "vllm" and "0.5 J per output token at concurrency 4" in energy.text


def test_levels_that_are_rates() -> None:
    maker = Maker(1).measured("a", by="rate", levels=(4, 16))
    found = maker.results()
    assert [level.scaling for level in found.engines[0].levels] == [None, None]  # the rate was offered, not achieved
    assert {each.use for each in found.recommendation} == {"interactive", "offline", "cost"}
