"""Does a run pass? By its objectives, if it has some, as long as the failed checks leave no doubt about them; else by its verdict."""

from inferometer.analysis import slo_result
from inferometer.analysis.checks import Check
from inferometer.analysis.slo_expression import parse
from inferometer.analysis.summary import Summary


def obstacles(summary: Summary) -> tuple[Check, ...]:
    """The failed checks that a run does not pass with.

    If there are objectives, a check that can only have made latencies too high is none of them: what is met with the client's own
    delay included is met. Neither is a check that concerns latencies alone if the objectives are about rates.
    """
    failed = tuple(check for check in summary.checks if check.status == "fail")
    if not summary.slos:
        return failed
    of_rates = all(parse(result.expression).kind == "throughput" for result in summary.slos)
    return tuple(
        check for check in failed if not check.overstates and not (of_rates and "throughput" not in check.affects)
    )


def is_passed(summary: Summary, strict: bool = False) -> bool:
    """Whether nothing fails the run; slo_result.py says how undecided objectives count, and what `strict` adds."""
    return not obstacles(summary) and slo_result.is_passed(summary.slos, strict)
