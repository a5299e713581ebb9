"""`server.stream: persistent`: a stream carries many requests, and each response is matched to its request."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kserve_peers
import numpy as np
import pytest
from helpers import measure
from kserve_peers import tree_of, wait_for_the_end

from inferometer.errors import UserError
from inferometer.records import Run
from inferometer.serve.background import serving
from inferometer.serve.settings import Settings
from inferometer.tensors import Tensor, from_numpy, to_numpy
from inferometer.types import ONE_TOKEN, End, Fail
from inferometer.wire import protobuf
from inferometer.wire.grpc_framing import framed
from inferometer.wire.http1 import id_prefix
from inferometer.wire.kserve import grpc
from inferometer.wire.kserve.infer import InferOptions
from inferometer.wire.kserve.persistent import PersistentStream

Streams = list[list[str]]
"""The ids of the requests on each stream, in the order in which streams were opened."""
Respond = Callable[[Any, int], list[dict[str, Any]] | None]
"""Makes the messages for a request, which is the nth of its stream; None ends the stream."""


def run(folder: Path, url: str, model: str = "pair", **sections: Any) -> Run:
    server = {"model": model, "stream": "persistent"} | sections.pop("server", {})
    data = {"type": "tensors"} | sections.pop("data", {})
    load = sections.pop("load", {"concurrency": 3, "requests": 60})
    return measure(folder, url, server=server, data=data, load=load, **sections)[0]


def kinds(run: Run) -> Counter[str]:
    return Counter(run.records.failures[n - 1].code for n in run.records.rows["failure"] if n)


def summed(request: Any, echo: bool = True) -> dict[str, Any]:
    """The response of the model `pair`, with the request's id."""
    a, b = (
        to_numpy(Tensor(one.name, one.datatype, tuple(one.shape), raw))
        for one, raw in zip(request.inputs, request.raw_input_contents, strict=True)
    )
    tree = tree_of("pair", [from_numpy("SUM", a + b, "INT32")])
    return {"infer_response": tree | ({"id": request.id} if echo else {})}


def peer(respond: Respond, streams: Streams) -> Any:
    """A server that notes the ids of the requests on each stream."""

    def stream_infer(requests: Iterator[Any], context: Any) -> Iterator[Any]:
        ids: list[str] = []
        streams.append(ids)
        for request in requests:
            ids.append(request.id)
            messages = respond(request, len(ids) - 1)
            if messages is None:
                return
            if not messages:
                wait_for_the_end(context)
            yield from messages

    return kserve_peers.over_grpc(stream_infer=stream_infer)


# --- closed and open loop --------------------------------------------------------------------------------------------


def test_each_user_has_a_stream_with_many_requests(tmp_path: Path) -> None:
    streams: Streams = []
    with peer(lambda request, n: [summed(request)], streams) as url:
        found = run(tmp_path, url)
    assert not kinds(found)
    assert len(streams) == 3
    assert sorted(int(id.rpartition("-")[2], 16) for ids in streams for id in ids) == list(range(60))
    assert (found.records.rows["chunk_count"] == 1).all() and (found.records.rows["status"] == 200).all()


def test_in_open_loop_requests_go_over_idle_streams(tmp_path: Path) -> None:
    streams: Streams = []
    with peer(lambda request, n: [summed(request)], streams) as url:
        found = run(tmp_path, url, load={"type": "constant", "rate": 200, "requests": 100})
    assert not kinds(found)
    assert sum(map(len, streams)) == 100 and len(streams) < 100


@pytest.mark.parametrize("load", [{"concurrency": 4, "requests": 200}, {"rate": 300, "requests": 150}])
def test_the_reference_server_is_measured_over_persistent_streams(tmp_path: Path, load: dict[str, Any]) -> None:
    path = tmp_path / "data.json"
    entries = [{"INPUT0": [n]} for n in range(5)]
    outputs = [{"OUTPUT0": [n]} for n in range(5)]
    path.write_text(json.dumps({"data": entries, "validation_data": outputs}))
    with serving(Settings(models=("identity",), http=0, grpc=0)) as server:
        data = {"fill": f"@{path}", "validate": True}
        found = run(tmp_path / "runs", server.grpc, "identity", data=data, load=load)
    assert not kinds(found)
    assert len(found.records.rows) == load["requests"]


