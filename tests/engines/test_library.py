"""The process of an in-process engine: what crosses over, what goes wrong, and that nothing is left of it."""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_help import SCRIPTED, children_of, is_alive, ours, requests, started
from scripted_engine import FIRST, TOKEN
from waiting import until

from inferometer.campaign import Output
from inferometer.engines.inprocess import library as library_module
from inferometer.engines.inprocess.library import Library
from inferometer.engines.inprocess.messages import Progress
from inferometer.engines.launching import EngineError
from inferometer.types import Request, Turn


@pytest.fixture(autouse=True)
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(library_module.MODULES, "transformers", SCRIPTED)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Library]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(library_module.MODULES, "transformers", SCRIPTED)
        made = started(tmp_path_factory.mktemp("engine"), max_batch=8)
    yield made
    made.close()


# --- what crosses over -------------------------------------------------------------------------------------------------


def test_a_library_reports_its_phases_facts_and_versions(library: Library) -> None:
    assert list(library.phases) == ["imported", "weights loaded"]
    assert library.ready_at is not None
    assert 0 < library.phases["imported"] <= library.phases["weights loaded"] <= library.ready_at
    assert library.facts == {"dtype": "float32", "mode": "serial", "batch": "8"}  # what is not known is left out
    assert library.versions["transformers"] == "1.2.3"


def test_rows_have_the_times_that_the_engine_noted(library: Library) -> None:
    generated = library.generate(requests("a b", "c d e"), 1, count=2)
    first, second = generated.rows
    assert (first.id, first.request, first.n_in, first.n_out, first.n_want) == (0, 0, 2, 3, 3)
    assert first.sent == generated.began
    assert first.arrivals == tuple(first.sent + FIRST + TOKEN * each for each in range(3))
    assert (first.first, first.last, first.done) == (first.arrivals[0], first.arrivals[2], first.arrivals[2])
    assert second.sent == first.done
    assert generated.padding is None


def test_requests_are_used_again_if_there_are_fewer_than_wanted(library: Library) -> None:
    generated = library.generate(requests("a", "b"), 1, count=5)
    assert [row.request for row in generated.rows] == [0, 1, 0, 1, 0]
    assert [row.id for row in generated.rows] == [0, 1, 2, 3, 4]
    assert generated.distinct == 2


def test_progress_is_reported_while_the_engine_is_busy(library: Library) -> None:
    seen: list[Progress] = []
    library.generate(requests("wait"), 1, count=1, on_progress=seen.append)
    assert Progress(completed=0, failed=0, in_flight=1, tokens=0) in seen


def test_a_request_that_fails_is_a_row(library: Library) -> None:
    rows = library.generate(requests("a", "fail", "b"), 1, count=3).rows
    assert [(row.failure, row.message) for row in rows] == [
        ("", ""),
        ("engine_error", "this one cannot be done"),
        ("", ""),
    ]
    assert rows[1].arrivals == ()


def test_a_level_of_nothing_but_failures_ends(library: Library) -> None:
    with pytest.raises(EngineError, match="100 requests failed one after the other: this one cannot be done"):
        library.generate(requests("fail"), 1, duration=60)


def test_outputs_of_a_sample_have_text_and_ids(library: Library) -> None:
    made = library.complete(requests("a", "b"), 4, chat=True)
    assert made == [Output("a True", (1, 1, 1, 1)), Output("b True", (1, 1, 1, 1))]


def test_messages_and_token_ids_cross_over_as_they_are(library: Library) -> None:
    given = [Request(0, [{"role": "user", "content": "hi"}], 0, 1), Request(1, [5, 6], 0, 1)]
    assert [each.text for each in library.complete(given, 1)] == [
        "[{'role': 'user', 'content': 'hi'}] False",
        "[5, 6] False",
    ]


def test_conversations_need_a_server(library: Library) -> None:
    turns = (Turn([{"role": "user", "content": "and"}], 0, 1),)
    with pytest.raises(EngineError, match="conversations of several turns"):
        library.generate([Request(0, "a", 0, 1, later=turns)], 1, count=1)


def test_what_an_engine_cannot_do_is_an_error_and_it_goes_on(library: Library) -> None:
    with pytest.raises(EngineError, match="there is no profiler"):
        library.start_profile()
    assert len(library.generate(requests("a"), 1, count=1).rows) == 1


def test_too_little_memory_is_an_error_of_that_level_only(library: Library) -> None:
    with pytest.raises(EngineError) as caught:
        library.generate(requests("memory"), 8, count=8)
    assert caught.value.reason == "out of memory"
    assert "no room for the batch" in caught.value.what
    assert len(library.generate(requests("memory"), 1, count=2).rows) == 2


