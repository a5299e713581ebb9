"""Keeps the processor awake while a send, or a short response, is near, so that neither waits for the processor to wake up.

A processor that sleeps takes some ten microseconds to wake up, and on a virtual machine up to milliseconds, because the host has to
schedule it first. There are two ways to prevent that:

- `latency`: the kernel lets no processor sleep deeply as long as /dev/cpu_dma_latency is open with a low latency. That takes power, but no
  time from any process. It needs write access to that file, which usually only root has.
- `spin`: instead of sleeping, the process polls its sockets and deadlines until the instant that it awaits. It does so only while each
  process on the machine that wants to run has a processor, so that a server on the same machine is not slowed down.

`auto` uses the first for sends if it can, and the second otherwise. For short responses of a closed loop it always uses the second,
because each of its requests waits for the response before: polling also saves the time to wake up the process.
"""

import asyncio
import errno
import os
import resource
import struct
import sys
from collections.abc import Callable
from pathlib import Path

from inferometer import processors
from inferometer.engine.job import Mode
from inferometer.engine.run_state import RunState
from inferometer.errors import UserError
from inferometer.timing.clock import now
from inferometer.timing.deadlines import Deadlines

LEAD = 2_000_000
"""How long before a send to start spinning, in ns: sleeping processors usually wake up in less. At most half of the gap between two
sends is spent spinning."""
_BRIEF = 200_000
"""Gaps shorter than this are spun through: it is not worthwhile to sleep."""
_SHORT = 5_000_000
"""Responses that take longer on average than this are not awaited by spinning: the time to wake up is short in comparison. Those that take
more than a millisecond are awaited by sleeping for half of that time and then spinning."""
_SLICE = 200_000
"""How long to poll before the event loop gets its turn: it has other callbacks, such as those of sockets that can be written again."""
_LOOK_EVERY = 5_000_000
_MAX_SWITCHES = 2
"""How often the process may be interrupted by another between two looks; the kernel's own threads do so now and then."""
_PAUSE = 50_000_000
_MAX_PAUSE = 1_000_000_000
"""How long not to spin once another process was found to need the processor: longer each time in a row."""
_STOLEN = 50_000
"""A poll that takes longer than this was interrupted, and was not spent spinning."""
_LATENCY_FILE = "/dev/cpu_dma_latency"
_IDLE_DRIVER = "/sys/devices/system/cpu/cpuidle/current_driver"
_LATENCY_US = 2
_LATENCY_US_OF = {"haltpoll": 0}
"""The time in which processors have to wake up, by idle driver. 2 us allow the lightest sleep, in which a processor leaves its power and
its execution units to the others; in virtual machines with `haltpoll`, only 0 keeps a processor from being taken by the host."""


