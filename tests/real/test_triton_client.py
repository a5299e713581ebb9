"""What our codecs get from Triton, over every protocol, is bit for bit what tritonclient gets."""

import base64
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DataObject
from triton_server import NUMPY, Job, Oracle, Triton, join_bytes, running, split_bytes
from triton_server import tensor as job_tensor
from waiting import still, until

from inferometer.config.schema import Server
from inferometer.errors import UserError
from inferometer.probe import kserve, query, reach
from inferometer.probe.connect import Peer
from inferometer.probe.query import Reply
from inferometer.tensors import DATATYPES, Tensor, from_numpy, to_json, to_numpy
from inferometer.wire.compression import compressed
from inferometer.wire.kserve import control, grpc, http
from inferometer.wire.kserve.infer import InferOptions, InferResponse
from inferometer.wire.target import parse

pytestmark = pytest.mark.triton
pytest_plugins = ["triton_server"]

WAYS = {
    "http": "none",
    "http gzip": "gzip",
    "http deflate": "deflate",
    "grpc": "none",
    "grpc gzip": "gzip",
    "grpc deflate": "deflate",
    "grpc stream": "none",
}
"""Protocols with their compression; JSON, which cannot carry everything, is separate."""
ALL_WAYS = [*WAYS, "json"]
BOTH = ["http", "grpc"]


def peer_of(triton: Triton, way: str) -> Peer:
    return Peer(parse(triton.grpc if way.startswith("grpc") else triton.http))


def infer(
    triton: Triton,
    way: str,
    model: str,
    tensors: list[Tensor],
    options: InferOptions = InferOptions(),  # noqa: B008 - frozen
    version: str = "",
) -> InferResponse:
    """Send one inference that has one response."""
    if way.startswith("grpc"):
        (response,) = over_grpc(triton, way, model, tensors, options, version)
        return response
    own = {"Accept-Encoding": WAYS[way]} if WAYS.get(way, "none") != "none" else {}
    wishes = InferOptions(options.id, options.parameters, options.outputs, options.classification, binary=way != "json")
    headers, body = http.encode(tensors, wishes)
    how = WAYS.get(way, "none")
    packed, body = ({"Content-Encoding": how}, compressed(body, how)) if how != "none" else ({}, body)
    reply = query.http(peer_of(triton, way), "POST", http.infer_path(model, version), own | headers | packed, body)
    assert reply.headers.get("content-encoding") == (own.get("Accept-Encoding") if reply.status == 200 else None)
    check_instants(reply)
    return http.decode(reply.status, reply.headers, reply.body)


def over_grpc(
    triton: Triton, way: str, model: str, tensors: list[Tensor], options: InferOptions, version: str = ""
) -> list[InferResponse]:
    """Return all responses to one inference."""
    streamed = way == "grpc stream"
    message = grpc.infer_request(model, version, tensors, options)
    path = grpc.STREAM_INFER if streamed else grpc.INFER
    reply = query.grpc(peer_of(triton, way), path, [message], {}, compression=WAYS[way])
    if reply.fail is not None:
        raise UserError(f"{reply.fail.code}: {reply.fail.message}")
    check_instants(reply)
    responses = [(grpc.stream_response if streamed else grpc.infer_response)(piece) for _, piece in reply.pieces]
    for response in responses:
        if isinstance(response, str):
            raise UserError(response)
    return [response for response in responses if isinstance(response, InferResponse)]


def check_instants(reply: Reply) -> None:
    assert 0 < reply.connect_from <= reply.connected <= reply.sent <= reply.written
    assert reply.sent <= reply.first_byte <= reply.done


def jobs(tensors: list[Tensor]) -> list[Job]:
    return [job_tensor(one.name, one.datatype, one.shape, one.data) for one in tensors]


