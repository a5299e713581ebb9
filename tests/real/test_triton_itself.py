"""Checks that Triton, its models and the oracle behave as the other tests expect; no code of inferometer is involved.

Good to know about Triton 2.51: a decoupled model refuses plain inference; /generate responds with 200 and an error in the body
if a model sends no or several responses; and JSON carries neither FP16 nor BF16.
"""

import http.client
import json
import re
import struct
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from plain_client import get, post
from triton_server import NUMPY, Job, Oracle, Triton, join_bytes, running, tensor, values
from waiting import still, until

pytestmark = pytest.mark.triton
pytest_plugins = ["triton_server"]

PROTOCOLS = ["http", "http-json", "grpc"]
BINARY = ["http", "grpc"]
MODELS = [
    "add_sub",
    "all_types",
    "classifier",
    "failing",
    "generator",
    "identity",
    "no_batch",
    "sequence",
    "slow",
    "square",
]
EDGES = {
    "BOOL": [True, False, True],
    **{f"INT{bits}": [-(2 ** (bits - 1)), -1, 2 ** (bits - 1) - 1] for bits in (8, 16, 32, 64)},
    **{f"UINT{bits}": [0, 1, 2**bits - 1] for bits in (8, 16, 32, 64)},
    "FP16": [-0.5, 0.0, 65504.0],
    "BF16": [0x3F80, 0x0000, 0xC000],
    "FP32": [-1.5, 0.0, 3.4028234663852886e38],
    "FP64": [-0.1, 0.0, 1e300],
    "BYTES": [b"la", b"", "猫 \N{EURO SIGN}".encode()],
}


def numbers(name: str, datatype: str, shape: list[int], content: Any) -> Job:
    return tensor(name, datatype, shape, np.array(content, NUMPY[datatype]).tobytes())


def texts(name: str, *elements: bytes) -> Job:
    return tensor(name, "BYTES", [len(elements)], join_bytes(elements))


def url_of(triton: Triton, protocol: str) -> str:
    return triton.grpc if protocol == "grpc" else triton.http


# --- plain inference ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("rows", [1, 3])
def test_identity_returns_a_batch(triton: Triton, oracle: Oracle, protocol: str, rows: int) -> None:
    given = numbers("INPUT0", "FP32", [rows, 5], np.arange(rows * 5))
    response = oracle(
        url_of(triton, protocol), protocol=protocol, model="identity", version="1", id="x7", inputs=[given]
    )
    assert response == {"outputs": [given | {"name": "OUTPUT0"}], "model": "identity", "version": "1", "id": "x7"}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_no_batch_returns_a_vector(triton: Triton, oracle: Oracle, protocol: str) -> None:
    given = numbers("INPUT0", "FP32", [7], np.arange(7))
    response = oracle(url_of(triton, protocol), protocol=protocol, model="no_batch", inputs=[given])
    assert response["outputs"] == [given | {"name": "OUTPUT0"}]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("empty", [False, True], ids=["three elements", "no elements"])
@pytest.mark.parametrize("datatype", EDGES)
def test_all_types(triton: Triton, oracle: Oracle, datatype: str, empty: bool, protocol: str) -> None:
    content = [] if empty else EDGES[datatype]
    raw = join_bytes(content) if datatype == "BYTES" else np.array(content, NUMPY[datatype]).tobytes()
    given = tensor(f"IN_{datatype}", datatype, [len(content)], raw)
    wanted = [f"OUT_{datatype}"]
    response = oracle(url_of(triton, protocol), protocol=protocol, model="all_types", inputs=[given], outputs=wanted)
    if protocol == "http-json" and datatype in ("FP16", "BF16"):
        assert "binary data" in response["error"]
    else:
        assert response["outputs"] == [given | {"name": wanted[0]}]
        assert values(response, wanted[0]) == content


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_add_sub_returns_the_requested_outputs(triton: Triton, oracle: Oracle, protocol: str) -> None:
    given = [numbers("INPUT0", "INT32", [1, 16], range(16)), numbers("INPUT1", "INT32", [1, 16], [2] * 16)]
    job = {"protocol": protocol, "model": "add_sub", "inputs": given}
    both = oracle(url_of(triton, protocol), **job)
    assert values(both, "OUTPUT0") == list(range(2, 18))
    assert values(both, "OUTPUT1") == list(range(-2, 14))
    one = oracle(url_of(triton, protocol), **job, outputs=["OUTPUT1"])
    assert one["outputs"] == both["outputs"][1:]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_classifier_returns_scores_or_the_best_labels(triton: Triton, oracle: Oracle, protocol: str) -> None:
    image = np.zeros(192)
    image[[0, 20, 189]] = [1, 3, 2]  # classes 0, 1 and 9
    given = numbers("IMAGE", "FP32", [1, 3, 8, 8], image)
    job = {"protocol": protocol, "model": "classifier", "inputs": [given], "outputs": ["SCORES"]}
    scores = oracle(url_of(triton, protocol), **job)
    assert values(scores, "SCORES") == [1, 3, 0, 0, 0, 0, 0, 0, 0, 2]
    best = oracle(url_of(triton, protocol), **job, classes=2)
    assert values(best, "SCORES") == [b"3.000000:1:barge", b"2.000000:9:kayak"]


