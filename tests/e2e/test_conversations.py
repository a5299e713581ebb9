"""Sessions against servers: what each prompt contains, how a load counts them, and what a prefix cache finds of them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from helpers import Client, http_response, measure, scripted

from inferometer.analysis.summary import Summary
from inferometer.errors import UserError
from inferometer.records import Run
from inferometer.serve.background import running
from inferometer.serve.settings import simulator
from inferometer.serve.sim.settings import Batch
from inferometer.workload import tokenizer

TALK = {"type": "conversation", "turns": 4, "system": 10, "input": 6, "output": 5}
ALONE = {"type": "closed", "concurrency": 1, "requests": 2, "ramp_up": 0}
Sent = tuple[dict[str, str], Any]


def answering(heard: list[Sent], respond: Callable[[int], bytes]) -> Callable[[Client], None]:
    """A server that notes the headers and bodies of requests."""

    def serve(client: Client) -> None:
        while request := client.request():
            if not request[2]:  # the question before the run how long the model's context is
                client.send(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
                continue
            heard.append((request[1], json.loads(request[2])))
            client.send(respond(len(heard)))

    return serve


def stream(text: str, n_in: int = 0, n_out: int = 0) -> bytes:
    chunk = {"choices": [{"delta": {"content": text}, "text": text, "finish_reason": "stop"}]}
    end = {"choices": [], "usage": {"prompt_tokens": n_in, "completion_tokens": n_out}} if n_in else {"choices": []}
    return http_response(
        b"".join(b"data: %b\n\n" % json.dumps(each).encode() for each in (chunk, end)) + b"data: [DONE]\n\n"
    )


def talk(folder: Path, respond: Callable[[int], bytes], **sections: Any) -> tuple[list[Sent], Run, Summary]:
    heard: list[Sent] = []
    data = TALK | sections.pop("data", {})
    with scripted(answering(heard, respond)) as url:
        run, summary = measure(folder, url, data=data, **({"load": ALONE} | sections))
    return heard, run, summary


# --- what prompts contain ---------------------------------------------------------------------------------------------


def test_reasoning_is_not_sent_back(tmp_path: Path) -> None:
    def respond(n: int) -> bytes:
        deltas = ({"reasoning_content": "hm"}, {"reasoning_content": " so"}, {"content": "reply"}, {"content": f" {n}"})
        chunks = [json.dumps({"choices": [{"delta": delta}]}).encode() for delta in deltas]
        return http_response(b"".join(b"data: %b\n\n" % chunk for chunk in chunks) + b"data: [DONE]\n\n")

    heard, _, _ = talk(tmp_path, respond)
    replies = [
        message["content"] for _, body in heard[:4] for message in body["messages"] if message["role"] == "assistant"
    ]
    assert replies == ["reply 1", "reply 1", "reply 2", "reply 1", "reply 2", "reply 3"]


def test_single_requests_beside_conversations_belong_to_no_session(tmp_path: Path) -> None:
    classes = [
        {"name": "talk", "data": {"type": "conversation", "turns": 2, "input": 5, "output": 3}},
        {"name": "single", "data": {"type": "synthetic", "input": 5, "output": 3}},
    ]
    heard: list[Sent] = []
    with scripted(answering(heard, lambda n: stream("yes"))) as url:
        run, _ = measure(tmp_path, url, data={"type": "mix", "classes": classes}, load=ALONE | {"requests": 20})
    rows = run.records.rows
    is_single = rows["class"] == 1
    assert 0 < is_single.sum() < len(rows) == len(heard)
    assert (rows["session"][is_single] == -1).all() and (rows["turn"][is_single] == -1).all()
    assert sorted(rows["turn"][~is_single]) == sorted([0, 1] * ((~is_single).sum() // 2))


def test_chat_prompts_contain_the_live_responses(tmp_path: Path) -> None:
    heard, run, summary = talk(tmp_path, lambda n: stream(f'reply "{n}"'))
    assert summary.counts.ok == len(heard) == 8
    prompts = [body["messages"] for _, body in heard]
    for first in (0, 4):
        for turn in range(1, 4):
            before, after = prompts[first + turn - 1], prompts[first + turn]
            reply = {"role": "assistant", "content": f'reply "{first + turn}"'}
            assert after[: len(before) + 1] == [*before, reply]
            assert [message["role"] for message in after[len(before) + 1 :]] == ["user"]
    assert prompts[0][0]["role"] == "system" and prompts[0][0] == prompts[4][0]
    assert prompts[0][1] != prompts[4][1]
    assert sorted(run.records.rows["turn"].tolist()) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert set(run.records.rows["turns"].tolist()) == {4}


def test_completion_prompts_are_one_text_that_goes_on(tmp_path: Path) -> None:
    heard, _, _ = talk(tmp_path, lambda n: stream(f" reply{n}"), server={"api": "completions"})
    prompts = [body["prompt"] for _, body in heard]
    for turn in range(1, 4):
        added = prompts[turn].removeprefix(f"{prompts[turn - 1]} reply{turn}")
        assert len(added) < len(prompts[turn])
        assert tokenizer.load(None).count(f"a{added}") - tokenizer.load(None).count("a") == 6


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_recorded_prompts_are_known_before_the_run(tmp_path: Path, api: str) -> None:
    sections = {
        "server": {"api": api},
        "data": {"history": "recorded", "salt": "none", "tokenizer": "builtin"},
    }
    heard, run, _ = talk(tmp_path, lambda n: stream(f"reply {n}"), **sections)
    again, _, _ = talk(tmp_path, lambda n: stream("something else"), **sections)
    assert [body for _, body in heard] == [body for _, body in again]
    rows = np.sort(np.asarray(run.records.rows), order=["session", "turn"])
    assert rows["n_in"].tolist() == [16, 27, 38, 49] * 2
    counts = [_tokens(body) for _, body in heard]
    assert counts == rows["n_in"].tolist()


def _tokens(body: Any) -> int:
    texts = [body["prompt"]] if "prompt" in body else [message["content"] for message in body["messages"]]
    return sum(tokenizer.load(None).count_batch(texts))


def test_oldest_turns_are_dropped_when_the_context_is_full(tmp_path: Path) -> None:
    """System 10, each turn 6 + 5: by the server's counts, the third turn would need 10 + 2 * 11 + 6 + 5 = 43 of 40 tokens."""
    heard, _, _ = talk(
        tmp_path, lambda n: stream("one two three four five", 16 if n % 4 == 1 else 27, 5), sessions={"context": 40}
    )
    prompts = [body["messages"] for _, body in heard[:4]]
    assert [len(prompt) for prompt in prompts] == [2, 4, 4, 4]
    assert all(prompt[0] == prompts[0][0] for prompt in prompts)
    assert prompts[2][1] == prompts[1][3]  # the first turn is gone, the second is the oldest
    assert prompts[3][1] == prompts[2][3]