def tensors_of(response: Job) -> list[Tensor]:
    """Return the outputs that the oracle got."""
    assert "outputs" in response, response
    return [
        Tensor(one["name"], one["datatype"], tuple(one["shape"]), base64.b64decode(one["data"]))
        for one in response["outputs"]
    ]


def whole(name: str, datatype: str, shape: list[int], content: Any) -> Tensor:
    return from_numpy(name, np.array(content, NUMPY[datatype]).reshape(shape), datatype)


# --- every datatype -----------------------------------------------------------------------------------------------------


@st.composite
def any_tensor(draw: st.DrawFn, datatype: str) -> Tensor:
    """Tensors of arbitrary bits, including NaN and infinities; BYTES of arbitrary bytes."""
    size = draw(st.integers(0, 40))
    if datatype == "BYTES":
        raw = join_bytes(draw(st.lists(st.binary(max_size=30), min_size=size, max_size=size)))
    elif datatype == "BOOL":
        raw = bytes(draw(st.lists(st.integers(0, 1), min_size=size, max_size=size)))
    else:
        length = size * DATATYPES[datatype].size
        raw = draw(st.binary(min_size=length, max_size=length))
    return Tensor(f"IN_{datatype}", datatype, (size,), raw)


def as_outputs(tensors: list[Tensor]) -> list[Tensor]:
    return [Tensor(one.name.replace("IN_", "OUT_"), one.datatype, one.shape, one.data) for one in tensors]


@pytest.mark.parametrize("datatype", DATATYPES)
@settings(max_examples=8)
@given(data=st.data())
def test_every_datatype_comes_back_bit_for_bit(triton: Triton, oracle: Oracle, datatype: str, data: DataObject) -> None:
    sent = [data.draw(any_tensor(datatype))]
    names = (f"OUT_{datatype}",)
    truth = tensors_of(oracle(triton.grpc, model="all_types", inputs=jobs(sent), outputs=list(names)))
    assert truth == as_outputs(sent)
    for way in WAYS:
        assert infer(triton, way, "all_types", sent, InferOptions(outputs=names)).outputs == truth, way


def json_elements(datatype: str) -> st.SearchStrategy[Any]:
    """Tensors that JSON can carry."""
    if datatype == "BYTES":
        return st.text(max_size=20).map(str.encode)
    if datatype == "BOOL":
        return st.booleans()
    if datatype == "FP64":
        return st.floats(-1e300, 1e300).filter(lambda number: number == 0 or abs(number) > 1e-300)
    if datatype == "FP32":
        return st.floats(width=32, allow_nan=False, allow_infinity=False)
    bounds = np.iinfo(NUMPY[datatype])
    return st.integers(int(bounds.min), int(bounds.max))


@pytest.mark.parametrize("datatype", [name for name in DATATYPES if name not in ("FP16", "BF16")])
@settings(max_examples=10)
@given(data=st.data())
def test_every_datatype_that_json_carries_comes_back_through_it(
    triton: Triton, oracle: Oracle, datatype: str, data: DataObject
) -> None:
    content = data.draw(st.lists(json_elements(datatype), max_size=20))
    raw = join_bytes(content) if datatype == "BYTES" else np.array(content, NUMPY[datatype]).tobytes()
    sent = [Tensor(f"IN_{datatype}", datatype, (len(content),), raw)]
    names = [f"OUT_{datatype}"]
    truth = tensors_of(oracle(triton.http, protocol="http-json", model="all_types", inputs=jobs(sent), outputs=names))
    found = infer(triton, "json", "all_types", sent, InferOptions(outputs=tuple(names))).outputs
    assert found == truth
    (output,) = found
    assert isinstance(output, Tensor)
    if datatype == "FP64":
        np.testing.assert_allclose(to_numpy(output), content, rtol=1e-15, atol=0)
    else:
        assert output == as_outputs(sent)[0]


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_datatypes_that_json_cannot_carry_are_refused_before_sending(
    triton: Triton, oracle: Oracle, datatype: str
) -> None:
    sent = [Tensor(f"IN_{datatype}", datatype, (1,), b"\0\0")]
    assert "binary data" in oracle(triton.http, protocol="http-json", model="all_types", inputs=jobs(sent))["error"]
    with pytest.raises(UserError, match=f"{datatype} cannot be sent as JSON"):
        to_json(sent[0])


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=5)
@given(data=st.data())
def test_many_tensors_of_all_datatypes_in_one_request(
    triton: Triton, oracle: Oracle, way: str, data: DataObject
) -> None:
    chosen = data.draw(st.lists(st.sampled_from(list(DATATYPES)), min_size=1, unique=True))
    sent = [data.draw(any_tensor(datatype)) for datatype in chosen]
    names = [one.name for one in as_outputs(sent)]
    truth = tensors_of(oracle(triton.http, model="all_types", inputs=jobs(sent), outputs=names))
    found = infer(triton, way, "all_types", sent, InferOptions(outputs=tuple(names))).outputs
    assert {one.name: one for one in found} == {one.name: one for one in truth}
    assert {one.name for one in found} == set(names)


