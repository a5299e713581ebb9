"""Finding out what a port speaks, for URLs without a scheme such as `localhost:8001`, and whether it is a tensor server."""

import contextlib

from inferometer.apis import DEFAULT_APIS, scheme_of
from inferometer.config.load import Discovery
from inferometer.errors import UserError
from inferometer.probe import kserve, openai, query
from inferometer.probe.connect import Peer
from inferometer.probe.roundtrip import OtherProtocol
from inferometer.wire.context import USER_AGENT
from inferometer.wire.target import parse

_TIMEOUT_S = 5.0
_HTTP_PATH = "/v1/models"  # cheap on a model server, and a 404 is a response too
_GRPC_PATH = "/grpc.health.v1.Health/Check"


def with_scheme(url: str) -> str:
    """Complete a URL without a scheme with http:// or grpc://, whichever the server speaks.

    HTTP/1.1 is tried first: gRPC servers respond to it with HTTP/2 settings or close, while a port that speaks both is more likely
    to be meant for HTTP. Raises UserError if the server cannot be reached.
    """
    try:
        query.http(_peer(f"http://{url}"), "GET", _HTTP_PATH, USER_AGENT)
    except OtherProtocol:
        return f"grpc://{url}"
    except UserError as error:
        if _speaks_grpc(url):
            return f"grpc://{url}"
        error.remedy = error.remedy or "write the scheme: http://HOST:PORT or grpc://HOST:PORT"
        raise
    return f"http://{url}"


def api_of(url: str) -> str:
    """The API of a server: over HTTP, KServe v2 if it has the metadata of that, and lists no model of OpenAI's APIs. Errors are left to the
    next query."""
    is_kserve = False
    with contextlib.suppress(UserError):
        is_kserve = url.startswith("http://") and bool(kserve.server_metadata(_peer(url), USER_AGENT).name)
        is_kserve = is_kserve and not openai.listed(_peer(url), USER_AGENT)
    return "kserve" if is_kserve else DEFAULT_APIS[scheme_of(url)]


DISCOVERY = Discovery(with_scheme, api_of)


def _speaks_grpc(url: str) -> bool:
    with contextlib.suppress(UserError):
        query.grpc(_peer(f"grpc://{url}"), _GRPC_PATH, [b""], USER_AGENT)
        return True
    return False


def _peer(url: str) -> Peer:
    return Peer(parse(url), None, _TIMEOUT_S, _TIMEOUT_S)
