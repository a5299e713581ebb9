"""Whatever error a model raises, the client gets a response, and the next request is served."""

import gzip
from collections.abc import Iterator
from typing import Any

import pytest
from raw_client import RawClient
from served import Served, make_repository, serving

from inferometer.serve.json_limits import MOST_VALUES
from inferometer.serve.models.types import Refused, reason

RAISES = """
import numpy as np
from inferometer.serve.models.types import Refused

CONFIG = {
    "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [-1]}],
    "output": [{"name": "Y", "data_type": "TYPE_FP32", "dims": [-1]}],
}


def infer(inputs, parameters):
    if "code" in parameters:
        raise Refused(parameters["code"], "my \\udce9 message")
    if "text" in parameters:
        raise ValueError("schlimm: \\udce9 \\u732b")
    return {"Y": inputs["X"]}
"""
STREAMS = """
import numpy as np
from inferometer.serve.models.types import Refused

CONFIG = {
    "input": [{"name": "text_input", "data_type": "TYPE_STRING", "dims": [1]}],
    "output": [{"name": "text_output", "data_type": "TYPE_STRING", "dims": [1]}],
    "model_transaction_policy": {"decoupled": True},
}


def infer(inputs, parameters):
    count = parameters.get("count", 1)
    while count:
        yield {"text_output": np.array([b"x"], dtype=object)}
        count -= 1
    if "code" in parameters:
        raise Refused(parameters["code"], "x")
    if "text" in parameters:
        raise ValueError("mid \\udce9")
"""
BAD = 'raise ValueError("caf\\udce9")'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = make_repository(tmp_path_factory.mktemp("models"), "echo")
    for name, code in (("raises", RAISES), ("streams", STREAMS), ("bad", BAD)):
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "1/model.py").write_text(code)
    with serving(folder, control=True) as made:
        yield made


@pytest.fixture
def web(server: Served) -> Iterator[RawClient]:
    with RawClient(server.url) as client:
        yield client


def body(**parameters: Any) -> dict[str, Any]:
    return {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1], "data": [1]}], "parameters": parameters}


# --- what a model raises ---------------------------------------------------------------------------------------------


def test_an_unknown_code_is_an_internal_error(web: RawClient):
    response = web.request("/v2/models/raises/infer", body(code="BLAH"))
    assert response.status == 500
    assert response.json == {"error": r"my \udce9 message"}
    assert web.request("/v2/models/raises/infer", body()).status == 200


def test_a_message_that_is_not_valid_utf8_is_escaped(web: RawClient):
    response = web.request("/v2/models/raises/infer", body(text=True))
    assert (response.status, response.json) == (500, {"error": "ValueError: schlimm: \\udce9 猫"})
    response = web.request("/v2/models/raises/infer", body(code="NOT_FOUND"))
    assert (response.status, response.json) == (404, {"error": "my \\udce9 message"})


@pytest.mark.parametrize(("parameter", "message"), [("code", '{"error":"x"}'), ("text", r"mid \\udce9")])
def test_a_stream_ends_after_such_an_error(web: RawClient, parameter: str, message: str):
    response = web.request("/v2/models/streams/generate_stream", {"text_input": "a", parameter: "BLAH"})
    assert (response.status, response.complete, len(response.events)) == (200, True, 2)
    assert message in response.events[1]


@pytest.mark.parametrize("code", ["BLAH", None, ["a"]])
def test_an_error_always_has_a_grpc_code(code: Any):
    assert reason(Refused(code, "x")).code == "INTERNAL"


# --- what a body says ---------------------------------------------------------------------------------------------------


def test_a_number_that_is_too_large_is_the_clients_error(web: RawClient):
    response = web.request("/v2/repository/index", {"ready": 2**64})
    assert (response.status, "Unable to parse the request" in response.json["error"]) == (400, True)
    assert web.request("/v2/repository/index", b" " * (4 << 20) + b"{}").status == 413


def test_a_small_body_that_inflates_to_millions_of_values_is_refused(web: RawClient):
    """Parsed, they would take twenty times as much memory as the text."""
    text = b'{"inputs":[{"name":"X","datatype":"FP32","shape":[1],"data":[%b[]]}]}' % (b"[]," * (MOST_VALUES // 2))
    response = web.request("/v2/models/raises/infer", gzip.compress(text), Content_Encoding="gzip")
    assert response.status == 413
    assert response.json["error"].startswith("the JSON has more than 8000000 values")


# --- generate --------------------------------------------------------------------------------------------------------


def test_generate_ends_at_the_second_response_of_an_endless_model(server: Served, web: RawClient):
    response = web.request("/v2/models/streams/generate", {"text_input": "a", "count": -1})
    assert response.status == 400
    assert "exactly 1 response" in response.json["error"]
    server.until(lambda: server.models.in_flight == 0)
    again = web.request("/v2/models/streams/generate", {"text_input": "a", "count": 1})  # its one instance is free
    assert (again.status, again.json["text_output"]) == (200, "x")
    assert web.request("/v2/models/streams/generate", {"text_input": "a", "count": 0}).status == 400


def test_generate_reports_an_error_after_its_response(web: RawClient):
    response = web.request("/v2/models/streams/generate", {"text_input": "a", "text": True})
    assert (response.status, response.json) == (500, {"error": r"ValueError: mid \udce9"})


# --- loading ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "status", "message"),
    [
        ({"file:1/model.py": "eA=="}, 400, "only 'config' is"),
        ({"other": 1, "config": "{}"}, 400, "load parameter 'other' is not supported"),
        ({"config": 5}, 400, "only 'config' is, as a JSON string"),
        ({"config": [5]}, 400, "Unable to parse the request"),
        ({"other": "1"}, 400, "load parameter 'other' is not supported: only 'config' is"),
    ],
)
def test_a_load_accepts_only_a_configuration(web: RawClient, parameters: dict[str, Any], status: int, message: str):
    response = web.request("/v2/repository/models/echo/load", {"parameters": parameters})
    assert response.status == status
    assert message in response.json["error"]


def test_the_index_includes_reasons_that_are_not_valid_utf8(web: RawClient):
    response = web.request("/v2/repository/index", b"")
    assert response.status == 200
    assert r"caf\udce9" in {entry["name"]: entry.get("reason", "") for entry in response.json}["bad"]
