"""The server and model that a request is sent to, and the errors of responses that failed."""

import re

import msgspec

from inferometer.config.schema import Server
from inferometer.config.secret import words
from inferometer.errors import UserError
from inferometer.printable import hide
from inferometer.probe import reach, refusal
from inferometer.probe.connect import Peer
from inferometer.probe.reach import Reached
from inferometer.probe.roundtrip import or_with_tls
from inferometer.types import Fail
from inferometer.wire.context import CallContext
from inferometer.wire.failures import meaning

_TAG = "infer"


class Endpoint(msgspec.Struct, frozen=True):
    server: Server
    reached: Reached
    peer: Peer
    secrets: tuple[str, ...]
    """What must not be shown."""

    @property
    def headers(self) -> dict[str, str]:
        """Headers of queries about the model."""
        return reach.request_headers(self.peer.target, self.server, self.reached.secrets)

    @property
    def context(self) -> CallContext:
        """The settings that encoders need."""
        return reach.call_context(self.server, self.reached, _TAG)

    @property
    def text_peer(self) -> Peer:
        """The peer for requests whose response is a text, which is much shorter than tensors may be."""
        return msgspec.structs.replace(self.peer, max_size=16 << 20)

    def describe(self, fail: Fail) -> str:
        """The server's message without secrets, or the meaning of the failure if there is no message."""
        return hide(fail.message, self.secrets) or meaning(fail.code)

    def raise_for(self, fail: Fail | None) -> None:
        """Raise UserError if the response is a failure."""
        if fail is None:
            return
        code = f" ({fail.code[5:]})" if fail.code.startswith(("http_", "grpc_")) else ""
        target = self.peer.target
        shared = refusal.remedy(fail.code, fail.message, self.server, self.reached, self.reached.model)
        remedy = _STREAM if "decoupled" in fail.message else shared or _remedy(fail)
        raise UserError(
            f"{target.url}: {_SUMMARIES.get(fail.code, 'the server responded')}: {self.describe(fail)}{code}",
            or_with_tls(remedy, target) if fail.code == "closed" else remedy,
        )


def connect(server: Server, timeout: float) -> Endpoint:
    """Find the server and its model; `timeout` applies to each read; 0 means no timeout."""
    reached = reach.reach(server, timeout)
    server = reach.suited(server, reached)
    target = reached.targets[0]
    context = reach.tls_context(server) if target.tls else None
    peer = reach.peer_of(target, server, context, timeout)
    return Endpoint(server, reached, peer, words(server, reached.secrets))


_SUMMARIES = {
    "closed": "no response",
    "cut_short": "incomplete response",
    "truncated": "incomplete response",
    "total_timeout": "incomplete response",
    "malformed_http": "the response is not HTTP/1.1",
    "not_grpc": "the response is not gRPC",
    "not_json": "the response is not JSON",
    "grpc_DEADLINE_EXCEEDED": "no response in time",
    "stream_reset": "the server reset the call",
}


_STREAM = "stream the responses over gRPC: a grpc:// URL, with {server.stream}"


def _remedy(fail: Fail) -> str:
    if fail.code == "grpc_DEADLINE_EXCEEDED":
        return "raise {server.deadline}, or find out why the server is slow"
    if fail.code == "total_timeout":
        return "check that the server ends its responses, or raise {server.timeouts.connect}"
    if fail.code == "not_streamed":
        return "use --no-stream"
    if fail.code in ("grpc_UNIMPLEMENTED", "not_grpc", "malformed_http", "closed", "not_json"):
        return "check the URL, and that the server speaks the protocol of {server.api}"
    if re.fullmatch(r"http_4\d\d|grpc_(INVALID_ARGUMENT|NOT_FOUND|OUT_OF_RANGE|FAILED_PRECONDITION)", fail.code):
        return "correct the request as the server's message says"
    return "check the server's log"
