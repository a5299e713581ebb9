"""Bytes that were read are decoded in their order, all of them before anything is settled; what is due never waits for long."""

from typing import Any, cast

from inferometer.engine.inbox import Inbox


class World:
    """A loop whose next round comes when it is told, and a log of what happened."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.soon: list[Any] = []
        self.inbox = Inbox(
            cast("Any", self), then=lambda: self.log.append("settle"), between=lambda: self.log.append("due?")
        )

    def call_soon(self, callback: Any) -> None:
        self.soon.append(callback)

    def next_round(self) -> None:
        soon, self.soon = self.soon, []
        for callback in soon:
            callback()

    def decoded(self) -> list[str]:
        return [what for what in self.log if what != "due?"]


class Wire:
    """Where bytes come from."""

    def __init__(self, world: World, is_open: bool = True) -> None:
        self.is_open = is_open
        self._log = world.log

    def deliver(self, data: bytes, at: int, delay: int) -> None:
        self._log.append(f"{data.decode()} {at} {delay}")


def test_all_that_was_read_is_decoded_in_its_order_and_settled_once() -> None:
    world = World()
    first, second = Wire(world), Wire(world)
    for number, source in enumerate((first, second, first)):
        world.inbox.put(source, b"x%d" % number, number, 7)
    assert len(world.soon) == 1 and not world.decoded()
    world.next_round()
    assert world.decoded() == ["x0 0 7", "x1 1 7", "x2 2 7", "settle"]


def test_what_comes_while_some_is_decoded_waits_for_the_next_round() -> None:
    world = World()
    wire = Wire(world)
    world.inbox.put(wire, b"a", 0, 0)
    wire.deliver = lambda data, at, delay: world.inbox.put(Wire(world), data + b"b", at, delay)  # type: ignore[method-assign]
    world.next_round()
    assert world.decoded() == ["settle"]
    world.next_round()
    assert world.decoded() == ["settle", "ab 0 0", "settle"]


def test_nothing_of_a_source_that_was_closed_meanwhile() -> None:
    world = World()
    world.inbox.put(Wire(world, is_open=False), b"late", 0, 0)
    world.inbox.put(Wire(world), b"fine", 0, 0)
    world.next_round()
    assert world.decoded() == ["fine 0 0", "settle"]


def test_no_three_steps_follow_each_other_without_a_look_at_what_is_due() -> None:
    """Reading, decoding and settling are the steps; the first is ours to interleave here."""
    world = World()
    wire = Wire(world)
    for number in range(7):
        world.log.append(f"read {number}")
        world.inbox.put(wire, b"x", number, 0)
    world.next_round()
    steps = "".join("." if what == "due?" else "s" for what in world.log)
    assert steps.count("s") == 7 + 7 + 1
    assert "sss" not in steps
    assert steps.endswith(".s"), "what is settled may be long: it is looked before it"


def test_it_is_known_whether_it_is_being_emptied() -> None:
    world = World()
    wire = Wire(world)
    seen: list[bool] = []
    wire.deliver = lambda *_: seen.append(world.inbox.is_emptying)  # type: ignore[method-assign]
    world.inbox.put(wire, b"x", 0, 0)
    world.next_round()
    assert seen == [True] and not world.inbox.is_emptying
