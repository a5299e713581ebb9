"""What is sent of a conversation: its first prompt, its last one, or all of them as a session."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec

from inferometer.config.data.datasets import RowsSection
from inferometer.types import Messages
from inferometer.units import NS
from inferometer.workload.datasets.conversations import Exchange, Record, response_text, texts

TURNS = {"prompt": "first", "messages": "last", "sharegpt": "first", "turns": "all"}
"""What `turns: auto` means, by the form of the row."""


class Step(msgspec.Struct, frozen=True):
    """One request of a record."""

    messages: Messages
    """What the turn adds; of the first turn, the whole prompt."""
    texts: list[str]
    """Texts whose tokens the turn adds to the prompt, recorded responses included."""
    reference: str | None
    """What the recorded response generated."""
    think: int = 0
    prompt: Messages | None = None
    """The whole prompt of a later turn, if the responses in it are the recorded ones, or if it does not continue the turn before."""
    output: int | None = None
    """Tokens to request; None: as many as the record says."""
    is_whole: bool = False
    """The texts are those of the whole prompt."""


def _mode(record: Record, spec: RowsSection) -> str:
    mode: str = getattr(spec, "turns", "auto")
    return TURNS[record.form] if mode == "auto" else mode


def sends_turns(record: Record, spec: RowsSection) -> bool:
    """Whether the record becomes a session of several turns."""
    return len(record.exchanges) > 1 and _mode(record, spec) == "all"


def steps(record: Record, spec: RowsSection) -> list[Step]:
    """The requests of a record, in order."""
    mode, exchanges = _mode(record, spec), record.exchanges
    first = exchanges[0]
    if mode == "whole":
        last = exchanges[-1]
        prompt = [*_prompts(exchanges)[-1], *last.response]
        return [Step(prompt, texts(prompt), response_text(last.response), output=last.output)]
    if mode == "last" and len(exchanges) > 1:
        *_, prompt = _prompts(exchanges)
        last = exchanges[-1]
        return [Step(prompt, texts(prompt), response_text(last.response), output=last.output)]
    made = [Step(first.added, texts(first.added), response_text(first.response), output=first.output)]
    if mode != "all" or len(exchanges) == 1:
        return made
    think: float | None = getattr(spec, "think", None)
    recorded = _is_recorded(record, getattr(spec, "history", "live"))
    for (before, exchange), prompt in zip(pairwise(exchanges), _prompts(exchanges)[1:], strict=True):
        counted = [*before.response, *exchange.added] if recorded and not exchange.is_whole else exchange.added
        made.append(
            Step(
                [] if exchange.is_whole else exchange.added,
                texts(counted),
                response_text(exchange.response),
                (exchange.think or 0) if think is None else int(think * NS),
                prompt if recorded or exchange.is_whole else None,
                exchange.output,
                exchange.is_whole,
            )
        )
    return made


def _prompts(exchanges: Sequence[Exchange]) -> list[Messages]:
    """The whole prompt of each turn, with the recorded responses."""
    prompts = [exchanges[0].added]
    for before, exchange in pairwise(exchanges):
        prompts.append(exchange.added if exchange.is_whole else [*prompts[-1], *before.response, *exchange.added])
    return prompts


def _is_recorded(record: Record, history: Any) -> bool:
    """Whether prompts contain the recorded responses. A tool's result makes sense only after the call that it is for."""
    has_results = any(message.get("role") == "tool" for each in record.exchanges[1:] for message in each.added)
    is_wanted = history == "recorded" or record.is_recorded or has_results
    return is_wanted and all(each.response or after.is_whole for each, after in pairwise(record.exchanges))


def output_length(record: Record, reference: int) -> int:
    """The length of the response as the row says it: a number of tokens, or its reference response; 0: neither."""
    return reference if record.output is None else record.output
