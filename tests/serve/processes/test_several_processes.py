"""Two front ends and the models in their own processes are one server to the outside."""

import json
import re
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
from raw_client import RawClient, Response, request
from waiting import until

from inferometer.serve.background import Running
from inferometer.serve.kserve.messages import SCHEMA
from inferometer.serve.sim import truth

INFER = SCHEMA.method("inference.GRPCInferenceService/ModelInfer")


def given(*values: float, name: str = "x", **tensor: Any) -> dict[str, Any]:
    return {"inputs": [{"name": name, "datatype": "FP32", "shape": [1, len(values)], "data": values} | tensor]}


def outputs(response: Response) -> dict[str, Any]:
    assert response.status == 200, response.body
    return {one["name"]: one.get("data") for one in response.json["outputs"]}


def counted(client: RawClient, model: str) -> tuple[int, int]:
    """Return the successful requests in the statistics and in the metrics."""
    stats = client.request(f"/v2/models/{model}/stats").json["model_stats"][0]["inference_stats"]
    page = client.request("/metrics").body.decode()
    found = re.search(rf'^nv_inference_request_success{{model="{model}",version="1"}} (\d+)$', page, re.M)
    assert found is not None
    return stats["success"]["count"], int(found[1])


def test_each_front_end_reports_the_requests_of_all(front_ends: list[RawClient]):
    for model, name in (("identity", "INPUT0"), ("where", "x")):
        before = counted(front_ends[0], model)
        for client in front_ends:
            shape = {"shape": [1]} if model == "where" else {}
            outputs(client.request(f"/v2/models/{model}/infer", given(1, name=name, **shape)))
        after = (before[0] + 2, before[1] + 2)
        assert [counted(client, model) for client in front_ends] == [after, after]


def test_metrics_are_one_page(front_ends: list[RawClient], server: Running):
    with RawClient(server.metrics.removesuffix("/metrics")) as port:
        for page in [client.request("/metrics").body.decode() for client in (*front_ends, port)]:
            names = [line.split()[2] for line in page.splitlines() if line.startswith("# TYPE")]
            samples = [line.rpartition(" ")[0] for line in page.splitlines() if not line.startswith("#")]
            assert len(set(names)) == len(names)
            assert len(set(samples)) == len(samples)
            assert 'nv_inference_count{model="batch",version="1"}' in samples
            assert float(re.search(r"^nv_cpu_memory_total_bytes (.*)$", page, re.M)[1]) == psutil.virtual_memory().total


def test_grpc_is_served_by_both(server: Running):
    found = set()
    with np.errstate(all="ignore"):
        while len(found) < 2:
            with grpc.insecure_channel(
                server.grpc.removeprefix("grpc://"), [("grpc.use_local_subchannel_pool", 1)]
            ) as channel:
                call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
                message = INFER.input(model_name="where", raw_input_contents=[np.float32(1).tobytes()])
                message.inputs.add(name="x", datatype="FP32", shape=[1])
                made = INFER.output.FromString(call(message.SerializeToString()))
                found.add(int(np.frombuffer(made.raw_output_contents[0], np.int32)[0]))


def test_a_load_or_unload_is_seen_by_both(front_ends: list[RawClient]):
    one, other = front_ends
    assert one.request("/v2/repository/models/identity/unload", {}).status == 200
    for client in front_ends:
        assert client.request("/v2/models/identity/ready").status == 400
        index = {entry["name"]: entry.get("state") for entry in client.request("/v2/repository/index", {}).json}
        assert index["identity"] == "UNAVAILABLE"
        assert "identity" not in {
            entry["name"] for entry in client.request("/v2/repository/index", {"ready": True}).json
        }
    assert other.request("/v2/repository/models/identity/load", {}).status == 200
    assert [client.request("/v2/models/identity/ready").status for client in front_ends] == [200, 200]
    assert one.request("/v2/repository/models/unknown/load", {}).status == 500


def test_shared_memory_that_one_registers_is_known_to_both(front_ends: list[RawClient]):
    memory = shared_memory.SharedMemory(create=True, size=8)
    try:
        memory.buf[:8] = np.array([3, 4], np.float32).tobytes()
        path = "/v2/systemsharedmemory/region/both"
        given_region = {"key": memory.name, "offset": 0, "byte_size": 8}
        assert front_ends[0].request(f"{path}/register", given_region).status == 200
        assert front_ends[1].request(f"{path}/register", given_region).status == 409
        where = {"shared_memory_region": "both", "shared_memory_byte_size": 8}
        body = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 2], "parameters": where}]}
        for client in front_ends:
            assert outputs(client.request("/v2/models/identity/infer", body)) == {"OUTPUT0": [3.0, 4.0]}
        assert front_ends[1].request(f"{path}/unregister", {}).status == 200
        assert [client.request(f"{path}/status").status for client in front_ends] == [404, 404]
    finally:
        memory.close()
        memory.unlink()


