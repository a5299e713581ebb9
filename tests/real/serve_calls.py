"""The calls that tritonclient makes to Triton and to our server: calls of triton_oracle.py (mode `calls`), by kind."""

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
from triton_server import NUMPY, Job, join_bytes, tensor

HTTP, GRPC = ("http", "http.aio"), ("grpc", "grpc.aio")
CLIENTS = HTTP + GRPC
EDGES: dict[str, list[Any]] = {
    "BOOL": [True, False, True],
    **{f"INT{bits}": [-(2 ** (bits - 1)), -1, 2 ** (bits - 1) - 1] for bits in (8, 16, 32, 64)},
    **{f"UINT{bits}": [0, 1, 2**bits - 1] for bits in (8, 16, 32, 64)},
    "FP16": [-0.5, 0.0, 65504.0],
    "BF16": [0x3F80, 0x0000, 0xC000],
    "FP32": [-1.5, 0.1, 3.4028234663852886e38],
    "FP64": [-0.1, 5e-324, 1.7976931348623157e308],
    "BYTES": [b"la", b"", "猫 \N{EURO SIGN}".encode()],
}


def numbers(name: str, datatype: str, shape: list[int], content: Any) -> Job:
    return tensor(name, datatype, shape, np.array(content, NUMPY[datatype]).tobytes())


def texts(name: str, *elements: bytes) -> Job:
    return tensor(name, "BYTES", [len(elements)], join_bytes(elements))


def edge(datatype: str, name: str) -> Job:
    content = EDGES[datatype]
    return texts(name, *content) if datatype == "BYTES" else numbers(name, datatype, [len(content)], content)


IDENTITY = {"call": "infer", "model": "identity", "inputs": [numbers("INPUT0", "FP32", [3, 5], range(15))]}
PLAIN = {"call": "infer", "model": "no_batch", "inputs": [numbers("INPUT0", "FP32", [4], [1, -2, 0.5, 1e-30])]}
ADD_SUB = {
    "call": "infer",
    "model": "add_sub",
    "inputs": [numbers("INPUT0", "INT32", [1, 16], range(16)), numbers("INPUT1", "INT32", [1, 16], [2] * 16)],
}
IMAGE = np.zeros(2 * 192)
IMAGE[[0, 20, 189, 192 + 40]] = [1, 3, 2, 0.1]
CLASSIFIER = {
    "call": "infer",
    "model": "classifier",
    "inputs": [numbers("IMAGE", "FP32", [2, 3, 8, 8], IMAGE)],
    "outputs": ["SCORES"],
}
LONG = {"call": "infer", "model": "no_batch", "inputs": [numbers("INPUT0", "FP32", [20_000], np.arange(20_000) % 97)]}

Calls = dict[str, Job]


def by(clients: Iterable[str], name: str, **call: Any) -> Calls:
    return {f"{client}: {name}": {"client": client} | call for client in clients}


def inferences() -> Calls:
    made: Calls = {}
    for name, call in (("identity", IDENTITY), ("no_batch", PLAIN), ("add_sub", ADD_SUB), ("classifier", CLASSIFIER)):
        made |= by(CLIENTS, name, **call)
        made |= by(HTTP, f"{name} as JSON", json=True, **call)
    for datatype in EDGES:
        call = {"call": "infer", "model": "all_types", "inputs": [edge(datatype, f"IN_{datatype}")]}
        call["outputs"] = [f"OUT_{datatype}"]
        made |= by(CLIENTS, datatype, **call)
        made |= by(("http",), f"{datatype} as JSON", json=True, **call)
        empty = tensor(f"IN_{datatype}", datatype, [0], b"")
        made |= by(("http", "grpc"), f"{datatype} without elements", **(call | {"inputs": [empty]}))
    every = [edge(datatype, f"IN_{datatype}") for datatype in EDGES]
    made |= by(CLIENTS, "all datatypes in one request", call="infer", model="all_types", inputs=every)
    made |= by(CLIENTS, "one output of two", **(ADD_SUB | {"outputs": ["OUTPUT1"]}))
    made |= by(CLIENTS, "outputs the other way round", **(ADD_SUB | {"outputs": ["OUTPUT1", "OUTPUT0"]}))
    made |= by(CLIENTS, "the best two classes", classes=2, **CLASSIFIER)
    made |= by(CLIENTS, "more classes than there are", classes=50, **CLASSIFIER)
    made |= by(("http",), "the best two classes as JSON", classes=2, json=True, **CLASSIFIER)
    made |= by(("http", "grpc"), "classes without labels", classes=2, **(PLAIN | {"outputs": ["OUTPUT0"]}))
    made |= by(("http", "grpc"), "classes of integers", classes=3, **(ADD_SUB | {"outputs": ["OUTPUT1"]}))
    made |= by(CLIENTS, "a version and an id", **(PLAIN | {"version": "1", "id": "x7 €"}))
    made |= by(CLIENTS, "parameters", **(PLAIN | {"parameters": {"text": "la", "number": 7, "switch": True}}))
    made |= by(CLIENTS, "a priority and a long timeout", **(PLAIN | {"priority": 3, "timeout": 30_000_000}))
    large = [
        numbers("INPUT0", "FP32", [1_200_000], np.arange(1_200_000))
    ]  # beyond the 4 MiB that gRPC accepts by default
    made |= by(("http", "grpc"), "a large tensor", **(PLAIN | {"inputs": large}))
    made |= by(CLIENTS, "at once", **(IDENTITY | {"call": "at_once", "times": 8}))
    return made | compressions() | streams() | shared_memory()


