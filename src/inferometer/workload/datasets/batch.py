"""Input files of OpenAI's batch API: each line has a whole request. Also perf_analyzer's files with OpenAI payloads.

{"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "m", "messages": [...]}}
{"payload": [{"model": "m", "messages": [...]}]}
"""

from collections.abc import Callable
from typing import Any

from inferometer.apis import OUTPUT_LIMITS
from inferometer.types import Messages, RequestOptions
from inferometer.workload.datasets.conversations import Exchange, Record, user
from inferometer.workload.datasets.rows import Row, kind_of

URLS = {"messages": "/v1/chat/completions", "prompt": "/v1/completions", "input": "/v1/embeddings"}
"""The key of the body that has the prompt, and the URL that it is for."""
_DECIDED_ELSEWHERE = ("model", "stream", "stream_options")
"""Fields that the `server` section decides about."""


def reader(model: str) -> Callable[[list[Row]], list[Record]]:
    """The function that makes a record from a line. It raises ValueError with the reason. `model` is data.model."""
    return lambda rows: [_record(rows[0], model)]


def _record(row: Row, model: str) -> Record:
    body = _body(row)
    key = next((name for name in URLS if name in body), None)
    if key is None:
        raise ValueError(f"its body has no {', '.join(URLS)} (its keys: {', '.join(sorted(body))[:100] or 'none'})")
    method, url = row.get("method", "POST"), row.get("url", URLS[key])
    if method != "POST":
        raise ValueError(f"method must be POST, got {method!r}")
    if not isinstance(url, str):
        raise ValueError(f"url must be a path such as {URLS[key]}, got {kind_of(url)}")
    limit = next((body[name] for name in OUTPUT_LIMITS if isinstance(body.get(name), int)), 0)
    rest = {name: value for name, value in body.items() if name not in _DECIDED_ELSEWHERE and name != key}
    if isinstance(body[key], list) and key != "messages":  # token ids, or several prompts: neither is a text
        rest[key] = body[key]
    options = RequestOptions(model=str(body.get("model", "")) if model == "file" else "", body=rest)
    return Record((Exchange(_messages(key, body[key])),), "prompt", max(limit, 0), options, url)


def _body(row: Row) -> dict[str, Any]:
    body, payloads = row.get("body"), row.get("payload")
    if body is None and isinstance(payloads, list) and payloads:
        body = payloads[0]
    if not isinstance(body, dict):
        keys = ", ".join(sorted(map(str, row)))[:100] or "none"
        raise ValueError(f"body must be an object, got {kind_of(body)} (the keys of the row: {keys})")
    return body


def _messages(key: str, content: Any) -> Messages:
    """The prompt as messages, whose texts are counted."""
    if key == "messages":
        if not isinstance(content, list) or not content or not all(isinstance(entry, dict) for entry in content):
            raise ValueError("body.messages must be a list of objects")
        return content
    if isinstance(content, str):
        return [user(content)]
    if not isinstance(content, list) or not content:
        raise ValueError(f"body.{key} must be a string or a list, got {kind_of(content)}")
    return [user(" ".join(entry for entry in content if isinstance(entry, str)))]
