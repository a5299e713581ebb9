"""Bounds on what a client can make the server keep in memory, tested with calls that the test controls step by step."""

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from served import PATIENCE_S, a_request, make_repository

from inferometer.serve.grpc import call as call_module
from inferometer.serve.grpc.call import CallHead, CallHeads, Method
from inferometer.serve.grpc.server import Connection
from inferometer.serve.kserve.grpc import Stream
from inferometer.serve.models.registry import Models
from inferometer.serve.models.types import NEVER
from inferometer.serve.offload import Threads
from inferometer.serve.settings import Limits
from inferometer.timing.loop import run
from inferometer.wire.grpc_framing import framed
from inferometer.wire.http2 import frames, hpack


def test_a_call_that_is_over_keeps_no_messages() -> None:
    connection: Any = SimpleNamespace(max_message=100, calls={}, is_logged=False, wake=lambda: None)
    call = call_module.Call(connection, 1, CallHead("/x", Method(lambda call: None, is_stream=True)), 0)
    call.pause()
    call.received(3 * framed(b"message"), False, 0)
    assert len(call._messages) == 3
    call.end("CANCELLED")
    assert not call._messages  # what waits for a model's thread may refer to the call for long


def test_any_number_of_small_compressed_messages_may_arrive_at_once() -> None:
    connection: Any = SimpleNamespace(max_message=100, calls={}, offload=Threads(asyncio.new_event_loop()))
    connection.consumed = connection.wake = lambda *_: None
    messages: list[Any] = []

    def begin(call: call_module.Call) -> None:
        call.on_message = lambda _, message: messages.append(message)

    call = call_module.Call(connection, 1, CallHead("/x", Method(begin, is_stream=True), encoding="gzip"), 0)
    call.received(2000 * framed(b"message", "gzip"), False, 0)
    assert messages == 2000 * [b"message"]


def test_a_response_that_is_not_read_is_in_flight() -> None:
    """A stop waits for it, although its call is over."""
    heads = CallHeads({"/x": Method(lambda call, data: call.reply((bytes(1 << 20),)))}, None)
    server: Any = SimpleNamespace(limits=Limits(), offload=None, heads=heads, is_logged=False)
    transport: Any = SimpleNamespace(unsent=0, closed=False, peer="", write=lambda *parts: None)
    connection = Connection(server, transport)
    fields = {":method": "POST", ":scheme": "http", ":path": "/x", "content-type": "application/grpc"}
    block = hpack.encode([(name.encode(), value.encode()) for name, value in fields.items()])
    connection.received(frames.PREFACE + frames.settings({}) + frames.headers(1, block, False), 0)
    connection.received(frames.frame(frames.DATA, frames.END_STREAM, 1, framed(b"message")), 0)
    assert (connection.calls, connection.in_flight) == ({}, True)
    for stream in (0, 1):
        connection.received(frames.window_update(stream, 1 << 20), 0)
    assert not connection.in_flight


class Call:
    """A call with a client that sends these messages and reads every response."""

    arrived, deadline = 0, NEVER
    is_over = False
    unsent = 0

    def __init__(self, sent: list[bytes]) -> None:
        self._sent = iter(sent)
        self.pauses = self.reads = 0
        self.responses: list[Any] = []
        self.trailers = b""

    def read(self) -> None:
        while not self.pauses and not self.is_over:
            message = next(self._sent, None)
            if message is None:
                self.on_ended(self)
                return
            self.reads += 1
            self.on_message(self, message)

    def pause(self) -> None:
        self.pauses += 1

    def resume(self) -> None:
        self.pauses -= 1

    def send(self, *parts: Any) -> None:
        self.responses.append(parts)

    def finish(self, trailers: bytes) -> None:
        self.trailers, self.is_over = trailers, True


def serving(test: Callable[[Models], Awaitable[None]]) -> None:
    async def main() -> None:
        with tempfile.TemporaryDirectory() as folder:
            make_repository(Path(folder))
            models = Models(asyncio.get_running_loop(), device="cpu")
            models.add("identity")
            models.add(folder)
            await models.start()
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await test(models)
            finally:
                await models.close()

    run(main())


@pytest.mark.parametrize(("size", "most"), [(4, 1024), (4 << 20, 20)], ids=["many", "large"])
def test_responses_held_for_an_earlier_one_are_bounded(size: int, most: int) -> None:
    async def test(models: Models) -> None:
        quick = bytes(a_request(values=bytes(size)).SerializeToString())
        slow = bytes(a_request("slow").SerializeToString())
        call = Call([slow, *[quick] * (most + 10)])
        stream = Stream(models, call)  # type: ignore[arg-type]
        call.read()
        assert 10 < call.reads <= most
        for pending in list(stream._pending):  # the slow one is over: all go on
            models.cancel(pending)
        call.read()
        assert call.trailers
        assert call.reads == most + 11
        assert len(call.responses) == most + 11

    serving(test)
