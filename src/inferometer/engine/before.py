"""What happens before t=0: names, limits, TLS, keys, and which model there is. What is wrong here is a UserError."""

import http.client
import json
import math
import os
import socket
import ssl
from pathlib import Path

import msgspec

from inferometer import __version__
from inferometer.config.schema import TLS, Server
from inferometer.config.secret import hide, words
from inferometer.engine.tls import tls_reason
from inferometer.errors import UserError
from inferometer.units import format_seconds
from inferometer.wire.failures import bounded
from inferometer.wire.http1 import error_message, request_head
from inferometer.wire.target import Target, parse

Address = tuple[int, tuple[object, ...]]

_SPARE_FILES = 64
"""Descriptors that a process needs besides its connections."""


class Reached(msgspec.Struct, frozen=True):
    """The server, found: ready to be measured."""

    targets: tuple[Target, ...]
    addresses: tuple[Address, ...]
    model: str
    secrets: dict[str, str]
    """Headers that no file may hold."""


def reach(server: Server) -> Reached:
    """Resolve each URL, connect to it once, and find the model if none is named."""
    secrets = _secrets(server)
    context = tls_context(server.tls)
    targets = tuple(parse(url) for url in server.urls)
    addresses = []
    model = server.model or ""
    for target in targets:
        sock, address = _connect(target, context, server)
        with sock:
            addresses.append(address)
            model = model or _first_model(target, sock, server, secrets)
    return Reached(targets, tuple(addresses), model, secrets)


def warming_request(target: Target, server: Server, secrets: dict[str, str]) -> bytes:
    """What warms a connection: the models are asked for, and the answer is not looked at."""
    return (
        request_head("GET", target.prefix + "/v1/models", target.authority, _headers(target, server, secrets)) + b"\r\n"
    )


def _headers(target: Target, server: Server, secrets: dict[str, str]) -> dict[str, str]:
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


def tls_context(tls: TLS) -> ssl.SSLContext:
    """For https: the system's CAs or one's own, a client certificate, or no check at all."""
    try:
        context = ssl.create_default_context(cafile=tls.ca)
    except (OSError, ssl.SSLError):
        raise UserError(
            f"server.tls.ca: {tls.ca} is no readable PEM file of certificates", "give the CA's PEM file"
        ) from None
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if tls.cert:
        try:
            context.load_cert_chain(tls.cert, tls.key)
        except (OSError, ssl.SSLError) as error:
            raise UserError(
                f"server.tls.cert: {tls.cert} and its key cannot be loaded: {error.strerror or error.reason if isinstance(error, ssl.SSLError) else error.strerror}",
                "give PEM files of a certificate and of the key that belongs to it",
            ) from None
    context.set_alpn_protocols(["http/1.1"])
    return context


def _connect(target: Target, context: ssl.SSLContext, server: Server) -> tuple[socket.socket, Address]:
    """The first of the name's addresses that takes a connection."""
    try:
        found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError):
        raise UserError(
            f"{target.url}: the name {target.host} does not resolve", "check the host in server.url"
        ) from None
    timeout = float(server.timeouts.connect) or None
    problem: OSError = OSError("no address")
    for family, kind, protocol, _, address in found:
        sock = socket.socket(family, kind, protocol)
        sock.settimeout(timeout)
        try:
            sock.connect(address)
        except OSError as error:
            sock.close()
            problem = error
        else:
            return _encrypted(target, sock, context) if target.tls else sock, (int(family), tuple(address))
    raise _unreachable(target, problem, timeout) from None


def _encrypted(target: Target, sock: socket.socket, context: ssl.SSLContext) -> socket.socket:
    try:
        return context.wrap_socket(sock, server_hostname=target.host)
    except OSError as error:
        sock.close()
        if isinstance(error, ssl.SSLCertVerificationError):
            remedy = "set server.tls.ca to the CA's PEM file, or server.tls.verify to false"
            raise UserError(f"{target.url}: {tls_reason(error)}", remedy) from None
        reason = (
            tls_reason(error)
            if isinstance(error, ssl.SSLError)
            else "no answer"
            if isinstance(error, TimeoutError)
            else str(error)
        )
        raise UserError(
            f"{target.url}: no TLS there: {reason}", "check the port, or write http:// instead of https://"
        ) from None


def _unreachable(target: Target, error: OSError, timeout: float | None) -> UserError:
    if isinstance(error, ConnectionRefusedError):
        return UserError(f"{target.url}: connection refused", "start the server, or check host and port")
    if isinstance(error, TimeoutError):
        waited = format_seconds(timeout) if timeout else "the system's limit"
        return UserError(
            f"{target.url}: no connection within {waited}", "check host and port, or raise server.timeouts.connect"
        )
    return UserError(f"{target.url}: {error.strerror or error}", "check host and port")


def _first_model(target: Target, sock: socket.socket, server: Server, secrets: dict[str, str]) -> str:
    path = target.prefix + "/v1/models"
    connection = http.client.HTTPConnection(target.host, target.port)
    connection.sock = sock
    name_it = "or name the model: server.model, or --model on the command line"
    try:
        connection.request("GET", path, headers={"Host": target.authority} | _headers(target, server, secrets))
        answer = connection.getresponse()
        body = answer.read(1 << 20)
    except (OSError, http.client.HTTPException) as error:
        reason = "no answer" if isinstance(error, TimeoutError) else bounded(str(error)) or type(error).__name__
        raise UserError(
            f"{target.url}: GET {path}: {reason}", f"check that an OpenAI-style HTTP server is there, {name_it}"
        ) from None
    if answer.status in (401, 403):
        raise UserError(
            f"{target.url}: GET {path}: {answer.status}, the server wants a key",
            "set server.api_key_env or server.api_key_file",
        )
    if answer.status != 200:
        raise UserError(
            f"{target.url}: GET {path}: status {answer.status}: {hide(error_message(body), words(server, secrets))}",
            f"check the URL's path, {name_it}",
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


def raise_file_limit(connections: int) -> None:
    """Have as many descriptors as the system allows, and say so before t=0 where that is not enough."""
    try:
        import resource  # noqa: PLC0415
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):  # macOS says unlimited and means less
            soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft not in (resource.RLIM_INFINITY, -1) and connections + _SPARE_FILES > soft:
        processes = math.ceil(connections / max(soft - _SPARE_FILES, 1))
        raise UserError(
            f"{connections} connections need more open files than the limit of {soft} (RLIMIT_NOFILE)",
            f"raise it (ulimit -Hn, limits.conf), set client.processes to {processes}, or lower the concurrency",
        )
