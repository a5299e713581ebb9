"""What a fleet on Ray does without a cluster: its settings, how many shards fit, and what an actor does on its node."""

import pickle
import shutil
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from command import assert_one_line, cli
from helpers import NO_USAGE, Client, http_response, jobs_of, scripted

from inferometer.conduct import fleets
from inferometer.config import from_mapping
from inferometer.config.fleet import Fleet, split_address
from inferometer.config.schema import Config
from inferometer.engine.inflight import Flight
from inferometer.engine.job import Job
from inferometer.errors import UserError
from inferometer.fleet import ray_actor, ray_cluster
from inferometer.fleet.control import ShardReport
from inferometer.fleet.copying import FolderCopy, Numbers
from inferometer.fleet.ray_actor import ShardActor, Update
from inferometer.fleet.shipping import files_of, moved
from inferometer.prepare import sizing
from inferometer.prepare.jobs import prepared_jobs
from inferometer.prepare.plans import whole_plan
from inferometer.prepare.setup import Setup
from inferometer.probe import reach
from inferometer.records import COUNTED_BY, Probe
from inferometer.store.spool import Control, Spool, merge
from inferometer.store.spool_columns import Piece
from inferometer.timing.clock import now
from inferometer.units import NS
from inferometer.workload.tokenizer import BUILTIN


def config_of(**sections: Any) -> Config:
    return from_mapping({"server": {"url": "http://127.0.0.1:1", "model": "m"}} | sections)


# --- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sections", "key"),
    [
        ({"fleet": {"shards": 3}}, "fleet.shards"),
        ({"fleet": {"type": "ray"}, "client": {"processes": 2}}, "client.processes"),
        ({"fleet": {"type": "ray", "address": "10.0.0.5"}}, "fleet.address"),
        ({"fleet": {"type": "ray", "address": "http://10.0.0.5:6379"}}, "fleet.address"),
        ({"fleet": {"type": "ray", "wait": 0}}, "fleet.wait"),
        ({"fleet": {"type": "ray", "cpus": 0}}, "fleet.cpus"),
    ],
)
def test_settings_that_do_not_go_together(sections: dict[str, Any], key: str) -> None:
    with pytest.raises(UserError) as caught:
        config_of(**sections)
    assert caught.value.key == key


def test_addresses() -> None:
    assert split_address("head:6379") == ("head", 6379)
    assert split_address("[::1]:6379") == ("::1", 6379)


def test_without_ray_there_is_an_error_before_the_server_is_contacted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster.importlib.util, "find_spec", lambda name: None)
    assert_one_line(cli("run", "http://127.0.0.1:1", "--fleet", "ray"), "Ray is not installed", "inferometer[ray]")


# --- room ------------------------------------------------------------------------------------------------------------


def node(cpus: float, alive: bool = True, labels: dict[str, str] | None = None, **resources: float) -> dict[str, Any]:
    return {"Alive": alive, "Resources": {"CPU": cpus} | resources, "Labels": labels or {}}


NODES = [node(4, gen=2), node(2.5, labels={"role": "client"}), node(8, alive=False), node(0)]


@pytest.mark.parametrize(
    ("settings", "room"),
    [
        (Fleet(), 6),
        (Fleet(cpus=2), 3),
        (Fleet(cpus=0.5), 13),
        (Fleet(per_node=2), 4),
        (Fleet(labels={"role": "client"}), 2),
        (Fleet(resources={"gen": 1}), 2),
        (Fleet(cpus=16), 0),
    ],
)
def test_room_for_shards(settings: Fleet, room: int) -> None:
    assert ray_cluster.slots(NODES, settings) == room


def test_what_is_missing() -> None:
    settings = Fleet(type="ray", cpus=2, per_node=1, labels={"role": "client"}, resources={"gen": 1})
    error = ray_cluster.no_room(NODES, {"CPU": 1.0}, settings, 5)
    assert "5 shards, at most 1 per node, need 10 CPUs and 5 of gen" in error.what
    assert "1 nodes with role=client with 2.5 CPUs, 1 of them free, no gen" in error.what


@pytest.mark.parametrize(("room", "shards"), [(100, 5), (3, 3)])
def test_as_many_shards_as_the_load_needs_and_the_cluster_has_room_for(
    room: int, shards: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sizing, "slowness", lambda: 1.0)
    config = config_of(
        fleet={"type": "ray"},
        load={"type": "constant", "rate": 1000, "duration": "1s"},
        data={"prompts": ["x"], "output": 100},
    )
    count, because = sizing.shard_count(config, whole_plan(config), Probe(chunks=180.0), room)
    assert count == shards and ("room for 3" in because) == (room == 3)
    fixed = config_of(fleet={"type": "ray", "shards": 7})
    assert sizing.shard_count(fixed, whole_plan(fixed), Probe(), 3) == (7, "set by fleet.shards")


# --- the actor -------------------------------------------------------------------------------------------------------