class Awake:
    """Spins until the instants that `stay` is given, if it may. `kind` says how the processor is kept awake."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        mode: Mode,
        deadlines: Deadlines,
        poll: Callable[[], bool],
        state: RunState,
    ) -> None:
        """`poll` handles what has arrived, and returns whether there was anything."""
        self._loop = loop
        self._deadlines = deadlines
        self._poll = poll
        self._latency_file = _open_latency_file(mode)
        can_spin = sys.platform == "linux" and (mode == "spin" or (mode == "auto" and processors.usable() >= 2))
        self._others = _Others() if can_spin else None
        self._spins_before_sends = can_spin and self._latency_file < 0
        self._spins_for_responses = can_spin
        self.kind = " and ".join(["latency"] * (self._latency_file >= 0) + ["spin"] * can_spin) or "off"
        self._until = 0
        self._is_spinning = False
        self._state = state
        self._typical = 0

    def expect_send(self, at: int) -> None:
        """Be awake when a request is to be sent at this instant."""
        if self._spins_before_sends:
            lead = (at - now()) // 2
            if lead <= _BRIEF // 2:
                self.stay(at)
            else:
                self._deadlines.at(at - min(lead, LEAD), lambda: self.stay(at))

    def expect_response(self, took: int) -> None:
        """Be awake when the next response arrives, if responses are short. `took`: how long the last one took, in ns."""
        if self._spins_for_responses:
            self._typical += (took - self._typical) // 8 if self._typical else took
            at = now()
            until = at + 2 * self._typical + _BRIEF
            if self._typical <= LEAD // 2:
                self.stay(until)
            elif self._typical <= _SHORT:
                self._deadlines.at(at + self._typical // 2, lambda: self.stay(until))

    def stay(self, until: int) -> None:
        """Do not sleep before this instant (monotonic ns)."""
        if until > self._until:
            self._until = until
        if not self._is_spinning and self._others is not None and not self._others.need_processor():
            self._is_spinning = True
            self._loop.call_soon(self._spin)

    def close(self) -> None:
        self._until = 0
        if self._latency_file >= 0:
            os.close(self._latency_file)
            self._latency_file = -1
        if self._others is not None:
            self._others.close()
            self._others = None

    def _spin(self) -> None:
        poll, catch_up = self._poll, self._deadlines.catch_up
        at = now()
        end = at + _SLICE
        while at < self._until and at < end:
            found = poll()
            if catch_up():
                found = True
            before, at = at, now()
            if not found and at - before < _STOLEN:
                self._state.spun += at - before
        self._deadlines.resume()
        if at < self._until and self._others is not None and not self._others.need_processor():
            self._loop.call_soon(self._spin)
        else:
            self._is_spinning = False


class _Others:
    """Finds out whether other processes need the processor that spinning would keep busy.

    They do if there are more runnable threads on the machine than processors (/proc/loadavg), or if they interrupt this process all
    the time, because it shares its processor with them although others are idle.
    """

    def __init__(self) -> None:
        self._file = os.open("/proc/loadavg", os.O_RDONLY)
        self._processors = os.cpu_count() or 1
        self._looked_at = self._look_at = 0
        self._switches = _involuntary_switches()
        self._was_waiting = False
        self._pause = _PAUSE

    def need_processor(self) -> bool:
        """Return whether another process needs the processor, or did a moment ago."""
        at = now()
        if at < self._look_at:
            return self._was_waiting
        runnable = int(os.pread(self._file, 64, 0).split()[3].partition(b"/")[0])
        before, self._switches = self._switches, _involuntary_switches()
        is_recent = at - self._looked_at <= 2 * _LOOK_EVERY
        self._was_waiting = runnable > self._processors or (is_recent and self._switches - before > _MAX_SWITCHES)
        self._looked_at, self._look_at = at, at + (self._pause if self._was_waiting else _LOOK_EVERY)
        if self._was_waiting:
            self._pause = min(2 * self._pause, _MAX_PAUSE)
        elif is_recent:  # it could spin undisturbed
            self._pause = _PAUSE
        return self._was_waiting

    def close(self) -> None:
        os.close(self._file)


def _involuntary_switches() -> int:
    """Return how often another process or thread has taken the processor from this thread."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw


def _open_latency_file(mode: Mode) -> int:
    """Open the file that keeps processors awake, and return its descriptor; -1: it is not wanted, or not available."""
    if mode not in ("auto", "latency"):
        return -1
    try:
        driver = Path(_IDLE_DRIVER).read_text().strip()
    except OSError:
        driver = "none"
    try:
        if driver == "none":
            raise OSError(errno.ENODEV, "no effect, because this kernel has no idle driver")
        descriptor = os.open(_LATENCY_FILE, os.O_WRONLY)
    except OSError as error:
        if mode == "latency":
            raise UserError(
                f"client.awake: latency: {_LATENCY_FILE}: {error.strerror}", "run as root, or use client.awake: auto"
            ) from None
        return -1
    os.write(descriptor, struct.pack("i", _LATENCY_US_OF.get(driver, _LATENCY_US)))
    return descriptor