@pytest.mark.parametrize("way", ALL_WAYS)
@settings(max_examples=4)
@given(rows=st.integers(1, 64), columns=st.integers(1, 50))
def test_batches_of_any_shape(triton: Triton, oracle: Oracle, way: str, rows: int, columns: int) -> None:
    sent = [whole("INPUT0", "FP32", [rows, columns], np.arange(rows * columns) / 7)]
    truth = tensors_of(oracle(triton.http, model="identity", inputs=jobs(sent)))
    assert infer(triton, way, "identity", sent).outputs == truth


@pytest.mark.parametrize("way", WAYS)
def test_a_tensor_of_two_megabytes(triton: Triton, way: str) -> None:
    sent = whole("INPUT0", "FP32", [500_000], np.random.default_rng(7).random(500_000))
    (output,) = infer(triton, way, "no_batch", [sent]).outputs
    assert isinstance(output, Tensor)
    assert output.data == sent.data


# --- what a request has besides its tensors -----------------------------------------------------------------------------


@pytest.mark.parametrize("way", ALL_WAYS)
def test_only_the_requested_outputs(triton: Triton, oracle: Oracle, way: str) -> None:
    sent = [whole("INPUT0", "INT32", [1, 16], range(16)), whole("INPUT1", "INT32", [1, 16], [2] * 16)]
    for names in ((), ("OUTPUT1",), ("OUTPUT0", "OUTPUT1")):
        truth = tensors_of(oracle(triton.http, model="add_sub", inputs=jobs(sent), outputs=list(names) or None))
        found = infer(triton, way, "add_sub", sent, InferOptions(outputs=names)).outputs
        assert found == truth
        assert len(found) == (len(names) or 2)


@pytest.mark.parametrize("way", ALL_WAYS)
def test_the_best_classes_with_their_labels(triton: Triton, oracle: Oracle, way: str) -> None:
    image = np.zeros(192)
    image[[0, 20, 189]] = [1, 3, 2]
    sent = [whole("IMAGE", "FP32", [1, 3, 8, 8], image)]
    truth = tensors_of(oracle(triton.http, model="classifier", inputs=jobs(sent), outputs=["SCORES"], classes=3))
    response = infer(triton, way, "classifier", sent, InferOptions(outputs=("SCORES",), classification=3))
    assert response.outputs == truth
    assert split_bytes(truth[0].data) == [b"3.000000:1:barge", b"2.000000:9:kayak", b"1.000000:0:anchor"]


@pytest.mark.parametrize("way", ALL_WAYS)
def test_id_and_version_are_in_the_response(triton: Triton, oracle: Oracle, way: str) -> None:
    sent = [whole("INPUT0", "FP32", [2], [1, 2])]
    truth = oracle(triton.grpc, model="no_batch", inputs=jobs(sent), version="1", id="number 7")
    response = infer(triton, way, "no_batch", sent, InferOptions(id="number 7"), version="1")
    assert (response.model, response.version, response.id) == (truth["model"], truth["version"], truth["id"])
    assert (response.version, response.id) == ("1", "number 7")


