"""Ends a run, or stages of it, before its plan does: when a limit of `abort.on` is exceeded, a stage is clearly overloaded, or a
caller of `measure` says so."""

from collections.abc import Callable, Sequence

import msgspec

from inferometer.analysis.abort_expression import parse_limits
from inferometer.conduct.breakers import Breakers
from inferometer.conduct.live_rows import LiveFailures, ServerRows, since_start
from inferometer.conduct.saturation import Saturation
from inferometer.config.loads import Stages, has_changing_rate, stages_of
from inferometer.fleet.supervisor import Supervisor
from inferometer.prepare.setup import Setup
from inferometer.records import Columns, CutShort, Failure, Outcome, Snapshot, StagePlan, Trip
from inferometer.types import OpenStage, Plan
from inferometer.units import format_seconds

Ends = Callable[[Columns, Sequence[Failure | None], float, int], Trip | None]
"""Called with the requests that have ended since the last call (times since t=0), the failure of each, the seconds since t=0 and the stage in
progress. Returns what ends the run or the stage, if it is to end."""


class EarlyEnds:
    """Looks at each snapshot of a run, and ends what has to end. `warn` gets a line that says so."""

    def __init__(
        self,
        setup: Setup,
        plan: Plan,
        plans: Sequence[StagePlan],
        warn: Callable[[str], None],
        ends: Ends | None = None,
    ) -> None:
        abort = setup.config.abort
        limits = parse_limits(abort.limits)
        self._breakers = Breakers(limits, abort.window, abort.grace, abort.ends) if limits else None
        self._saturation = _saturation(setup, plan, plans)
        self._server_rows = ServerRows(setup.spool)
        self._ends, self._failures = ends, LiveFailures(setup.spool)
        self._plans, self._warn, self._grace = plans, warn, float(setup.config.client.grace)
        # When to cancel the requests that are left of a stage that was ended, and the index of that stage.
        self._abandon: tuple[float, int] | None = None
        self._trips: list[Trip] = []
        self._cut_short: list[CutShort] = []
        self._has_stopped = False

    @property
    def is_needed(self) -> bool:
        return self._breakers is not None or self._saturation is not None or self._ends is not None

    def look(self, snapshot: Snapshot, supervisor: Supervisor) -> None:
        """End the run or its stage, if it is time to."""
        if not self.is_needed or not snapshot.started or snapshot.stopping:
            return
        rows = snapshot.rows()
        if self._breakers is not None:
            own = since_start(self._server_rows.of(rows), snapshot.t0)
            trip = self._breakers.look(own, snapshot.elapsed, snapshot.stage, snapshot.ages())
            if trip is not None:
                self._trip(trip, supervisor, "abort.on")
        if self._ends is not None and not self._has_stopped:
            ended_rows = self._server_rows.of(rows)
            failures = self._failures.of(ended_rows)
            trip = self._ends(since_start(ended_rows, snapshot.t0), failures, snapshot.elapsed, snapshot.stage)
            if trip is not None:
                self._trip(trip, supervisor, trip.limit)
        if self._saturation is not None and not self._has_stopped:
            ended = snapshot.ok + snapshot.failed
            cut = self._saturation.look(since_start(rows, snapshot.t0), snapshot.elapsed, snapshot.stage, ended)
            is_sending = not snapshot.draining and not snapshot.pausing and snapshot.stage not in supervisor.ended_early
            if cut is not None and is_sending and not supervisor.lost:
                self._cut(cut, snapshot.elapsed, supervisor)
        if self._abandon is not None and snapshot.elapsed >= self._abandon[0]:
            supervisor.abandon(self._abandon[1])
            self._abandon = None

    def outcome(self, outcome: Outcome, stop_level: int) -> Outcome:
        """The outcome with what was ended. Only what the user stopped is interrupted."""
        return msgspec.structs.replace(
            outcome,
            interrupted=stop_level > int(self._has_stopped),
            trips=tuple(self._trips),
            cut_short=tuple(self._cut_short),
        )

    def _trip(self, trip: Trip, supervisor: Supervisor, by: str) -> None:
        self._trips.append(trip)
        what = "the run" if trip.ended == "run" else f"stage {trip.stage + 1} ({self._plans[trip.stage].name})"
        self._warn(f"{what} was ended after {format_seconds(trip.at)} by {by}: {trip.reason}")
        if trip.ended == "run":
            supervisor.stop()
            self._has_stopped = supervisor.interrupted
        else:
            supervisor.end_stage(trip.stage)
            self._abandon = (trip.at + self._grace, trip.stage)

    def _cut(self, cut: CutShort, elapsed: float, supervisor: Supervisor) -> None:
        """End a stage that is overloaded. Its backlog is as long as the overload was: no more is gained by waiting for all of it."""
        self._cut_short.append(cut)
        after, planned = format_seconds(cut.after), format_seconds(cut.planned)
        self._warn(
            f"stage {cut.stage + 1} ({self._plans[cut.stage].name}) is overloaded: cut short after {after} of {planned}"
        )
        supervisor.end_stage(cut.stage)
        self._abandon = (elapsed + cut.planned, cut.stage)


def _saturation(setup: Setup, plan: Plan, plans: Sequence[StagePlan]) -> Saturation | None:
    load = setup.config.load
    if not isinstance(load, Stages) or not load.cut_short or setup.turns:
        return None
    specs = zip(stages_of(load), plan.stages, strict=True)
    stages = [stage if isinstance(stage, OpenStage) and not has_changing_rate(spec) else None for spec, stage in specs]
    return (
        Saturation(plans, stages, setup.config.limits.overload) if any(stage is not None for stage in stages) else None
    )