def test_without_the_servers_usage_responses_count_by_their_chunks(tmp_path: Path) -> None:
    """With responses of one chunk, the fourth turn would need 10 + 3 * 7 + 6 + 5 = 42 of 40 tokens."""
    heard, _, _ = talk(tmp_path, lambda n: stream("five"), sessions={"context": 40})
    assert [len(body["messages"]) for _, body in heard[:4]] == [2, 4, 6, 6]


def test_a_first_prompt_longer_than_the_context_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="16 tokens and requests 5 more") as caught:
        measure(tmp_path, "http://127.0.0.1:1", data=TALK, sessions={"context": 20})
    assert caught.value.key == "sessions.context"


def test_session_header_is_the_same_in_all_turns_and_unique_to_the_session(tmp_path: Path) -> None:
    found = []
    for _ in range(2):
        heard, _, _ = talk(tmp_path, lambda n: stream("x"), sessions={"header": "X-Session-ID"})
        found.append([headers["x-session-id"] for headers, _ in heard])
        assert len({headers["x-request-id"] for headers, _ in heard}) == 8
    for one in found:
        assert one == [one[0]] * 4 + [one[4]] * 4
    assert len({*found[0], *found[1]}) == 4


# --- failures -----------------------------------------------------------------------------------------------------------


def failing(n: int) -> bytes:
    return b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n" if n == 2 else stream(f"reply {n}")


