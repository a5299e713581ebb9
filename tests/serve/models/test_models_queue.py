"""The queue with a fake clock: what is batched together, when, in which order, and that nothing is lost."""

import asyncio
import heapq
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.serve.models.queue import Policy, Queue
from inferometer.serve.models.types import NEVER, Inference
from inferometer.tensors import Tensor
from inferometer.timing.deadlines import Deadlines, Entry


class FakeClock:
    """Alarms that go off when the test says so."""

    def __init__(self) -> None:
        self.t = 0
        self._alarms: list[Entry] = []
        self._number = 0

    def now(self) -> int:
        return self.t

    def at(self, deadline: int, call: Callable[[], object]) -> Entry:
        self._number += 1
        alarm = [deadline, self._number, call]
        heapq.heappush(self._alarms, alarm)
        return alarm

    def cancel(self, alarm: Entry) -> None:
        alarm[2] = None

    def advance(self, ns: int) -> None:
        end = self.t + ns
        while self._alarms and self._alarms[0][0] <= end:
            deadline, _, call = heapq.heappop(self._alarms)
            self.t = max(self.t, deadline)
            if call is not None:
                call()
        self.t = end


class Server:
    """A queue, and what came out of it."""

    def __init__(self, policy: Policy, slots: int = 1, ends_at_once: bool = False) -> None:
        self.clock = FakeClock()
        self.batches: list[list[Inference]] = []
        self.starts: list[int] = []
        self.expired: list[Inference] = []
        self.n_running = 0
        self._ends_at_once = ends_at_once
        alarms = cast(Deadlines, self.clock)
        self.queue = Queue(policy, alarms, self.clock.now, self._start, self.expired.append, slots)

    def _start(self, batch: list[Inference]) -> None:
        self.batches.append(batch)
        self.starts.append(self.clock.t)
        self.n_running += 1
        if self._ends_at_once:
            self.end_one()

    def end_one(self) -> None:
        self.n_running -= 1
        self.queue.release()

    def put(self, rows: int = 1, key: Any = "", deadline: int = NEVER) -> Inference:
        one = request(rows, key, deadline)
        one.queued = self.clock.t
        self.queue.put(one)
        return one

    @property
    def sizes(self) -> list[int]:
        return [sum(one.rows for one in batch) for batch in self.batches]


def request(rows: int, key: Any, deadline: int) -> Inference:
    one = Inference("m", {}, responded=lambda _: None, ended=lambda _: None, arrived=0, deadline=deadline)
    one.rows, one.key = rows, key
    return one


BATCHES = Policy(max_rows=4, batching=True, delay_ns=100)
PREFERS = Policy(max_rows=8, batching=True, delay_ns=100, preferred=frozenset({2, 4}))
SCRIPTS: dict[str, tuple[Policy, int, str, list[tuple[int, int]]]] = {
    # policy, slots; requests (rows and key), +time, "end" of a batch, a new "slot"; the batches: when, and how many rows
    "without batching, each alone": (Policy(), 1, "1a 1a end end", [(0, 1), (0, 1)]),
    "without a delay, all that are queued": (Policy(8, True), 1, "1a 1a 1a 1a 1a 1a end", [(0, 1), (0, 5)]),
    "not before the delay": (BATCHES, 1, "1a +60 1a +39", []),
    "after the delay of the oldest": (BATCHES, 1, "1a +60 1a +40", [(100, 2)]),
    "a full batch does not wait": (BATCHES, 1, "3a 1a", [(0, 4)]),
    "without one that does not fit": (BATCHES, 2, "3a 2a", [(0, 3)]),
    "which waits for its own delay": (BATCHES, 2, "3a 2a +100", [(0, 3), (100, 2)]),
    "another key closes a batch": (BATCHES, 9, "1a 1a 1b", [(0, 2)]),
    "and begins one": (BATCHES, 9, "1a 1a 1b +100", [(0, 2), (100, 1)]),
    "less than a preferred size waits": (PREFERS, 9, "1a", []),
    "a preferred size starts": (PREFERS, 9, "1a 1a", [(0, 2)]),
    "the largest preferred size": (PREFERS, 0, "1a 1a 1a 1a 1a slot slot", [(0, 4)]),
    "and the rest after the delay": (PREFERS, 0, "1a 1a 1a 1a 1a slot slot +100", [(0, 4), (100, 1)]),
}


@pytest.mark.parametrize("what", SCRIPTS)
def test_batches_by_policy(what: str) -> None:
    policy, slots, script, batches = SCRIPTS[what]
    server = Server(policy, slots)
    for step in script.split():
        if step == "end":
            server.end_one()
        elif step == "slot":
            server.queue.release()
        elif step[0] == "+":
            server.clock.advance(int(step[1:]))
        else:
            server.put(int(step[:-1]), step[-1])
    assert list(zip(server.starts, server.sizes, strict=True)) == batches