def test_large_requests_and_responses_pass_through_the_flow_control(tmp_path: Path) -> None:
    with serving(Settings(models=("identity",), http=0, grpc=0)) as server:
        shape = {"INPUT0": [1, 500_000]}
        found = run(tmp_path, server.grpc, "identity", data={"shape": shape}, load={"concurrency": 2, "requests": 20})
    assert not kinds(found)
    assert (found.records.rows["bytes_in"] > 2_000_000).all()


# --- several responses -----------------------------------------------------------------------------------------------


def squares(request: Any, n: int) -> list[dict[str, Any]]:
    """Three responses, and an empty last one as Triton sends it when the request asks for it."""
    assert request.parameters["triton_enable_empty_final_response"].bool_param
    flags = [{"triton_final_response": {"bool_param": is_last}} for is_last in (False, True)]
    some = [
        {"infer_response": tree_of("many", [from_numpy("SQUARE", np.array([k], np.int32))]) | {"id": request.id, "parameters": flags[0]}}
        for k in range(3)
    ]  # fmt: skip
    return [*some, {"infer_response": {"model_name": "many", "id": request.id, "parameters": flags[1]}}]


def test_a_decoupled_model_responds_until_the_last_response_is_flagged(tmp_path: Path) -> None:
    streams: Streams = []
    with peer(squares, streams) as url:
        found = run(tmp_path, url, "many")
    assert not kinds(found)
    assert (found.records.rows["chunk_count"] == 3).all(), "the empty last response is not a chunk"
    assert len(streams) == 3


# --- trouble ---------------------------------------------------------------------------------------------------------


def test_an_error_fails_its_request_and_the_stream_goes_on(tmp_path: Path) -> None:
    streams: Streams = []

    def respond(request: Any, n: int) -> list[dict[str, Any]]:
        if n % 2:
            return [{"error_message": "told to fail", "infer_response": {"id": request.id}}]
        return [summed(request)]

    with peer(respond, streams) as url:
        found = run(tmp_path, url, load={"concurrency": 2, "requests": 40})
    assert kinds(found) == {"error_frame": 20} or abs(kinds(found)["error_frame"] - 20) <= 1
    assert [one.message for one in found.records.failures] == ["told to fail"]
    assert len(streams) == 2


def test_responses_to_other_requests_are_ignored(tmp_path: Path) -> None:
    streams: Streams = []

    def respond(request: Any, n: int) -> list[dict[str, Any]]:
        stray = summed(request)
        stray["infer_response"] |= {"id": "another", "parameters": {"x" * 1200: {"bool_param": True}}}
        return [stray, {"error_message": "not for you", "infer_response": {"id": "another"}}, summed(request)]

    with peer(respond, streams) as url:
        found = run(tmp_path, url)
    assert not kinds(found) and (found.records.rows["chunk_count"] == 1).all()


def test_a_server_that_does_not_repeat_ids_is_measured_as_well(tmp_path: Path) -> None:
    with peer(lambda request, n: [summed(request, echo=False)], []) as url:
        assert not kinds(run(tmp_path, url))


def test_a_stream_that_the_server_ends_is_replaced(tmp_path: Path) -> None:
    """The server ends each stream in place of its tenth response: that request fails, and the next opens a stream."""
    streams: Streams = []
    with peer(lambda request, n: None if n == 9 else [summed(request)], streams) as url:
        found = run(tmp_path, url, load={"concurrency": 1, "requests": 40})
    assert kinds(found) == {"cut_short": 4}
    assert [len(ids) for ids in streams] == [10, 10, 10, 10]


