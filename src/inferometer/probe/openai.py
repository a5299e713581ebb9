"""Finding the model of an OpenAI-style server: the first one that /v1/models lists."""

import json

from inferometer.errors import GIVE_KEY, UserError
from inferometer.probe import query
from inferometer.probe.connect import Peer
from inferometer.wire.http1 import error_message

_PATH = "/v1/models"
_NAME_IT = "name the model with {server.model}, if the server does not list its models"
_CHECK_URL = "check the path of {server.url}; for a tensor server use {server.api} kserve"


def first_model(peer: Peer, headers: dict[str, str]) -> str:
    """The name of the first model that the server lists; raises UserError if there is none."""
    target = peer.target
    path = target.prefix + _PATH
    reply = query.http(peer, "GET", _PATH, headers)
    if reply.status in (401, 403):
        raise UserError(f"{target.url}: GET {path}: status {reply.status}: the server requires an API key", GIVE_KEY)
    if reply.status != 200:
        is_path_wrong = reply.status == 404 and target.prefix  # otherwise the server may not list its models
        raise UserError(
            f"{target.url}: GET {path}: status {reply.status}: {error_message(reply.body)}",
            _CHECK_URL if is_path_wrong else f"{_NAME_IT}; or {_CHECK_URL}",
        )
    try:
        models = [entry["id"] for entry in json.loads(reply.body)["data"]]
    except (ValueError, KeyError, TypeError):
        kind = "a web page" if reply.body.lstrip()[:1] == b"<" else "something that is not OpenAI's JSON"
        raise UserError(f"{target.url}: GET {path}: the response is {kind}", f"{_CHECK_URL}; or {_NAME_IT}") from None
    if not models:
        raise UserError(
            f"{target.url}: GET {path}: the server does not list any model", f"load one into the server, or {_NAME_IT}"
        )
    return str(models[0])