@pytest.mark.parametrize("way", ALL_WAYS)
def test_parameters_of_every_kind_are_accepted(triton: Triton, way: str) -> None:
    sent = [whole("INPUT0", "FP32", [1], [1])]
    own: dict[str, bool | int | float | str] = {
        "text": "a",
        "yes": True,
        "number": 7,
        "negative": -7,
        "part": 0.5,
        "priority": 0,
    }
    assert infer(triton, way, "no_batch", sent, InferOptions(parameters=own)).outputs


@pytest.mark.parametrize("way", ALL_WAYS)
def test_a_parameter_of_the_wrong_kind_is_refused(triton: Triton, way: str) -> None:
    """This shows that Triton reads the parameters that we send."""
    sent = [whole("INPUT0", "FP32", [1], [1])]
    wrong: dict[str, bool | int | float | str] = {"priority": "high"}
    with pytest.raises(UserError, match="priority"):
        infer(triton, way, "no_batch", sent, InferOptions(parameters=wrong))


@pytest.mark.parametrize("way", ["http", "json", "grpc", "grpc stream"])
def test_sequences_are_kept_apart_and_added_up(triton: Triton, way: str) -> None:
    def add(sequence: int, number: int, start: bool = False, end: bool = False) -> list[int]:
        flags: dict[str, bool | int | float | str] = {
            "sequence_id": sequence,
            "sequence_start": start,
            "sequence_end": end,
        }
        sent = [whole("INPUT", "INT32", [1, 1], [number])]
        response = infer(triton, way, "sequence", sent, InferOptions(parameters=flags))
        found = {one.name: one for one in response.outputs if isinstance(one, Tensor)}
        return [int(to_numpy(found[name]).item()) for name in ("SUM", "SEQUENCE")]

    first, second = 7 + ALL_WAYS.index(way), 2**62 + ALL_WAYS.index(way)
    assert add(first, 10, start=True) == [10, first]
    assert add(second, 500, start=True) == [500, second]
    assert add(first, 1) == [11, first]
    assert add(second, 2, end=True) == [502, second]
    assert add(first, 4, end=True) == [15, first]
    assert add(first, 1, start=True, end=True) == [1, first]
    with pytest.raises(UserError, match="must specify the START flag"):
        add(first, 1)


# --- decoupled models ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 5])
def test_a_decoupled_model_sends_any_number_of_responses(triton: Triton, oracle: Oracle, count: int) -> None:
    sent = [whole("N", "INT32", [1], [count])]
    truth = oracle(triton.grpc, model="square", stream=True, inputs=jobs(sent))["responses"]
    responses = over_grpc(triton, "grpc stream", "square", sent, InferOptions())
    assert [received.outputs for received in responses] == [tensors_of(response) for response in truth]
    assert len(responses) == count


def test_the_empty_final_response_is_sent_on_request(triton: Triton) -> None:
    sent = [whole("N", "INT32", [1], [2])]
    options = InferOptions(id="q", parameters={"triton_enable_empty_final_response": True})
    responses = over_grpc(triton, "grpc stream", "square", sent, options)
    assert [len(response.outputs) for response in responses] == [1, 1, 0]
    assert [response.parameters["triton_final_response"] for response in responses] == [False, False, True]
    assert {response.id for response in responses} == {"q"}


@pytest.mark.parametrize("way", [way for way in ALL_WAYS if way != "grpc stream"])
def test_a_decoupled_model_refuses_plain_inference(triton: Triton, way: str) -> None:
    with pytest.raises(UserError, match="decoupled transaction policy"):
        infer(triton, way, "square", [whole("N", "INT32", [1], [1])])


