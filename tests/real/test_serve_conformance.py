"""Our server next to a real Triton: tritonclient makes the same calls to both, and gets the same responses.

The calls are those of serve_calls.py, over all four clients (HTTP and gRPC, in threads and with asyncio), to models with the same
names and configurations (serve_server.py). Responses are compared field by field: outputs bit by bit (in any order), metadata and
configurations, error messages and statuses. ALLOWED lists the differences that may occur, with our value and the reason.
"""

import functools
import http.client
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest
import serve_calls
import trustme
from plain_client import get
from serve_server import repository, settings
from triton_server import Job, Oracle, Triton, running
from waiting import still, until

from inferometer.serve.background import Running, serving
from inferometer.serve.settings import Tls

pytestmark = pytest.mark.triton
pytest_plugins = ["triton_server", "serve_server"]

NOTHING = "(nothing)"


class Allowed(NamedTuple):
    """A difference, and its reason. The first three are patterns that must match completely; values are compared as JSON."""

    call: str
    field: str
    ours: str
    why: str
    always: bool = True


ALLOWED = [
    Allowed(
        r"get_model_config .*", r"result(\.config)?\.optimization", r'"\(nothing\)"',
        "pinned memory is CUDA's; our server has no such setting to report",
    ),
    Allowed(
        r"get_model_config .*", r"result(\.config)?\.default_model_filename", r'""|"\(nothing\)"',
        "the file depends on the backend, and ours finds out by looking",
    ),
    Allowed(
        r"get_model_config identity", r"result(\.config)?\.dynamic_batching\.preferred_batch_size", r'\[\]|"\(nothing\)"',
        "Triton writes the largest batch where nothing is preferred; ours shows what was configured",
    ),
    Allowed(
        r"get_model_repository_index", r"result(\.models)?\[sequence\]", r'"\(nothing\)"',
        "the model `sequence` needs a sequence batcher, which our server has not",
    ),
    Allowed(
        r"register_cuda_shared_memory .*", r"error", r'".* CUDA shared memory is not supported; use system shared memory"',
        "Triton judges the handle first; ours takes none at all, and says what to use",
    ),
    Allowed(
        r"(un)?load_model identity", r"error|status",
        r'"this server lets no client load .*"|"clients may not load .*"|"403"|"StatusCode.PERMISSION_DENIED"',
        "Triton calls it unavailable because of polling, even where nothing is polled; ours says that it is forbidden",
    ),
    Allowed(
        r"a wrong name", r"error", r'"unexpected inference input .INPUT7. for model .no_batch., which has .INPUT0."',
        "Triton's words, and what the model has",
    ),
    Allowed(
        r"an unknown output", r"error", r'"unexpected inference output .OUTPUT7. for model .no_batch., which has .OUTPUT0."',
        "Triton's words, and what the model has",
    ),
    Allowed(
        r"too large a batch|a batch beyond that configuration", r"error",
        r'".* inference request batch-size must be <= (64 for .identity., got 65|2 for .identity., got 3)"',
        "Triton's words, and what was given",
    ),
    Allowed(
        r"an input too many", r"error", r'"unexpected inference input .INPUT7. for model .no_batch., which has .INPUT0."',
        "Triton lists all inputs, and no missing one; ours names the one that is too many",
    ),
    Allowed(
        r"a shape that does not fit", r"error", r'".* for model .add_sub.\. Expected \[-1,16\], got \[1,3\]"',
        "Triton adds a note about max_batch_size",
    ),
    Allowed(
        r"batches that differ", r"error", r'".* input .INPUT1. batch size does not match other inputs for .add_sub.: expected 1, got 2"',
        "ours has the sizes; which of the two inputs is blamed depends on the order in Triton's hash table",
    ),
    Allowed(
        r"an empty batch", r"error", r'".* inference request batch-size must be >= 1 for .identity., got 0"',
        "Triton takes the empty batch for one row and misses its bytes; ours names the batch",
    ),
    Allowed(
        r"a timeout of the client's", r"error", r'".* Request timeout expired"',
        "both ends know the deadline: whoever is first to say so", always=False,
    ),
    Allowed(
        r"a failure with ALREADY_EXISTS", r"status", r'"409"',
        "HTTP has a status of its own for it; Triton has 400 for whatever it has no case for",
    ),
    Allowed(
        r"a failure with RAISE", r"error", r'"ValueError: told to raise"',
        "Triton sends a stack trace with the paths of its host; ours sends the error alone",
    ),
    Allowed(
        r"load with a broken configuration", r"error", r'"failed to load .no_batch., the configuration: .*"',
        "Triton only says that it failed to poll the repository; ours says what is wrong",
    ),
]  # fmt: skip