@pytest.mark.parametrize("protocol", BINARY)
def test_concurrent_sequences_are_kept_apart(triton: Triton, oracle: Oracle, protocol: str) -> None:
    def add(sequence: int, number: int, start: bool = False, end: bool = False) -> list[int]:
        about = {"id": sequence, "start": start, "end": end}
        given = numbers("INPUT", "INT32", [1, 1], [number])
        response = oracle(url_of(triton, protocol), model="sequence", inputs=[given], sequence=about)
        return values(response, "SUM") + values(response, "SEQUENCE")

    assert add(7, 10, start=True) == [10, 7]
    assert add(2**62 + 8, 500, start=True) == [500, 2**62 + 8]
    assert add(7, 1) == [11, 7]
    assert add(2**62 + 8, 2, end=True) == [502, 2**62 + 8]
    assert add(7, 4, end=True) == [15, 7]
    late = oracle(url_of(triton, protocol), model="sequence", inputs=[numbers("INPUT", "INT32", [1, 1], [1])], sequence={"id": 7})  # fmt: skip
    assert "must specify the START flag" in late["error"]


# --- failures -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "http_status", "grpc_status"),
    [
        ("UNKNOWN", 400, "UNKNOWN"),
        ("INTERNAL", 500, "INTERNAL"),
        ("NOT_FOUND", 404, "NOT_FOUND"),
        ("INVALID_ARG", 400, "INVALID_ARGUMENT"),
        ("UNAVAILABLE", 503, "UNAVAILABLE"),
        ("UNSUPPORTED", 501, "UNIMPLEMENTED"),
        ("ALREADY_EXISTS", 400, "ALREADY_EXISTS"),
        ("CANCELLED", 400, "CANCELLED"),
    ],
)
def test_failing_fails_with_the_requested_code(
    triton: Triton, oracle: Oracle, code: str, http_status: int, grpc_status: str
) -> None:
    job = {"model": "failing", "inputs": [texts("INPUT0", code.encode())]}
    message = f"told to fail with {code}"
    assert oracle(triton.http, **job) == {"error": message, "status": str(http_status)}
    assert oracle(triton.grpc, **job) == {"error": message, "status": f"StatusCode.{grpc_status}"}


@pytest.mark.parametrize("protocol", BINARY)
def test_failing_raises_and_keeps_working(triton: Triton, oracle: Oracle, protocol: str) -> None:
    url = url_of(triton, protocol)
    raised = oracle(url, model="failing", inputs=[texts("INPUT0", b"RAISE")])
    assert "ValueError: told to raise" in raised["error"]
    assert raised["status"] in ("500", "StatusCode.INTERNAL")
    assert values(oracle(url, model="failing", inputs=[texts("INPUT0", b"fine")]), "OUTPUT0") == [b"fine"]


@pytest.mark.parametrize(
    ("job", "words", "statuses"),
    [
        ({"model": "nosuch"}, "unknown model: 'nosuch' is not found", ["404", "StatusCode.NOT_FOUND"]),
        ({"version": "9"}, "'no_batch' version 9 is not found", ["404", "StatusCode.NOT_FOUND"]),
        ({"inputs": [numbers("INPUT0", "INT32", [1], [1])]}, "expects 'FP32'", ["400", "StatusCode.INVALID_ARGUMENT"]),
        (
            {"inputs": [numbers("INPUT0", "FP32", [1, 1], [1])]},
            "Expected [-1], got [1,1]",
            ["400", "StatusCode.INVALID_ARGUMENT"],
        ),
        ({"model": "square"}, "decoupled transaction policy", ["501", "StatusCode.UNIMPLEMENTED"]),
    ],
    ids=["model", "version", "datatype", "shape", "decoupled"],
)
def test_what_triton_refuses(triton: Triton, oracle: Oracle, job: Job, words: str, statuses: list[str]) -> None:
    usual = {"model": "no_batch", "inputs": [numbers("INPUT0", "FP32", [1], [1])]}
    responses = [oracle(url, **(usual | job)) for url in (triton.http, triton.grpc)]
    assert all(words in response["error"] for response in responses), responses
    assert [response["status"] for response in responses] == statuses, responses


