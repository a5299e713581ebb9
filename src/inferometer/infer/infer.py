"""From the command line's flags to a result: reach the server, send the request, decode the response."""

from collections.abc import Callable

import msgspec

from inferometer.apis import APIS
from inferometer.config.schema import Server
from inferometer.errors import named
from inferometer.infer import embeddings, flags, grpc_method, tensors, text
from inferometer.infer.endpoint import Endpoint, connect
from inferometer.infer.flags import InferFlags
from inferometer.infer.result import Result
from inferometer.infer.text import OnText
from inferometer.probe.scheme import DISCOVERY
from inferometer.types import Fail


class InferOutcome(msgspec.Struct, frozen=True):
    result: Result
    endpoint: Endpoint
    fail: Fail | None = None
    """Why a stream failed after its first responses."""

    @property
    def error(self) -> str:
        return self.endpoint.describe(self.fail) if self.fail is not None else ""

    def raise_for_failure(self) -> None:
        """Raise UserError if the stream failed."""
        with named(flags.NAMES, fallback=flags.HELP):
            self.endpoint.raise_for(self.fail)


def infer(given: InferFlags, on_text: OnText) -> InferOutcome:
    """Make one request; raises UserError if there is no response. `on_text` is called with text as it arrives."""
    with named(flags.NAMES, fallback=flags.HELP):
        if "://" not in given.url:
            given = msgspec.structs.replace(given, url=DISCOVERY.scheme(given.url))
        api = flags.api_of(given)
        if given.api == "auto" and APIS[api].request == "text" and not given.prompt:
            api = DISCOVERY.api(given.url)
        flags.check(given, api)
        server = flags.server_section(given, api)
        timeout = flags.seconds(given.timeout, "--timeout")
        endpoint = connect(msgspec.structs.replace(server, stream=_may_stream(server)), timeout)
        return _REQUESTS[APIS[api].response](endpoint, given, on_text)


def _may_stream(server: Server) -> bool | None:
    """What discovery is to assume: for tensors it is decided when the model is known (tensors.is_streamed)."""
    return True if APIS[server.api].response == "tensors" or server.stream else server.stream


def _request_text(endpoint: Endpoint, given: InferFlags, on_text: OnText) -> InferOutcome:
    return InferOutcome(text.request(endpoint, given.prompt or "", given.max_tokens, on_text), endpoint)


def _request_embeddings(endpoint: Endpoint, given: InferFlags, on_text: OnText) -> InferOutcome:
    return InferOutcome(embeddings.request(endpoint, given.prompt or ""), endpoint)


def _request_tensors(endpoint: Endpoint, given: InferFlags, on_text: OnText) -> InferOutcome:
    assert endpoint.reached.facts is not None
    stream = tensors.is_streamed(given, endpoint.reached.facts, endpoint.peer.target.grpc)
    endpoint = msgspec.structs.replace(endpoint, server=msgspec.structs.replace(endpoint.server, stream=stream))
    result, fail = tensors.request(endpoint, given)
    return InferOutcome(result, endpoint, fail)


def _request_method(endpoint: Endpoint, given: InferFlags, on_text: OnText) -> InferOutcome:
    result, fail = grpc_method.request(endpoint, given.data)
    return InferOutcome(result, endpoint, fail)


_REQUESTS: dict[str, Callable[[Endpoint, InferFlags, OnText], InferOutcome]] = {
    "text": _request_text,
    "embeddings": _request_embeddings,
    "tensors": _request_tensors,
    "messages": _request_method,
}
"""By what the API's responses carry (apis.py)."""