def test_a_batch_joins_requests_of_both(front_ends: list[RawClient]):
    for i, client in enumerate(front_ends):
        client.send(request("/v2/models/batch/infer", given(1, i)))
    made = [outputs(client.response()) for client in front_ends]
    assert [one["y"] for one in made] == [[2.0, 0.0], [2.0, 2.0]]
    assert [one["rows"] for one in made] == [[2], [2]]
    assert made[0]["pid"] == made[1]["pid"]


def test_a_batch_joins_requests_of_one_front_end(server: Running):
    opened: dict[int, list[RawClient]] = {}
    while not (pair := next((clients for clients in opened.values() if len(clients) == 2), [])):
        client = RawClient(server.url)
        (pid,) = outputs(client.request("/v2/models/where/infer", given(1, shape=[1])))["pid"]
        opened.setdefault(pid, []).append(client)
    for client in pair:
        client.send(request("/v2/models/batch/infer", given(1, 2)))
    assert [outputs(client.response())["rows"] for client in pair] == [[2], [2]]
    for client in [client for clients in opened.values() for client in clients]:
        client.sock.close()


def large(values: np.ndarray) -> bytes:
    """Return a request with a tensor that goes through shared memory."""
    head = given(name="x", shape=[1, values.size], parameters={"binary_data_size": values.nbytes})
    del head["inputs"][0]["data"]
    encoded = json.dumps(head | {"outputs": [{"name": "y", "parameters": {"binary_data": True}}]}).encode()
    sizes = {"Inference-Header-Content-Length": str(len(encoded))}
    return request("/v2/models/batch/infer", encoded + values.tobytes(), **sizes)


def test_large_tensors_reach_a_model_in_its_own_process(front_ends: list[RawClient]):
    values = np.arange(500_000, dtype=np.float32)
    for _ in range(3):
        for client in front_ends:
            client.send(large(values))
        for client in front_ends:
            response = client.response()
            split = int(response.headers["inference-header-content-length"])
            assert np.array_equal(np.frombuffer(response.body[split:], np.float32), 2 * values)


def test_shared_memory_is_used_again_if_clients_leave(front_ends: list[RawClient], server: Running):
    processes = [psutil.Process(server.pid), *psutil.Process(server.pid).children()]
    files = [Path(f"/proc/{process.pid}/fd") for process in processes]
    full = given(*[1] * 8, shape=[8, 1])  # does not wait for others, even if one of those who left is not gone yet
    for _ in range(50):
        leaving = [RawClient(server.url) for _ in range(4)]
        for client in leaving:
            client.send(large(np.zeros(20_000, np.float32)))
        for client in leaving:
            client.sock.close()
        assert [client.request("/v2/models/batch/infer", full).status for client in front_ends] == [200, 200]
    # As many as were in use at the same time, and not one per request.
    assert 0 < sum("memfd:" in str(file.readlink()) for folder in files for file in folder.iterdir()) < 100


def test_a_client_that_leaves_stops_a_stream_in_another_process(server: Running, tmp_path: Path):
    stopped = tmp_path / "stopped"
    with RawClient(server.url) as client:
        client.send(request("/v2/models/words/generate_stream", {"text_input": str(stopped)}))
        until(lambda: b'"text_output":"2"' in client.sock.recv(65536, 2) or bool(client._more()))
        assert not stopped.exists()
    until(stopped.exists, "the model's generator ends")


def test_text_models_in_another_process_have_openai_endpoints(front_ends: list[RawClient]):
    ids = set()
    for client in front_ends:
        body = {"model": "echo", "prompt": "a b c d", "max_tokens": 3}
        made = client.request("/v1/completions", body).json
        assert (made["choices"][0]["text"], made["usage"]["completion_tokens"]) == (" a b c", 3)
        ids.add(made["id"])
        streamed = client.request("/v1/completions", body | {"stream": True, "prompt": "a b <fail>"}).events
        assert [json.loads(event)["choices"][0]["text"] for event in streamed[:2]] == [" a", " b"]
        assert "the model failed" in streamed[-2]
        chat = {"model": "echo", "messages": [{"role": "assistant", "content": "x"}]}
        assert "must be the user's" in client.request("/v1/chat/completions", chat).json["error"]["message"]
        vectors = client.request("/v1/embeddings", {"model": "vectors", "input": ["a b", "a"]}).json["data"]
        assert [vector["embedding"] for vector in vectors] == [[2, 0.5], [1, 0.5]]
        long = client.request("/v1/completions", body | {"max_tokens": 100})
        assert (long.status, long.json["error"]["code"]) == (400, "context_length_exceeded")
        assert client.request("/tokenize", {"model": "echo", "prompt": [5, 7]}).json["tokens"] == [5, 7]
    assert len(ids) == 2


