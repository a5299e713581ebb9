"""From the command line's options to a result: reach the server, ask it, tell what came."""

import msgspec

from inferometer.config.schema import LLM_APIS, TENSOR_APIS
from inferometer.errors import UserError
from inferometer.infer import endpoint, flags, grpc_method, tensors, text
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
    if api in LLM_APIS:
        asked = endpoint.connect(server, timeout)
        return InferOutcome(text.ask(asked, given.prompt or "", given.max_tokens, hear), asked)
    if api not in TENSOR_APIS:
        asked = endpoint.connect(server, timeout)
        result, fail = grpc_method.ask(asked, given.data)
        return InferOutcome(result, asked, fail)
    asked = endpoint.connect(msgspec.structs.replace(server, stream=True), timeout)  # that it may: is_streamed says
    assert asked.reached.facts is not None
    stream = tensors.is_streamed(given, asked.reached.facts, asked.place.target.grpc)
    asked = msgspec.structs.replace(asked, server=msgspec.structs.replace(server, stream=stream))
    result, fail = tensors.ask(asked, given)
    return InferOutcome(result, asked, fail)
