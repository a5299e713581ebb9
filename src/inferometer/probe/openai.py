"""Finding the model of an OpenAI-style server: the first one that /v1/models lists."""

import json
from typing import NamedTuple

from inferometer.errors import UserError, key_remedy
from inferometer.probe import query
from inferometer.probe.connect import Peer
from inferometer.wire import failures
from inferometer.wire.http1 import error_message

_PATH = "/v1/models"
_NAME_IT = "name the model with {server.model}, if the server does not list its models"
_CHECK_URL = "check the path of {server.url}; for a tensor server use {server.api=kserve}"
_NOT_A_SERVER = f"this is a web page, not an LLM server: {_CHECK_URL}; or {_NAME_IT}"


class ListedModel(NamedTuple):
    name: str
    context: int = 0
    """Tokens that prompt and response may have together, if the server says so (`max_model_len`); 0: not known."""


def first_model(peer: Peer, headers: dict[str, str]) -> ListedModel:
    """The first model that the server lists; raises UserError if there is none."""
    models = listed(peer, headers)
    if not models:
        raise UserError(
            f"{peer.target.url}: GET {peer.target.prefix + _PATH}: the server does not list any model",
            f"load one into the server, or {_NAME_IT}",
        )
    return models[0]


def context_of(peer: Peer, headers: dict[str, str], name: str) -> int:
    """The context of the model of this name; 0 if the server does not list it."""
    try:
        return next((model.context for model in listed(peer, headers) if model.name == name), 0)
    except UserError:
        return 0


def listed(peer: Peer, headers: dict[str, str]) -> list[ListedModel]:
    """The models that the server lists; raises UserError if it has no such list."""
    target = peer.target
    path = target.prefix + _PATH
    reply = query.http(peer, "GET", _PATH, headers)
    if reply.status in (401, 403):
        what = f"{target.url}: GET {path}: status {reply.status}: the server requires an API key"
        raise UserError(what, key_remedy(headers))
    message = error_message(reply.body)
    is_page = failures.is_page(f"http_{reply.status}", message)
    if reply.status != 200:
        is_path_wrong = reply.status == 404 and target.prefix  # otherwise the server may not list its models
        raise UserError(
            f"{target.url}: GET {path}: status {reply.status}: {message or reply.headers.get('location', '')}",
            _NOT_A_SERVER if is_page else _CHECK_URL if is_path_wrong else f"{_NAME_IT}; or {_CHECK_URL}",
        )
    try:
        return [ListedModel(str(entry["id"]), _context(entry)) for entry in json.loads(reply.body)["data"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        kind = message if is_page else "something that is not OpenAI's JSON"
        remedy = _NOT_A_SERVER if is_page else f"{_CHECK_URL}; or {_NAME_IT}"
        raise UserError(f"{target.url}: GET {path}: the response is {kind}", remedy) from None


def _context(entry: dict[str, object]) -> int:
    limit = entry.get("max_model_len")
    return limit if isinstance(limit, int) and limit > 0 else 0
