"""Small KServe v2 servers for tests: a scripted HTTP server, and grpcio's. Both serve the same few models.

pair      A, B INT32 [-1, 4] -> SUM
scores    IMAGE FP32 [-1, 3, 2, 2] -> SCORES FP32 [-1, 3]: the mean of each channel, with labels
many      N INT32 [1] -> N responses (decoupled)
"""

import base64
import contextlib
import json
import threading
from collections.abc import Callable, Collection, Iterator
from concurrent import futures
from typing import Any

import grpc
import numpy as np
from helpers import Client

from inferometer.tensors import Tensor, from_json, from_numpy, to_json, to_numpy
from inferometer.wire import protobuf
from inferometer.wire.kserve import http

LABELS = ("anchor", "barge", "canoe")
MODELS: dict[str, dict[str, Any]] = {
    "pair": {
        "inputs": [("A", "INT32", [-1, 4]), ("B", "INT32", [-1, 4])],
        "outputs": [("SUM", "INT32", [-1, 4])],
        "config": {"max_batch_size": 8},
    },
    "scores": {
        "inputs": [("IMAGE", "FP32", [-1, 3, 2, 2])],
        "outputs": [("SCORES", "FP32", [-1, 3])],
        "config": {
            "max_batch_size": 8,
            "input": [{"name": "IMAGE", "format": "FORMAT_NCHW"}],
            "output": [{"name": "SCORES", "label_filename": "labels.txt"}],
        },
    },
    "many": {
        "inputs": [("N", "INT32", [1])],
        "outputs": [("SQUARE", "INT32", [1])],
        "config": {"model_transaction_policy": {"decoupled": True}},
    },
}
PARAMETERS = {"wait_us": 400, "busy": "2.5"}
TIMING = "queue;dur=0.25, compute;dur=1.5"


def metadata(name: str) -> dict[str, Any]:
    model = MODELS[name]
    return {"name": name, "versions": ["1"], "platform": "test"} | {
        kind: [{"name": one, "datatype": datatype, "shape": shape} for one, datatype, shape in model[kind]]
        for kind in ("inputs", "outputs")
    }


def config(name: str, without: Collection[str] = ()) -> dict[str, Any]:
    fields = {key: value for key, value in MODELS[name]["config"].items() if key not in without}
    return {"name": name} | fields


def outputs_of(name: str, tensors: dict[str, Tensor], best: int = 0) -> list[Tensor]:
    """Return a model's outputs; with `best`, that many classes instead of the scores."""
    arrays = {key: to_numpy(tensor) for key, tensor in tensors.items()}
    if name == "pair":
        return [from_numpy("SUM", arrays["A"] + arrays["B"], "INT32")]
    scores = arrays["IMAGE"].reshape(-1, 3, 4).mean(axis=2)
    if not best:
        return [from_numpy("SCORES", scores, "FP32")]
    order = np.argsort(-scores[0])[:best]
    lines = [f"{scores[0, i]:f}:{i}:{LABELS[i]}".encode() for i in order]
    return [from_numpy("SCORES", np.array([lines], object))]


# --- HTTP ------------------------------------------------------------------------------------------------------------


