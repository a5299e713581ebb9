"""What happens before t=0: names, limits, TLS, keys, and what there is to ask. What is wrong here is a UserError."""

import json
import os
import ssl
from pathlib import Path

import msgspec

from inferometer import __version__
from inferometer.config.schema import TLS, Server
from inferometer.config.secret import hidden, words
from inferometer.errors import GIVE_KEY, KEY_WANTED, UserError
from inferometer.probe import kserve, query, roundtrip
from inferometer.probe.kserve import ModelFacts
from inferometer.probe.roundtrip import Address, Peer
from inferometer.wire import protobuf, reflection
from inferometer.wire.failures import meaning
from inferometer.wire.http1 import error_message, request_head
from inferometer.wire.target import Target, parse


class Reached(msgspec.Struct, frozen=True):
    """The server, found: ready to be measured."""

    targets: tuple[Target, ...]
    addresses: tuple[Address, ...]
    model: str
    secrets: dict[str, str]
    """Headers that no file may hold."""
    facts: ModelFacts | None = None
    """KServe: what the model takes and gives."""
    descriptors: bytes = b""
    """`api: grpc`: the descriptor set that has the method."""


def reach(server: Server, patience: float | None = None) -> Reached:
    """Resolve each URL, connect to it once, and find out what there is to ask.

    `patience` is for each read of an answer, in seconds (0: no limit); None: as long as connecting may take.
    """
    secrets = _secrets(server)
    with hidden(words(server, secrets)):
        return _reach(server, secrets, patience)


def _reach(server: Server, secrets: dict[str, str], patience: float | None) -> Reached:
    targets = tuple(parse(url) for url in server.urls)
    is_wanted = any(target.tls for target in targets) or server.tls != TLS()  # and not else: it takes 40 ms
    context = tls_context(server) if is_wanted else None
    places = [place_of(target, server, context, patience) for target in targets]
    addresses = []
    for place in places:
        sock, address = roundtrip.connect(place)
        sock.close()
        addresses.append(address)
    model, facts, descriptors = server.model or "", None, b""
    headers = request_headers(targets[0], server, secrets)
    if server.api == "grpc":
        descriptors = _descriptors(places[0], server, headers)
    elif server.api in ("chat", "completions"):
        model = model or _first_model(places[0], headers)
    else:
        facts = kserve.discover(places[0], headers, server)
        model = facts.metadata.name
        for place in places[1:]:
            kserve.discover(place, headers, msgspec.structs.replace(server, model=model))
    return Reached(targets, tuple(addresses), model, secrets, facts, descriptors)


def place_of(target: Target, server: Server, context: ssl.SSLContext | None, patience: float | None = None) -> Peer:
    connect = float(server.timeouts.connect)
    return Peer(target, context if target.tls else None, connect, connect if patience is None else patience)


def warming_request(target: Target, server: Server, secrets: dict[str, str]) -> bytes:
    """What warms a connection: something cheap is asked for, and the answer is not looked at."""
    path = "/v1/models" if server.api in ("chat", "completions") else "/v2/health/live"
    return (
        request_head("GET", target.prefix + path, target.authority, request_headers(target, server, secrets)) + b"\r\n"
    )


def request_headers(target: Target, server: Server, secrets: dict[str, str]) -> dict[str, str]:
    credentials = {"Authorization": target.credentials} if target.credentials else {}
    return {"User-Agent": f"inferometer/{__version__}"} | credentials | server.headers | secrets


def _secrets(server: Server) -> dict[str, str]:
    if server.api_key_env:
        key = os.environ.get(server.api_key_env, "")
        if not key.strip():
            raise UserError(
                f"server.api_key_env: the variable {server.api_key_env} is not set", "export it, or drop the setting"
            )
    elif server.api_key_file:
        try:
            key = Path(server.api_key_file).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not a text file"
            raise UserError(
                f"server.api_key_file: {server.api_key_file}: {reason}", "give a file that holds the key alone"
            ) from None
    else:
        return {}
    key = key.strip()
    if not key.isprintable() or not key.isascii() or not key:
        raise UserError(
            "the API key holds characters that cannot stand in a header", "check the variable or file it comes from"
        )
    return {"Authorization": f"Bearer {key}"}


