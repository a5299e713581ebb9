"""The server's own tokenizer, over its /tokenize endpoint: vLLM's and SGLang's, or llama.cpp's."""

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from inferometer.config.schema import Server
from inferometer.config.secret import hidden, words
from inferometer.errors import UserError
from inferometer.probe import query
from inferometer.probe.connect import Peer
from inferometer.probe.reach import Reached, peers_of
from inferometer.wire.http1 import error_message

_PATH = "/tokenize"
_AT_A_TIME = 8
_REMEDY = "give the model's own tokenizer: a folder with a tokenizer.json, or its name on the hub"

BODIES: dict[str, Callable[[str, str], dict[str, object]]] = {
    "vLLM, SGLang": lambda model, text: {"model": model, "prompt": text, "add_special_tokens": False},
    "llama.cpp": lambda model, text: {"content": text, "add_special": False},
}
"""What each server takes, by model and text. All of them respond with the ids as `tokens`."""


def connect(server: Server, reached: Reached) -> Callable[[Sequence[str]], list[list[int]]]:
    """Return a function that encodes texts on the server. Raises UserError when the server has no such endpoint."""
    with hidden(words(server, reached.secrets)):
        peers, headers = peers_of(server, reached)
        peer, headers = peers[0], {**headers, "Content-Type": "application/json"}
        failure = ""
        for body in BODIES.values():
            ids, failure = _ids(peer, headers, body(reached.model, "a word"))
            if ids:
                return partial(_encode, peer, headers, partial(body, reached.model))
    raise UserError(
        f"{peer.target.url}: POST {_PATH}: {failure or 'the response has no tokens'}: the server does not offer its tokenizer",
        _REMEDY,
        key="data.tokenizer",
    )


def _encode(
    peer: Peer, headers: dict[str, str], body: Callable[[str], dict[str, object]], texts: Sequence[str]
) -> list[list[int]]:
    def encode(text: str) -> list[int]:
        ids, failure = _ids(peer, headers, body(text))
        if ids is None:
            raise UserError(f"{peer.target.url}: POST {_PATH}: {failure}", _REMEDY, key="data.tokenizer")
        return ids

    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        return list(pool.map(encode, texts))


def _ids(peer: Peer, headers: dict[str, str], body: dict[str, object]) -> tuple[list[int] | None, str]:
    """The ids of a text, or why there are none."""
    reply = query.http(peer, "POST", _PATH, headers, json.dumps(body).encode())
    if reply.status != 200:
        return None, f"status {reply.status}: {error_message(reply.body)}"
    try:
        return [int(id) for id in json.loads(reply.body)["tokens"]], ""
    except (ValueError, KeyError, TypeError, RecursionError):
        return None, "the response has no list of tokens"