def over_http(
    classifies: bool = True, statistics: bool = False, timing: bool = False, name: str = "test"
) -> Callable[[Client], None]:
    """Return a script for helpers.scripted. The server called mlserver fails if tensors are binary."""
    inferences, server = [0], name

    def script(client: Client) -> None:
        while request := client.request():
            first, headers, body = request
            if first.startswith("PRI "):  # HTTP/2
                client.send(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
                return
            path = first.split()[1]
            status, more, content = respond(path, headers, body)
            head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(content)}\r\n" + "".join(
                f"{name}: {value}\r\n" for name, value in more.items()
            )
            client.send(head.encode() + b"\r\n" + content)

    def respond(path: str, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        tree: Any
        if path in ("/v2/health/live", "/v2/health/ready") or path.endswith("/ready"):
            return 200, {}, b""
        if path in ("/metrics", "/v1/models"):
            return 404, {}, b""
        if path == "/v2":
            tree = {"name": server, "version": "1", "extensions": ["classification"] if classifies else []}
        elif path == "/v2/repository/index":
            tree = [{"name": name, "state": "READY"} for name in MODELS]
        else:
            _, _, _, name, *rest = path.split("/")
            if name not in MODELS:
                return 404, {}, json.dumps({"error": f"unknown model {name}"}).encode()
            if rest == ["infer"]:
                inferences[0] += 1
                return infer(name, headers, body)
            if rest == ["stats"] and not statistics:
                return 404, {}, b"Not Found"
            spent = {"count": inferences[0], "ns": inferences[0] * 100_000 + 7}
            kinds = ("success", "queue", "compute_input", "compute_infer", "compute_output")
            stats = {"name": name, "version": "1", "inference_stats": dict.fromkeys(kinds, spent)}
            tree = {
                (): lambda: metadata(name),
                ("config",): lambda: config(name),
                ("stats",): lambda: {"model_stats": [stats]},
            }[tuple(rest)]()
        return 200, {}, json.dumps(tree).encode()

    def infer(name: str, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        if server == "mlserver" and http.JSON_LENGTH.lower() in headers:
            return 500, {}, b"Traceback (most recent call last)"
        end = int(headers.get(http.JSON_LENGTH.lower(), len(body)))
        tree, offset, tensors = json.loads(body[:end]), end, {}
        for one in tree["inputs"]:
            about = (one["name"], one["datatype"], tuple(one["shape"]))
            if "data" in one:
                tensors[one["name"]] = from_json(*about, one["data"])
            else:
                size = one["parameters"]["binary_data_size"]
                tensors[one["name"]] = Tensor(*about, body[offset : offset + size])
                offset += size
        if tree.get("parameters", {}).get("fail"):
            return 400, {}, b'{"error": "told to fail"}'
        best = next((one["parameters"].get("classification", 0) for one in tree.get("outputs", ())), 0)
        outputs = outputs_of(name, tensors, best)
        response = {"model_name": name, "model_version": "1", "outputs": [
            {"name": one.name, "datatype": one.datatype, "shape": one.shape, "data": to_json(one)} for one in outputs
        ], "parameters": PARAMETERS}  # fmt: skip
        return 200, {"Server-Timing": TIMING} if timing else {}, json.dumps(response).encode()

    return script


# --- gRPC ------------------------------------------------------------------------------------------------------------

SERVICE = "inference.GRPCInferenceService"


@contextlib.contextmanager
def over_grpc(
    seen: dict[str, Any] | None = None, stream_infer: Callable[[Iterator[Any], Any], Iterator[Any]] | None = None
) -> Iterator[str]:
    """grpcio's server with the same models; `seen` gets the metadata and the deadline of the last inference.

    `stream_infer` replaces ModelStreamInfer; it yields messages as JSON.
    """
    server = grpc.server(futures.ThreadPoolExecutor(4 if stream_infer is None else 128))  # a stream occupies a thread
    schema = protobuf.bundled("kserve")

    def handler(name: str, behave: Callable[[Any, Any], Any], stream: bool = False) -> tuple[str, Any]:
        method = schema.method(f"{SERVICE}/{name}")
        kind = grpc.stream_stream_rpc_method_handler if stream else grpc.unary_unary_rpc_method_handler
        return name, kind(
            behave,
            request_deserializer=method.input.FromString,
            response_serializer=lambda tree: protobuf.encode(method.output, tree),
        )

    def note(context: Any) -> None:
        if seen is not None:
            seen["metadata"] = dict(context.invocation_metadata())
            seen["left"] = context.time_remaining()
        context.set_trailing_metadata((("server-timing", TIMING),))

    def known_model(request: Any, context: Any) -> str:
        if request.name not in MODELS:
            context.abort(grpc.StatusCode.NOT_FOUND, f"unknown model {request.name}")
        return str(request.name)

    def infer(request: Any, context: Any) -> Any:
        note(context)
        if "fail" in request.parameters:
            context.abort(grpc.StatusCode.INTERNAL, "told to fail")
        if "late" in request.parameters:
            context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "too late")
        if "never" in request.parameters:
            wait_for_the_end(context)
        tensors = {
            one.name: Tensor(one.name, one.datatype, tuple(one.shape), raw)
            for one, raw in zip(request.inputs, request.raw_input_contents, strict=True)
        }
        best = next((one.parameters["classification"].int64_param for one in request.outputs), 0)
        return tree_of(request.model_name, outputs_of(request.model_name, tensors, best))

    def stream(requests: Iterator[Any], context: Any) -> Iterator[Any]:
        note(context)
        for request in requests:
            count = int.from_bytes(request.raw_input_contents[0], "little")
            for n in range(count):
                made = from_numpy("SQUARE", np.array([n * n], np.int32))
                yield {"infer_response": tree_of("many", [made])}
            if "fail" in request.parameters:
                yield {"error_message": "told to fail"}
            if "never" in request.parameters:
                wait_for_the_end(context)

    handlers = [
        handler("ServerLive", lambda *_: {"live": True}),
        handler("ServerMetadata", lambda *_: {"name": "test", "extensions": ["classification"]}),
        handler("ModelReady", lambda *_: {"ready": True}),
        handler("ModelMetadata", lambda request, context: metadata(known_model(request, context))),
        handler("ModelConfig", lambda request, _: {"config": config(request.name, {"input"})}),
        handler("RepositoryIndex", lambda *_: {"models": [{"name": name, "state": "READY"} for name in MODELS]}),
        handler("ModelInfer", infer),
        handler("ModelStreamInfer", stream_infer or stream, stream=True),
    ]
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, dict(handlers)),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"grpc://127.0.0.1:{port}"
    finally:
        server.stop(0).wait()


def wait_for_the_end(context: Any) -> None:
    """Wait until the client ends the call."""
    over = threading.Event()
    if context.add_callback(over.set):  # False: the call is over already
        over.wait(30)


def tree_of(model: str, outputs: list[Tensor]) -> dict[str, Any]:
    return {
        "model_name": model,
        "model_version": "1",
        "outputs": [{"name": one.name, "datatype": one.datatype, "shape": one.shape} for one in outputs],
        "parameters": {"wait_us": {"int64_param": 400}, "busy": {"string_param": "2.5"}},
        "raw_output_contents": [base64.b64encode(one.data).decode() for one in outputs],
    }
