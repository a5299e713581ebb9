"""Event streams to a client that closes its sending side halfway: they are sent to their end."""

import socket
from pathlib import Path

import pytest
from raw_client import RawClient, request
from served import serving

from inferometer.serve.settings import Settings
from inferometer.serve.sim.settings import Fixed, Sim

WORDS = """
backend: "sim" max_batch_size: 0
model_transaction_policy { decoupled: true }
input [{ name: "text_input" data_type: TYPE_STRING dims: [1] }]
output [{ name: "text_output" data_type: TYPE_STRING dims: [1] }]
parameters { key: "answers" value { string_value: "3" } }
parameters { key: "delay" value { string_value: "60ms" } }
"""
REQUESTS = {
    "generate_stream": request("/v2/models/words/generate_stream", {"text_input": "a"}),
    "simulator": request("/v1/completions", {"prompt": "a", "stream": True, "max_tokens": 3}),
}


@pytest.mark.parametrize("what", REQUESTS)
def test_a_stream_is_sent_to_its_end(tmp_path: Path, what: str):
    (tmp_path / "words/1").mkdir(parents=True)
    (tmp_path / "words/config.pbtxt").write_text(WORDS)
    settings = Settings(sim=Sim(timing=Fixed(ttft=0.06, itl=0.06)))
    with serving(settings, tmp_path) as server, RawClient(server.url) as web:
        web.send(REQUESTS[what])
        assert web._more()  # the head, and perhaps an event
        web.sock.shutdown(socket.SHUT_WR)
        response = web.response()
        assert (response.status, response.complete) == (200, True)
        frames = response.body.decode().removesuffix("\n\n").split("\n\n")
        events = [frame for frame in frames if frame != ":"]
        assert all(frame.startswith("data: ") for frame in events)
        assert len(events) >= 3
        assert web.at_end()
        server.until(lambda: not server.listener.connections)
        assert server.models.in_flight == 0