def test_a_request_that_takes_too_long_is_given_up_with_its_stream(tmp_path: Path) -> None:
    streams: Streams = []
    with peer(lambda request, n: [] if n == 4 else [summed(request)], streams) as url:
        limits = {"timeouts": {"total": 0.2}}
        found = run(tmp_path, url, server=limits, load={"concurrency": 1, "requests": 10})
    assert kinds(found) == {"total_timeout": 2}
    assert [len(ids) for ids in streams] == [5, 5]


def test_a_deadline_is_that_of_a_request_and_not_of_the_stream(tmp_path: Path) -> None:
    seen: list[float | None] = []

    def stream_infer(requests: Iterator[Any], context: Any) -> Iterator[Any]:
        seen.append(context.time_remaining())
        for n, request in enumerate(requests):
            if n == 4:
                wait_for_the_end(context)
            yield summed(request)

    with kserve_peers.over_grpc(stream_infer=stream_infer) as url:
        found = run(tmp_path, url, server={"deadline": 0.2}, load={"concurrency": 1, "requests": 9})
    assert kinds(found) == {"grpc_DEADLINE_EXCEEDED": 1}
    assert all(left is None or left > 1e6 for left in seen)


@pytest.mark.parametrize(
    ("url", "server", "words"),
    [
        ("http://127.0.0.1:1", {"api": "kserve"}, ("cannot be streamed over HTTP",)),
        ("http://127.0.0.1:1", {"api": "chat"}, ("persistent streams are those of KServe over gRPC", "grpc://")),
        ("grpc://127.0.0.1:1", {"compression": "gzip"}, ("not compressed", "server.compression")),
    ],
)
def test_persistent_streams_are_for_kserve_over_grpc(
    tmp_path: Path, url: str, server: dict[str, str], words: tuple[str, ...]
) -> None:
    data = {"type": "prompts", "prompts": ["x"]} if server.get("api") == "chat" else {}
    with pytest.raises(UserError) as caught:
        run(tmp_path, url, server=server, data=data)
    for word in words:
        assert word in str(caught.value)


# --- the codec -------------------------------------------------------------------------------------------------------


def message_of(**fields: Any) -> bytes:
    schema = protobuf.bundled("kserve").method("inference.GRPCInferenceService/ModelStreamInfer")
    return framed(protobuf.encode(schema.output, fields))


def test_the_id_is_added_to_the_encoded_request() -> None:
    stream = PersistentStream("tag", decoupled=False)
    message = grpc.infer_request("m", "", [Tensor("A", "INT8", (1,), b"x")], InferOptions())
    sent = stream.request(17, message)
    assert sent[:5] == bytes(1) + (len(sent) - 5).to_bytes(4, "big")
    schema = protobuf.bundled("kserve").message("inference.ModelInferRequest")
    assert schema.FromString(sent[5:]).id == f"{id_prefix('tag')}{17:012x}"
    assert schema.FromString(sent[5:]).raw_input_contents == [b"x"]


def test_messages_may_arrive_in_any_pieces() -> None:
    stream = PersistentStream("t", decoupled=False)
    for id in range(3):
        stream.request(id, b"")
        data = message_of(infer_response={"model_name": "m", "id": f"{id_prefix('t')}{id:012x}"})
        found = [event for n in range(len(data)) for event in stream.data(data[n : n + 1], False)]
        assert found == [ONE_TOKEN, End(True)]
    assert (
        stream.data(message_of(infer_response={"id": f"{id_prefix('t')}{2:012x}"}), False) == []
    )  # nothing is in flight


def test_a_message_that_cannot_be_decoded_ends_the_stream() -> None:
    stream = PersistentStream("t", decoupled=False)
    stream.request(0, b"")
    (fail,) = stream.data(framed(b"\xff\xff\xff"), False)
    assert isinstance(fail, Fail) and fail.code == "malformed_grpc"
    assert not stream.is_usable
