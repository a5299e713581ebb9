"""The loop of all experiments: which runs are listed, and how errors, Ctrl-C and SIGTERM end it. Runs are made up."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import synthetic_run as made

from inferometer import conduct
from inferometer.analysis.summary import Summary, summarise
from inferometer.conduct.experiment import Cell, Experiment, RunList, measure_cells, new_experiment, read_list
from inferometer.conduct.kinds import kind_of
from inferometer.conduct.pairs import Subject, measure_pairs, pairs_of, repeat
from inferometer.config import Config, from_mapping
from inferometer.errors import UserError
from inferometer.records import Outcome, Run

GONE = UserError("the server is gone", "start it")


def config(folder: Path) -> Config:
    return from_mapping({"server": {"url": "http://127.0.0.1:1"}, "output": str(folder), "load": {"requests": 5}})


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the runs do, in turn: raise an error, be "interrupted", or end well, also when the list is over."""
    wanted: list[Any] = []
    run, summary = made.run(*made.closed_rows()), summarise(made.run(*made.closed_rows()))
    count = 0

    def measure(config: Config, *_: object) -> tuple[Run, Summary]:
        nonlocal count
        count += 1
        outcome = wanted.pop(0) if wanted else "ok"
        if isinstance(outcome, BaseException):
            raise outcome
        if callable(outcome):
            outcome()
        folder = Path(config.output) / f"run-{count}"
        folder.mkdir()
        (folder / "manifest.json").touch()
        head = msgspec.structs.replace(run.manifest, outcome=Outcome(interrupted=outcome == "interrupted"))
        return msgspec.structs.replace(run, folder=folder, manifest=head), summary

    monkeypatch.setattr(conduct, "measure", measure)
    return wanted


def measured(folder: Path, cells: int = 3, lines: Callable[[str], None] = lambda line: None, **how: Any) -> Experiment:
    def choose(known: list[Any]) -> Iterator[Cell]:
        for number in range(cells):
            yield Cell(settings={"n": number}, config=config(folder), line=f"{number} after {len(known)}")

    with new_experiment(config(folder), RunList(kind="sweep", keys=("n",))) as experiment:
        measure_cells(experiment, choose, lines, **how)
    return experiment


def listed(experiment: Experiment) -> list[tuple[int, str, str]]:
    stored = read_list(experiment.folder)
    assert stored == experiment.listed
    return [(each.settings["n"], each.run, each.error.partition(" (")[0]) for each in stored.runs]


def test_runs_are_listed_in_order_and_each_choice_sees_those_before_it(tmp_path: Path, script: list[Any]) -> None:
    lines: list[str] = []
    experiment = measured(tmp_path, 3, lines.append)
    assert lines == ["0 after 0", "1 after 1", "2 after 2"]
    assert listed(experiment) == [(0, "run-1", ""), (1, "run-2", ""), (2, "run-3", "")]
    assert not experiment.listed.interrupted and [run.folder.name for run, _ in experiment.runs] == [
        "run-1",
        "run-2",
        "run-3",
    ]
    assert (tmp_path / "LATEST").resolve() == experiment.folder and kind_of([str(experiment.folder)]) == "sweep"


def test_the_list_is_written_after_every_run(tmp_path: Path, script: list[Any]) -> None:
    counts: list[int] = []

    def look() -> None:
        stored = list(tmp_path.glob("2*/runs.json"))
        counts.append(len(read_list(stored[0].parent).runs) if stored else 0)

    script += [look, look, look]
    measured(tmp_path)
    assert counts == [0, 1, 2]


@pytest.mark.parametrize("error", [GONE, KeyboardInterrupt()])
@pytest.mark.parametrize("keeps", [True, False])
def test_what_ends_the_first_run_ends_the_experiment_and_leaves_no_folder(
    tmp_path: Path, script: list[Any], error: BaseException, keeps: bool
) -> None:
    script.append(error)
    with pytest.raises(type(error)):
        measured(tmp_path, keeps_errors=keeps, keeps_interrupted=keeps)
    assert not list(tmp_path.glob("2*"))


def test_an_error_ends_the_experiment_or_is_listed(tmp_path: Path, script: list[Any]) -> None:
    script += ["ok", GONE]
    with pytest.raises(UserError, match="is gone"):
        measured(tmp_path / "ends")
    assert len(list(tmp_path.glob("ends/2*/run-1"))) == 1
    script += ["ok", GONE]
    experiment = measured(tmp_path / "goes on", keeps_errors=True)
    assert [each[2] for each in listed(experiment)] == ["", "the server is gone", ""]
    assert len(experiment.measured) == 2


def test_ctrl_c_before_a_run_keeps_those_before_it(tmp_path: Path, script: list[Any]) -> None:
    script += ["ok", KeyboardInterrupt()]
    experiment = measured(tmp_path)
    assert len(listed(experiment)) == 1 and experiment.listed.interrupted


