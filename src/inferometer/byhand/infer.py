"""From the command line's options to a result: reach the server, ask it, tell what came."""

import msgspec

from inferometer.byhand import method, options, tensors, text, whom
from inferometer.byhand.options import Options
from inferometer.byhand.result import Result
from inferometer.byhand.text import Hear
from inferometer.byhand.whom import Whom
from inferometer.config.schema import LLM_APIS, TENSOR_APIS
from inferometer.errors import UserError
from inferometer.types import Fail


class Outcome(msgspec.Struct, frozen=True):
    result: Result
    whom: Whom
    fail: Fail | None = None
    """Why a stream failed that had begun with answers."""

    @property
    def error(self) -> str:
        return self.whom.words_of(self.fail) if self.fail is not None else ""


def infer(given: Options, hear: Hear) -> Outcome:
    """One request; UserError where there is no answer. `hear` is told a text as it comes."""
    try:
        return _infer(given, hear)
    except UserError as error:
        raise options.spoken(error) from None


def _infer(given: Options, hear: Hear) -> Outcome:
    api = options.api_of(given)
    options.check(given, api)
    server = options.server_section(given, api)
    timeout = options.seconds(given.timeout, "--timeout")
    if api in LLM_APIS:
        asked = whom.reach(server, timeout)
        return Outcome(text.ask(asked, given.prompt or "", given.max_tokens, hear), asked)
    if api not in TENSOR_APIS:
        asked = whom.reach(server, timeout)
        result, fail = method.ask(asked, given.data)
        return Outcome(result, asked, fail)
    asked = whom.reach(msgspec.structs.replace(server, stream=True), timeout)  # that it may: is_streamed says
    assert asked.reached.facts is not None
    stream = tensors.is_streamed(given, asked.reached.facts, asked.place.target.grpc)
    asked = msgspec.structs.replace(asked, server=msgspec.structs.replace(server, stream=stream))
    result, fail = tensors.ask(asked, given)
    return Outcome(result, asked, fail)