# --- the same calls -----------------------------------------------------------------------------------------------------

CALLS = serve_calls.inferences() | serve_calls.queries() | serve_calls.refusals()
CONTROL = serve_calls.control()
Responses = dict[str, tuple[Job, Job]]
"""The responses of Triton and of our server, by the name of the call."""
Url = str


@pytest.fixture(scope="module")
def responses(triton: Triton, ours: Running, oracle: Oracle) -> Responses:
    return call_both(oracle, CALLS, (triton.http, triton.grpc), (ours.url, ours.grpc))


@pytest.fixture(scope="module")
def controlled(oracle: Oracle, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Responses]:
    """The responses of servers that allow clients to load models."""
    names = ("identity", "no_batch")
    folder = repository(tmp_path_factory.mktemp("controlled"), *names)
    explicit = ("--model-control-mode=explicit", "--load-model=*")
    with running(names, explicit) as theirs, serving(settings(folder, control=True)) as server:
        yield call_both(oracle, CONTROL, (theirs.http, theirs.grpc), (server.url, server.grpc))


def call_both(oracle: Oracle, calls: serve_calls.Calls, *servers: tuple[Url, Url]) -> Responses:
    sent = list(calls.values())
    theirs, own = (oracle(url, mode="calls", http=url, grpc=grpc, calls=sent)["results"] for url, grpc in servers)
    return dict(zip(calls, zip(theirs, own, strict=True), strict=True))


@pytest.mark.parametrize("name", CALLS)
def test_tritonclient_gets_the_same_responses(responses: Responses, name: str) -> None:
    assert_equal(name, *responses[name])


@pytest.mark.parametrize("name", CONTROL)
def test_models_are_loaded_and_unloaded_in_the_same_way(controlled: Responses, name: str) -> None:
    assert_equal(name, *controlled[name])


def test_responses_over_tls_are_the_same(oracle: Oracle, ours: Running, tmp_path: Path) -> None:
    authority = trustme.CA()
    leaf = authority.issue_cert("localhost", "127.0.0.1")
    files = {"ca": authority.cert_pem, "cert": leaf.cert_chain_pems[0], "key": leaf.private_key_pem}
    for name, pem in files.items():
        pem.write_to_path(tmp_path / name)
    calls = {name: call for name, call in serve_calls.inferences().items() if not call.get("json")}
    tls = Tls(str(tmp_path / "cert"), str(tmp_path / "key"))
    with serving(settings(repository(tmp_path / "models"), tls=tls)) as server:
        ends = ((ours.url, ours.grpc, {}), (server.url, server.grpc, {"ca": str(tmp_path / "ca")}))
        plain, secret = (
            oracle(http, mode="calls", http=http, grpc=grpc, calls=list(calls.values()), **more)["results"]
            for http, grpc, more in ends
        )
    for name, one, other in zip(calls, plain, secret, strict=True):
        assert "broken" not in other, (name, other)
        assert one == other, name


def test_every_allowed_difference_occurs(responses: Responses, controlled: Responses) -> None:
    found = [
        (name.partition(": ")[2], field)
        for name, pair in (responses | controlled).items()
        for field, _, _ in differences(*map(plain, pair))
    ]
    for allowed in ALLOWED:
        is_there = any(re.fullmatch(allowed.call, c) and re.fullmatch(allowed.field, f) for c, f in found)
        assert is_there or not allowed.always, allowed