def compressions() -> Calls:
    made: Calls = {}
    for how in ("gzip", "deflate"):
        for kind, call in ((how, LONG), (f"{how} as JSON", LONG | {"json": True})):
            made |= by(HTTP, f"request in {kind}", request_compression=how, **call)
            made |= by(HTTP, f"response in {kind}", response_compression=how, **call)
        made |= by(HTTP, f"both in {how}", request_compression=how, response_compression=how, **LONG)
        made |= by(GRPC, f"compressed with {how}", compression=how, **LONG)
    return made


def job(model: str, name: str, number: int, id: str = "") -> Job:
    return {"model": model, "inputs": [numbers(name, "INT32", [1], [number])], "id": id}


def speak(*words: bytes, **wishes: int) -> Job:
    given = [texts("text_input", b" ".join(words)), *(numbers(k, "INT32", [1], [v]) for k, v in wishes.items())]
    return {"model": "generator", "inputs": given}


def streams() -> Calls:
    made: Calls = {}
    for count in (0, 1, 5, 100):
        made |= by(GRPC, f"{count} responses in a stream", call="stream", requests=[job("square", "N", count, "s")])
    made |= by(GRPC, "one response in a stream", call="stream", requests=[PLAIN | {"id": "one"}])
    made |= by(GRPC, "words in a stream", call="stream", requests=[speak(b"la", b"li", max_tokens=5, delay_ms=1)])
    several = [job("slow", "DELAY_MS", delay, f"{index}") for index, delay in enumerate((20, 1, 5))]
    made |= by(GRPC, "several requests in a stream", call="stream", requests=several)
    fail = speak(b"la", b"li", fail_after=2)
    made |= by(GRPC, "an error after two responses", call="stream", requests=[fail])
    made |= by(GRPC, "an unknown model in a stream", call="stream", requests=[PLAIN | {"model": "nosuch"}])
    wrong = [numbers("INPUT0", "INT32", [1], [1])]
    made |= by(GRPC, "a wrong datatype in a stream", call="stream", requests=[PLAIN | {"inputs": wrong}])
    return made


def shared_memory() -> Calls:
    made = by(CLIENTS, "in shared memory", **(PLAIN | {"call": "shared_memory", "outputs": ["OUTPUT0"]}))
    more = {"call": "shared_memory", "outputs": ["OUTPUT0", "OUTPUT1"]}
    made |= by(CLIENTS, "two inputs and two outputs in shared memory", **(ADD_SUB | more))
    return made | by(
        ("http", "grpc"),
        "room that is too small in shared memory",
        **(PLAIN | {"call": "shared_memory", "outputs": ["OUTPUT0"], "room": 8}),
    )


# --- queries about the server ---------------------------------------------------------------------------------------------


def queries() -> Calls:
    made: Calls = {}
    for method, *words in (
        ("is_server_live",), ("is_server_ready",), ("is_model_ready", "identity"), ("is_model_ready", "identity", "1"),
        ("is_model_ready", "identity", "9"), ("is_model_ready", "nosuch"),
        ("get_model_metadata", "identity"), ("get_model_metadata", "add_sub", "1"), ("get_model_metadata", "classifier"),
        ("get_model_metadata", "all_types"), ("get_model_metadata", "generator"),
        ("get_model_metadata", "nosuch"), ("get_model_metadata", "identity", "9"),
        ("get_model_config", "identity"), ("get_model_config", "classifier"), ("get_model_config", "square"),
        ("get_model_config", "all_types"), ("get_model_config", "nosuch"), ("get_model_config", "identity", "9"),
        ("get_model_repository_index",),
        ("get_inference_statistics", "nosuch"), ("get_inference_statistics", "identity", "9"),
        ("get_system_shared_memory_status",), ("get_system_shared_memory_status", "nosuch"),
        ("unregister_system_shared_memory",), ("unregister_system_shared_memory", "nosuch"),
        ("register_system_shared_memory", "r", "/inferometer-no-such-key", 16),
        ("get_cuda_shared_memory_status",), ("get_cuda_shared_memory_status", "nosuch"),
        ("register_cuda_shared_memory", "c", "AAAA", 0, 16),
        ("unregister_cuda_shared_memory",), ("unregister_cuda_shared_memory", "nosuch"),
        ("load_model", "identity"), ("unload_model", "identity"),
    ):  # fmt: skip
        made |= by(CLIENTS, " ".join([method, *words[:2]] if words else [method]), call=method, words=words)
    return made


# --- what is refused ------------------------------------------------------------------------------------------------------