# --- errors -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ALL_WAYS)
@pytest.mark.parametrize("word", ["INTERNAL", "UNAVAILABLE", "RAISE"])
def test_the_message_of_a_failing_model_is_kept(triton: Triton, oracle: Oracle, way: str, word: str) -> None:
    sent = [Tensor("INPUT0", "BYTES", (1,), join_bytes([word.encode()]))]
    truth = oracle(triton.http, model="failing", inputs=jobs(sent))["error"]
    with pytest.raises(UserError) as caught:
        infer(triton, way, "failing", sent)
    assert " ".join(truth.split())[:200] in caught.value.what


@pytest.mark.parametrize("way", ALL_WAYS)
def test_the_message_of_a_refusal_is_kept(triton: Triton, oracle: Oracle, way: str) -> None:
    good = [whole("INPUT0", "FP32", [1], [1])]
    cases: list[tuple[str, list[Tensor], str]] = [
        ("nosuch", good, ""),
        ("no_batch", good, "9"),
        ("no_batch", [whole("INPUT0", "INT32", [1], [1])], ""),
        ("no_batch", [whole("INPUT0", "FP32", [1, 1], [1])], ""),
        ("no_batch", [whole("OTHER", "FP32", [1], [1])], ""),
    ]
    for model, sent, version in cases:
        truth = oracle(peer_of(triton, way).target.url, model=model, inputs=jobs(sent), version=version)["error"]
        with pytest.raises(UserError) as caught:
            infer(triton, way, model, sent, version=version)
        assert " ".join(truth.split())[:200] in caught.value.what


# --- what the server says about itself ----------------------------------------------------------------------------------


def as_number(value: Any) -> int:
    return int(value or 0)


@pytest.mark.parametrize("way", BOTH)
def test_server_metadata(triton: Triton, oracle: Oracle, way: str) -> None:
    there = peer_of(triton, way)
    truth = oracle(there.target.url, mode="metadata")["result"]
    found: control.ServerMetadata = kserve.server_metadata(there, {})
    assert (found.name, found.version, list(found.extensions)) == (truth["name"], truth["version"], truth["extensions"])
    assert kserve.live(there, {}) and kserve.ready(there, {})


@pytest.mark.parametrize("way", BOTH)
def test_metadata_and_configuration_of_every_model(triton: Triton, oracle: Oracle, way: str) -> None:
    there = peer_of(triton, way)
    index = oracle(there.target.url, mode="index")["result"]
    entries: tuple[control.IndexEntry, ...] = kserve.repository_index(there, {})
    assert [(one.name, one.version, one.state) for one in entries] == [
        (one["name"], one["version"], one["state"]) for one in index
    ]
    for one in entries:
        truth = oracle(there.target.url, mode="metadata", model=one.name)["result"]
        found: control.ModelMetadata = kserve.model_metadata(there, {}, one.name)
        assert (found.name, found.platform, list(found.versions)) == (one.name, truth["platform"], truth["versions"])
        for ours, theirs in ((found.inputs, truth["inputs"]), (found.outputs, truth["outputs"])):
            assert [(each.name, each.datatype, list(each.shape)) for each in ours] == [
                (each["name"], each["datatype"], [int(size) for size in each["shape"]]) for each in theirs
            ]
        config: control.ModelConfig = kserve.model_config(there, {}, one.name)
        true = oracle(there.target.url, mode="config", model=one.name)["result"]
        assert (config.name, config.max_batch_size) == (one.name, as_number(true.get("max_batch_size")))
        assert config.decoupled == true.get("model_transaction_policy", {}).get("decoupled", False)
        assert config.decoupled == (one.name in ("square", "generator"))
        assert config.sequence_batching == ("sequence_batching" in true) == (one.name == "sequence")
        assert set(config.optional) == {each["name"] for each in true["input"] if each.get("optional")}
        assert bool(config.optional) == (one.name in ("all_types", "generator"))
        assert config.labels == ({"SCORES": "labels.txt"} if one.name == "classifier" else {})
        assert kserve.model_ready(there, {}, one.name)


