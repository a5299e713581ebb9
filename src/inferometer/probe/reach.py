"""What happens before t=0: resolve names, check TLS and keys, find the model. Raises UserError if the server cannot be measured."""

import os
import ssl
from collections.abc import Callable
from pathlib import Path

import msgspec

from inferometer import tls
from inferometer.apis import APIS
from inferometer.config.schema import TLS, Server
from inferometer.config.secret import hidden, words
from inferometer.errors import UserError
from inferometer.probe import kserve, openai
from inferometer.probe.connect import Address, Peer, connect, first_address
from inferometer.probe.kserve import ModelFacts
from inferometer.wire.context import USER_AGENT, CallContext
from inferometer.wire.http1 import request_head
from inferometer.wire.target import Target, parse


class Reached(msgspec.Struct, frozen=True):
    """A server that was found and is ready to be measured."""

    targets: tuple[Target, ...]
    addresses: tuple[Address, ...]
    model: str
    secrets: dict[str, str]
    """Headers that must not be stored."""
    facts: ModelFacts | None = None
    """KServe: the model's inputs, outputs and configuration."""
    descriptors: bytes = b""
    """`api: grpc`: the descriptor set that defines the method."""
    context: int = 0
    """Tokens that prompt and response may have together, if the server listed it when the model was looked for; 0: not known."""


class _Found(msgspec.Struct, frozen=True):
    """What discovery found: the fields of Reached that depend on the API."""

    model: str = ""
    facts: ModelFacts | None = None
    descriptors: bytes = b""
    context: int = 0


def reach(server: Server, read_timeout: float | None = None) -> Reached:
    """Resolve each URL, connect to it once, and find the model or the method.

    `read_timeout` applies to each read of a response, in seconds (0: no limit); None: as long as connecting may take.
    """
    secrets = secret_headers(server)
    with hidden(words(server, secrets)):
        return _reach(server, secrets, read_timeout)


def assume(server: Server) -> Reached:
    """A server that could not be reached, and that is measured all the same: each request shows whether it can be. `server.model` must be
    known."""
    targets = tuple(parse(url) for url in server.urls)
    addresses = tuple(first_address(target) for target in targets)
    return Reached(targets, addresses, server.model or "", secret_headers(server))


def _reach(server: Server, secrets: dict[str, str], read_timeout: float | None) -> Reached:
    targets = tuple(parse(url) for url in server.urls)
    needs_tls = (
        any(target.tls for target in targets) or server.tls != TLS()
    )  # not otherwise: loading the CAs takes 40 ms
    context = tls_context(server) if needs_tls else None
    peers = [peer_of(target, server, context, read_timeout) for target in targets]
    addresses = []
    for peer in peers:
        sock, address = connect(peer)
        sock.close()
        addresses.append(address)
    headers = request_headers(targets[0], server, secrets)
    found = _DISCOVERY[APIS[server.api].discovery](peers, headers, server)
    return Reached(targets, tuple(addresses), found.model, secrets, found.facts, found.descriptors, found.context)


# --- discovery -------------------------------------------------------------------------------------------------------


def _discover_openai(peers: list[Peer], headers: dict[str, str], server: Server) -> _Found:
    if server.model:
        return _Found(server.model)  # the server need not list its models
    model = openai.first_model(peers[0], headers)
    return _Found(model.name, context=model.context)


def _discover_kserve(peers: list[Peer], headers: dict[str, str], server: Server) -> _Found:
    facts = kserve.discover(peers[0], headers, server)
    model = facts.metadata.name
    for peer in peers[1:]:
        kserve.discover(peer, headers, msgspec.structs.replace(server, model=model))
    return _Found(model, facts)


def _discover_method(peers: list[Peer], headers: dict[str, str], server: Server) -> _Found:
    from inferometer.probe import reflect  # noqa: PLC0415 - it needs protobuf, which takes long to import

    return _Found(server.model or "", descriptors=reflect.descriptors(peers[0], headers, server))


_DISCOVERY: dict[str, Callable[[list[Peer], dict[str, str], Server], _Found]] = {
    "openai": _discover_openai,
    "kserve": _discover_kserve,
    "reflection": _discover_method,
}
"""By the API's `discovery` (apis.py)."""


JSON_ONLY = ("mlserver",)
"""Names of servers that read tensors over HTTP as JSON only, and fail if they are binary."""


def suited(server: Server, reached: Reached) -> Server:
    """The settings for this server."""
    needs_json = reached.facts is not None and reached.facts.server.name in JSON_ONLY
    is_binary = server.api == "kserve" and not reached.targets[0].grpc
    return msgspec.structs.replace(server, api="kserve-json") if needs_json and is_binary else server