def test_a_failed_turn_ends_its_session(tmp_path: Path) -> None:
    heard, _, summary = talk(tmp_path, failing)
    assert len(heard) == 2 + 4
    assert summary.sessions is not None
    assert (summary.sessions.ok, summary.sessions.failed, summary.sessions.cut) == (1, 1, 0)


def test_a_session_continues_without_the_failed_turn(tmp_path: Path) -> None:
    heard, _, summary = talk(tmp_path, failing, sessions={"on_failure": "continue"})
    prompts = [body["messages"] for _, body in heard[:4]]
    assert len(heard) == 8
    assert prompts[2][:2] == prompts[0] and prompts[2][2]["content"] == "reply 1"
    assert prompts[1][-1] not in prompts[2]
    assert [len(prompt) for prompt in prompts] == [2, 4, 4, 6]
    assert summary.sessions is not None
    assert (summary.sessions.ok, summary.sessions.failed) == (1, 1)


def test_a_first_turn_that_fails_is_dropped_like_any_other(tmp_path: Path) -> None:
    respond = lambda n: failing(2 if n == 1 else 9)  # noqa: E731
    heard, _, _ = talk(tmp_path, respond, sessions={"on_failure": "continue"})
    prompts = [body["messages"] for _, body in heard[:2]]
    assert [message["role"] for message in prompts[1]] == ["system", "user"]
    assert prompts[1][0] == prompts[0][0] and prompts[1][1] != prompts[0][1]


# --- loads --------------------------------------------------------------------------------------------------------------


def most_at_a_time(starts: Any, ends: Any) -> int:
    instants = sorted([(at, 1) for at in starts.tolist()] + [(at, -1) for at in ends.tolist()])
    return int(np.cumsum([step for _, step in instants]).max())


def sessions_of(run: Run) -> list[Any]:
    rows = np.asarray(run.records.rows)
    return [np.sort(rows[rows["session"] == each], order="turn") for each in np.unique(rows["session"])]


@pytest.mark.parametrize("processes", [0, 2])
def test_a_closed_loop_counts_sessions(tmp_path: Path, sim: str, processes: int) -> None:
    load = {"type": "closed", "concurrency": 3, "requests": 9}
    data = TALK | {"think": "20ms"}
    run, summary = measure(
        tmp_path, sim, server={"model": "sim"}, data=data, load=load, client={"processes": processes, "probe": False}
    )
    own = sessions_of(run)
    assert len(own) == 9 and all(len(each) == 4 for each in own)
    assert (
        most_at_a_time(np.array([each["sent"][0] for each in own]), np.array([each["done"][-1] for each in own])) <= 3
    )
    for each in own:
        assert (each["intended"][1:] == each["done"][:-1] + 20_000_000).all()
    assert run.manifest.plan[0].unit == "sessions"
    assert summary.sessions is not None and summary.sessions.cut == 0


@pytest.mark.slow
@pytest.mark.parametrize("processes", [0, 2])
def test_a_closed_loop_counts_requests(tmp_path: Path, sim: str, processes: int) -> None:
    """While users think, other sessions use the place: more sessions than requests are in progress."""
    load = {"type": "closed", "concurrency": 4, "requests": 60, "unit": "requests", "ramp_up": 0}
    data = TALK | {"think": "60ms"}
    run, summary = measure(
        tmp_path, sim, server={"model": "sim"}, data=data, load=load, client={"processes": processes, "probe": False}
    )
    rows, own = run.records.rows, sessions_of(run)
    assert summary.counts.ok + summary.window.requests["start"] >= len(rows) == 60
    assert most_at_a_time(rows["sent"], rows["done"]) <= 4
    assert most_at_a_time(np.array([each["sent"][0] for each in own]), np.array([each["done"][-1] for each in own])) > 4
    for each in own:
        assert (each["intended"][1:] == each["done"][:-1] + 60_000_000).all()
    held = rows["held"][rows["turn"] > 0]
    assert ((rows["sent"] - rows["intended"])[rows["turn"] > 0] >= held).all() and (held > 0).any()