@pytest.fixture
def actor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ShardActor]:
    monkeypatch.setattr(ray_actor.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(ray_actor.tempfile, "tempdir", str(tmp_path))
    made = ShardActor()
    yield made
    made.close()
    assert not list(tmp_path.glob("inferometer-ray-*"))


def test_a_shard_that_cannot_be_started_says_so_to_every_poll(actor: ShardActor) -> None:
    assert actor.poll(0, 0.0, 100).result is None
    actor.begin(b"not a job", 100)
    update = actor.poll(1, 0.0, 100)
    assert "could not be started" in str(update.result)
    assert actor.poll(1, 0.0, 100) is update, "a response that did not arrive is repeated"


class EndedProcess:
    """A shard's process that has recorded 500 requests and ended."""

    def __init__(self, job: Job, environment: dict[str, str]) -> None:
        spool = Spool(job.spool, job.shard, 0, 0)
        chunks = {"arrivals": [5, 6, 7], "counts": [1, 1, 1]}
        spool.add([Flight(id=id, intended=1, done=9, **chunks) for id in range(500)])  # type: ignore[arg-type]
        spool.close()

    def wait(self, seconds: float) -> None: ...

    def is_alive(self) -> bool:
        return False

    def result(self) -> ShardReport:
        return ShardReport("kernel", "", "", "")

    def kill(self) -> None: ...


def test_records_arrive_in_responses_of_bounded_size(
    actor: ShardActor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_actor, "LocalProcess", EndedProcess)
    monkeypatch.setattr(ray_actor, "_raise_priority", lambda: 0)
    with jobs_of(config_of(), tmp_path) as (job,):
        actor.begin(pickle.dumps((job, None)), 2_000)
    copied = tmp_path / "copied"
    copied.mkdir()
    Control(copied / "0.control", create=True)
    copy, updates = FolderCopy(copied, 0), []
    while not updates or updates[-1].result is None:
        updates.append(actor.poll(len(updates), 0.0, 20_000))
        for change in updates[-1].changes:
            copy.put_numbers(change) if isinstance(change, Numbers) else copy.put(change)
    sizes = [sum(len(change.data) for change in each.changes if isinstance(change, Piece)) for each in updates]
    assert max(sizes) < 30_000 and len(updates) > 5
    assert all(each.has_more for each in updates[:-1])
    assert merge(copied, 1)[0].rows["id"].tolist() == list(range(500))


def test_a_shard_on_a_node_needs_nothing_but_the_files_that_were_copied(actor: ShardActor, tmp_path: Path) -> None:
    """It sends the parent's requests, and counts the tokens of responses with the parent's tokenizer."""
    model, spool = tmp_path / "model", tmp_path / "spool"
    model.mkdir()
    spool.mkdir()
    shutil.copy(BUILTIN / "tokenizer.json", model)

    def respond(client: Client) -> None:
        while client.request():
            client.send(http_response(NO_USAGE))

    with scripted(respond) as url:
        server, load = {"url": url, "model": "m"}, {"type": "closed", "concurrency": 2, "requests": 40}
        config = from_mapping(
            {"server": server, "load": load, "data": {"type": "synthetic", "input": 8, "tokenizer": str(model)}}
        )
        setup = Setup(config, reach.reach(config.server), 1, spool, "0a")
        with prepared_jobs(setup, whole_plan(config)) as jobs:
            for file in files_of(jobs):
                for offset, data in file.pieces(1_000):
                    actor.put_file(file.name, offset, data)
            actor.begin(pickle.dumps((moved(jobs[0], str(actor._folder)), None)), 1 << 20)
        shutil.rmtree(model)
        Control(spool / "0.control", create=True)
        copy, polls, update = FolderCopy(spool, 0), count(), Update([], 0, False)
        while update.result is None:
            update = actor.poll(next(polls), 0.05, 1 << 20)
            for change in update.changes:
                copy.put_numbers(change) if isinstance(change, Numbers) else copy.put(change)
            if copy.control.state == "ready":
                actor.tell({"t0": now() + NS // 100})
    assert isinstance(update.result, ShardReport)
    rows = merge(spool, 1)[0].rows
    assert sorted(rows["id"].tolist()) == list(range(40))
    assert {COUNTED_BY[number] for number in rows["counted_by"].tolist()} == {"tokenizer"}


def test_files_arrive_in_pieces(actor: ShardActor, tmp_path: Path) -> None:
    for offset, data in ((0, b"abc"), (3, b"def"), (6, b"")):
        actor.put_file("files/0/a.txt", offset, data)
    (folder,) = tmp_path.glob("inferometer-ray-*")
    assert (folder / "files/0/a.txt").read_bytes() == b"abcdef"
    second = ShardActor()
    try:
        second.link_files(str(folder), ["files/0/a.txt"])
        actor.close()
        (other,) = tmp_path.glob("inferometer-ray-*")
        assert (other / "files/0/a.txt").read_bytes() == b"abcdef"
    finally:
        second.close()


def test_folders_of_actors_that_were_killed_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_actor.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(ray_actor.psutil, "pid_exists", lambda pid: pid != 77)
    for name in ("inferometer-ray-77-abc", "inferometer-ray-78-abc", "inferometer-other"):
        (tmp_path / name).mkdir()
    ray_actor._remove_leftovers()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["inferometer-other", "inferometer-ray-78-abc"]


# --- secrets ---------------------------------------------------------------------------------------------------------


def test_a_secret_on_the_command_line_is_refused_because_ray_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(fleet={"type": "ray"})
    monkeypatch.setattr(sys, "orig_argv", ["inferometer", "run", "--set", "server.headers.X-Key=abcdefgh1234"])
    with (
        pytest.raises(UserError, match="there is a secret in it"),
        fleets.opened(config, whole_plan(config), Probe(), ("abcdefgh1234",)),
    ):
        pass