# --- what requests need ----------------------------------------------------------------------------------------------


def call_context(server: Server, reached: Reached, tag: str) -> CallContext:
    """The settings that encoders need; every request's X-Request-Id is made from `tag`."""
    return CallContext(
        api=server.api,
        model=reached.model,
        targets=reached.targets,
        tag=tag,
        headers=_own_headers(server) | reached.secrets,
        stream=bool(server.stream),
        persistent=server.stream == "persistent",
        decoupled=reached.facts is not None and reached.facts.config is not None and reached.facts.config.decoupled,
        body=server.body,
        usage=server.usage,
        ignore_eos=server.ignore_eos,
        max_tokens_field=server.max_tokens_field,
        version=server.version or "",
        timing={part: name for part, name in msgspec.structs.asdict(server.timing).items() if name},
        parameters=server.parameters,
        outputs=tuple(server.outputs),
        compression=server.compression,
        deadline=float(server.deadline),
        method=server.method or "",
        descriptors=reached.descriptors,
    )


def context_of(server: Server, reached: Reached) -> int:
    """The model's context in tokens, by the server's list of models; 0: not known."""
    if reached.context or APIS[server.api].discovery != "openai":
        return reached.context
    peers, headers = peers_of(server, reached)
    with hidden(words(server, reached.secrets)):
        return openai.context_of(peers[0], headers, reached.model)


def peers_of(server: Server, reached: "Reached") -> tuple[list[Peer], dict[str, str]]:
    """Return a peer for each URL of a server that was reached, and the headers of requests to them."""
    context = tls_context(server) if reached.targets[0].tls else None
    peers = [peer_of(target, server, context) for target in reached.targets]
    return peers, request_headers(reached.targets[0], server, reached.secrets)


def peer_of(target: Target, server: Server, context: ssl.SSLContext | None, read_timeout: float | None = None) -> Peer:
    connect = float(server.timeouts.connect)
    return Peer(target, context if target.tls else None, connect, connect if read_timeout is None else read_timeout)


def request_headers(target: Target, server: Server, secrets: dict[str, str]) -> dict[str, str]:
    # accept-encoding is for the load
    credentials = {"Authorization": target.credentials} if target.credentials else {}
    headers = USER_AGENT | credentials | _own_headers(server) | secrets
    return {name: value for name, value in headers.items() if name.lower() != "accept-encoding"}


def _own_headers(server: Server) -> dict[str, str]:
    """The headers of the config, and those that the API needs unless the config has them."""
    given = {name.lower() for name in server.headers}
    return {name: value for name, value in APIS[server.api].headers if name not in given} | server.headers


def warming_request(target: Target, server: Server, secrets: dict[str, str]) -> bytes:
    """A cheap request that warms up a connection; its response is ignored."""
    path = target.prefix + APIS[server.api].warm_path
    return request_head("GET", path, target.authority, request_headers(target, server, secrets)) + b"\r\n"


def secret_headers(server: Server) -> dict[str, str]:
    """The API key's header, if there is a key."""
    key = secret_from(server.api_key_env, server.api_key_file, "API key", "server.api_key")
    return key_header(server.api, key) if key else {}


def key_header(api: str, key: str) -> dict[str, str]:
    """The header that carries the API key."""
    header = APIS[api].key_header
    return {header: f"Bearer {key}" if header == "Authorization" else key}


def secret_from(variable: str | None, file: str | None, what: str, setting: str) -> str:
    """Read a secret from an environment variable or else a file; "" if neither is set. `what` is what messages call it; the settings are
    `setting` with `_env` and with `_file`."""
    if variable:
        value, key = os.environ.get(variable, ""), f"{setting}_env"
        if not value.strip():
            raise UserError(f"the variable {variable} is not set", "export it, or drop the setting", key)
    elif file:
        value, key = _read_secret(file, what, f"{setting}_file"), f"{setting}_file"
    else:
        return ""
    value = value.strip()
    if not value.isprintable() or not value.isascii() or not value:
        problem = "has characters that are not allowed in a header" if value else "is empty"
        raise UserError(f"the {what} {problem}", "check the variable or file it comes from", key)
    return value


def _read_secret(file: str, what: str, key: str) -> str:
    try:
        return Path(file).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise UserError(f"{file}: {reason}", f"give a file that holds the {what} alone", key) from None


def tls_context(server: Server) -> ssl.SSLContext:
    """The TLS settings for https and grpcs."""
    return tls.context(tls_settings(server))


def tls_settings(server: Server) -> tls.TlsSettings:
    own = server.tls
    return tls.TlsSettings(own.verify, own.ca, own.cert, own.key, is_http2=parse(server.urls[0]).grpc)
