"""Whom to ask: the server as it was found, and what becomes of its failures."""

import re

import msgspec

from inferometer.config.schema import Server
from inferometer.config.secret import hide, words
from inferometer.errors import KEY_WANTED, UserError
from inferometer.probe import reach
from inferometer.probe.reach import Reached
from inferometer.probe.roundtrip import Peer, or_with_tls
from inferometer.types import Fail
from inferometer.wire.context import CallContext
from inferometer.wire.failures import meaning

_TAG = "infer"


class Endpoint(msgspec.Struct, frozen=True):
    server: Server
    reached: Reached
    peer: Peer
    headers: dict[str, str]
    hidden: tuple[str, ...]
    """What no screen may show."""

    @property
    def context(self) -> CallContext:
        """The settings of the request to encode."""
        return reach.call_context(self.server, self.reached, _TAG)

    def words_of(self, fail: Fail) -> str:
        """What the server says, without what it must not repeat."""
        return hide(fail.message, self.hidden) or meaning(fail.code)

    def raise_for(self, fail: Fail | None) -> None:
        """A failed answer as one line and a remedy."""
        if fail is None:
            return
        said = self.words_of(fail)
        code = f" ({fail.code[5:]})" if fail.code.startswith(("http_", "grpc_")) else ""
        target, remedy = self.peer.target, _remedy(fail)
        raise UserError(
            f"{target.url}: {_WHO.get(fail.code, 'the server answers')}: {said}{code}",
            or_with_tls(remedy, target) if fail.code == "closed" else remedy,
        )


def connect(server: Server, timeout: float) -> Endpoint:
    """Find the server and its model; `timeout`: for each read, 0 is none."""
    reached = reach.reach(server, timeout)
    target = reached.targets[0]
    context = reach.tls_context(server) if target.tls else None
    peer = reach.peer_of(target, server, context, timeout)
    headers = reach.request_headers(target, server, reached.secrets)
    return Endpoint(server, reached, peer, headers, words(server, reached.secrets))


_WHO = {
    "closed": "no answer",
    "cut_short": "no whole answer",
    "truncated": "no whole answer",
    "malformed_http": "that is no HTTP/1.1",
    "not_grpc": "that is no gRPC",
    "not_json": "no JSON, but",
    "grpc_DEADLINE_EXCEEDED": "not answered in time",
    "stream_reset": "the server gave the call up",
}


def _remedy(fail: Fail) -> str:
    if fail.code in KEY_WANTED:
        return "give the key: --api-key-env VARIABLE, or --header 'Authorization: ...'"
    if fail.code == "grpc_DEADLINE_EXCEEDED":
        return "raise --deadline, or see why the server is slow"
    if fail.code == "not_streamed":
        return "ask with --no-stream"
    if fail.code in ("http_404", "grpc_UNIMPLEMENTED", "not_grpc", "malformed_http", "closed", "not_json"):
        return "check the URL, and --api: is it what the server speaks?"
    if re.fullmatch(r"http_4\d\d|grpc_(INVALID_ARGUMENT|NOT_FOUND|OUT_OF_RANGE|FAILED_PRECONDITION)", fail.code):
        return "mend the request as the server says"
    return "look at the server's log"
