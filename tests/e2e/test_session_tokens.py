"""`sessions.token_header`: later requests of a session send back the token of its latest response."""

import json
from pathlib import Path
from typing import Any

import pytest
from helpers import Client, http_response, measure, scripted

from inferometer.errors import UserError

TALK = {"type": "conversation", "turns": 4, "input": 6, "output": 5}
LOAD = {"type": "closed", "concurrency": 2, "requests": 2, "ramp_up": 0}


def tokens_of(folder: Path, **more: Any) -> dict[str, list[str | None]]:
    """Return the tokens that each session sent, in order. The server gives a new one with the first and the third response."""
    sent: dict[str, list[str | None]] = {}

    def serve(client: Client) -> None:
        while request := client.request():
            if not request[2]:  # what the client asks before the run
                client.send(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
                continue
            session = sent.setdefault(request[1]["x-session-id"], [])
            session.append(request[1].get("x-gateway-token"))
            assert json.loads(request[2])["messages"]
            number = len(session)
            client.send(http_response(extra=f"x-Gateway-TOKEN: {id(session)}-{number}\r\n" if number % 2 else ""))

    with scripted(serve) as url:
        sessions = {"header": "X-Session-ID", "token_header": "X-Gateway-Token"}
        _, summary = measure(folder, url, data=TALK | more, load=LOAD, sessions=sessions)
    assert summary.counts.ok == 8
    return {
        name: [token and token.removeprefix(f"{id(session)}-") for token in session] for name, session in sent.items()
    }


@pytest.mark.parametrize("history", ["live", "recorded"])
def test_each_session_sends_its_own_latest_token(tmp_path: Path, history: str) -> None:
    assert list(tokens_of(tmp_path, history=history).values()) == [[None, "1", "1", "3"]] * 2


def test_token_header_must_be_a_header_name(tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        measure(tmp_path, "http://127.0.0.1:1", sessions={"token_header": "two words"})
    assert error.value.key == "sessions.token_header"
