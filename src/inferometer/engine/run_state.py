"""The state of the run that all parts of a shard share."""

import msgspec


class RunState(msgspec.Struct, gc=False):
    sent: int = 0
    ok: int = 0
    failed: int = 0
    in_flight: int = 0
    spun: int = 0
    """Time spent polling or waiting in a busy loop instead of sleeping, in ns (awake.py)."""
    stage: int = -1
    """The stage in progress; -1 before the first, and the number of stages after the last."""
    stopping: bool = False
    """Nothing new starts: users only close their sequences."""
    halted: bool = False
    """Nothing is sent any more."""
    unreached_since: int = 0
    """When the current unbroken series of failures to connect began, in any stage; 0: there is none."""
    unreached_limit: int = 0
    """Nanoseconds of such a series after which a stage that only a number of requests ends is given up; 0: never."""
    given_up: list[int] = []
    """Stages that were ended because the server could not be reached."""