def assert_equal(name: str, theirs: Job, own: Job) -> None:
    assert "broken" not in theirs and "broken" not in own, (theirs, own)
    wrong = [
        f"{field}: Triton has {a!r}, ours {b!r}"
        for field, a, b in differences(plain(theirs), plain(own))
        if not is_allowed(name.partition(": ")[2], field, b)
    ]
    assert not wrong, "\n".join(wrong)


def is_allowed(call: str, field: str, ours: Any) -> bool:
    text = json.dumps(ours, ensure_ascii=False)
    return any(
        re.fullmatch(each.call, call) and re.fullmatch(each.field, field) and re.fullmatch(each.ours, text)
        for each in ALLOWED
    )


def plain(response: Any) -> Any:
    """Turn lists of named items into dicts, since their order is not guaranteed, and strip messages."""
    if isinstance(response, dict):
        return {key: plain(value) for key, value in response.items()}
    if not isinstance(response, list):
        return response.rstrip(". ") if isinstance(response, str) else response
    if response and all(isinstance(each, dict) and "name" in each for each in response):
        names = [each["name"] for each in response]
        if len(set(names)) == len(names):
            return {f"[{each['name']}]": plain(each) for each in response}
    return [plain(each) for each in response]


def differences(theirs: Any, own: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    if isinstance(theirs, dict) and isinstance(own, dict):
        for key in theirs | own:
            inner = f"{path}{key}" if key.startswith("[") else f"{path}.{key}"
            yield from differences(theirs.get(key, NOTHING), own.get(key, NOTHING), inner)
    elif isinstance(theirs, list) and isinstance(own, list) and len(theirs) == len(own):
        for index, (a, b) in enumerate(zip(theirs, own, strict=True)):
            yield from differences(a, b, f"{path}[{index}]")
    elif theirs != own:
        yield path.removeprefix("."), theirs, own


# --- counts ---------------------------------------------------------------------------------------------------------------

COUNTED = [
    serve_calls.IDENTITY,
    serve_calls.IDENTITY,
    serve_calls.ADD_SUB,
    serve_calls.PLAIN | {"model": "nosuch"},
    serve_calls.PLAIN | {"outputs": ["OUTPUT7"]},
    {"call": "infer", "model": "failing", "inputs": [serve_calls.texts("INPUT0", b"fine")]},
    {"call": "infer", "model": "failing", "inputs": [serve_calls.texts("INPUT0", b"RAISE")]},
]


@pytest.mark.parametrize("client", serve_calls.CLIENTS)
def test_statistics_count_the_same(triton: Triton, ours: Running, oracle: Oracle, client: str) -> None:
    """Except for failed executions: according to Triton's documentation only successful ones count, as in our server, but its
    python backend counts all."""
    models = ("identity", "add_sub", "failing", "no_batch")
    queries = [{"client": client, "call": "get_inference_statistics", "words": [name]} for name in models]
    calls = [{"client": client} | call for call in COUNTED]
    found = []
    for url, grpc in ((triton.http, triton.grpc), (ours.url, ours.grpc)):
        run_calls = functools.partial(oracle, url, mode="calls", http=url, grpc=grpc)
        before = still(functools.partial(run_calls, calls=queries))["results"]
        run_calls(calls=calls)
        until(
            lambda run_calls=run_calls, before=before: ended(before, run_calls(calls=queries)["results"]) >= 5,
            "all are counted",
        )  # type: ignore[misc]
        after = still(functools.partial(run_calls, calls=queries))["results"]
        found.append({name: counted(a, b) for name, a, b in zip(models, before, after, strict=True)})
    for count in found[0]["failing"].keys() & {"executions", "of 1"}:
        assert found[0]["failing"].pop(count) == found[1]["failing"].pop(count) + 1
    assert found[0] == found[1]
    assert found[1]["identity"] == {
        "success": 2,
        "fail": 0,
        "queue": 2,
        "compute_infer": 2,
        "rows": 6,
        "executions": 2,
        "of 3": 2,
    }
    assert found[1]["failing"]["success"] == found[1]["failing"]["fail"] == 1


def ended(before: list[Job], after: list[Job]) -> int:
    """Return the number of requests that succeeded or failed between these two readings, of all models together."""
    changes = [counted(*pair) for pair in zip(before, after, strict=True)]
    return sum(each["success"] + each["fail"] for each in changes)


def counted(before: Job, after: Job) -> dict[str, int]:
    (old,), (new,) = before["result"]["model_stats"], after["result"]["model_stats"]
    times = {key: [int(each["inference_stats"][key].get("count", 0)) for each in (old, new)] for key in ("success", "fail", "queue", "compute_infer")}  # fmt: skip
    times |= {"rows": [int(each.get("inference_count", 0)) for each in (old, new)]}
    times |= {"executions": [int(each.get("execution_count", 0)) for each in (old, new)]}
    for batch in new.get("batch_stats", []):
        past = [b for b in old.get("batch_stats", []) if b["batch_size"] == batch["batch_size"]]
        pair = [int(each["compute_infer"]["count"]) for each in (*past, batch)]
        times[f"of {batch['batch_size']}"] = [0, *pair][-2:]
    return {key: new - old for key, (old, new) in times.items() if new - old or not key.startswith("of")}


def test_statistics_have_the_same_fields_as_tritons(triton: Triton, ours: Running) -> None:
    theirs, own = (
        json.loads(get(url, "/v2/models/identity/stats"))["model_stats"][0] for url in (triton.http, ours.url)
    )
    assert theirs.keys() - {"response_stats"} <= own.keys()
    assert theirs["inference_stats"].keys() == own["inference_stats"].keys()


def test_the_server_reports_its_own_name_and_only_extensions_that_triton_has(triton: Triton, ours: Running) -> None:
    theirs, own = (json.loads(get(url, "/v2")) for url in (triton.http, ours.url))
    assert (theirs["name"], own["name"]) == ("triton", "inferometer")
    assert own.keys() == theirs.keys()
    assert set(own["extensions"]) <= {extension.partition("(")[0] for extension in theirs["extensions"]}
    assert {"binary_tensor_data", "statistics", "system_shared_memory"} <= set(own["extensions"])


def test_metrics_have_tritons_names_and_labels(triton: Triton, ours: Running) -> None:
    theirs, own = (
        set(re.findall(r'(?m)^(nv_inference_\w+)\{(?:[^}]*,)?model="identity"', get(url, "/metrics").decode()))
        for url in (triton.metrics, ours.metrics)
    )
    assert "nv_inference_request_success" in theirs and "nv_inference_queue_duration_us" in theirs
    assert theirs <= own


# --- without a client of Triton's: plain HTTP -------------------------------------------------------------------------------

ONE = {"name": "INPUT0", "datatype": "FP32", "shape": [2], "data": [1, 2]}
INFER, GENERATE = "/v2/models/no_batch/infer", "/v2/models/generator/generate"
SAME_TO_THE_LETTER: dict[str, tuple[str, str, Any]] = {
    "generate": ("POST", GENERATE, {"text_input": "la", "max_tokens": 1}),
    "generate with an id": ("POST", GENERATE, {"id": "x", "text_input": "la", "max_tokens": 1}),
    "generate with parameters": ("POST", GENERATE, {"text_input": "la", "parameters": {"max_tokens": 1}}),
    "generate with an unknown key": ("POST", GENERATE, {"text_input": "la", "max_tokens": 1, "beam": 3}),
    "generate on a model of numbers": ("POST", "/v2/models/no_batch/generate", {"INPUT0": [1, 2.5]}),
    "generate on an unknown model": ("POST", "/v2/models/nosuch/generate", {"text_input": "la"}),
    "generate_stream": ("POST", f"{GENERATE}_stream", {"text_input": "la €", "max_tokens": 3}),
    "generate_stream of nothing": ("POST", f"{GENERATE}_stream", {"text_input": "la", "max_tokens": 0}),
    "generate_stream that fails late": ("POST", f"{GENERATE}_stream", {"text_input": "la", "fail_after": 2}),
    "JSON": ("POST", INFER, {"inputs": [ONE]}),
    "JSON with an id": ("POST", INFER, {"id": "x", "inputs": [ONE]}),
    "JSON, nested": ("POST", "/v2/models/identity/infer", {"inputs": [ONE | {"shape": [2, 2], "data": [[1, 2], [3, 4]]}]}),
    "JSON with small floats": ("POST", INFER, {"inputs": [ONE | {"data": [0.1, 1e-7]}]}),
    "JSON with large floats": ("POST", INFER, {"inputs": [ONE | {"data": [1e30, 123456789]}]}),
    "JSON with NaN and Infinity": ("POST", INFER, {"inputs": [ONE | {"data": [float("nan"), float("inf")]}]}),
    "no data": ("POST", INFER, {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [2]}]}),
    "a wrong method": ("GET", INFER, ""),
    "nothing there": ("GET", "/v2/nothing", ""),
    "a version that is not ready": ("GET", "/v2/models/identity/versions/9/ready", ""),
    "metadata": ("GET", "/v2/models/identity", ""),
}  # fmt: skip
BETTER: dict[str, tuple[tuple[str, str, Any], int, int, str]] = {
    "generate of nothing": (("POST", GENERATE, {"text_input": "la", "max_tokens": 0}), 200, 400, "an error is no success"),
    "generate of several": (("POST", GENERATE, {"text_input": "la", "max_tokens": 2}), 200, 400, "an error is no success"),
    "generate that fails": (("POST", GENERATE, {"text_input": "la", "fail_after": 0}), 400, 500, "the model's fault"),
    "generate_stream that fails": (("POST", f"{GENERATE}_stream", {"text_input": "la", "fail_after": 0}), 400, 500, "the model's fault"),
    "too few elements": (("POST", INFER, {"inputs": [ONE | {"data": [1]}]}), 500, 400, "the request's fault"),
    "text for numbers": (("POST", INFER, {"inputs": [ONE | {"data": ["a", "b"]}]}), 500, 400, "the request's fault"),
    "a negative shape": (("POST", INFER, {"inputs": [ONE | {"shape": [-2]}]}), 500, 400, "the request's fault"),
    "no inputs": (("POST", INFER, {}), 500, 400, "the request's fault"),
    "not JSON": (("POST", INFER, "{"), 500, 400, "the request's fault"),
}  # fmt: skip
"""Triton's status, ours, and the reason."""