# --- many responses or none ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 5, 200])
def test_square_sends_the_requested_number_of_responses(triton: Triton, oracle: Oracle, count: int) -> None:
    response = oracle(triton.grpc, model="square", stream=True, id="s", inputs=[numbers("N", "INT32", [1], [count])])
    assert [values(each, "SQUARE") for each in response["responses"]] == [[number**2] for number in range(count)]
    assert {each["id"] for each in response["responses"]} <= {"s"}


def test_a_model_that_is_not_decoupled_sends_one_response_in_a_stream(triton: Triton, oracle: Oracle) -> None:
    given = numbers("INPUT0", "FP32", [2], [1, 2])
    response = oracle(triton.grpc, model="no_batch", stream=True, inputs=[given])
    assert [each["outputs"] for each in response["responses"]] == [[given | {"name": "OUTPUT0"}]]


def test_an_error_in_a_stream_is_its_last_response(triton: Triton, oracle: Oracle) -> None:
    wishes = [numbers(name, "INT32", [1], [2]) for name in ("fail_after", "delay_ms")]
    response = oracle(triton.grpc, model="generator", stream=True, inputs=[texts("text_input", b"la li"), *wishes])
    assert [values(each, "text_output") for each in response["responses"][:-1]] == [[b" la"], [b" li"]]
    assert response["responses"][-1]["error"] == "failed after 2 tokens"


