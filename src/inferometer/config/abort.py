"""The `abort` section of the config: limits that end a run, or a stage of it, while it is in progress."""

from typing import Annotated, Literal

from msgspec import Meta, field

from inferometer.config.fields import Seconds, Section


class Abort(Section):
    """Circuit breakers: what ends a run early, because its figures would be of no use or the server needs a rest."""

    on: Annotated[
        str | list[str],
        Meta(
            description="Limits, each of which ends the run when it is exceeded: `failure_rate > 20%`, `consecutive_failures > 50`, "
            "`ttft.p99 > 30s` (a percentile or the mean over `window`), `e2e > 60s` (a single request, also one that is still in flight). "
            "The run is then INVALID, and its report says which limit it was. docs/how-to/stop-early.md describes them."
        ),
    ] = field(default_factory=list)
    grace: Annotated[
        Seconds,
        Meta(
            description="Time after the start of the run in which nothing ends it. Requests that end within it do not count."
        ),
    ] = Seconds(10)
    window: Annotated[
        Seconds,
        Meta(
            description="How far back failure rates, percentiles and means look: over requests that ended in this time, and at least the last 20. Before it is full for the first time, a limit has to be exceeded by more than chance explains."
        ),
    ] = Seconds(10)
    ends: Annotated[
        Literal["run", "stage"],
        Meta(
            description="What ends: the whole run, or only the stage in progress, after which the next stage starts. Responses in flight are awaited for `client.grace`."
        ),
    ] = "run"

    @property
    def limits(self) -> list[str]:
        return [self.on] if isinstance(self.on, str) else self.on
