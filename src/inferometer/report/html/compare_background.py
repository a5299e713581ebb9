"""The last sections of a comparison's page: what was compared, and how to read it."""

from collections.abc import Sequence

from inferometer.analysis.comparison import Compared, SideInfo
from inferometer.analysis.run_figures import FAILURE_RATE
from inferometer.analysis.summary import Measured
from inferometer.report import formatting
from inferometer.report.compare import stages_of
from inferometer.report.document import Section
from inferometer.report.html import overlays, page


def what_was_compared(compared: Sequence[Compared]) -> Section:
    """The sides, the notes, and what differs between them."""
    infos = [compared[0].found.a, *(each.found.b for each in compared)]
    sides = [compared[0].a, *(each.b for each in compared)]
    letters = [overlays.letter(index) for index in range(len(sides))]
    has_names = any(info.label != info.url for info in infos)
    titles = ["", *(["side"] if has_names else []), "URL", "model", "runs", "requests ok"]
    rows = [
        [letter, *_about(info)[0 if has_names else 1 :], _requests(side.runs)]
        for letter, info, side in zip(letters, infos, sides, strict=True)
    ]
    notes = dict.fromkeys(note for each in compared for note in each.found.notes)
    manifests = [side.runs[0][0].manifest for side in sides]
    return Section(
        "compared",
        "What was compared",
        [
            page.table(titles, rows, texts=(1, 2) if has_names else (1,)),
            *overlays.differences(manifests, letters),
            *(page.note(page.sentence(note)) for note in notes),
            page.details(
                "Folders of the runs",
                [page.facts((letter, ", ".join(info.runs)) for letter, info in zip(letters, infos, strict=True))],
            ),
        ],
    )


def _about(info: SideInfo) -> list[str]:
    return [formatting.one_line(text, 120) for text in (info.label, info.url, info.model)] + [f"{len(info.runs):,}"]


def _requests(runs: Sequence[Measured]) -> str:
    return f"{sum(summary.counts.ok for _, summary in runs):,}"


def how_to_read(compared: Sequence[Compared]) -> Section:
    """What the words mean, and how the intervals come about."""
    methods = dict.fromkeys(
        one.method for each in compared for _, found in stages_of(each.found) for one in found.values() if one.method
    )
    pairs = [
        (
            "better, worse",
            "The 95 % confidence interval of the ratio B / A excludes 1. Latencies and failures should be low, throughput and goodput high.",
        ),
        (
            "no clear difference",
            "The interval includes 1. That is not proof of equality: the interval says how large a difference may still be.",
        ),
        (
            "how much more to measure",
            "With that much more, a true difference of that size would be found in 80 % of the comparisons.",
        ),
        *((name, text) for name, text in _METHODS.items() if name in methods),
        (
            "several figures",
            "Figures that --fail-if or an objective names are judged together (Holm's adjustment): 5 % is the chance of any false alarm among them. The others are not adjusted: of 30 figures, expect one or two that seem to differ.",
        ),
    ]
    if any(FAILURE_RATE in found for each in compared for _, found in stages_of(each.found)):
        pairs.append(
            (
                "failure rate",
                "Compared by its difference in percentage points (pp), because a share that is 0 has no ratio: Newcombe's interval from Wilson's score intervals, for the number of independent requests that would say as much.",
            )
        )
    if any(each.found.conditions for each in compared):
        pairs.append(
            (
                "fails, passes, undecided",
                "Fails: B is shown to be worse by more than the margin. Passes: the whole interval is within the margin. Undecided: neither; measure more.",
            )
        )
    return Section("verdicts", "How to read this", [page.facts(pairs)])


_METHODS = {
    "paired": "t interval of the log ratios of the pairs. What both runs of a pair share, such as their arrivals and prompts, cancels out. It covers run-to-run variation.",
    "unpaired": "Welch's interval of the mean logs of the runs of each side. It covers run-to-run variation.",
    "single": "One run per side: a block bootstrap over time within each run. It does not cover run-to-run variation.",
}
