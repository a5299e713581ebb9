"""The client's health is judged by its effect: a run is INVALID if, and only if, the client changed a printed percentile by
more than 5 %. The runs here have a known truth: most are a good run, and the same run seen by a client that was late."""

from collections.abc import Callable

import msgspec
import numpy as np
import pytest
import synthetic_run as made

from inferometer.analysis.checks import Check, in_words
from inferometer.analysis.gate import is_passed
from inferometer.analysis.summary import Summary, summarise
from inferometer.records import Chunks, Failure, Sample

MS, SECOND = made.MS, made.SECOND
Made = tuple[np.ndarray, Chunks]
CLIENT = ("lag", "cpu", "stalls", "memory", "clock_step", "read_delay", "merged_chunks", "stamps")
ARRIVALS = ("first_byte", "first_token", "last_token", "done")


def summary_of(data: Made, **about: object) -> Summary:
    is_open = bool(data[0]["open_loop"].any())
    return summarise(made.run(*data, **({"plan": (made.OPEN if is_open else made.CLOSED,)} | about)))


def check(summary: Summary, name: str) -> Check:
    found = next((check for check in summary.checks if check.name == name), None)
    assert found is not None, f"{name} did not apply"
    if found.status != "pass":
        assert len(found.message.split(". ")) >= 2, "it must say what is wrong and what to do next"
    msgspec.json.encode(summary)  # as summary.json does
    return found


def statuses(summary: Summary) -> dict[str, str]:
    """The checks of the client that do not pass."""
    return {check.name: check.status for check in summary.checks if check.status != "pass" and check.name in CLIENT}


def applies(summary: Summary, name: str) -> bool:
    return name in {check.name for check in summary.checks}


def limits(**values: object) -> dict[str, object]:
    return {"config": made.manifest().config | {"limits": values}}


