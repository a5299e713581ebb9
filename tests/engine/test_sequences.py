"""Sequences of a KServe model in a run: no two users share one at the same time, and each that is begun is ended."""

import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import Client, measure, scripted
from kserve_peers import config, metadata

from inferometer.analysis.summary import Summary
from inferometer.conduct import interrupts
from inferometer.errors import UserError
from inferometer.fleet.supervisor import Supervisor

RESPONSE = b'{"model_name":"pair","model_version":"1","outputs":[]}'
METADATA = {"/v2": {"name": "t"}, "/v2/models/pair": metadata("pair"), "/v2/models/pair/config": config("pair")}


Inferred = Callable[[dict[str, Any]], int | None]
"""Called with each inference's parameters and, as `sent`, its first number (JSON) before the response; may return the status."""


def serving(inferred: Inferred, metadata: dict[str, Any] = METADATA) -> Callable[[Client], None]:
    """A script for helpers.scripted."""

    def script(client: Client) -> None:
        while request := client.request():
            first, headers, body = request
            path = first.split()[1]
            content = json.dumps(metadata.get(path, {})).encode()
            status = 404 if path.endswith("/stats") else 200
            if path.endswith("/infer"):
                tree = json.loads(body[: int(headers.get("inference-header-content-length", len(body)))])
                sent = tree["inputs"][0].get("data", [None])[0]
                status = inferred(tree["parameters"] | {"sent": sent}) or 200
                content = RESPONSE
            client.send(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%b" % (status, len(content), content))

    return script


def sequences(
    folder: Path, inferred: Inferred, length: int, load: dict[str, Any], failed: int = 0, **more: Any
) -> Summary:
    with scripted(serving(inferred)) as url:
        _, summary = measure(
            folder,
            url,
            server={"api": "kserve", "model": "pair"},
            data={"type": "tensors", "sequence": length},
            load={"type": "closed"} | load,
            measure={"warmup": 0, "cooldown": 0},
            **more,
        )
    assert summary.counts.failed == failed
    return summary


def test_slow_sequence_belongs_to_one_user_however_many_the_others_run(tmp_path: Path) -> None:
    """Two users have eight sequences: the other user comes round to the slow one's sequence, and has to skip it."""
    lock, others_are_done = threading.Lock(), threading.Event()
    seen: list[dict[str, Any]] = []

    def inferred(parameters: dict[str, Any]) -> None:
        with lock:
            seen.append(parameters)
            is_slow = parameters["sequence_id"] == seen[0]["sequence_id"] and not others_are_done.is_set()
            if len(seen) == 30:
                others_are_done.set()
        if is_slow and parameters["sequence_start"]:
            others_are_done.wait(30)

    sequences(tmp_path, inferred, 2, {"concurrency": 2, "requests": 40})
    open_sequences: set[int] = set()
    for parameters in seen:
        number = parameters["sequence_id"]
        assert (number in open_sequences) != parameters["sequence_start"]
        open_sequences ^= {number}
    assert len(seen) == 40 and not open_sequences


def test_sequence_is_ended_even_if_its_user_thinks_when_the_stage_is_over(tmp_path: Path) -> None:
    ends: list[tuple[bool, bool]] = []

    def inferred(parameters: dict[str, Any]) -> None:
        ends.append((parameters["sequence_start"], parameters["sequence_end"]))

    sequences(tmp_path, inferred, 4, {"concurrency": 1, "duration": "150ms", "think": "60s"})
    assert ends == [(True, False), (False, True)]


# --- ended early -----------------------------------------------------------------------------------------------------


def test_first_ctrl_c_ends_each_open_sequence_with_one_request(tmp_path: Path) -> None:
    lock = threading.Lock()
    seen: list[dict[str, Any]] = []

    def inferred(parameters: dict[str, Any]) -> None:
        with lock:
            seen.append(parameters)
            is_time = len(seen) == 40
        if is_time:
            os.kill(os.getpid(), signal.SIGINT)

    summary = sequences(tmp_path, inferred, 500, {"concurrency": 3, "requests": 60_000})
    starts = [parameters["sequence_id"] for parameters in seen if parameters["sequence_start"]]
    ends = [parameters["sequence_id"] for parameters in seen if parameters["sequence_end"]]
    assert len(seen) < 60_000 and len(starts) >= 3 and sorted(ends) == sorted(starts)
    assert [check.name for check in summary.checks if check.status == "fail"][:1] == ["interrupted"]
    assert summary.counts.ok == len(seen)  # requests that end sequences are recorded like others


@pytest.mark.parametrize("together", [False, True])
def test_second_ctrl_c_ends_the_run_without_ending_sequences_unless_it_comes_with_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: bool
) -> None:
    seen: list[dict[str, Any]] = []
    is_received, is_over = threading.Event(), threading.Event()
    stop = Supervisor.stop
    monkeypatch.setattr(interrupts, "_TOGETHER", 60 if together else 0)

    def stop_and_note(supervisor: Supervisor) -> None:
        stop(supervisor)
        is_received.set()

    def inferred(parameters: dict[str, Any]) -> None:
        seen.append(parameters)
        if len(seen) == 2:
            os.kill(os.getpid(), signal.SIGINT)
            is_received.wait(30)
            os.kill(os.getpid(), signal.SIGINT)
            if not together:
                is_over.wait(30)

    monkeypatch.setattr(Supervisor, "stop", stop_and_note)
    sequences(
        tmp_path, inferred, 100, {"concurrency": 1, "requests": 100}, failed=int(not together), client={"grace": "10m"}
    )
    is_over.set()
    assert seen[-1]["sequence_end"] == together


