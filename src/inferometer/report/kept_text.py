"""Excerpts of the texts that a run has kept (`keep: text`)."""

import json
from typing import Any

from inferometer.printable import printable
from inferometer.records import Body
from inferometer.report import formatting

LENGTH = 200
"""Characters of an excerpt."""


def excerpts(body: Body, length: int = LENGTH) -> dict[str, str]:
    """The start of what a request asked and of what the server generated, each on one line."""
    response = body.response
    shown = {"request": formatting.one_line(prompt(body.request), length)}
    if response is None:
        return shown | {"response": "(no text arrived)"}
    ending = f" (finish reason: {body.finish_reason})" if body.finish_reason else ""
    return shown | {"response": formatting.one_line(response, length) + printable(ending)}


def prompt(request: str) -> str:
    """The prompt of a request body, or its last message; the body itself if it has neither."""
    try:
        tree = json.loads(request)
    except ValueError:
        return request
    if not isinstance(tree, dict):
        return request
    messages = tree.get("messages")
    if isinstance(messages, list) and messages and isinstance(messages[-1], dict):
        return _text(messages[-1].get("content"))
    given = next((tree[key] for key in ("prompt", "text_input", "input") if key in tree), None)
    return request if given is None else _text(given)


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(
        isinstance(part, dict) and isinstance(part.get("text"), str) for part in content
    ):
        return " ".join(part["text"] for part in content)
    return json.dumps(content, ensure_ascii=False)
