"""Runs the stages of a plan in order: each starts when the stage before hands over, or a pause later; or, at a barrier, when the
parent says so, because all shards are ready."""

from collections.abc import Callable

from inferometer.engine.closed_loop import ClosedLoop
from inferometer.engine.dispatcher import Dispatcher
from inferometer.engine.inflight import Ended, Flight
from inferometer.engine.open_loop import OpenLoop
from inferometer.engine.timeouts import Patience
from inferometer.store.spool import STAGE_STEP, Control
from inferometer.types import OpenStage, Plan

Driver = OpenLoop | ClosedLoop


class Course:
    def __init__(
        self, plan: Plan, dispatcher: Dispatcher, control: Control, patience: Patience, on_last: Callable[[], None]
    ) -> None:
        self._plan = plan
        self._state = dispatcher.state
        self._deadlines = dispatcher.deadlines
        self._control = control
        self._patience = patience
        self._on_last = on_last
        self._waiting_for: int | None = None  # the stage behind the barrier that is reached
        self._drivers: list[Driver] = [
            OpenLoop(dispatcher, index, stage) if isinstance(stage, OpenStage) else ClosedLoop(dispatcher, index, stage)
            for index, stage in enumerate(plan.stages)
        ]

    @property
    def is_planned(self) -> bool:
        """Whether there is, or may be, more to send."""
        return self._state.stage < len(self._drivers) and not self._state.stopping

    def start(self, at: int) -> None:
        """Start the next stage. After the last one, call `on_last`."""
        stage = self._state.stage + 1
        self._control["issued"] = 0
        if stage >= len(self._drivers) or self._state.stopping:
            self._state.stage = len(self._drivers)
            self._patience.begin(stage - 1, at)
            self._on_last()
        elif self._plan.stages[stage].barrier:
            self._waiting_for = self._control["reached"] = stage
            self._patience.begin(stage - 1, at)
        elif pause := self._plan.stages[stage].pause:
            self._control["reached"] = stage
            self._deadlines.at(at + pause, lambda: self._begin(stage, at + pause))
        else:
            self._begin(stage, at)

    def _begin(self, stage: int, at: int) -> None:
        if self._state.stopping:  # during a pause
            return
        self._state.stage = stage
        self._patience.begin(-1, at)
        self._drivers[stage].start(at, self.start)

    def obey(self, is_idle: bool) -> None:
        """Do what the parent requests: end a stage early, start the one that waits at a barrier, send requests that it deals out."""
        stage = self._state.stage
        if self._state.stopping or not 0 <= stage < len(self._drivers):
            return
        waiting = self._waiting_for
        if waiting is not None:
            if is_idle:
                self._control["waiting"] = waiting
            if self._control["released"] >= waiting:
                self._waiting_for = None
                at = self._control["release_at"]
                self._deadlines.at(at, lambda: self._begin(waiting, at))
        elif stage < self._control["past"]:
            self._drivers[stage].end()
        elif isinstance(loop := self._drivers[stage], ClosedLoop) and loop.issued is not None:
            self._take_grant(loop, stage)

    @property
    def is_abandoned(self) -> bool:
        """Whether the parent has given up on the requests that are left: the next stage waits for them, or there is none."""
        last = len(self._drivers)
        waiting = last if self._state.stage >= last else self._waiting_for
        return waiting is not None and self._control["abandoned"] == waiting

    def _take_grant(self, loop: ClosedLoop, stage: int) -> None:
        """Take the requests that the parent has dealt out, and report how many of all have been sent."""
        control = self._control
        grant = control["grants"]
        if grant != control["grants_taken"]:
            if control["grant_stage"] == stage:
                ids = range(control["grant_from"], control["grant_to"], loop.dealt_step)
                loop.grant(ids, is_last=bool(control["grant_is_last"]))
            control["grants_taken"] = grant
        if loop.issued is not None:
            control["issued"] = (stage + 1) * STAGE_STEP + loop.issued

    def may_continue(self, flight: Flight) -> bool:
        """Return whether the request's session may continue with its next turn."""
        return not self._state.stopping and self._drivers[flight.stage].may_continue()

    def driver(self, flight: Flight) -> Driver:
        """Return the driver of the request's stage."""
        return self._drivers[flight.stage]

    def freed(self, ended: list[Ended]) -> None:
        """Let the drivers send the requests that may follow these."""
        if len(self._drivers) == 1:
            self._drivers[0].freed(ended)
            return
        for stage in {flight.stage for flight, _, _ in ended}:
            self._drivers[stage].freed([each for each in ended if each[0].stage == stage])

    def close_sequences(self) -> None:
        for each in self._drivers:
            each.close_sequences()
