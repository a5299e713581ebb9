"""A second opinion: sends requests with the standard library alone, and reads streams without any code of inferometer."""

import http.client
import json
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit


class PlainResponse(NamedTuple):
    text: str
    pieces: list[str]
    """The text of each event that carried some."""
    finish: str
    usage: dict[str, Any]
    events: int
    done: bool
    """Whether [DONE] was received."""
    body: bytes
    """Everything that was received, without the chunked transfer coding."""


def stream_request(url: str, path: str, body: Mapping[str, object]) -> PlainResponse:
    """Send one streamed request on its own connection."""
    raw = post(url, path, {**body, "stream": True, "stream_options": {"include_usage": True}})
    lines = [line.removeprefix("data:").strip() for line in raw.decode().splitlines() if line.startswith("data:")]
    trees = [json.loads(line) for line in lines if line != "[DONE]"]
    choices = [choice for tree in trees for choice in tree["choices"]]
    texts = [(choice.get("delta") or {}).get("content") or choice.get("text") or "" for choice in choices]
    pieces = [text for text in texts if text]
    return PlainResponse(
        text="".join(pieces),
        pieces=pieces,
        finish=next((choice["finish_reason"] for choice in choices if choice.get("finish_reason")), ""),
        usage=next((tree["usage"] for tree in reversed(trees) if tree.get("usage")), {}),
        events=len(trees),
        done="[DONE]" in lines,
        body=raw,
    )


def post(url: str, path: str, body: Mapping[str, object]) -> bytes:
    return _exchange(url, "POST", path, json.dumps(body))


def get(url: str, path: str) -> bytes:
    return _exchange(url, "GET", path, None)


def _exchange(url: str, method: str, path: str, body: str | None) -> bytes:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    connection.request(method, path, body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    content = response.read()
    connection.close()
    assert response.status == 200, content
    return content