def test_a_client_that_disconnects_cancels_its_text_in_another_process(server: Running, front_ends: list[RawClient]):
    body = {"model": "echo", "prompt": "a", "max_tokens": 99, "ignore_eos": True, "stream": True}

    def is_cancelled() -> bool:
        with RawClient(server.url) as client:
            client.send(request("/v1/completions", body))
            client.sock.recv(10)
        page = front_ends[0].request("/metrics").body.decode()
        (count,) = re.findall(r'nv_inference_request_failure{model="echo",version="1",reason="CANCELED"} (\d+)', page)
        return int(count) > 0

    until(is_cancelled)


def test_a_text_model_whose_process_died_is_unavailable_beside_others(front_ends: list[RawClient]):
    body, why = {"model": "echo", "prompt": "a <exit>"}, "the process of model echo ended"
    for client in (front_ends[0], *front_ends):
        refused = client.request("/v1/completions", body)
        assert (refused.status, why in refused.json["error"]["message"]) == (503, True), refused.json
    assert front_ends[1].request("/v2/repository/models/echo/load", {}).status == 200
    assert front_ends[0].request("/v1/completions", body | {"prompt": "a"}).status == 200


def test_simulated_requests_are_logged_and_counted_together(front_ends: list[RawClient], server: Running):
    path = server.truth  # type: ignore[attr-defined]
    for client in front_ends * 3:
        client.request("/v1/completions", {"model": "sim", "prompt": "x", "max_tokens": 2})
    until(lambda: [row.n_out for row in truth.read(path)].count(2) == 6)
    rows = truth.read(path)
    assert sorted(row.n for row in rows) == [1, 1, 2, 2, 3, 3]
    page = front_ends[0].request("/metrics").body.decode()
    assert f'vllm:generation_tokens_total{{model_name="sim"}} {sum(row.n_out for row in rows)}\n' in page


def both(front_ends: list[RawClient], *values: float) -> list[Response]:
    """Send a request through each front end, which the model computes as one batch."""
    for client in front_ends:
        client.send(request("/v2/models/batch/infer", given(*values)))
    return [client.response() for client in front_ends]


def test_an_old_process_ends_when_its_model_is_loaded_again(front_ends: list[RawClient]):
    old = outputs(both(front_ends, 1)[0])["pid"][0]
    assert front_ends[0].request("/v2/repository/models/batch/load", {}).status == 200
    assert outputs(both(front_ends, 1)[0])["pid"][0] != old
    until(lambda: not psutil.pid_exists(old))
    assert counted(front_ends[1], "batch") == (2, 2)


def test_a_model_that_fails_to_load_leaves_no_process(front_ends: list[RawClient], server: Running):
    broken = server.truth.parent / "models" / "broken"  # type: ignore[attr-defined]
    (broken / "1").mkdir(parents=True)
    (broken / "1" / "model.py").write_text("1 / 0")
    (broken / "config.pbtxt").write_text('parameters { key: "process" value { string_value: "1" } }')
    before = psutil.Process(server.pid).children()
    refused = front_ends[0].request("/v2/repository/models/broken/load", {})
    assert (refused.status, "division by zero" in refused.json["error"]) == (500, True)
    until(lambda: set(psutil.Process(server.pid).children()) <= set(before))


def test_a_model_whose_process_died_is_unavailable_until_it_is_loaded_again(front_ends: list[RawClient]):
    why = "the process of model batch ended"
    assert [(one.status, one.json) for one in both(front_ends, -1)] == [(503, {"error": why})] * 2
    for client in front_ends:
        assert client.request("/v2/models/batch/ready").status == 400
        assert client.request("/v2/health/ready").status == 200
        refused = client.request("/v2/models/batch/infer", given(1))
        assert (refused.status, why in refused.json["error"]) == (503, True)
        index = {entry["name"]: entry.get("reason") for entry in client.request("/v2/repository/index", {}).json}
        assert index["batch"] == why
    assert front_ends[1].request("/v2/repository/models/batch/load", {}).status == 200
    assert outputs(both(front_ends, 1)[0])["y"] == [2.0]
