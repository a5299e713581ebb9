"""Sequences of a KServe model in a run: nobody is in one at the same time as another, and each that is begun is ended."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from helpers import Client, measure, scripted
from kserve_peers import config, metadata

ANSWER = b'{"model_name":"pair","model_version":"1","outputs":[]}'
TOLD = {"/v2": {"name": "t"}, "/v2/models/pair": metadata("pair"), "/v2/models/pair/config": config("pair")}


def serving(inferred: Callable[[dict[str, Any]], None]) -> Callable[[Client], None]:
    """A script for helpers.scripted; `inferred` hears each inference's parameters before it is answered."""

    def script(client: Client) -> None:
        while request := client.request():
            first, headers, body = request
            path = first.split()[1]
            content = json.dumps(TOLD.get(path, {})).encode()
            if path.endswith("/infer"):
                inferred(json.loads(body[: int(headers["inference-header-content-length"])])["parameters"])
                content = ANSWER
            status = 404 if path.endswith("/stats") else 200
            client.send(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%b" % (status, len(content), content))

    return script


def sequences(folder: Path, inferred: Callable[[dict[str, Any]], None], length: int, load: dict[str, Any]) -> None:
    with scripted(serving(inferred)) as url:
        _, summary = measure(
            folder,
            url,
            server={"api": "kserve", "model": "pair"},
            data={"type": "tensors", "sequence": length},
            load={"type": "closed"} | load,
            measure={"warmup": 0, "cooldown": 0},
        )
    assert summary.counts.failed == 0


def test_a_slow_sequence_is_its_users_alone_however_many_the_others_run_meanwhile(tmp_path: Path) -> None:
    """With two users there are eight sequences: the other one comes round to the slow one's, and has to pass it over."""
    lock, others_are_through = threading.Lock(), threading.Event()
    seen: list[dict[str, Any]] = []

    def inferred(parameters: dict[str, Any]) -> None:
        with lock:
            seen.append(parameters)
            is_slow = parameters["sequence_id"] == seen[0]["sequence_id"] and not others_are_through.is_set()
            if len(seen) == 30:
                others_are_through.set()
        if is_slow and parameters["sequence_start"]:
            others_are_through.wait(30)

    sequences(tmp_path, inferred, 2, {"concurrency": 2, "requests": 40})
    under_way: set[int] = set()
    for parameters in seen:
        number = parameters["sequence_id"]
        assert (number in under_way) != parameters["sequence_start"]
        under_way ^= {number}
    assert len(seen) == 40 and not under_way


def test_a_sequence_is_ended_though_its_user_thinks_when_the_stage_is_over(tmp_path: Path) -> None:
    ends: list[tuple[bool, bool]] = []

    def inferred(parameters: dict[str, Any]) -> None:
        ends.append((parameters["sequence_start"], parameters["sequence_end"]))

    sequences(tmp_path, inferred, 4, {"concurrency": 1, "duration": "150ms", "think": "100ms"})
    assert ends == [(True, False), (False, False), (False, False), (False, True)]
