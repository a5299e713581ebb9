"""Which engine to use, in sentences that follow from stated rules.

Each rule picks one figure per engine, and the engine whose figure is best. Every other engine is compared with it by the ratio of
both figures (rounds.py). The best one is recommended if the 95 % interval of the ratio to each of the others excludes 1. Engines
for which it does not are named as well: there is no clear difference. Engines that failed, whose outputs are not those of the
reference, or which have no figure that may be quoted are left out, with the reason.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import msgspec

from inferometer.analysis.efficiency import Interval
from inferometer.analysis.engine_figures import EngineLevel
from inferometer.analysis.rounds import Ratio, Rounds, ratio_of

Use = Literal["interactive", "offline", "single user", "cost", "energy", "encoder, one input", "encoder, batches"]

RULES: dict[Use, str] = {
    "interactive": "the most requests per second at a level that was shown to meet every objective",
    "offline": "the most output tokens per second (requests, if no tokens were counted) at any level",
    "single user": "the lowest median end-to-end time with one request at a time",
    "cost": "the lowest price of a million output tokens at any level",
    "energy": "the least energy per output token at any level",
    "encoder, one input": "the lowest mean latency at the smallest batch size, as the geometric mean over all lengths",
    "encoder, batches": "the most sequences per second at any batch size, as the geometric mean over all lengths",
}
"""How each recommendation is derived."""
TITLES: dict[Use, str] = {
    "interactive": "interactive use",
    "offline": "offline batches",
    "single user": "a single user",
    "cost": "the lowest cost",
    "energy": "the least energy",
    "encoder, one input": "one input at a time",
    "encoder, batches": "batches",
}
_MOST = 2
"""Other engines that a sentence names."""


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """What one engine achieves by a rule."""

    engine: str
    value: float
    ci: Interval = (None, None)
    unit: str = ""
    """Of the value: requests/s, output tokens/s, s, sequences/s, J per output token ..."""
    by: str = ""
    level: float | None = None
    """The level at which it does."""
    text: str = ""
    """`12.4 requests/s at concurrency 64`."""


class Recommendation(msgspec.Struct, frozen=True, kw_only=True):
    """The answer for one use."""

    use: Use
    engine: str
    """The best; empty if no engine can be recommended."""
    text: str
    rule: str
    ratio: float | None = None
    """How many times as good it is as the next best; null if there is no other."""
    ci: Interval = (None, None)
    is_clear: bool = False
    """Whether it is clearly better than every other engine, or the only one."""
    equal: tuple[str, ...] = ()
    """Engines for which there is no clear difference."""
    standings: tuple[Standing, ...] = ()
    """Every engine that has the figure, the best first."""
    ratios: tuple[Ratio, ...] = ()
    """The best engine against each of the others, in their order."""
    left_out: dict[str, str] = {}
    """Engines without the figure, and why."""


class Held(msgspec.Struct, frozen=True):
    """The figure of one engine that a rule picked. Larger is better: times, prices and energies are inverted."""

    engine: str
    figure: Rounds
    unit: str
    text: str
    level: EngineLevel | None = None
    is_inverted: bool = False


Found = Held | str
"""What an engine achieves, or why it has no figure."""
Compare = Callable[[Held, Held], Ratio]


def _by_rounds(best: Held, other: Held) -> Ratio:
    return ratio_of(best.figure, other.figure, other.engine)


def choose(
    use: Use,
    title: str,
    found: Mapping[str, Found],
    excluded: Mapping[str, str],
    verb: str,
    like: str,
    compare: Compare = _by_rounds,
) -> Recommendation:
    """The best of the engines, compared with each of the others. `verb` and `like` make `holds 3.1 x the load of`."""
    left_out = dict(excluded) | {name: each for name, each in found.items() if isinstance(each, str)}
    ranked = sorted(
        (each for each in found.values() if isinstance(each, Held)), key=lambda each: (-each.figure.value, each.engine)
    )
    if not ranked:
        return Recommendation(use=use, engine="", text=_nobody(title, found), rule=RULES[use], left_out=left_out)
    best, *others = ranked
    ratios = [compare(best, other) for other in others]
    equal = tuple(each.engine for each in ratios if not each.is_clear)
    return Recommendation(
        use=use,
        engine=best.engine,
        text=_sentence(title, best, others, ratios, verb, like),
        rule=RULES[use],
        ratio=ratios[0].ratio if ratios else None,
        ci=ratios[0].ci if ratios else (None, None),
        is_clear=not equal,
        equal=equal,
        standings=tuple(_standing(each) for each in ranked),
        ratios=tuple(ratios),
        left_out=left_out,
    )


def _standing(held: Held) -> Standing:
    figure = held.figure.inverse() if held.is_inverted else held.figure
    estimate = figure.estimate()
    return Standing(
        engine=held.engine,
        value=estimate.value,
        ci=estimate.ci,
        unit=held.unit,
        by="" if held.level is None else held.level.by,
        level=None if held.level is None else held.level.level,
        text=held.text,
    )


def _nobody(title: str, found: Mapping[str, Found]) -> str:
    """The reasons that belong to this use alone: why an engine can be recommended for none is said once, elsewhere."""
    start = f"{title[:1].upper()}{title[1:]}, no engine can be recommended"
    reasons = "; ".join(f"{name}: {why}" for name, why in sorted(found.items()))
    return f"{start}: {reasons}." if reasons else f"{start}."


def _sentence(title: str, best: Held, others: Sequence[Held], ratios: Sequence[Ratio], verb: str, like: str) -> str:
    """`For interactive use at ttft.p95 < 500ms, A holds 3.1 x the load of B (2.8 to 3.4): ...`."""
    start = f"{title[:1].upper()}{title[1:]}"
    if not others:
        return f"{start}, only {best.engine} can be recommended: {best.text}."
    pairs = list(zip(others, ratios, strict=True))
    equal = [(other, ratio) for other, ratio in pairs if not ratio.is_clear]
    clear = [(other, ratio) for other, ratio in pairs if ratio.is_clear]
    if equal:
        names = listed([best.engine, *(other.engine for other, _ in equal)])
        figures = "; ".join(f"{each.engine}: {each.text}" for each in (best, *(other for other, _ in equal)))
        text = f"{start}, there is no clear difference between {names} ({_range(equal[0][1])}): {figures}"
        if clear:
            behind = listed([f"{other.engine} ({_ratio(ratio)} x, {_ends(ratio)})" for other, ratio in clear])
            text += f". Clearly behind {best.engine}: {behind}"
        return f"{text}."
    words = listed([f"{_ratio(ratio)} x {like} {other.engine} ({_ends(ratio)})" for other, ratio in pairs[:_MOST]])
    figures = "; ".join([best.text, *(f"{other.engine}: {other.text}" for other in others[:_MOST])])
    more = f"; {len(others) - _MOST} more are further behind" if len(others) > _MOST else ""
    return f"{start}, {best.engine} {verb} {words}. {best.engine}: {figures}{more}."


def _range(ratio: Ratio) -> str:
    if None in ratio.ci:
        return f"ratio {_ratio(ratio)}, whose interval is not known"
    return f"ratio {_ratio(ratio)}, {_ends(ratio)}"


def times(ratio: Ratio) -> str:
    """`3.1 x transformers (2.8 to 3.4)`."""
    return f"{_ratio(ratio)} x {ratio.engine} ({_ends(ratio)})"


def _ratio(ratio: Ratio) -> str:
    return f"{ratio.ratio:,.{_decimals(ratio)}f}"


def _ends(ratio: Ratio) -> str:
    return " to ".join("-" if end is None else f"{end:,.{_decimals(ratio)}f}" for end in ratio.ci)


def _decimals(ratio: Ratio) -> int:
    """Enough for two digits, and for the ends of the interval to differ."""
    low, high = ratio.ci
    least = 2 if ratio.ratio < 2 else 1 if ratio.ratio < 10 else 0
    if low is None or high is None:
        return least
    return next((n for n in range(least, 4) if round(high, n) > round(low, n)), least)


def headline(recommendation: Sequence[Recommendation]) -> tuple[str, str]:
    """The whole answer in a few words, and in a sentence: which engine for which uses."""
    by_engine: dict[str, list[Use]] = {}
    for each in recommendation:
        if each.engine and each.is_clear:
            by_engine.setdefault(each.engine, []).append(each.use)
    parts = [f"{name} for {listed([TITLES[use] for use in uses])}" for name, uses in by_engine.items()]
    parts += [
        f"{listed([each.engine, *each.equal], 'or')} for {TITLES[each.use]}, without a clear difference"
        for each in recommendation
        if each.engine and not each.is_clear
    ]
    none = [TITLES[each.use] for each in recommendation if not each.engine]
    if not parts:
        return "No engine can be recommended", "None of them has a figure that may be quoted."
    text = f"Use {'; '.join(parts)}{f'; no engine for {listed(none)}' if none else ''}."
    if len(by_engine) == 1 and len(parts) == 1:
        return next(iter(by_engine)), text
    is_short = len(by_engine) == len(parts) == 2
    return (listed(list(by_engine)) if is_short else "It depends on the use"), text


def listed(words: Sequence[str], joined_by: str = "and") -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {joined_by} {words[-1]}"
