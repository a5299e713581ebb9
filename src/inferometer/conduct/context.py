"""Whether prompts and responses fit into the model's context: a run of nothing but errors is not worth its time."""

import msgspec

from inferometer import workload
from inferometer.apis import APIS, Api
from inferometer.config.data import Data, Mix, TrafficClass
from inferometer.config.schema import Config
from inferometer.errors import UserError
from inferometer.probe import reach
from inferometer.types import Request, Turn
from inferometer.workload import mix

_UNKNOWN = 4096
"""Requests that are looked at if it is not known how many will be sent."""


class _Size(msgspec.Struct, frozen=True):
    """The tokens of a turn."""

    n_in: int
    n_out: int
    turn: int

    @property
    def total(self) -> int:
        return self.n_in + self.n_out


def check_context(config: Config, reached: reach.Reached, requests: int | None) -> None:
    """Raise UserError when the longest of the requests exceeds the context that the server reports.

    Prompts that come from a file are not checked unless their tokens were counted by the model's own tokenizer.
    """
    if APIS[config.server.api].request != "text":
        return
    count = requests or _UNKNOWN
    if not isinstance(config.data, Mix):
        _check(config, reached, config.data, config.seed, count)
        return
    weights = sum(class_.weight for class_ in config.data.classes)
    for index, class_ in enumerate(config.data.classes):
        share = max(round(count * class_.weight / weights), 1)
        with mix.class_named(index, class_):
            _check(config, _reached_by(class_, reached), class_.data, mix.seed_of(class_, config.seed), share)


def _reached_by(class_: TrafficClass, reached: reach.Reached) -> reach.Reached:
    """The server as a class sees it, which may name another model."""
    if class_.model in (None, reached.model):
        return reached
    return msgspec.structs.replace(reached, model=class_.model, context=0)


def _check(config: Config, reached: reach.Reached, data: Data, seed: int, count: int) -> None:
    counts = workload.tokenizer_of(data) is not None
    if not (counts or workload.has_given_lengths(data)):
        return
    context = reach.context_of(config.server, reached)
    if not context:
        return

    api, is_truncated = APIS[config.server.api], bool(config.sessions.context)
    request = workload.longest(data, seed, count, lambda each: _largest(each, api, is_truncated).total)
    size = _largest(request, api, is_truncated)
    if size.total > context:
        raise _too_long(data, request, size, f"the context of the model {reached.model} has only {context:,}", counts)


def _largest(request: Request, api: Api, is_truncated: bool) -> _Size:
    """The largest turn, if each response has all the tokens that are requested. `is_truncated`: earlier turns are dropped when
    they would not fit, so that only a prompt that starts afresh may be too long."""
    requested = api.response == "text"
    n_in, n_out = request.n_in, request.n_out if requested else 0
    largest = _Size(n_in, n_out, 0)
    for number, turn in enumerate(request.later, 1):
        n_in = turn.n_in if turn.payload is not None else n_in + turn.n_in + _history(turn, n_out)
        n_out = turn.n_out if requested else 0
        size = _Size(n_in, n_out, number)
        if size.total > largest.total and not (is_truncated and turn.payload is None):
            largest = size
    return largest


def _history(turn: Turn, n_out: int) -> int:
    """Tokens of the response to the turn before: a recorded one, or a live one as long as requested."""
    return n_out if turn.response is None else turn.n_response


def _too_long(data: Data, request: Request, size: _Size, limit: str, is_counted: bool) -> UserError:
    prompt = f"turn {size.turn + 1} of session {request.id}" if size.turn else f"prompt {request.id}"
    more = f" and requests {size.n_out:,} more" if size.n_out else ""
    has_input = hasattr(data, "input")
    remedy = "lower {data.input} or {data.output}" if has_input else "use shorter prompts or responses"
    if size.turn:
        remedy += ", or set {sessions.context} to drop the oldest turns"
    remedy += ", or start the server with a larger context"
    if not is_counted:
        remedy += "; if the model has fewer tokens for the same text, name its tokenizer: {data.tokenizer}"
    return UserError(
        f"{prompt} has {size.n_in:,} tokens{more}, but {limit}", remedy, key="data.input" if has_input else "data"
    )