def stalled(spans: list[tuple[int, int]], seconds: float = 6.0) -> tuple[Sample, ...]:
    """Samples of a client whose event loop was blocked during these spans."""
    samples = []
    for sample in made.samples(seconds):
        own = [end - begin for begin, end in spans if sample.at - SECOND // 4 < end <= sample.at]
        long = sum(length for length in own if length >= 10 * MS)
        samples.append(msgspec.structs.replace(sample, stall=max([2 * MS, *own]), stalled=long))
    return tuple(samples)


def paused(data: Made, spans: list[tuple[int, int]]) -> Made:
    """The run, seen by a client that neither sent nor read during these spans. The kernel takes the timestamps."""
    rows, chunks = data[0].copy(), data[1].arrival.copy()
    for row in rows:
        own = chunks[row["chunk_start"] : row["chunk_start"] + row["chunk_count"]]
        for begin, end in spans:
            if row["open_loop"] and begin < row["sent"] < end:
                own += end - row["sent"]
                for name in ARRIVALS:
                    row[name] += end - row["sent"]
                row["sent"] = end
            waiting = (own > begin) & (own < end)
            if waiting.any():
                own[waiting] = own[waiting][-1]
                row["read_delay"] = max(row["read_delay"], end - own[waiting][-1])
        row["first_byte"] = row["first_token"] = own[0]
        row["last_token"] = own[-1]
    return rows, Chunks(chunks, data[1].tokens)


def off(true: Summary, measured: Summary, metric: str, percentile: str) -> float:
    """By what share a figure is wrong."""
    truth = true.metrics[metric].value(percentile)
    value = measured.metrics[metric].value(percentile)
    assert truth and value is not None
    return abs(value - truth) / truth


def worst(true: Summary, measured: Summary) -> float:
    return max(
        off(true, measured, metric, percentile)
        for metric in ("ttft", "itl", "tpot", "e2e")
        for percentile in ("p50", "p90", "p95", "p99")
    )


# --- ordinary virtual machines are VALID -------------------------------------------------------------------------------


def test_two_percent_of_wake_ups_late_is_valid_with_a_warning() -> None:
    """2 % of the requests are sent 0.3 to 1.5 ms late, with a TTFT of 30 to 100 ms: the p99 is off by 0.03 %."""
    rng = np.random.default_rng(5)
    rows, chunks = made.open_rows(3000, rate=500)
    arrival = chunks.arrival.reshape(3000, -1)
    arrival += (rng.uniform(-20 * MS, 50 * MS, 3000).astype(np.int64))[:, None]
    for name in ARRIVALS:
        rows[name] = arrival[:, 0 if name.startswith("first") else -1]
    true = summary_of((rows, chunks), workload={"distinct": 3000})
    late = np.zeros(3000, np.int64)
    late[rng.choice(3000, 60, replace=False)] = rng.uniform(0.3 * MS, 1.5 * MS, 60).astype(np.int64)
    for name in ("sent", *ARRIVALS):
        rows[name] += late
    arrival += late[:, None]
    found = summary_of((rows, chunks), workload={"distinct": 3000})
    assert worst(true, found) < 0.005
    assert (found.verdict, statuses(found)) == ("VALID", {"lag": "warn"})
    assert in_words(found.checks) == "VALID with warnings"


def test_a_server_that_shares_the_cores_with_the_client_is_valid_with_a_warning() -> None:
    """The event loop is blocked for 12 ms every second (1.2 %). Kernel timestamps keep the latencies within 1 %."""
    spans = [(at, at + 12 * MS) for at in range(SECOND // 2, 11 * SECOND, SECOND)]
    truth = made.closed_rows()
    found = summary_of(paused(truth, spans), sampled=stalled(spans, 11))
    assert worst(summary_of(truth), found) < 0.01
    assert (found.verdict, statuses(found)) == ("VALID", {"stalls": "warn"})
    assert "lag and read_delay" in check(found, "stalls").message


def nagled(truth: Made, read_delay: int = 3 * MS) -> Made:
    """The server's socket holds chunks back until the delayed acknowledgement, 41 ms later."""
    rows, chunks = truth[0].copy(), truth[1].arrival.copy()
    arrival = chunks.reshape(len(rows), -1)
    first = arrival[:, :1]
    arrival[:, 1:] = first + -((first - arrival[:, 1:]) // (41 * MS)) * 41 * MS
    rows["last_token"] = arrival[:, -1]
    rows["done"] = np.maximum(rows["done"], rows["last_token"])
    rows["read_delay"] = read_delay
    return rows, Chunks(chunks, truth[1].tokens)


def test_a_server_without_tcp_nodelay_is_not_blamed_on_the_client() -> None:
    found = summary_of(nagled(made.closed_rows(chunks=20)))
    assert (found.verdict, statuses(found)) == ("VALID", {"merged_chunks": "warn"})
    message = check(found, "merged_chunks").message
    assert "TCP_NODELAY" in message and "100% of the other gaps are some 40 ms" in message


def test_nagle_is_recognised_by_first_chunks_that_wait_for_the_acknowledgement_of_the_headers() -> None:
    rows, chunks = made.closed_rows(chunks=40)
    arrival = chunks.arrival.reshape(600, 40)
    rows["first_byte"] = rows["first_token"] - MS
    held = rows["first_byte"] + 42 * MS
    arrival[:] = np.maximum(arrival, held[:, None])
    rows["first_token"] = arrival[:, 0]
    found = summary_of((rows, chunks))
    assert found.verdict == "VALID" and check(found, "merged_chunks").status == "warn"
    assert "the first chunk came some 40 ms after the headers" in check(found, "merged_chunks").message


def in_pairs(read_delay: int, chunks: int = 10, loop: Callable[..., Made] = made.closed_rows) -> Made:
    """Every second chunk has the timestamp of the one after it."""
    rows, made_chunks = loop(chunks=chunks) if loop is made.closed_rows else loop()
    arrival = made_chunks.arrival.reshape(600, chunks)
    arrival[:, 0::2] = arrival[:, 1::2]
    rows["first_byte"] = rows["first_token"] = arrival[:, 0]
    rows["read_delay"] = read_delay
    return rows, made_chunks


def test_a_server_that_writes_two_events_at_once_is_valid_with_a_warning() -> None:
    found = summary_of(in_pairs(60_000))
    assert (found.verdict, statuses(found)) == ("VALID", {"merged_chunks": "warn"})
    assert check(found, "merged_chunks").value == pytest.approx(5 / 9) and check(found, "read_delay").value == 0
    assert "TCP_NODELAY" not in check(found, "merged_chunks").message
    assert statuses(summary_of(in_pairs(60_000), **limits(merged=0.6))) == {}
    # Every read delay exceeds a quarter of the gap, but the event loop was never blocked for as long as a gap.
    assert summary_of(in_pairs(3 * MS, chunks=20)).verdict == "VALID"


def short_gaps(chunks: int = 64, count: int = 400, pairs: bool = False) -> Made:
    """A response has a chunk every 2 ms, or two every 4 ms."""
    rng = np.random.default_rng(0)
    rows, _ = made.closed_rows(count, chunks=chunks)
    gaps = rng.normal(2 * MS, 20_000, (count, chunks - 1)).astype(np.int64)
    arrival = rows["first_token"][:, None] + np.concatenate([np.zeros((count, 1), np.int64), gaps.cumsum(1)], 1)
    if pairs:
        arrival[:, 0::2] = arrival[:, 1::2]
    rows["first_byte"] = rows["first_token"] = arrival[:, 0]
    rows["last_token"], rows["done"] = arrival[:, -1], arrival[:, -1] + 20_000
    return rows, Chunks(arrival.reshape(-1), np.ones(count * chunks, np.uint16))


@pytest.mark.parametrize(("share", "stall"), [(0.05, 2), (0.5, 2), (0.9, 3), (0.5, 0.1), (1.0, 0.1)])
def test_a_server_that_writes_in_pairs_every_4_ms_is_not_blamed_on_the_client(share: float, stall: float) -> None:
    """Any of the responses have a read delay of more than a quarter of a gap of 2 ms, which a tick does not resolve."""
    rows, chunks = short_gaps(pairs=True)
    rows["read_delay"] = np.where(np.random.default_rng(1).random(len(rows)) < share, 600_000, 60_000)
    found = summary_of((rows, chunks), sampled=made.samples(30, stall=round(stall * MS)))
    assert (found.verdict, statuses(found)) == ("VALID", {"merged_chunks": "warn"})
    assert check(found, "merged_chunks").value == pytest.approx(32 / 63, abs=0.01)


@pytest.mark.parametrize(
    ("length", "every"),
    [(7, 0.05), pytest.param(15, 0.1, marks=pytest.mark.slow), pytest.param(40, 0.05, marks=pytest.mark.slow)],
)
def test_a_client_that_merges_chunks_2_ms_apart_is_invalid(length: int, every: float) -> None:
    truth = short_gaps()
    seconds = truth[0]["done"].max() / SECOND
    spans = [(at, at + length * MS) for at in range(SECOND // 3, int(seconds * SECOND), round(every * SECOND))]
    found = summary_of(paused(truth, spans), sampled=stalled(spans, seconds))
    assert off(summary_of(truth), found, "itl", "p99") > 0.08
    assert check(found, "read_delay").status == "fail"


def test_two_first_chunks_with_one_timestamp_do_not_make_a_run_invalid() -> None:
    """40 responses have 120 gaps, one of which is 0 and may be the client's: its true value is probably the usual one. To
    leave it out would raise every percentile by one rank, which is much in the tail of so few gaps."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        rows, _ = made.closed_rows(40, users=2, chunks=4, seed=seed)
        tail = np.where(rng.random((40, 3)) < 0.08, rng.exponential(MS, (40, 3)), 0)
        gaps = (rng.normal(2 * MS, 20_000, (40, 3)) + tail).astype(np.int64)
        late = rng.integers(40)
        gaps[late, 0] = 0
        arrival = rows["first_token"][:, None] + np.concatenate([np.zeros((40, 1), np.int64), gaps.cumsum(1)], 1)
        rows["last_token"] = arrival[:, -1]
        rows["read_delay"][late] = 600_000
        found = summary_of((rows, Chunks(arrival.reshape(-1), np.ones(160, np.uint16))))
        assert check(found, "read_delay").status != "fail", f"seed {seed}: {check(found, 'read_delay').message}"


# --- a client that made a figure wrong is INVALID ----------------------------------------------------------------------


@pytest.mark.parametrize("loop", [made.closed_rows, made.open_rows])
@pytest.mark.parametrize(
    ("length", "every"), [(15, 0.3), (15, 1), (15, 4), (30, 2), (60, 0.3), (60, 4), (250, 1), (500, 2)]
)
def test_a_paused_client_is_invalid_if_and_only_if_a_figure_is_wrong(
    loop: Callable[[], Made], length: int, every: float
) -> None:
    """Right in both directions. Between 3 % and 8 % either is fine: the true run is not known to the checks."""
    truth = loop()
    seconds = truth[0]["done"].max() / SECOND
    spans = [(at, at + length * MS) for at in range(SECOND // 3, int(seconds * SECOND), round(every * SECOND))]
    found = summary_of(paused(truth, spans), sampled=stalled(spans, seconds))
    wrong = worst(summary_of(truth), found)
    client = {name for name, status in statuses(found).items() if status == "fail"} & {"lag", "read_delay"}
    if wrong > 0.08:
        assert client and found.verdict == "INVALID", f"wrong by {wrong:.1%}"
    if wrong < 0.03:
        assert not client, f"wrong by {wrong:.1%}"


# --- lag ---------------------------------------------------------------------------------------------------------------


def late(by: int, count: int = 20, held: int = 0, stage: int = 0) -> Made:
    """Some requests are sent late, and their responses come late."""
    rows, chunks = made.open_rows()
    chunks.arrival.reshape(600, 10)[:count] += by
    for name in ("sent", *ARRIVALS):
        rows[name][:count] += by
    rows["held"][:count] += held
    return rows, chunks


def within_window(first: int) -> np.ndarray:
    return (np.arange(600) < first).astype(np.int8)


@pytest.mark.parametrize(
    ("by", "more", "about", "status"),
    [
        (MS // 10, {}, {}, "pass"),
        (MS // 4, {}, {}, "warn"),
        (2 * MS, {}, {}, "warn"),
        (20 * MS, {}, {}, "fail"),
        (50 * MS, {"held": 50 * MS}, {}, "pass"),  # waiting at the cap is not the client's lag
        (MS // 4, {}, limits(lag=0.01), "pass"),
        (20 * MS, {}, limits(effect_fail=0.9), "warn"),
        (20 * MS, {}, limits(effect_least="1s", lag="1s"), "pass"),
        (MS // 4, {}, limits(effect_pass=0, effect_fail=0, effect_least=0), "fail"),
        (20 * MS, {"count": 1}, {"phase": within_window(40)}, "pass"),  # only the p99 would show it: 40 are too few
        (MS // 2, {"count": 1}, {"phase": within_window(10)}, "pass"),  # the p99 of a few requests is their largest lag
    ],
)
def test_lag_warns_above_its_limit_and_fails_if_it_changes_a_percentile(
    by: int, more: dict[str, int], about: dict[str, object], status: str
) -> None:
    assert check(summary_of(late(by, **more), **about), "lag").status == status


def test_lag_in_words_and_figures() -> None:
    true, warned, wrong = (summary_of(late(by)) for by in (0, MS // 4, 20 * MS))
    found = check(warned, "lag")
    assert found.limit == pytest.approx(0.00025, rel=0.05)
    assert "client.processes" in found.message and "limits.lag" in found.message
    found = check(wrong, "lag")
    assert (found.limit, found.affects) == (0.05, ("latency",))
    assert found.value == pytest.approx(off(true, wrong, "ttft", "p99"), rel=0.05) and found.value > 0.05
    assert "Latencies include the client's own lag, because it sent late: the p99 of ttft is 7" in found.message
    assert not applies(summary_of(made.closed_rows()), "lag")


def gated(data: Made, *slos: str, **about: object) -> bool:
    found = summarise(made.run(*data, plan=(made.OPEN,), **about), slos)
    assert found.verdict == "INVALID"
    return is_passed(found)


def test_an_invalid_run_passes_by_objectives_that_are_met_with_the_clients_lag_included() -> None:
    data = late(20 * MS)
    assert check(summary_of(data), "lag").overstates
    assert not gated(data)
    assert gated(data, "ttft.p99 < 500ms", "throughput.requests > 1")
    assert not gated(data, "ttft.p99 < 40ms")
    cut = made.run(*data, plan=(made.OPEN,), outcome=made.INTERRUPTED)
    assert not is_passed(summarise(cut, ["ttft.p99 < 500ms"]))


def test_a_check_that_says_that_latencies_may_be_too_low_fails_every_objective() -> None:
    data = in_pairs(7 * MS, loop=made.open_rows)  # the p50 of itl is 0
    assert not check(summary_of(data, sampled=BLOCKED), "read_delay").overstates
    assert not gated(data, "itl.p50 < 500ms", sampled=BLOCKED)


def test_lag_of_one_stage_fails_even_if_the_other_is_much_larger() -> None:
    """8 of 150 requests are late, which is 8 of 600."""
    rows, chunks = late(20 * MS, count=8)
    rows["stage"][150:] = 1
    plans = (msgspec.structs.replace(made.OPEN, name="morning"), made.OPEN)
    found = check(summary_of((rows, chunks), plan=plans), "lag")
    assert (found.status, found.stages) == ("fail", (0,)) and "p95 of ttft of stage 1 (morning)" in found.message


def test_lag_with_failures_that_count_as_infinitely_slow() -> None:
    """4 are sent 20 ms late and 3 fail: the p99, the 7th from the end, is one of the late ones only if failures count. If 10
    fail, it is infinite with or without lag."""
    rows, chunks = late(20 * MS, count=4)
    made.fail(rows, slice(4, 7))
    about = {"failures": (Failure("reset", ""),)}
    assert check(summary_of((rows, chunks), **about), "lag").status == "warn"
    as_inf = made.manifest().config | {"measure": {"failures_as_inf": True}}
    assert check(summary_of((rows, chunks), **about, config=as_inf), "lag").status == "fail"
    made.fail(rows, slice(4, 14))
    assert check(summary_of((rows, chunks), **about, config=as_inf), "lag").status == "pass"


# --- CPU and memory ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "bad"), [("cpu", {"cpu": 0.95}), ("stalls", {"stalled": 5 * MS}), ("memory", {"memory": 0.97})]
)
def test_what_is_measured_about_the_client_only_warns(name: str, bad: dict[str, float]) -> None:
    ill = (*made.samples(), *made.samples(shard=1, **bad))
    found = summary_of(made.closed_rows(), sampled=ill)
    assert (found.verdict, statuses(found)) == ("VALID", {name: "warn"})
    value, limit = check(found, name).value, check(found, name).limit
    assert value is not None and limit is not None and value > limit
    assert statuses(summary_of(made.closed_rows(), sampled=ill, **limits(**{name: 1.0}))) == {}


def test_cpu_peaks_and_missing_samples_warn() -> None:
    samples = made.samples()
    peaks = tuple(msgspec.structs.replace(sample, cpu=1.0) for sample in samples[:3])
    found = check(summary_of(made.closed_rows(), sampled=peaks + samples[3:]), "cpu")
    assert found.status == "warn" and "for part of the time" in found.message
    summary = summary_of(made.closed_rows(), sampled=())
    assert check(summary, "cpu").status == "warn" and not applies(summary, "stalls")


def test_cpu_is_judged_in_each_stage() -> None:
    """The client is busy in the second stage only, for a third of the run."""
    rows, chunks = made.open_rows()
    rows["stage"] = rows["intended"] > 4 * SECOND
    sampled = tuple(msgspec.structs.replace(s, cpu=0.97 if s.at > 4 * SECOND else 0.1) for s in made.samples())
    plans = (made.OPEN, msgspec.structs.replace(made.OPEN, name="evening"))
    found = check(summary_of((rows, chunks), plan=plans, sampled=sampled), "cpu")
    assert (found.status, found.stages) == ("warn", (1,)) and "in stage 2 (evening)" in found.message
    assert found.value == pytest.approx(0.97)


# --- stalls without kernel timestamps ----------------------------------------------------------------------------------


def read_at_the_end(data: Made, spans: list[tuple[int, int]]) -> Made:
    """The run, timestamped when a client read that was blocked during these spans."""
    rows, chunks = data[0].copy(), data[1].arrival.copy()
    for begin, end in spans:
        for column in (chunks, *(rows[name] for name in ARRIVALS)):
            column[(column > begin) & (column < end)] = end
    rows["read_delay"] = -1
    return rows, Chunks(chunks, data[1].tokens)


USER = {"clock": {"stamps": "user"}}


@pytest.mark.parametrize(("length", "every", "status"), [(12, 4.0, "pass"), (12, 2.0, "warn"), (60, 0.25, "fail")])
def test_stalls_without_kernel_timestamps_fail_if_they_change_a_percentile(
    length: int, every: float, status: str
) -> None:
    truth = made.closed_rows()
    spans = [(at, at + length * MS) for at in range(SECOND // 3, 11 * SECOND, round(every * SECOND))]
    found = summary_of(read_at_the_end(truth, spans), sampled=stalled(spans, 11), **USER)
    assert check(found, "stalls").status == status
    assert (worst(summary_of(truth), found) > 0.05) == (status == "fail")
    assert check(found, "stamps").status == "warn" and not applies(found, "read_delay")


# --- steps of the clock ------------------------------------------------------------------------------------------------


def all_read_late(by: int) -> Made:
    rows, chunks = made.open_rows()
    for name in ARRIVALS:
        rows[name] += by
    rows["read_delay"] = -1
    return rows, Chunks(chunks.arrival + by, chunks.tokens)


@pytest.mark.parametrize(
    ("by", "stall", "cpu", "status"),
    [(9, 9, 0.99, "fail"), (9, 9, 0.25, "fail"), (4, 4, 0.99, "fail"), (0, 2, 0.25, "pass")],
)
def test_short_stalls_all_the_time_fail_without_kernel_timestamps(by: int, stall: int, cpu: float, status: str) -> None:
    """Each arrival is 9 ms late because the event loop is always busy: below 10 ms, that does not count as stalled time."""
    sampled = made.samples(stall=stall * MS, stalled=0, cpu=cpu)
    found = summary_of(all_read_late(by * MS), sampled=sampled, **USER)
    assert (off(summary_of(made.open_rows()), found, "ttft", "p50") > 0.05) == (status == "fail")
    assert found.verdict == {"fail": "INVALID", "pass": "VALID"}[status] and check(found, "stalls").status == status


def stepped(data: Made, steps: list[tuple[int, int]]) -> tuple[Made, tuple[Sample, ...]]:
    """The run with steps of the wall clock (when, by how much), each corrected for at the next sample."""
    rows, chunks = data[0].copy(), data[1].arrival.copy()
    samples = made.samples(11)
    ends = np.array([sample.at for sample in samples])
    for at, by in steps:
        end = ends[np.searchsorted(ends, at)]
        for column in (chunks, *(rows[name] for name in ARRIVALS)):
            column[(column > at) & (column < end)] += by
    moved = [sum(by for at, by in steps if at < end) for end in ends]
    sampled = tuple(msgspec.structs.replace(s, clock_step=by) for s, by in zip(samples, moved, strict=True))
    return (rows, Chunks(chunks, data[1].tokens)), sampled


def test_one_step_of_the_clock_warns_if_no_percentile_changes() -> None:
    data, sampled = stepped(made.closed_rows(), [(5 * SECOND, -5 * MS)])
    found = summary_of(data, sampled=sampled)
    assert (found.verdict, check(found, "clock_step").status) == ("VALID", "warn")
    assert check(found, "clock_step").value == pytest.approx(0.005)
    assert check(summary_of(data, sampled=sampled, **limits(clock_step="1s")), "clock_step").status == "pass"


def test_steps_of_the_clock_fail_if_they_change_a_percentile() -> None:
    steps = [(at, -20 * MS) for at in range(SECOND // 5, 10 * SECOND, SECOND // 2)]
    truth = made.closed_rows()
    data, sampled = stepped(truth, steps)
    found = summary_of(data, sampled=sampled)
    assert worst(summary_of(truth), found) > 0.05
    assert check(found, "clock_step").status == "fail" and "NTP" in check(found, "clock_step").message


def test_slow_correction_of_the_clock_passes() -> None:
    """NTP corrects the clock by 0.1 ms per second. After a minute that is 6 ms, but each sample corrects for its own part."""
    sampled = tuple(msgspec.structs.replace(s, clock_step=s.at // 10_000) for s in made.samples(11))
    assert statuses(summary_of(made.closed_rows(), sampled=sampled)) == {}


def test_a_clock_step_only_warns_if_arrivals_do_not_depend_on_it() -> None:
    step = tuple(msgspec.structs.replace(s, clock_step=5 * MS if s.at > SECOND else 0) for s in made.samples())
    found = summary_of(made.closed_rows(), sampled=step, **USER)
    assert check(found, "clock_step").status == "warn" and "do not depend" in check(found, "clock_step").message


# --- late reads --------------------------------------------------------------------------------------------------------

BLOCKED = made.samples(11, stall=17 * MS, stalled=17 * MS)


def merged_run(merged: int) -> Summary:
    """In each of the first `merged` responses, one gap is merged with the one before it, which becomes twice as long."""
    rows, chunks = made.closed_rows()
    rows["read_delay"][:merged] = 7 * MS
    arrival = chunks.arrival.reshape(600, 10)
    arrival[:merged, 4] = arrival[:merged, 5]
    return summary_of((rows, chunks), sampled=BLOCKED)


@pytest.mark.parametrize(("merged", "status"), [(2, "pass"), (30, "warn"), (60, "fail")])
def test_read_delay_is_judged_by_what_merged_chunks_do_to_the_percentiles_of_gaps(merged: int, status: str) -> None:
    true, found = summary_of(made.closed_rows()), merged_run(merged)
    assert check(found, "read_delay").status == status
    wrong = off(true, found, "itl", "p99")
    assert {"pass": wrong < 0.01, "warn": 0.01 < wrong < 0.05, "fail": wrong > 0.05}[status]
    if status != "pass":
        assert check(found, "read_delay").value == pytest.approx(wrong, rel=0.3)
        assert f"{merged} of 5,400 gaps may be" in check(found, "read_delay").message
        assert "the p99 of itl is" in check(found, "read_delay").message


def test_gaps_that_may_be_merged_matter_only_to_the_percentiles_that_they_change() -> None:
    """1 % of the gaps are merged (20 ms), but the p99 is a pause of the server of 100 ms in 2 % of the gaps."""
    rows, chunks = made.closed_rows()
    arrival = chunks.arrival.reshape(600, 10)
    arrival[::5, 8:] += 100 * MS
    rows["read_delay"][:60] = 7 * MS
    arrival[:60, 4] = arrival[:60, 5]
    assert check(summary_of((rows, chunks), sampled=BLOCKED), "read_delay").status == "pass"
    found = check(summary_of(in_pairs(7 * MS), sampled=BLOCKED), "read_delay")
    assert found.status == "fail" and "the p50 of itl is 0 s, and would be 9.09 ms" in found.message
    rows, chunks = made.closed_rows()  # responses that were read in time: the gap of 0 is the server's
    chunks.arrival.reshape(600, 10)[:, 4] = chunks.arrival.reshape(600, 10)[:, 5]
    summary = summary_of((rows, chunks), sampled=BLOCKED)
    assert check(summary, "read_delay").status == "pass" and check(summary, "merged_chunks").status == "warn"


@pytest.mark.parametrize("writes", [1, 2])
@pytest.mark.parametrize(
    ("count", "read_delay", "status"), [(600, MS // 14, "pass"), (600, 60 * MS, "fail"), (1, MS // 14, "pass")]
)
def test_a_server_that_writes_responses_at_once_does_not_stream(
    writes: int, count: int, read_delay: int, status: str
) -> None:
    """Responses of which the client read the last byte promptly were not merged by it: it would have been blocked for all of them."""
    rows, chunks = made.closed_rows(chunks=40)
    arrival = chunks.arrival.reshape(600, 40)
    arrival[:count] = arrival[:count, -1:]
    arrival[:count, : 40 // writes] -= (writes - 1) * MS // 2
    rows["first_byte"][:count] = rows["first_token"][:count] = arrival[:count, 0]
    rows["read_delay"][:count] = read_delay
    found = summary_of((rows, chunks), sampled=BLOCKED)
    assert check(found, "read_delay").status == status
    if count == 600 and status == "pass":
        assert found.verdict == "VALID"
        assert "This endpoint does not stream" in check(found, "merged_chunks").message


def first_read_late(merged: int, by: int, **about: object) -> Summary:
    """In open loop, the first chunk of `merged` responses is read `by` after it arrived. The kernel gives it the timestamp of
    the last chunk that arrived meanwhile, and the read delay only counts from there."""
    rows, chunks = made.open_rows()
    for row, arrival in zip(rows[:merged], chunks.arrival.reshape(600, 10)[:merged], strict=True):
        read = arrival[0] + by
        waiting = arrival <= read
        arrival[waiting] = arrival[waiting][-1]
        row["read_delay"] = read - arrival[0]
        row["first_byte"] = row["first_token"] = arrival[0]
    return summary_of((rows, chunks), sampled=BLOCKED, **about)


def test_read_delay_fails_if_merged_first_tokens_raise_the_p99_of_ttft() -> None:
    true, summary = (
        summary_of(made.open_rows()),
        first_read_late(9, 17 * MS),
    )  # 7 ms of read delay, below the gap of 10 ms
    assert check(first_read_late(1, 17 * MS), "read_delay").status == "pass"
    assert off(true, summary, "ttft", "p99") > 0.05
    found = check(summary, "read_delay")
    assert (summary.verdict, found.status, found.limit) == ("INVALID", "fail", 0.05)
    assert found.value == pytest.approx(off(true, summary, "ttft", "p99"), abs=0.02) and "p99 of ttft" in found.message


def test_first_tokens_read_late_but_before_the_second_arrived_keep_their_timestamp() -> None:
    summary = first_read_late(60, 5 * MS)
    assert summary.verdict == "VALID" and summary.metrics["ttft"] == summary_of(made.open_rows()).metrics["ttft"]


def test_leaving_out_responses_does_not_blame_the_client_for_a_server_that_was_faster() -> None:
    """Merging makes ttft too long, never too short. Here the first chunks of the fastest responses are in doubt."""
    rows, chunks = made.open_rows()
    arrival = chunks.arrival.reshape(600, 10)
    fast = np.argsort(rows["first_token"] - rows["sent"])[:400]
    arrival[fast, 1] = arrival[fast, 0]
    rows["read_delay"][fast] = 7 * MS
    found = summary_of((rows, chunks), sampled=made.samples(stall=50 * MS))
    message = check(found, "read_delay").message
    assert "of ttft" not in message, message


def test_read_delay_is_judged_in_each_stage() -> None:
    """9 of 100 first chunks are merged, but only 9 of 600."""
    plans = (made.OPEN, msgspec.structs.replace(made.OPEN, name="evening"))
    rows, chunks = made.open_rows()
    rows["stage"][100:] = 1
    arrival = chunks.arrival.reshape(600, 10)
    arrival[:12, 0] = rows["first_token"][:12] = arrival[:12, 1]
    rows["read_delay"][:12] = 7 * MS
    found = check(summary_of((rows, chunks), plan=plans, sampled=BLOCKED), "read_delay")
    assert (found.status, found.stages) == ("fail", (0,)) and "of stage 1 (poisson)" in found.message


def test_large_responses_that_waited_to_be_read_are_late_themselves() -> None:
    """A response larger than the socket's buffer cannot arrive completely before the client reads."""
    rows, chunks = made.closed_rows()
    rows["bytes_in"][::4] = 1 << 20
    true = summary_of((rows, chunks))
    rows["read_delay"][::4] = 60 * MS
    rows["done"][::4] += 60 * MS
    found = summary_of((rows, chunks))
    assert off(true, found, "e2e", "p99") > 0.05
    assert check(found, "read_delay").status == "fail" and "large responses" in check(found, "read_delay").message
    rows["bytes_in"] = 2000
    assert check(summary_of((rows, chunks)), "read_delay").status == "pass"
