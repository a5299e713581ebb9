"""From the command line's options to a result: reach the server, ask it, tell what came."""

from collections.abc import Callable

import msgspec

from inferometer.apis import APIS
from inferometer.config.schema import Server
from inferometer.errors import UserError
from inferometer.infer import embeddings, endpoint, flags, grpc_method, tensors, text
from inferometer.infer.endpoint import Endpoint
from inferometer.infer.flags import InferFlags
from inferometer.infer.result import Result
from inferometer.infer.text import Hear
from inferometer.types import Fail


class InferOutcome(msgspec.Struct, frozen=True):
    result: Result
    whom: Endpoint
    fail: Fail | None = None
    """Why a stream failed that had begun with answers."""

    @property
    def error(self) -> str:
        return self.whom.words_of(self.fail) if self.fail is not None else ""


def infer(given: InferFlags, hear: Hear) -> InferOutcome:
    """One request; UserError where there is no answer. `hear` is told a text as it comes."""
    try:
        return _infer(given, hear)
    except UserError as error:
        raise flags.spoken(error) from None


def _infer(given: InferFlags, hear: Hear) -> InferOutcome:
    api = flags.api_of(given)
    flags.check(given, api)
    server = flags.server_section(given, api)
    timeout = flags.seconds(given.timeout, "--timeout")
    asked = endpoint.connect(msgspec.structs.replace(server, stream=_may_stream(server)), timeout)
    return _ASK[APIS[api].response](asked, given, hear)


def _may_stream(server: Server) -> bool | None:
    """What discovery is told: of tensors it is decided when the model is known (tensors.is_streamed)."""
    return True if APIS[server.api].response == "tensors" else server.stream


def _ask_text(asked: Endpoint, given: InferFlags, hear: Hear) -> InferOutcome:
    return InferOutcome(text.ask(asked, given.prompt or "", given.max_tokens, hear), asked)


def _ask_embeddings(asked: Endpoint, given: InferFlags, hear: Hear) -> InferOutcome:
    return InferOutcome(embeddings.request(asked, given.prompt or ""), asked)


def _ask_method(asked: Endpoint, given: InferFlags, hear: Hear) -> InferOutcome:
    result, fail = grpc_method.ask(asked, given.data)
    return InferOutcome(result, asked, fail)


def _ask_tensors(asked: Endpoint, given: InferFlags, hear: Hear) -> InferOutcome:
    assert asked.reached.facts is not None
    stream = tensors.is_streamed(given, asked.reached.facts, asked.peer.target.grpc)
    asked = msgspec.structs.replace(asked, server=msgspec.structs.replace(asked.server, stream=stream))
    result, fail = tensors.ask(asked, given)
    return InferOutcome(result, asked, fail)


_ASK: dict[str, Callable[[Endpoint, InferFlags, Hear], InferOutcome]] = {
    "text": _ask_text,
    "embeddings": _ask_embeddings,
    "tensors": _ask_tensors,
    "messages": _ask_method,
}
"""By what the API's responses carry."""
