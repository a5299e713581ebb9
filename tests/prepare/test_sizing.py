"""How many processes and connections a load needs."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer import schedule
from inferometer.config import from_mapping
from inferometer.config.schema import Config
from inferometer.prepare import sizing
from inferometer.prepare.sizing import MAX_OPENED, MAX_SHARE, connections_to_open, expected_in_flight, processes_for
from inferometer.records import Probe
from inferometer.types import OpenStage, Plan
from inferometer.units import NS


@pytest.fixture(autouse=True)
def reference_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """As fast as the machine on which the constants were measured."""
    monkeypatch.setattr(sizing, "slowness", lambda: 1.0)


def configured(load: dict[str, Any], **sections: Any) -> tuple[Config, Plan]:
    server = {"url": "http://localhost"} | sections.pop("server", {})
    config = from_mapping({"server": server, "load": load} | sections)
    return config, schedule.plan(config.load, config.seed)


def processes(probe: Probe, load: dict[str, Any], cores: int = 16, **sections: Any) -> tuple[int, str]:
    return sizing.process_count(*configured(load, **sections), probe, cores)


TENSORS = {"server": {"url": "http://localhost", "api": "kserve"}, "data": {"type": "tensors"}}
CLOSED = {"type": "closed", "concurrency": 64, "duration": "10s"}

# --- processes --------------------------------------------------------------------------------------------------------

RATES, CPU, USERS, CORES = st.floats(0, 1e6), st.floats(0, 1), st.integers(0, 10_000), st.integers(1, 256)


@given(RATES, CPU, USERS, CORES)
def test_no_process_is_busier_than_its_share_while_there_are_cores(
    rate: float, cpu: float, users: int, cores: int
) -> None:
    count = processes_for(rate, cpu, users, cores)
    assert 1 <= count <= max(cores - 1, 1)
    assert rate * cpu / count <= MAX_SHARE * (1 + 1e-9) or count == max(cores - 1, 1)


@given(RATES, CPU, USERS, CORES, st.floats(1, 10))
def test_more_load_never_takes_fewer_processes(rate: float, cpu: float, users: int, cores: int, more: float) -> None:
    count = processes_for(rate, cpu, users, cores)
    assert processes_for(rate * more, cpu, users, cores) >= count
    assert processes_for(rate, cpu * more, users, cores) >= count
    assert processes_for(rate, cpu, math.ceil(users * more), cores) >= count
    assert processes_for(rate, cpu, users, cores + 1) >= count


def test_image_tensors_with_64_in_flight_use_several_of_16_cores() -> None:
    """One process used to send all of them: its loop stood still for a tenth of the time while 15 cores were idle."""
    image = Probe(requests=3, e2e=0.03, request_bytes=602_500, response_bytes=4_500, chunks=0, cpu=0.4e-3)
    count, because = processes(image, CLOSED, **TENSORS)
    assert 2 <= count <= 15
    assert "2133 requests/s" in because


def test_the_size_of_payloads_raises_the_number_of_processes() -> None:
    counts = [
        processes(Probe(e2e=0.03, request_bytes=size, response_bytes=500, chunks=0), CLOSED, **TENSORS)[0]
        for size in (500, 600_000, 6_000_000)
    ]
    assert counts == sorted(set(counts))
    assert counts[0] == 1


def test_a_slow_language_model_needs_one_process() -> None:
    probe = Probe(e2e=1.3, chunks=128, request_bytes=1_600, response_bytes=27_000, cpu=0.02)
    assert processes(probe, CLOSED)[0] == 1


def test_a_long_response_that_was_cut_off_counts_with_all_of_its_chunks() -> None:
    load = {"type": "constant", "rate": 50, "duration": "10s"}
    short, cut = Probe(e2e=1, chunks=100), Probe(e2e=20, is_cut=True, chunks_per_second=100)
    assert processes(short, load)[0] == 1
    assert processes(cut, load)[0] == 3


def test_the_cpu_of_the_probe_counts_if_it_is_more_than_sizes_explain() -> None:
    """Such as with TLS. Waking up for the response is taken off, because a busy process does not do it for each."""
    sizes: dict[str, Any] = {"e2e": 0.01, "request_bytes": 600_000, "response_bytes": 500, "chunks": 0}
    config, _ = configured(CLOSED, **TENSORS)
    plain = sizing.cpu_per_request(config, Probe(**sizes, cpu=0.1e-3), 1.0)
    assert sizing.cpu_per_request(config, Probe(**sizes, cpu=2e-3), 1.0) == pytest.approx(1.9e-3)
    assert plain == sizing.cpu_per_request(config, Probe(**sizes), 1.0)
    assert sizing.cpu_per_request(config, Probe(**sizes), 2.0) == 2 * plain


def test_the_busiest_second_of_an_open_loop_decides() -> None:
    bursts = {"type": "bursts", "rate": 20_000, "on": "1s", "off": "9s", "duration": "10s", "arrivals": "constant"}
    probe = Probe(e2e=0.001, chunks=0, request_bytes=500, response_bytes=500)
    assert processes(probe, bursts)[0] == 2


def test_without_a_probe_the_chunks_of_the_config_decide() -> None:
    load = {"type": "constant", "rate": 400, "duration": "2s"}
    data = {"type": "synthetic", "output": 100}
    assert processes(Probe(), load, data=data)[0] == 2
    assert processes(Probe(), load, server={"stream": False}, data=data)[0] == 1
    count, because = processes(Probe(), CLOSED | {"concurrency": 1000}, data=data)
    assert (count, because) == (2, "1000 users, at most 512 per process; how fast they send is not known")


def test_users_who_think_between_turns_need_fewer_processes() -> None:
    probe, load = Probe(e2e=0.005, chunks=10, request_bytes=500, response_bytes=500), CLOSED | {"concurrency": 200}
    data = {"type": "conversation", "turns": 5}
    assert processes(probe, load, data=data) == processes(probe, load)
    count, because = processes(probe, load, data=data | {"think": "1s"})
    assert count == 1
    assert "248 requests/s" in because  # 200 * 5 / (5 * 0.005 + 4 * 1)


def test_every_turn_of_an_open_loop_counts() -> None:
    load = {"type": "constant", "rate": 100, "duration": "10s"}
    _, because = processes(Probe(e2e=0.01, chunks=10), load, data={"type": "conversation", "turns": 5})
    assert "500 requests/s" in because


def test_there_are_never_more_processes_than_users() -> None:
    busy = Probe(e2e=0.001, chunks=0, request_bytes=6_000_000)
    count, because = processes(busy, CLOSED | {"concurrency": 2}, **TENSORS)
    assert count == 2
    assert because.endswith("but the load has no more users")


def test_one_core_is_left_to_others() -> None:
    busy = Probe(e2e=0.001, chunks=0, request_bytes=600_000)
    for cores in (1, 2):
        assert processes(busy, CLOSED, cores, **TENSORS)[0] == 1
    count, because = processes(busy, CLOSED, 4, **TENSORS)
    assert count == 3
    assert because.endswith("but one of 4 cores is left to others")


def test_a_given_number_of_processes_is_used() -> None:
    assert processes(Probe(), CLOSED, client={"processes": 5}) == (5, "set by client.processes")


# --- connections ------------------------------------------------------------------------------------------------------


def connections(probe: Probe, load: dict[str, Any], shards: int = 1, **sections: Any) -> int:
    config, plan = configured(load, **sections)
    return connections_to_open(config, schedule.shard(plan, 0, shards), probe, shards)


def test_connections_follow_littles_law() -> None:
    """They used to be half the rate, however long a request takes."""
    load = {"type": "constant", "rate": 100, "duration": "10s"}
    assert connections(Probe(e2e=0.25), load) == 25 + 15
    assert connections(Probe(e2e=4), load) == 400 + 60
    assert connections(Probe(e2e=0.001), load) == 4
    assert connections(Probe(e2e=60), load) == 1000  # one for each request
    assert connections(Probe(e2e=0.25), load | {"max_concurrency": 10}) == 10


def test_at_most_1024_connections_are_opened_in_all_processes_together() -> None:
    load = {"type": "constant", "rate": 5_000, "duration": "2s"}
    assert connections(Probe(e2e=1), load) == MAX_OPENED
    assert connections(Probe(e2e=1), load, shards=4) == MAX_OPENED // 4


def test_connections_suffice_for_a_burst() -> None:
    instants = np.concatenate([np.arange(200) * NS // 1000, [9 * NS]])
    assert expected_in_flight(OpenStage(instants, 10 * NS), NS // 2) == 200


def test_a_closed_loop_opens_a_connection_per_user() -> None:
    assert connections(Probe(e2e=0.001), CLOSED | {"concurrency": 2_000}) == 2_000
    assert connections(Probe(e2e=0.001), {"type": "closed", "concurrency": 64, "requests": 10}) == 10
    grpc = {"server": {"url": "grpc://localhost"}, "data": {"type": "tensors"}}
    assert connections(Probe(e2e=0.001), CLOSED | {"concurrency": 2_000}, **grpc) == MAX_OPENED


def test_without_a_probe_a_request_is_taken_to_last_half_a_second() -> None:
    load = {"type": "constant", "rate": 100, "duration": "10s"}
    assert connections(Probe(), load) == connections(Probe(e2e=0.5), load)


def test_a_given_number_of_connections_is_used() -> None:
    assert connections(Probe(e2e=1), CLOSED, client={"connections": 7}) == 7