def test_an_expired_request_does_not_stop_the_others() -> None:
    server = Server(Policy())
    server.put()
    late, patient = server.put(deadline=50), server.put()
    server.clock.advance(49)
    assert server.expired == []
    server.clock.advance(1)
    assert server.expired == [late]
    server.end_one()
    assert server.batches[1] == [patient]


def test_an_expired_request_is_not_started_even_if_the_alarm_is_late() -> None:
    server = Server(Policy())
    server.put()
    late = server.put(deadline=50)
    server.clock.t = 50  # the slot becomes free before the alarm goes off
    server.end_one()
    assert (server.expired, len(server.batches)) == ([late], 1)


def test_cancelled_alarms_are_dropped_and_the_others_go_off_in_order() -> None:
    async def main() -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        alarms, called = Deadlines(asyncio.get_running_loop()), list[int]()
        pending = [alarms.at(10**18 + i, lambda: called.append(-1)) for i in range(5000)]
        for i in (2, 0, 1):
            alarms.at(i, partial(called.append, i))
        alarms.at(3, partial(done.set_result, None))
        for alarm in pending:
            alarms.cancel(alarm)
        assert len(alarms._heap) < 200
        await asyncio.wait_for(done, 30)
        alarms.close()
        assert called == [0, 1, 2]

    asyncio.run(main())


def test_batches_that_end_at_once_do_not_recurse() -> None:
    server = Server(Policy(), slots=0, ends_at_once=True)
    for _ in range(5000):
        server.put()
    server.queue.release()
    assert len(server.batches) == 5000


def test_the_limit_counts_queued_requests() -> None:
    server = Server(Policy(limit=2))
    fulls = []
    for _ in range(3):
        fulls.append(server.queue.is_full)
        server.put()
    assert (fulls, server.queue.is_full) == ([False, False, False], True)


POLICIES = st.builds(
    Policy,
    max_rows=st.integers(4, 8),
    batching=st.booleans(),
    preferred=st.frozensets(st.integers(1, 4), max_size=2),
    delay_ns=st.sampled_from([0, 0, 10, 100]),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("put"), st.integers(1, 4), st.sampled_from("ab"), st.one_of(st.just(NEVER), st.integers(1, 200))
        ),
        st.tuples(st.just("advance"), st.integers(0, 120)),
        st.tuples(st.just("end")),
        st.tuples(st.just("remove"), st.integers(0, 10)),
    ),
    max_size=60,
)


@given(policy=POLICIES, slots=st.integers(1, 3), ends_at_once=st.booleans(), steps=STEPS)
def test_any_history_keeps_order_sizes_and_keys_and_loses_nothing(
    policy: Policy, slots: int, ends_at_once: bool, steps: list[tuple[Any, ...]]
) -> None:
    if not policy.batching:
        policy = Policy()
    server = Server(policy, slots, ends_at_once)
    inferences: list[Inference] = []
    removed: list[Inference] = []
    for step in steps:
        if step[0] == "put":
            _, rows, key, within = step
            inferences.append(server.put(rows, key, NEVER if within == NEVER else server.clock.t + within))
        elif step[0] == "advance":
            server.clock.advance(step[1])
        elif step[0] == "end" and server.n_running:
            server.end_one()
        elif step[0] == "remove" and server.queue.waiting:
            one = list(server.queue.waiting)[step[1] % len(server.queue.waiting)]
            server.queue.remove(one)
            server.queue.dispatch()
            removed.append(one)
        waiting = list(server.queue.waiting)
        assert 0 <= server.n_running <= slots
        if waiting and server.queue.free:  # nothing waits without a reason
            assert policy.batching
            assert server.clock.t < waiting[0].queued + policy.delay_ns
        assert all(one.deadline > server.clock.t for one in waiting)
    for _ in range(2 * len(inferences) + 1):  # the end of all
        server.clock.advance(policy.delay_ns)
        while server.n_running:
            server.end_one()
    started = [one for batch in server.batches for one in batch]
    order = {id(one): i for i, one in enumerate(inferences)}
    assert [order[id(one)] for one in started] == sorted(order[id(one)] for one in started)
    assert sorted(order[id(one)] for one in started + server.expired + removed) == list(range(len(inferences)))
    for batch, begun in zip(server.batches, server.starts, strict=True):
        assert len({one.key for one in batch}) == 1
        assert sum(one.rows for one in batch) <= policy.max_rows or len(batch) == 1
        assert policy.batching or len(batch) == 1
        assert all(one.deadline > begun for one in batch)


def test_a_finished_request_is_not_referenced_by_its_deadline() -> None:
    server = Server(Policy(), slots=0)
    tensor = np.zeros(1)
    seen = weakref.ref(tensor)
    server.put(deadline=1_000_000).inputs["x"] = Tensor("x", "FP64", (1,), memoryview(tensor))
    del tensor
    server.queue.free += 1
    server.queue.dispatch()
    assert len(server.batches) == 1
    server.batches.clear()
    assert seen() is None
    server.clock.advance(2_000_000)
    assert server.expired == []
