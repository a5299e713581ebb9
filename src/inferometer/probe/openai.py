"""Finding the model of an OpenAI-style server: the first one that /v1/models lists."""

import json

from inferometer.errors import GIVE_KEY, UserError
from inferometer.probe import query
from inferometer.probe.roundtrip import Peer
from inferometer.wire.http1 import error_message

_PATH = "/v1/models"


def first_model(peer: Peer, headers: dict[str, str]) -> str:
    """The name of the first model that the server lists; raises UserError if there is none."""
    target = peer.target
    path = target.prefix + _PATH
    name_it = "or name the model: server.model, or --model on the command line"
    reply = query.http(peer, "GET", _PATH, headers)
    if reply.status in (401, 403):
        raise UserError(f"{target.url}: GET {path}: {reply.status}, the server wants a key", GIVE_KEY)
    if reply.status != 200:
        is_path_wrong = reply.status == 404 and target.prefix  # else the server may have models and not list them
        raise UserError(
            f"{target.url}: GET {path}: status {reply.status}: {error_message(reply.body)}",
            f"check the URL's path{'' if is_path_wrong else f', {name_it}'}; for a tensor server --set server.api=kserve",
        )
    try:
        models = [entry["id"] for entry in json.loads(reply.body)["data"]]
    except (ValueError, KeyError, TypeError):
        kind = "a web page" if reply.body.lstrip()[:1] == b"<" else "something that is not OpenAI's JSON"
        raise UserError(
            f"{target.url}: GET {path}: answers {kind}", f"check that the URL is an OpenAI-style endpoint, {name_it}"
        ) from None
    if not models:
        raise UserError(f"{target.url}: GET {path}: lists no model", "load one into the server")
    return str(models[0])
