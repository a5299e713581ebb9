"""Running totals of a run: they equal those of the stored records, however the rows arrive."""

import math
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from spools import CODES, MS, T0, FakeShard, random_rows, rows

from inferometer.analysis.metrics import METRICS
from inferometer.publish.live_counts import BOUNDS, HISTOGRAMS, Labels, LiveCounts, Totals
from inferometer.records import Records, Sample
from inferometer.store.spool import Spool, merge

STAGES = ("warm", "hot", "unused")
CLASSES = ("chat", "batch")


def expected(records: Records, stage: int, class_: int) -> Totals:
    """The totals of the stored records, counted the slow way."""
    own = records.rows[(records.rows["stage"] == stage) & (records.rows["class"] == class_)]
    good = own[own["failure"] == 0]
    codes = Counter(records.failures[number - 1].code for number in own["failure"] if number)
    histograms = {}
    for name in HISTOGRAMS:
        metric = METRICS[name]
        assert metric.values is not None
        values = [
            value for value in metric.values(good if metric.of == "ok" else own).tolist() if not math.isnan(value)
        ]
        counts = [
            sum(low < value <= high for value in values)
            for low, high in zip((-np.inf, *BOUNDS), (*BOUNDS, np.inf), strict=True)
        ]
        histograms[name] = (tuple(counts), sum(values))
    tokens = [int(good[name][good[name] > 0].sum()) for name in ("n_in", "n_out")]
    return Totals(len(good), dict(codes), *tokens, histograms)  # type: ignore[arg-type]


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60), st.booleans()), max_size=8),
    st.integers(0, 2**32),
    st.sampled_from([(), CLASSES]),
)
def test_totals_equal_those_of_the_stored_records(
    pieces: list[tuple[int, int, bool]], seed: int, classes: tuple[str, ...]
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shards = [FakeShard(folder, number) for number in range(3)]
        counts = LiveCounts(folder, 3, STAGES, classes)
        for number, (shard, count, is_read) in enumerate(pieces):
            shards[shard].start()
            shards[shard].record(random_rows(seed + number, count, 2, len(classes)))
            if is_read:
                counts.update()
        counts.update()
        records, _ = merge(folder, 3)
        for labels, totals in counts.totals().items():
            numbers = STAGES.index(labels.stage), classes.index(labels.traffic_class) if labels.traffic_class else -1
            wanted = expected(records, *numbers)
            assert (totals.completed, totals.failures) == (wanted.completed, wanted.failures)
            assert (totals.input_tokens, totals.output_tokens) == (wanted.input_tokens, wanted.output_tokens)
            for metric, (buckets, total) in wanted.histograms.items():
                assert totals.histograms[metric].counts == buckets, metric
                assert np.isclose(totals.histograms[metric].sum, total)
        ended = sum(each.completed + sum(each.failures.values()) for each in counts.totals().values())
        assert ended == len(records.rows)


def test_a_shard_that_has_not_started_counts_as_nothing(tmp_path: Path) -> None:
    counts = LiveCounts(tmp_path, 2, ("only",))
    counts.update()
    (tmp_path / "0.control").write_bytes(b"")  # the parent is creating it
    counts.update()
    assert (counts.progress().sent, counts.progress().elapsed) == (0, 0)
    assert counts.totals()[Labels("only", "")].completed == 0
    FakeShard(tmp_path, 0).record(rows(3))
    counts.update()
    assert counts.totals()[Labels("only", "")].completed == 3


def test_every_class_of_a_stage_is_there_from_its_start(tmp_path: Path) -> None:
    """A counter that appears with its first value would hide its first increase from Prometheus."""
    shard = FakeShard(tmp_path, 0)
    counts = LiveCounts(tmp_path, 1, STAGES, CLASSES)
    assert set(counts.totals()) == {Labels("warm", "chat"), Labels("warm", "batch")}
    shard.control["stage"] = 1
    assert set(counts.totals()) == {Labels(stage, each) for stage in ("warm", "hot") for each in CLASSES}


def test_tokens_that_are_counted_after_the_run_are_added(tmp_path: Path) -> None:
    shard = FakeShard(tmp_path, 0)
    shard.record(rows(2, n_out=-1, counted_by=0, streamed_tokens=-1, first_tokens=-1))
    counts = LiveCounts(tmp_path, 1, ("only",))
    counts.update()
    assert counts.totals()[Labels("only", "")].output_tokens == 0
    shard.recount(rows(2))
    counts.update()
    totals = counts.totals()[Labels("only", "")]
    assert (totals.completed, totals.output_tokens) == (2, 22), "each request counts once"
    assert sum(totals.histograms["tpot"].counts) == 2


def test_progress_is_that_of_all_shards_and_of_the_slowest_stage(tmp_path: Path) -> None:
    shards = [FakeShard(tmp_path, number) for number in range(2)]
    for shard, (sent, stage, elapsed) in zip(shards, ((10, 1, 300), (20, 2, 500)), strict=True):
        shard.start()
        shard.control["sent"], shard.control["stage"], shard.control["in_flight"] = sent, stage, 2
        shard.control["queued"], shard.control["heartbeat"] = 1, T0 + elapsed * MS
    progress = LiveCounts(tmp_path, 2, STAGES).progress()
    assert (progress.sent, progress.in_flight, progress.queued, progress.stage) == (30, 4, 2, 1)
    assert progress.elapsed == 0.5


def test_cpu_is_that_of_the_latest_complete_sample(tmp_path: Path) -> None:
    FakeShard(tmp_path, 0)
    spool = Spool(tmp_path, 0, 1, 1)
    counts = LiveCounts(tmp_path, 1, ("only",))
    assert counts.progress().cpu == {}
    for at in range(40):  # more than is read from the end of the file
        spool.sample(Sample(0, at, at / 100, 10**9, 0.5, 0, 0, 0, 0))
    with (tmp_path / "0.samples").open("ab") as file:
        file.write(b'{"shard":0,"at":4')
    assert counts.progress().cpu == {0: 0.39}


def test_codes_of_failures_that_occur_later_are_known(tmp_path: Path) -> None:
    shard = FakeShard(tmp_path, 0, codes=())
    counts = LiveCounts(tmp_path, 1, ("only",))
    for number, code in enumerate(CODES, 1):
        shard.add_failure(code)
        shard.record(rows(number, failure=number))
        counts.update()
    assert counts.totals()[Labels("only", "")].failures == {"http_503": 1, "total_timeout": 2, "dropped": 3}