def refusals() -> Calls:
    made: Calls = {}
    one = [numbers("INPUT0", "FP32", [1], [1])]
    for name, change in {
        "an unknown model": {"model": "nosuch"},
        "an unknown version": {"version": "9"},
        "a wrong datatype": {"inputs": [numbers("INPUT0", "INT32", [1], [1])]},
        "a wrong number of dimensions": {"inputs": [numbers("INPUT0", "FP32", [1, 1], [1])]},
        "a wrong name": {"inputs": [numbers("INPUT7", "FP32", [1], [1])]},
        "an input too many": {"inputs": [*one, numbers("INPUT7", "FP32", [1], [1])]},
        "the same input twice": {"inputs": [*one, *one]},
        "an unknown output": {"outputs": ["OUTPUT7"]},
        "no inputs": {"inputs": []},
        "a decoupled model": {"model": "square", "inputs": [numbers("N", "INT32", [1], [1])]},
        "a region that is not registered": {
            "inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "region": "nosuch", "size": 4}]
        },
        "a wrong length": {"model": "add_sub", "inputs": [numbers("INPUT0", "INT32", [1, 3], [1] * 3)] * 2},
        "a shape that does not fit": ADD_SUB
        | {"inputs": [numbers("INPUT0", "INT32", [1, 3], [1] * 3), ADD_SUB["inputs"][1]]},  # type: ignore[index]
        "a missing input": ADD_SUB | {"inputs": ADD_SUB["inputs"][:1]},  # type: ignore[index]
        "too large a batch": {"model": "identity", "inputs": [numbers("INPUT0", "FP32", [65, 1], [1] * 65)]},
        "batches that differ": ADD_SUB
        | {"inputs": [ADD_SUB["inputs"][0], numbers("INPUT1", "INT32", [2, 16], [1] * 32)]},  # type: ignore[index]
        "an empty batch": {"model": "identity", "inputs": [numbers("INPUT0", "FP32", [0, 4], [])]},
        "a failure with an id": {"model": "failing", "inputs": [texts("INPUT0", b"INTERNAL")], "id": "x"},
        "a wrong datatype with an id": {"inputs": [numbers("INPUT0", "INT32", [1], [1])], "id": "x"},
    }.items():
        made |= by(CLIENTS, name, **(PLAIN | {"inputs": one} | change))
    for code in ("INTERNAL", "NOT_FOUND", "INVALID_ARG", "UNAVAILABLE", "UNSUPPORTED", "ALREADY_EXISTS", "RAISE"):
        call = {"call": "infer", "model": "failing", "inputs": [texts("INPUT0", code.encode())]}
        made |= by(CLIENTS, f"a failure with {code}", **call)
    slow = {"call": "infer", "model": "slow", "inputs": [numbers("DELAY_MS", "INT32", [1], [150])]}
    return made | by(GRPC, "a timeout of the client's", client_timeout=0.02, **slow)


# --- models that come and go ----------------------------------------------------------------------------------------------


def control() -> Calls:
    """Return the calls, in order: each client leaves the models as it found them."""
    coming_and_going: dict[str, Job] = {
        "load what is loaded": {"call": "load_model", "words": ["no_batch"]},
        "infer after a reload": PLAIN,
        "load an unknown model": {"call": "load_model", "words": ["nosuch"]},
        "unload an unknown model": {"call": "unload_model", "words": ["nosuch"]},
        "unload": {"call": "unload_model", "words": ["no_batch"], "options": {"unload_dependents": True}},
        "ready when unloaded": {"call": "is_model_ready", "words": ["no_batch"]},
        "metadata when unloaded": {"call": "get_model_metadata", "words": ["no_batch"]},
        "infer when unloaded": PLAIN,
        "statistics when unloaded": {"call": "get_inference_statistics", "words": ["no_batch"]},
        "infer on another model": IDENTITY,
        "load": {"call": "load_model", "words": ["no_batch"]},
        "ready when loaded": {"call": "is_model_ready", "words": ["no_batch"]},
        "infer when loaded": PLAIN,
        "the index at last": {"call": "get_model_repository_index"},
    }
    other_configurations: dict[str, Job] = {
        "load with a broken configuration": {"call": "load_model", "words": ["no_batch"], "options": {"config": "{"}},
        "infer after a load that failed": PLAIN,
        "load with a configuration": {"call": "load_model", "words": ["identity"], "options": {"config": configured()}},
        "metadata with that configuration": {"call": "get_model_metadata", "words": ["identity"]},
        "a batch beyond that configuration": IDENTITY,
        "unload that configuration": {"call": "unload_model", "words": ["identity"]},
        "load without it": {"call": "load_model", "words": ["identity"]},
        "a batch without that configuration": IDENTITY,
    }
    made: Calls = {}
    for client in CLIENTS:
        steps = coming_and_going | (other_configurations if client in ("http", "grpc") else {})
        for name, call in steps.items():
            made |= by((client,), name, **call)
    return made


def configured() -> str:
    """The configuration of identity, for batches of two."""
    return json.dumps(
        {
            "backend": "python",
            "max_batch_size": 2,
            "input": [{"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [-1]}],
            "output": [{"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [-1]}],
        }
    )
