"""Shutdown while InferChunked requests are still arriving: only admitted requests are served."""

import queue
import threading
from collections.abc import Iterator
from typing import Any

import grpc
from grpc_peer import PATIENCE_S, Served, Stub, a_request, failure, serving
from waiting import until

from inferometer.serve.kserve import messages

VALUES = b"\0\0\x80?\0\0\0@"
STOPPING = "the server is shutting down and does not accept new requests"


def a_head() -> Any:
    made = messages.Chunk()
    made.head.request.CopyFrom(a_request(values=VALUES))
    made.head.request.ClearField("raw_input_contents")
    made.head.sizes.append(len(VALUES))
    return made


def an_upload(channel: grpc.Channel) -> tuple["queue.Queue[Any]", Any]:
    """Start a call that sends what is put into the queue, until None; its head is already sent."""
    sent: queue.Queue[Any] = queue.Queue()
    sent.put(a_head())
    return sent, Stub(channel, messages.OWN_SERVICE).InferChunked(iter(sent.get, None), timeout=2 * PATIENCE_S)


def receiving(served: Served) -> int:
    async def count() -> int:
        return len(served.server._receiving)

    return served.run(count)


def refuse_new(served: Served) -> None:
    async def refuse() -> None:
        served.models.refuse_new()

    served.run(refuse)


def test_a_request_whose_head_arrived_is_served_when_complete() -> None:
    with serving() as one, grpc.insecure_channel(one.grpc_address) as channel:
        idle_is_over = threading.Event()

        def never_more() -> Iterator[Any]:
            yield a_request()
            idle_is_over.wait(PATIENCE_S)

        idle = Stub(channel).ModelStreamInfer(never_more())
        assert next(idle).infer_response.raw_output_contents
        sent, call = an_upload(channel)
        sent.put(messages.Chunk(data=VALUES[:3]))
        until(lambda: receiving(one) == 1, "the head arrived")
        refuse_new(one)
        stopped = threading.Thread(target=one.run, args=(one.server.stop, 1000.0))
        stopped.start()
        assert failure(lambda: list(idle))[0] == "UNAVAILABLE"  # by this gRPC has begun to stop
        idle_is_over.set()
        sent.put(messages.Chunk(data=VALUES[3:]))
        sent.put(None)
        head, data = call
        assert (head.head.response.model_name, data.data) == ("identity", VALUES)
        stopped.join(PATIENCE_S)
        assert not stopped.is_alive()


def test_a_new_request_is_refused_at_its_head() -> None:
    """Not after all of it arrived: here, the rest never comes."""
    with serving() as one, grpc.insecure_channel(one.grpc_address) as channel:
        refuse_new(one)
        sent, call = an_upload(channel)
        assert failure(lambda: list(call)) == ("UNAVAILABLE", STOPPING)
        sent.put(None)


def test_after_closing_no_request_is_admitted() -> None:
    with serving() as one, grpc.insecure_channel(one.grpc_address) as channel:
        sent, call = an_upload(channel)
        until(lambda: receiving(one) == 1, "the head arrived")
        one.run(one.models.close)
        sent.put(messages.Chunk(data=VALUES))
        sent.put(None)
        assert failure(lambda: list(call)) == ("UNAVAILABLE", STOPPING)