def test_an_open_loop_counts_requests(tmp_path: Path, sim: str) -> None:
    """40 requests/s are 10 sessions/s of 4 turns."""
    load = {"type": "constant", "rate": 40, "duration": "600ms", "unit": "requests"}
    run, _ = measure(tmp_path, sim, server={"model": "sim"}, data=TALK, load=load)
    first = np.sort(run.records.rows["intended"][run.records.rows["turn"] == 0])
    assert first.tolist() == [at * 100_000_000 for at in range(6)]
    assert len(run.records.rows) == 24
    assert (run.manifest.plan[0].unit, run.manifest.plan[0].rate, run.manifest.plan[0].requests) == ("requests", 40, 24)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [0, 2])
def test_users_take_turns_at_the_instants_of_the_schedule(tmp_path: Path, sim: str, processes: int) -> None:
    """Request i of 30 is of user i modulo 8, so that 6 users have four turns and two have three."""
    load = {"type": "constant", "rate": 50, "duration": "600ms", "users": 8}
    client = {"processes": processes, "probe": False}
    run, summary = measure(tmp_path, sim, server={"model": "sim"}, data=TALK, load=load, client=client)
    rows, plan = run.records.rows, run.manifest.plan[0]
    order = np.argsort(rows["intended"])
    assert rows["intended"][order].tolist() == [at * 20_000_000 for at in range(30)]
    assert rows["session"][order].tolist() == [at % 8 for at in range(30)]
    assert rows["turn"][order].tolist() == [at // 8 for at in range(30)]
    assert (plan.unit, plan.rate, plan.requests, plan.users) == ("requests", 50, 30, 8)
    assert summary.counts.ok == 30


def test_user_whose_response_is_late_sends_late(tmp_path: Path, sim: str) -> None:
    """The load holds the turn back: it is not the client's own lag."""
    load = {"type": "constant", "rate": 200, "duration": "100ms", "users": 2}
    run, _ = measure(
        tmp_path, sim, server={"model": "sim"}, data=TALK | {"turns": 10}, load=load, client={"probe": False}
    )
    rows = run.records.rows
    assert len(rows) == 20
    assert sorted(rows["intended"].tolist()) == [at * 5_000_000 for at in range(20)]
    for each in sessions_of(run):
        assert (each["sent"][1:] >= each["done"][:-1]).all()
        assert (each["held"][1:] >= each["done"][:-1] - each["intended"][1:]).all()


# --- a prefix cache -----------------------------------------------------------------------------------------------------

BLOCK = 16


@pytest.mark.parametrize(
    ("api", "history"),
    [
        ("chat", "live"),
        pytest.param("chat", "recorded", marks=pytest.mark.slow),
        pytest.param("completions", "live", marks=pytest.mark.slow),
        ("completions", "recorded"),
    ],
)
def test_the_prefix_cache_finds_what_the_conversations_promise(tmp_path: Path, api: str, history: str) -> None:
    """Every turn but the first starts with the prompt of the turn before, every first one but the very first with the system prompt."""
    system, added, output, turns, count = 200, 50, 30, 5, 20
    timing = Batch(prefill_rate=1e6, decode_step=0.0002, prefix_cache=True, block=BLOCK)
    data = {
        "type": "conversation",
        "turns": turns,
        "system": system,
        "input": added,
        "output": output,
        "history": history,
    }
    with running(simulator(timing=timing, truth=str(tmp_path / "truth"))) as url:
        run, summary = measure(
            tmp_path,
            url,
            server={"api": api, "model": "sim"},
            data=data,
            load={"type": "constant", "rate": 40, "requests": count},
        )
    logged = [msgspec.json.decode(line) for line in (tmp_path / "truth").read_bytes().splitlines()]
    prompts = [system + added + turn * (added + output) for turn in range(turns)]
    later = sum(whole(tokens) for tokens in prompts[:-1])
    promised = count * later + (count - 1) * whole(system)
    cached = sum(row["cached"] for row in logged)
    assert sum(row["n_in"] for row in logged) == count * sum(prompts)
    assert abs(cached - promised) <= 0.01 * promised
    assert cached == run.records.rows["cached"].sum()
    assert summary.sessions is not None and summary.sessions.ok == count
    assert (summary.sessions.metrics["cached_tokens"].max or 0) == later + whole(system)


def whole(tokens: int) -> int:
    """Tokens in whole blocks."""
    return tokens // BLOCK * BLOCK