def settled(there: Peer, model: str) -> tuple[control.ModelStatistics, ...]:
    return still(lambda: kserve.statistics(there, {}, model))


def counted(there: Peer, successes: int) -> None:
    """Wait until this many requests to identity are counted: Triton counts a request after its response."""

    def so_far() -> int:
        (found,) = kserve.statistics(there, {}, "identity")
        return int(found.success.count)

    until(lambda: so_far() >= successes, f"{successes} requests are counted")


SPENT = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss")


@pytest.mark.parametrize("way", BOTH)
def test_statistics_are_those_of_the_official_client(triton: Triton, oracle: Oracle, way: str) -> None:
    there = peer_of(triton, way)
    (earlier,) = settled(there, "identity")
    infer(triton, way, "identity", [whole("INPUT0", "FP32", [3, 2], range(6))])
    counted(there, earlier.success.count + 1)
    (found,) = settled(there, "identity")
    (truth,) = oracle(there.target.url, mode="statistics", model="identity")["result"]["model_stats"]
    assert (found.name, found.version) == ("identity", "1")
    assert found.inference_count == int(truth["inference_count"]) >= 3
    assert found.execution_count == int(truth["execution_count"]) >= 1
    for name in SPENT:
        each = truth["inference_stats"].get(name, {})
        ours = getattr(found, name)
        assert (ours.count, ours.ns) == (as_number(each.get("count")), as_number(each.get("ns"))), name
    assert [(batch.size, batch.compute_infer.count, batch.compute_infer.ns) for batch in found.batches] == sorted(
        (int(each["batch_size"]), int(each["compute_infer"]["count"]), int(each["compute_infer"]["ns"]))
        for each in truth["batch_stats"]
    )


@pytest.mark.parametrize("way", BOTH)
def test_statistics_of_all_models_and_the_difference(triton: Triton, way: str) -> None:
    there = peer_of(triton, way)
    earlier = settled(there, "")
    for _ in range(3):
        infer(triton, way, "identity", [whole("INPUT0", "FP32", [2, 2], range(4))])
    counted(there, 3 + next(one.success.count for one in earlier if one.name == "identity"))
    since = {one.name: one for one in control.difference(earlier, settled(there, ""))}
    assert (since["identity"].inference_count, since["identity"].success.count) == (6, 3)
    assert since["square"].inference_count == 0
    assert [(batch.size, batch.compute_infer.count) for batch in since["identity"].batches] == [(2, 3)]


@pytest.mark.parametrize("way", BOTH)
def test_an_unknown_model(triton: Triton, oracle: Oracle, way: str) -> None:
    there = peer_of(triton, way)
    truth = oracle(there.target.url, mode="metadata", model="nosuch")["error"]
    with pytest.raises(UserError) as caught:
        kserve.model_metadata(there, {}, "nosuch")
    assert truth in caught.value.what
    assert not isinstance(caught.value, control.NotOffered)


def test_a_model_that_is_not_loaded_is_neither_ready_nor_chosen() -> None:
    with running(["identity", "square"], ["--model-control-mode=explicit", "--load-model=square"]) as triton:
        for way in BOTH:
            there = peer_of(triton, way)
            assert kserve.model_ready(there, {}, "square")
            assert not kserve.model_ready(there, {}, "identity")
            entries = kserve.repository_index(there, {})
            assert [(one.name, one.state) for one in entries] == [("identity", ""), ("square", "READY")]
            assert reach.reach(Server(there.target.url, api="kserve")).model == "square"
            with pytest.raises(UserError) as caught:
                reach.reach(Server(there.target.url, api="kserve", model="identity"))
            assert caught.value.remedy == "load identity into the server"
