"""The types of values in the config that several sections use."""

from typing import Annotated

import msgspec
from msgspec import Meta


class Seconds(float):
    """A duration in seconds; the file may have `10s`, `250ms` or `1m30s`."""


class RampUp(str):
    """Time over which the users of a closed loop start: `0`, a duration (`5s`), or `auto`."""


class Window(str):
    """What to leave out at one end of a stage: `0`, a number of requests, a duration (`5s`), or `auto`."""


Positive = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=1)]


class Section(msgspec.Struct, forbid_unknown_fields=True):
    """A section of the file: unknown keys are an error."""