def tls_context(server: Server) -> ssl.SSLContext:
    """For https and grpcs: the system's CAs or one's own, a client certificate, or no check at all."""
    tls = server.tls
    try:
        context = ssl.create_default_context(cafile=tls.ca)
    except (OSError, ssl.SSLError):
        raise UserError(
            f"server.tls.ca: {tls.ca} is no readable PEM file of certificates", "give the CA's PEM file"
        ) from None
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if tls.key and not tls.cert:
        raise UserError("server.tls.key: the certificate that it belongs to is missing", "give it: server.tls.cert")
    if tls.cert:
        try:
            context.load_cert_chain(tls.cert, tls.key)
        except (OSError, ssl.SSLError) as error:
            reason = error.strerror or (error.reason if isinstance(error, ssl.SSLError) else "")
            raise UserError(
                f"server.tls.cert: {tls.cert} and its key cannot be loaded: {reason}",
                "give PEM files of a certificate and of the key that belongs to it",
            ) from None
    context.set_alpn_protocols(["h2"] if server.urls[0].startswith("grpc") else ["http/1.1"])
    return context


def _first_model(place: Peer, headers: dict[str, str]) -> str:
    target = place.target
    path = target.prefix + "/v1/models"
    name_it = "or name the model: server.model, or --model on the command line"
    answer = query.http(place, "GET", "/v1/models", headers)
    body = answer.body
    if answer.status in (401, 403):
        raise UserError(f"{target.url}: GET {path}: {answer.status}, the server wants a key", GIVE_KEY)
    if answer.status != 200:
        is_path_wrong = answer.status == 404 and target.prefix  # else the server may have models and not list them
        raise UserError(
            f"{target.url}: GET {path}: status {answer.status}: {error_message(body)}",
            f"check the URL's path{'' if is_path_wrong else f', {name_it}'}; for a tensor server --set server.api=kserve",
        )
    try:
        models = [entry["id"] for entry in json.loads(body)["data"]]
    except (ValueError, KeyError, TypeError):
        kind = "a web page" if body.lstrip()[:1] == b"<" else "something that is not OpenAI's JSON"
        raise UserError(
            f"{target.url}: GET {path}: answers {kind}", f"check that the URL is an OpenAI-style endpoint, {name_it}"
        ) from None
    if not models:
        raise UserError(f"{target.url}: GET {path}: lists no model", "load one into the server")
    return str(models[0])


def _descriptors(place: Peer, server: Server, headers: dict[str, str]) -> bytes:
    """The descriptor set that has the method: compiled, read, or asked of the server."""
    if server.proto:
        path = Path(server.proto).expanduser()
        descriptors = protobuf.compile(path) if path.suffix == ".proto" else _read(path)
        called = f"server.proto: {path}"
    else:
        descriptors, called = _reflected(place, server, headers), "what the server describes itself with"
    protobuf.load(descriptors, called=called).method(server.method or "")
    return descriptors


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"server.proto: {path}: {error.strerror}", "give a .proto file or a descriptor set") from None


def _reflected(place: Peer, server: Server, headers: dict[str, str]) -> bytes:
    conversation = reflection.describe(server.method or "")
    question = next(conversation)
    while True:
        reply = query.grpc(place, question.path, [question.message], headers)
        if reply.fail is not None and reply.fail.code != "grpc_UNIMPLEMENTED":
            raise UserError(
                f"{place.target.url}: reflection: {reply.fail.message or meaning(reply.fail.code)}",
                GIVE_KEY if reply.fail.code in KEY_WANTED else "name the .proto file (server.proto)",
            )
        try:
            question = conversation.send(reply.pieces[0][1] if reply.pieces else None)
        except StopIteration as end:
            return bytes(end.value)
