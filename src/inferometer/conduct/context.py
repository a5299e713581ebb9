"""Whether prompts and responses fit into the model's context: a run of nothing but errors is not worth its time."""

from inferometer import workload
from inferometer.apis import APIS
from inferometer.config.data import Conversation, Random, SharedPrefix, Synthetic
from inferometer.config.schema import Config
from inferometer.errors import UserError
from inferometer.probe import reach

_UNKNOWN = 4096
"""Requests that are looked at if it is not known how many will be sent."""
_SHORT = 1024
"""Prompt and response of this length fit into the context of any model: no need to look it up."""


def check_context(config: Config, reached: reach.Reached, requests: int | None) -> None:
    """Raise UserError when the longest of the requests exceeds the context that the server reports.

    Prompts that come from a file are not checked unless their tokens were counted by the model's own tokenizer.
    """
    data, api = config.data, APIS[config.server.api]
    counts = workload.tokenizer_of(data) is not None
    is_generated = isinstance(data, Synthetic | Random | SharedPrefix | Conversation)
    if api.request != "text" or not (counts or is_generated):
        return
    request = workload.longest(data, config.seed, requests or _UNKNOWN)
    n_out = request.n_out if api.response == "text" else 0
    total = request.n_in + n_out
    context = reach.context_of(config.server, reached) if total > _SHORT else reached.context
    if not 0 < context < total:
        return
    more = f" and requests {n_out:,} more" if n_out else ""
    has_input = hasattr(data, "input")
    shorter = "lower {data.input} or {data.output}" if has_input else "use shorter prompts or responses"
    remedy = f"{shorter}, or start the server with a larger context"
    if not counts:
        remedy += "; if the model has fewer tokens for the same text, name its tokenizer: {data.tokenizer}"
    raise UserError(
        f"prompt {request.id} has {request.n_in:,} tokens{more}, but the context of the model {reached.model} has only {context:,}",
        remedy,
        key="data.input" if has_input else "data",
    )