def exchange(url: str, path: str, body: Job) -> tuple[int, str, str]:
    """Return status, media type and body."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    content = response.read().decode()
    connection.close()
    return response.status, response.headers.get_content_type(), content


def events(body: str) -> list[Job]:
    """Return the events of a stream, each of which is one `data:` line."""
    *whole, rest = body.split("\n\n")
    assert rest == ""
    return [json.loads(event.removeprefix("data: ")) for event in whole]


@pytest.mark.parametrize("count", [0, 1, 3, 50])
def test_generate_stream_sends_one_event_per_token(triton: Triton, count: int) -> None:
    body = {"text_input": "la €", "max_tokens": count, "delay_ms": 0}
    status, media, content = exchange(triton.http, "/v2/models/generator/generate_stream", body)
    assert (status, media) == (200, "text/event-stream")
    tokens = [event["text_output"] for event in events(content)]
    assert tokens == [" la", " €"] * (count // 2) + [" la"] * (count % 2)


def test_generate_stream_puts_an_error_after_tokens_into_the_stream(triton: Triton) -> None:
    body = {"text_input": "la", "fail_after": 2}
    status, media, content = exchange(triton.http, "/v2/models/generator/versions/1/generate_stream", body)
    assert (status, media) == (200, "text/event-stream")
    assert [event.get("text_output") for event in events(content)] == [" la", " la", None]
    assert events(content)[-1] == {"error": "failed after 2 tokens"}


def test_generate_returns_the_only_response(triton: Triton) -> None:
    body = {"text_input": "la", "max_tokens": 1}
    status, media, content = exchange(triton.http, "/v2/models/generator/generate", body)
    assert (status, media) == (200, "application/json")
    assert json.loads(content) == {"model_name": "generator", "model_version": "1", "text_output": " la"}


@pytest.mark.parametrize("count", [0, 2])
def test_generate_returns_200_with_an_error_unless_there_is_exactly_one_response(triton: Triton, count: int) -> None:
    body = {"text_input": "la", "max_tokens": count}
    status, _, content = exchange(triton.http, "/v2/models/generator/generate", body)
    assert (status, list(json.loads(content))) == (200, ["error"])
    assert "exactly 1 response" in content


# --- what it says about itself ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", BINARY)
def test_metadata_config_and_index(triton: Triton, oracle: Oracle, protocol: str) -> None:
    url = url_of(triton, protocol)
    server = oracle(url, mode="metadata")["result"]
    assert server["name"] == "triton" and "binary_tensor_data" in server["extensions"]
    model = oracle(url, mode="metadata", model="classifier")["result"]
    (image,) = model["inputs"]
    assert (image["name"], image["datatype"], [int(length) for length in image["shape"]]) == (
        "IMAGE",
        "FP32",
        [-1, 3, 8, 8],
    )
    assert oracle(url, mode="config", model="square")["result"]["model_transaction_policy"] == {"decoupled": True}
    index = oracle(url, mode="index")["result"]
    assert [(entry["name"], entry["state"]) for entry in index] == [(name, "READY") for name in MODELS]


def counts(oracle: Oracle, url: str, model: str) -> dict[str, int]:
    """Requests that succeeded and failed, executions, and nanoseconds in the queue and in the model."""
    (found,) = oracle(url, mode="statistics", model=model)["result"]["model_stats"]
    stats = found["inference_stats"]
    return {
        "success": int(stats["success"].get("count", 0)),
        "fail": int(stats["fail"].get("count", 0)),
        "executions": int(found.get("execution_count", 0)),
        "queue_ns": int(stats["queue"].get("ns", 0)),
        "infer_ns": int(stats["compute_infer"].get("ns", 0)),
    }


def since(before: dict[str, int], oracle: Oracle, url: str, model: str, requests: int) -> dict[str, int]:
    """Return what was counted since `before`, once these requests are counted: Triton counts a request after its response."""

    def found() -> dict[str, int]:
        return {name: now - before[name] for name, now in counts(oracle, url, model).items()}

    until(lambda: found()["success"] + found()["fail"] >= requests, f"{requests} requests are counted")
    return still(found)


@pytest.mark.parametrize("protocol", BINARY)
def test_statistics_count_every_request(triton: Triton, oracle: Oracle, protocol: str) -> None:
    """A response that is an error counts as a success; only a failed execution is a failure."""
    url = url_of(triton, protocol)
    before = still(lambda: counts(oracle, url, "failing"))
    for word in (b"fine", b"INTERNAL", b"RAISE"):
        oracle(url, model="failing", inputs=[texts("INPUT0", word)])
    found = since(before, oracle, url, "failing", 3)
    assert (found["success"], found["fail"]) == (2, 1)


def test_slow_requests_wait_for_each_other_in_the_queue(triton: Triton, oracle: Oracle) -> None:
    """Three concurrent requests of 300 ms: each spends 300 ms in the model, and two of them wait for another one first."""
    body = {"inputs": [{"name": "DELAY_MS", "datatype": "INT32", "shape": [1], "data": [300]}]}
    before = still(lambda: counts(oracle, triton.http, "slow"))
    with ThreadPoolExecutor(3) as pool:
        responses = list(pool.map(lambda _: post(triton.http, "/v2/models/slow/infer", body), range(3)))
    assert [json.loads(response)["outputs"][0]["data"] for response in responses] == [[300]] * 3
    found = since(before, oracle, triton.http, "slow", 3)
    assert found["success"] == found["executions"] == 3
    assert found["infer_ns"] >= 3 * 300_000_000
    assert found["queue_ns"] >= 300_000_000


def test_metrics_count_the_same_as_statistics(triton: Triton, oracle: Oracle) -> None:
    """The metrics count a request slightly later than the statistics."""
    before = still(lambda: counts(oracle, triton.http, "no_batch"))
    oracle(triton.http, model="no_batch", inputs=[numbers("INPUT0", "FP32", [1], [1])])
    count = before["success"] + since(before, oracle, triton.http, "no_batch", 1)["success"]
    until(lambda: measured(triton, "no_batch") == count, f"{count} requests are in the metrics")


def measured(triton: Triton, model: str) -> int:
    text = get(triton.metrics, "/metrics").decode()
    (counted,) = re.findall(rf'(?m)^nv_inference_request_success\{{model="{model}",version="1"\}} (\d+)$', text)
    return int(counted)


# --- shared memory, other servers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", BINARY)
def test_tensors_in_shared_memory(triton: Triton, oracle: Oracle, protocol: str) -> None:
    given = numbers("INPUT0", "FP32", [1000], np.arange(1000))
    url = url_of(triton, protocol)
    response = oracle(url, mode="shared_memory", model="no_batch", inputs=[given], outputs=["OUTPUT0"])
    assert response["outputs"] == [given | {"name": "OUTPUT0"}]
    assert [region["byte_size"] for region in response["registered"]] == [4000, 4000]
    assert response["afterwards"] == []


def test_another_server_with_fewer_models_and_its_own_options(triton: Triton, oracle: Oracle) -> None:
    with running(["identity", "square"], ["--model-control-mode=explicit", "--load-model=square"]) as other:
        assert other.http != triton.http
        index = oracle(other.grpc, mode="index")["result"]
        assert [(entry["name"], entry.get("state", "")) for entry in index] == [("identity", ""), ("square", "READY")]


def test_a_server_that_does_not_start_says_why() -> None:
    bad = "--model-control-mode"
    with pytest.raises(AssertionError, match=f"invalid argument for {bad}"), running(["slow"], [f"{bad}=nonsense"]):
        pass


def test_the_oracle_sees_the_bytes_of_a_bytes_tensor(triton: Triton, oracle: Oracle) -> None:
    raw = struct.pack("<I", 3) + b"\x00\xff\n" + struct.pack("<I", 0)
    given = tensor("IN_BYTES", "BYTES", [2], raw)
    response = oracle(triton.grpc, model="all_types", inputs=[given], outputs=["OUT_BYTES"])
    assert response["outputs"] == [given | {"name": "OUT_BYTES"}]
