"""Anthropic's own Python client against the simulator's /v1/messages."""

import json
import subprocess
from typing import Any

import pytest
from needs import INSTALLED

from inferometer.serve.background import running
from inferometer.serve.settings import simulator
from inferometer.serve.sim.settings import Fixed
from inferometer.workload.tokenizer import load

pytestmark = pytest.mark.anthropic_client

N_IN = load(None).count("Be brief") + load(None).count("The fox")
SCRIPT = """
import json, sys
from anthropic import Anthropic, BadRequestError, NotFoundError

client = Anthropic(base_url=sys.argv[1], api_key="any", max_retries=0)
prompt = {"model": "sim", "max_tokens": 5, "system": "Be brief", "messages": [{"role": "user", "content": "The fox"}]}
whole = client.messages.create(**prompt)
with client.messages.stream(**prompt) as stream:
    texts = list(stream.text_stream)
    streamed = stream.get_final_message()
errors = []
for change in ({"model": "other"}, {"max_tokens": 0}):
    try:
        client.messages.create(**(prompt | change))
    except (BadRequestError, NotFoundError) as error:
        errors.append([type(error).__name__, error.body["error"]["type"]])
print(json.dumps({"whole": whole.model_dump(), "streamed": streamed.model_dump(), "texts": texts, "errors": errors}))
"""


@pytest.fixture(scope="module")
def seen() -> Any:
    with running(simulator(timing=Fixed(ttft=0, itl=0))) as url:
        command = [INSTALLED / "anthropic/bin/python", "-c", SCRIPT, url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_whole_message_and_a_streamed_one_are_read(seen: Any) -> None:
    for message in (seen["whole"], seen["streamed"]):
        (block,) = message["content"]
        assert len(block["text"].split()) == 5
        assert (message["role"], message["stop_reason"], message["model"]) == ("assistant", "max_tokens", "sim")
        assert (message["usage"]["input_tokens"], message["usage"]["output_tokens"]) == (N_IN, 5)
    assert len(seen["texts"]) == 5


def test_errors_are_those_of_the_client(seen: Any) -> None:
    assert seen["errors"] == [["NotFoundError", "not_found_error"], ["BadRequestError", "invalid_request_error"]]