def test_a_static_batch_has_no_first_token_and_ends_together(tmp_path: Path) -> None:
    library = started(tmp_path, mode="batched")
    try:
        given = [Request(id, "a b", 0, n_out) for id, n_out in enumerate((2, 8, 5))]
        generated = library.generate(given, 2, count=3)
    finally:
        library.close()
    first, second, third = generated.rows
    assert {row.first for row in generated.rows} == {None}
    assert first.done == second.done == first.sent + FIRST + 7 * TOKEN
    assert third.sent == second.done
    assert generated.padding == pytest.approx(1 - (2 * 3 + 2 + 8 + 5) / 300)


def test_batches_are_sorted_by_length_if_asked_to(tmp_path: Path) -> None:
    library = started(tmp_path, mode="batched", sort=True)
    try:
        generated = library.generate(requests("a b c", "a", "a b"), 2, count=3)
    finally:
        library.close()
    assert [row.request for row in generated.rows] == [1, 2, 0]


# --- what goes wrong ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "reason", "what"),
    [
        ("missing package", "not installed", "a_package_that_nobody_has is not installed"),
        ("memory", "out of memory", "no room for the weights"),
        ("crash", "died", "ended with status 3"),
    ],
)
def test_an_engine_that_cannot_be_loaded_says_why(tmp_path: Path, fault: str, reason: str, what: str) -> None:
    before = ours()
    with pytest.raises(EngineError) as caught:
        started(tmp_path, args={"at-load": fault})
    assert (caught.value.reason, ours() - before) == (reason, set())
    assert what in caught.value.what
    if fault == "crash":
        assert caught.value.log_tail == ("cannot go on",)


def test_an_engine_that_never_gets_ready_is_ended(tmp_path: Path) -> None:
    before = ours()
    with pytest.raises(EngineError, match=r"^was not loaded within 1\.5 s") as caught:
        started(tmp_path, args={"at-load": "hang"}, timeout=1.5)
    assert (caught.value.reason, caught.value.log_tail) == ("not ready", ("loading for ever",))
    assert ours() - before == set()


def test_an_interpreter_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="/nowhere/python: there is no such interpreter") as caught:
        started(tmp_path, python="/nowhere/python")
    assert caught.value.reason == "not installed"


def test_a_program_that_is_not_an_interpreter_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EngineError) as caught:
        started(tmp_path, python="/bin/false")
    assert caught.value.reason == "died"


def test_an_engine_that_dies_in_a_level_is_an_error(tmp_path: Path) -> None:
    library = started(tmp_path)
    with pytest.raises(EngineError, match="ended with status 9") as caught:
        library.generate(requests("a", "crash"), 1, count=2)
    assert caught.value.reason == "died"
    assert not library.is_running
    with pytest.raises(EngineError, match="the engine is not running"):
        library.generate(requests("a"), 1, count=1)


# --- nothing is left -----------------------------------------------------------------------------------------------------


def test_an_idle_engine_is_closed_politely(tmp_path: Path) -> None:
    library = started(tmp_path)
    pid = library.pid
    library.close()
    assert not is_alive(pid)
    assert library.log_tail() == ("closed politely",)
    library.close()


@pytest.mark.slow
def test_a_level_that_takes_too_long_is_ended_with_what_it_started(tmp_path: Path) -> None:
    library = started(tmp_path)
    pid, before = library.pid, ours()
    with pytest.raises(EngineError, match="did not end within 1 s"):
        library.generate(requests("child"), 1, count=1, timeout=1)
    assert not is_alive(pid)
    until(lambda: not ours() - before)


PARENT = """
    import sys
    from pathlib import Path
    sys.path.insert(0, {folder!r})
    from engine_help import SCRIPTED, requests, started
    from inferometer.engines.inprocess import library
    library.MODULES["transformers"] = SCRIPTED
    engine = started(Path({tmp!r}))
    print(engine.pid, flush=True)
    engine.generate(requests({prompt!r}), 1, count=1)
"""


@pytest.mark.parametrize("prompt", ["hang", "child"])
def test_nothing_is_left_when_the_parent_is_killed(tmp_path: Path, prompt: str) -> None:
    code = textwrap.dedent(PARENT).format(folder=str(Path(__file__).parent), tmp=str(tmp_path), prompt=prompt)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        if prompt == "child":
            until(lambda: bool(children_of(pid)))
        family = [pid, *children_of(pid)]
        assert all(map(is_alive, family))
        os.kill(parent.pid, signal.SIGKILL)
    until(lambda: not any(map(is_alive, family)))