def exchange(url: str, method: str, path: str, body: Any) -> tuple[int, str]:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
    try:
        text = body if isinstance(body, str) else json.dumps(body)
        connection.request(method, path, text, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


@pytest.mark.parametrize("words", SAME_TO_THE_LETTER.values(), ids=SAME_TO_THE_LETTER)
def test_http_responses_are_identical(triton: Triton, ours: Running, words: tuple[str, str, Any]) -> None:
    assert exchange(ours.url, *words) == exchange(triton.http, *words)


@pytest.mark.parametrize("path", ["/v2/health/live", "/v2/health/ready", "/v2/models/identity/versions/1/ready"])
def test_health_has_the_body_that_kserve_specifies_and_triton_leaves_out(
    triton: Triton, ours: Running, path: str
) -> None:
    assert exchange(triton.http, "GET", path, "") == (200, "")
    status, body = exchange(ours.url, "GET", path, "")
    assert status == 200 and json.loads(body)[path.rpartition("/")[2]] is True


@pytest.mark.parametrize(("words", "theirs", "own", "why"), BETTER.values(), ids=BETTER)
def test_statuses_that_are_better_than_tritons(
    triton: Triton, ours: Running, words: tuple[str, str, Any], theirs: int, own: int, why: str
) -> None:
    from_triton, from_ours = exchange(triton.http, *words), exchange(ours.url, *words)
    assert (from_triton[0], from_ours[0]) == (theirs, own), why
    assert '"error":"' in from_triton[1] and '"error":"' in from_ours[1]