# --- failures --------------------------------------------------------------------------------------------------------


def steps(seen: list[dict[str, Any]]) -> list[tuple[int, bool, bool]]:
    """Return the sequence (the first is 0), start and end of each request."""
    ids = list(dict.fromkeys(parameters["sequence_id"] for parameters in seen))
    return [(ids.index(one["sequence_id"]), one["sequence_start"], one["sequence_end"]) for one in seen]


def test_another_sequence_is_begun_after_a_failed_start(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []

    def inferred(parameters: dict[str, Any]) -> int:
        seen.append(parameters)
        return 503 if len(seen) == 1 else 200

    sequences(tmp_path, inferred, 3, {"concurrency": 1, "requests": 6}, failed=1)
    assert steps(seen) == [(0, True, False), (1, True, False), (1, False, False), (1, False, True)]


def test_sequence_is_ended_and_another_begun_after_a_later_failure(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []

    def inferred(parameters: dict[str, Any]) -> int:
        seen.append(parameters)
        return 503 if len(seen) == 2 else 200

    sequences(tmp_path, inferred, 4, {"concurrency": 1, "requests": 8}, failed=1)
    begun = [(0, True, False), (0, False, False), (0, False, True)]
    assert steps(seen) == [*begun, (1, True, False), (1, False, False), (1, False, False), (1, False, True)]


# --- a sequence is a stream of a file --------------------------------------------------------------------------------

KEEPS = METADATA | {"/v2/models/pair/config": config("pair") | {"sequence_batching": {}}}
NAMES = [one["name"] for one in metadata("pair")["inputs"]]


def entry(value: int) -> dict[str, Any]:
    return {name: [value] * 4 for name in NAMES}


def from_file(
    folder: Path,
    data: object,
    load: dict[str, Any],
    metadata: dict[str, Any] = KEEPS,
    client: dict[str, Any] | None = None,
    **more: Any,
) -> list[dict[str, Any]]:
    """Run with this file; return the parameters of the inferences that the server received."""
    seen: list[dict[str, Any]] = []
    path = folder / "data.json"
    path.write_text(json.dumps({"data": data}))
    with scripted(serving(seen.append, metadata)) as url:
        measure(
            folder,
            url,
            server={"api": "kserve-json", "model": "pair"},
            data={"type": "tensors", "fill": f"@{path}"} | more,
            load={"type": "closed"} | load,
            measure={"warmup": 0, "cooldown": 0},
            client=client or {},
        )
    return seen


STREAMS = [[entry(1), entry(2)], [entry(3), entry(4), entry(5)]]
TWO_AND_THREE = [(0, True, False), (0, False, True), (1, True, False), (1, False, False), (1, False, True)]


def test_each_stream_of_the_file_is_a_sequence_of_its_own_length(tmp_path: Path) -> None:
    seen = from_file(tmp_path, STREAMS, {"concurrency": 1, "requests": 10})
    assert steps(seen[:5]) == TWO_AND_THREE
    assert [one["sent"] for one in seen] == [1, 2, 3, 4, 5] * 2


@pytest.mark.slow
def test_processes_have_different_streams(tmp_path: Path) -> None:
    seen = from_file(tmp_path, STREAMS, {"concurrency": 2, "requests": 6}, client={"processes": 2})
    by_sequence: dict[int, list[int]] = {}
    for one in seen:
        by_sequence.setdefault(one["sequence_id"], []).append(one["sent"])
    assert sorted(by_sequence.values()) == [[1, 2], [3, 4, 5]]


def test_requests_outside_a_list_are_one_stream(tmp_path: Path) -> None:
    seen = from_file(tmp_path, [entry(1), entry(2)], {"concurrency": 1, "requests": 4})
    assert steps(seen) == [(0, True, False), (0, False, True), (1, True, False), (1, False, True)]


def test_streams_can_be_configured_if_the_server_does_not_report_that_the_model_keeps_sequences(tmp_path: Path) -> None:
    seen = from_file(tmp_path, STREAMS, {"concurrency": 1, "requests": 5}, METADATA, sequence="streams")
    assert steps(seen) == TWO_AND_THREE


def test_configured_length_overrides_the_streams_lengths(tmp_path: Path) -> None:
    seen = from_file(tmp_path, STREAMS, {"concurrency": 1, "requests": 8}, sequence=4)
    assert [one["sequence_end"] for one in seen] == [False, False, False, True] * 2
    assert [one["sent"] for one in seen] == [1, 2, 1, 2, 3, 4, 5, 3]  # a shorter stream starts again


@pytest.mark.parametrize(
    ("data", "load", "more", "problem", "remedy"),
    [
        (STREAMS, {"concurrency": 2, "requests": 5}, {}, "less than one sequence of 3 per user", "6 or more"),
        (STREAMS, {"type": "constant", "rate": 5, "duration": 1}, {}, "waits for the previous response", "closed"),
        (STREAMS, {"concurrency": 1, "requests": 5}, {"batch": 2}, "with one inference per request", "at 1"),
        (STREAMS, {"concurrency": 1, "requests": 5}, {"sequence": "streams", "fill": "zeros"}, "data.fill is zeros", "@FILE"),
        ([[entry(1)], []], {"concurrency": 1, "requests": 5}, {}, "is not JSON in the format", "data"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_streams_are_errors(
    tmp_path: Path, data: object, load: dict[str, Any], more: dict[str, Any], problem: str, remedy: str
) -> None:
    with pytest.raises(UserError) as raised:
        from_file(tmp_path, data, load, **more)
    assert problem in raised.value.what and remedy in raised.value.remedy


# --- sequences that the server may hold, and requests that are not sent ----------------------------------------------


def test_sequence_whose_start_timed_out_is_ended(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []
    is_ended = threading.Event()

    def inferred(parameters: dict[str, Any]) -> None:
        seen.append(parameters)
        if len(seen) == 1:
            is_ended.wait(30)
        elif parameters["sequence_end"]:
            is_ended.set()

    with scripted(serving(inferred)) as url:
        _, summary = measure(
            tmp_path,
            url,
            server={"api": "kserve", "model": "pair", "timeouts": {"total": "1s"}},
            data={"type": "tensors", "sequence": 3},
            load={"type": "closed", "concurrency": 1, "requests": 6},
            measure={"warmup": 0, "cooldown": 0},
        )
    is_ended.set()
    assert [one.code for one in summary.failures] == ["total_timeout"]
    assert steps(seen)[:3] == [(0, True, False), (0, False, True), (1, True, False)]


@pytest.mark.slow
def test_users_of_several_processes_are_spread_over_the_urls(tmp_path: Path) -> None:
    seen: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
    with scripted(serving(seen[0].append)) as one, scripted(serving(seen[1].append)) as other:
        measure(
            tmp_path,
            one,
            server={"url": [one, other], "api": "kserve", "model": "pair"},
            data={"type": "tensors", "sequence": 2},
            load={"type": "closed", "concurrency": 2, "requests": 8},
            measure={"warmup": 0, "cooldown": 0},
            client={"processes": 2},
        )
    assert [len(requests) for requests in seen] == [4, 4]


def test_report_says_how_many_requests_were_too_few_for_another_sequence(tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    path.write_text(json.dumps({"data": [[entry(1)] * 2, [entry(2)] * 5]}))

    def completion(requests: int, **more: object) -> tuple[str, str]:
        with scripted(serving(lambda parameters: None)) as url:
            _, summary = measure(
                tmp_path,
                url,
                server={"api": "kserve-json", "model": "pair"},
                data={"type": "tensors", "fill": f"@{path}", "sequence": "streams"},
                load={"type": "closed", "concurrency": 1, "requests": requests} | more,
                measure={"warmup": 0, "cooldown": 0},
            )
        (found,) = (check for check in summary.checks if check.name == "interrupted")
        return found.status, found.message

    status, message = completion(13)
    assert (status, "4 of 13 requests" in message, "the next sequence" in message) == ("warn", True, True)
    assert completion(14) == ("pass", "the run completed")
    assert completion(13, duration="60s") == ("pass", "the run completed")
