"""Did the server keep up? Detects an open loop that offers more than the server completes."""

from typing import Literal

import msgspec

from inferometer.records import Columns, StagePlan


class Overload(msgspec.Struct, frozen=True):
    """Whether the number of requests in flight grew throughout a stage."""

    status: Literal["steady", "overloaded", "too_short", "not_applicable"]
    reason: str = ""
    """Why the stage is too short to tell, or why the test does not apply."""
    growth: float | None = None
    """By how many requests per second the number in flight grew."""
    capacity: float | None = None
    """Overloaded: requests completed per second, which is what the server can do."""


def overload(rows: Columns, plan: StagePlan) -> Overload:
    """Test all requests of a stage, whether or not they are in the window."""
    return Overload("not_applicable", "closed loop" if not plan.open else "not tested")