def test_ctrl_c_between_runs_keeps_those_before_it(tmp_path: Path, script: list[Any]) -> None:
    def lines(line: str) -> None:
        if line.startswith("1"):
            raise KeyboardInterrupt

    experiment = measured(tmp_path, lines=lines)
    assert len(listed(experiment)) == 1 and experiment.listed.interrupted


@pytest.mark.parametrize(("outcomes", "keeps", "count"), [(["ok"], False, 1), (["ok"], True, 2), ([], False, 1)])
def test_an_interrupted_run_counts_if_it_is_the_first_or_kept(
    tmp_path: Path, script: list[Any], outcomes: list[Any], keeps: bool, count: int
) -> None:
    script += [*outcomes, "interrupted"]
    experiment = measured(tmp_path, keeps_interrupted=keeps)
    assert len(listed(experiment)) == len(experiment.measured) == count and experiment.listed.interrupted


def test_a_run_that_its_watch_has_ended_is_not_interrupted(tmp_path: Path, script: list[Any]) -> None:
    def choose(known: list[Any]) -> Iterator[Cell]:
        for number in range(2):
            yield Cell(settings={"n": number}, config=config(tmp_path), ended_itself=lambda: True)
            known.clear()  # a search needs only the last one

    script += ["interrupted", "interrupted"]
    with new_experiment(config(tmp_path), RunList(kind="capacity")) as experiment:
        measure_cells(experiment, choose)
    assert len(listed(experiment)) == 2 and not experiment.listed.interrupted and not experiment.measured
    assert kind_of([str(experiment.folder)]) == "repeats", "there is no capacity.json: the search was killed"


def test_sigterm_between_runs_counts_as_ctrl_c(tmp_path: Path, script: list[Any]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    script += ["ok", lambda: os.kill(os.getpid(), signal.SIGTERM)]
    experiment = measured(tmp_path)
    assert len(listed(experiment)) == 1 and experiment.listed.interrupted
    assert signal.getsignal(signal.SIGTERM) is before


def test_what_surrounds_a_run_ends_with_it(tmp_path: Path, script: list[Any]) -> None:
    seen: list[str] = []

    @contextlib.contextmanager
    def around(folder: Path) -> Iterator[None]:
        seen.append(folder.parent.name)
        try:
            yield
        finally:
            seen.append("ended")

    script.append(GONE)
    with (
        pytest.raises(UserError, match="is gone"),
        new_experiment(config(tmp_path / "x"), RunList(kind="ab")) as experiment,
    ):
        measure_cells(experiment, lambda _: iter([Cell(settings={}, config=config(tmp_path), around=around)]))
    assert seen == ["x", "ended"]


# --- how cells are chosen ---------------------------------------------------------------------------------------------


def test_repeats_have_seeds_of_their_own(tmp_path: Path, script: list[Any]) -> None:
    lines: list[str] = []
    experiment = repeat(msgspec.structs.replace(config(tmp_path), seed=7), 3, lines.append)
    assert [each.settings for each in experiment.listed.runs] == [{"seed": 7}, {"seed": 8}, {"seed": 9}]
    assert lines == ["run 1 of 3", "run 2 of 3", "run 3 of 3"]


def test_pairs_take_turns_and_only_complete_ones_count(
    tmp_path: Path, script: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inferometer.conduct.pairs.reach", lambda server: None)
    subjects = {side: Subject(f"server {side}", config(tmp_path)) for side in "AB"}
    script += ["ok"] * 5 + [KeyboardInterrupt()]
    outcomes: list[str] = []
    experiment = measure_pairs(subjects, 4, lambda line: None, outcomes.append, force=True)
    assert [(each.settings["pair"], each.settings["side"]) for each in experiment.listed.runs] == [
        (0, "A"), (0, "B"), (1, "B"), (1, "A"), (2, "A"),
    ]  # fmt: skip
    assert experiment.listed.sides == ("server A", "server B") and len(outcomes) == 5
    pairs = [(a.folder.name, b.folder.name) for (a, _), (b, _) in pairs_of(experiment)]
    assert pairs == [("run-1", "run-2"), ("run-4", "run-3")]


def test_the_list_of_pairs_of_older_versions_is_read(tmp_path: Path) -> None:
    (tmp_path / "pairs.json").write_text('{"a": "http://a", "b": "http://b", "pairs": [["1", "2"], ["3", "4"]]}')
    stored = read_list(tmp_path)
    assert stored.sides == ("http://a", "http://b") and kind_of([str(tmp_path)]) == "ab"
    assert [(each.settings["pair"], each.settings["side"], each.run) for each in stored.runs] == [
        (0, "A", "1"), (0, "B", "2"), (1, "A", "3"), (1, "B", "4"),
    ]  # fmt: skip
    (tmp_path / "pairs.json").write_text("{}")
    with pytest.raises(UserError, match="cannot be read"):
        read_list(tmp_path)
