"""Do the engines' outputs agree? Greedy completions of the same prompts, compared with those of a reference engine.

Outputs are compared token by token: by the token ids if both engines report them, else by the ids that the model's tokenizer gives
the texts, else by words. An empty output is a fault only if the reference's is not: special tokens have no text. An output agrees as far as its tokens are those of the reference at the same positions. Greedy outputs that
differ in one token mostly differ in all that follow, so the common prefix says when they first differ.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from inferometer.campaign import EngineRecord, Output
from inferometer.config.engines import Agreement

Encode = Callable[[str], Sequence[int]]
"""From a text to token ids."""
Verdict = Literal["reference", "agrees", "differs", "nonsense", "nothing", "not compared"]
_MOST_EXAMPLES = 3

DEFINITIONS = {
    "agreement.exact": "share of the prompts whose outputs are the same as the reference's, token by token",
    "agreement.tokens": "tokens that are the reference's at the same position / tokens of the longer of both outputs, over all prompts",
    "agreement.prefix": "tokens until the first difference from the reference, mean over the prompts",
}


class Example(msgspec.Struct, frozen=True):
    """An output that differs from the reference's."""

    prompt: int
    """Index of the prompt in the sample."""
    prefix: int
    """Tokens until the first difference."""
    expected: str
    text: str


class EngineAgreement(msgspec.Struct, frozen=True, kw_only=True):
    """How an engine's outputs compare with the reference's. Null if they were not compared."""

    verdict: Verdict
    """`differs`: not all outputs are the same, but enough of them is; `nonsense`: less than agreement.least is; `nothing`: so is every
    output, because it is empty or missing."""
    text: str
    """The verdict in a sentence."""
    reference: str = ""
    by: Literal["", "token ids", "tokenizer", "words"] = ""
    """What was compared."""
    prompts: int = 0
    empty: int = 0
    """Prompts without an output, although the reference has one."""
    exact: float | None = None
    tokens: float | None = None
    prefix: float | None = None
    examples: tuple[Example, ...] = ()

    @property
    def can_win(self) -> bool:
        return self.verdict not in ("nonsense", "nothing")


def compare_outputs(
    engines: Sequence[EngineRecord], wanted: Agreement, encode: Encode | None = None
) -> dict[str, EngineAgreement]:
    """The agreement of each engine that has outputs, by its name."""
    reference = reference_of(engines, wanted)
    return {engine.name: _agreement(engine, reference, wanted, encode) for engine in engines if engine.outputs}


def reference_of(engines: Sequence[EngineRecord], wanted: Agreement) -> EngineRecord | None:
    """The engine that the others are compared with: the one that is named; else transformers, one request at a time; else the first
    engine that has outputs, if possible with text. None if there is none."""
    usable = [engine for engine in engines if not all(output.error for output in engine.outputs)]
    if wanted.reference is not None:
        return next((engine for engine in usable if engine.name == wanted.reference), None)
    serial = [engine for engine in usable if engine.type == "transformers" and engine.mode == "serial"]
    ranked = [*serial, *usable]
    return next((engine for engine in ranked if not all(map(_is_empty, engine.outputs))), next(iter(ranked), None))


def _is_empty(output: Output) -> bool:
    return bool(output.error) or not (output.ids or output.text.strip())


def _agreement(
    engine: EngineRecord, reference: EngineRecord | None, wanted: Agreement, encode: Encode | None
) -> EngineAgreement:
    missing = [output for output in engine.outputs if _is_empty(output)]
    count, empty = len(engine.outputs), len(missing)
    if all(output.error for output in engine.outputs):
        text = _empty_text(missing, count)
        return EngineAgreement(verdict="nothing", text=text, prompts=count, empty=empty)
    if reference is None or len(reference.outputs) != count:
        name = wanted.reference or (reference.name if reference else "")
        text = f"not compared: {name} has no outputs" if name else "not compared: no engine has outputs to compare with"
        return EngineAgreement(verdict="not compared", text=text, prompts=count, empty=empty)
    if reference.name == engine.name:
        words = ["the others are compared with it", *([_empty_text(missing, count)] if missing else [])]
        return EngineAgreement(
            verdict="reference", text="; ".join(words), reference=engine.name, prompts=count, empty=empty
        )
    return _compared(engine, reference, wanted, encode)


def _compared(
    engine: EngineRecord, reference: EngineRecord, wanted: Agreement, encode: Encode | None
) -> EngineAgreement:
    pairs = [
        (number, expected, own)
        for number, (expected, own) in enumerate(zip(reference.outputs, engine.outputs, strict=True))
        if not expected.error
    ]
    has_ids = all(each.ids is not None or each.error for _, *both in pairs for each in both)
    by: Literal["token ids", "tokenizer", "words"] = "token ids" if has_ids else "tokenizer" if encode else "words"

    def tokens(output: Output) -> Sequence[int | str]:
        if has_ids or output.error:
            return output.ids or ()
        return encode(output.text) if encode is not None and output.text.strip() else output.text.split()

    same = longest = prefixes = exact = 0
    examples: list[Example] = []
    missing: list[Output] = []
    for number, expected, own in pairs:
        a, b = tokens(expected), tokens(own)
        prefix = _common_prefix(a, b)
        prefixes += prefix
        same += sum(one == other for one, other in zip(a, b, strict=False))
        longest += max(len(a), len(b))
        if own.error or (a and not b):
            missing.append(own)
        if list(a) == list(b) and not own.error:
            exact += 1
        elif len(examples) < _MOST_EXAMPLES:
            examples.append(Example(number, prefix, expected.text, own.text))
    share = same / longest if longest else exact / len(pairs)
    enough: Verdict = "differs" if share >= wanted.least else "nothing" if len(missing) == len(pairs) else "nonsense"
    verdict: Verdict = "agrees" if exact == len(pairs) else enough
    words = [_empty_text(missing, len(pairs))] if missing else []
    if verdict != "nothing":
        words.append(_text(verdict, share, exact, len(pairs), prefixes / len(pairs), reference.name, wanted.least))
    return EngineAgreement(
        verdict=verdict,
        text="; ".join(words),
        reference=reference.name,
        by=by,
        prompts=len(pairs),
        empty=len(missing),
        exact=exact / len(pairs),
        tokens=share,
        prefix=prefixes / len(pairs),
        examples=tuple(examples),
    )


def _empty_text(empty: Sequence[Output], count: int) -> str:
    """`1 of 8 outputs is empty: HTTP 500`."""
    why = next((f": {output.error}" for output in empty if output.error), "")
    return f"{len(empty)} of {count} outputs {'is' if len(empty) == 1 else 'are'} empty{why}"


def _common_prefix(a: Sequence[int | str], b: Sequence[int | str]) -> int:
    return next((n for n, (one, other) in enumerate(zip(a, b, strict=False)) if one != other), min(len(a), len(b)))


def _text(verdict: Verdict, share: float, exact: int, count: int, prefix: float, name: str, least: float) -> str:
    if verdict == "agrees":
        return f"all {count} outputs are those of {name}"
    words = f"{exact} of {count} outputs and {share:.0%} of all tokens are those of {name}; outputs first differ after {prefix:.3g} tokens on average"
    return f"{words}; at least {least:.0%} of the tokens must be the same" if verdict == "nonsense" else words
