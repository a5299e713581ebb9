"""Several runs in one folder: repeats of one config, and interleaved pairs of two.

Repeats have a seed each (the config's, plus 0, 1, 2 ...). The runs of a pair share a seed; A goes first in one pair and B in the
next, so that a machine that becomes slower over time favours neither.
"""

import contextlib
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType

import msgspec

from inferometer import conduct, store
from inferometer.analysis.comparison import Measured
from inferometer.conduct.comparing import PAIRS, PairList
from inferometer.conduct.server_process import started
from inferometer.conduct.uploading import discard_if_unused, mark, prepare
from inferometer.config.schema import Config
from inferometer.errors import UserError
from inferometer.probe.reach import reach
from inferometer.report import formatting
from inferometer.store.folder import atomic_file

Note = Callable[[int, int, str], conduct.Show | None]
"""Called before each run with its number, the number of runs and its side; returns what shows the run, if anything."""


Ended = Callable[[str], None]
"""Called after each run with its verdict in a line."""


class Starter(msgspec.Struct, frozen=True):
    """How to start a side's server: a shell command, and how long to wait until it responds."""

    command: str
    patience: float


def repeat(config: Config, count: int, note: Note) -> tuple[Path, list[Measured]]:
    """Run a config several times, with fresh seeds. Ends early after a Ctrl-C, without the run that it interrupted."""
    measured: list[Measured] = []
    with folder_for_runs(config) as folder:
        for number in range(count):
            try:
                one = _run(config, folder, number, note(number + 1, count, ""))
            except KeyboardInterrupt:  # before its first request
                if not measured:
                    raise
                break
            is_interrupted = one[0].manifest.outcome.interrupted
            if not (is_interrupted and measured):
                measured.append(one)
            if is_interrupted:
                break
    return folder, measured


def measure_pairs(
    sides: Sequence[tuple[str, Config, Starter | None]], count: int, note: Note, ended: Ended, force: bool = False
) -> tuple[Path, int]:
    """Measure pairs of runs; `sides` are A's and B's URL, config and starter. Returns the folder and how many pairs it has.

    Raises UserError before the first run if one of two running servers cannot be measured, and after two pairs if a check failed in both
    of them on the same side, unless there is `force`: the further pairs would be left out, too. After a Ctrl-C it returns with the pairs that are complete.
    """
    pairs: list[tuple[str, str]] = []
    failed: list[dict[tuple[str, str], str]] = []
    for _, config, starter in sides:
        if starter is None:
            reach(config.server)
    with folder_for_runs(sides[0][1]) as folder, terminable(), contextlib.suppress(KeyboardInterrupt):
        for number in range(count):
            names: dict[int, str] = {}
            failed.append({})
            for position, index in enumerate((0, 1) if number % 2 == 0 else (1, 0)):
                _, config, starter = sides[index]
                show = note(2 * number + position + 1, 2 * count, "AB"[index])
                with _server(starter, config, folder / f"server-{'ab'[index]}.log"):
                    run, summary = _run(config, folder, number, show)
                if run.manifest.outcome.interrupted:
                    raise KeyboardInterrupt
                failing = {check.name: check.message for check in summary.checks if check.status == "fail"}
                failed[-1] |= {("AB"[index], check): message for check, message in failing.items()}
                why = next((f"{check}: {message}" for check, message in failing.items()), "")
                ended(
                    f"{summary.verdict} · {why or f'{formatting.rate(summary.throughput.requests or 0, 4)} requests/s'}"
                )
                names[index] = run.folder.name
            pairs.append((names[0], names[1]))
            _write(folder, PairList(sides[0][0], sides[1][0], pairs))
            if number == 1 < count - 1 and not force and (lasting := [key for key in failed[0] if key in failed[1]]):
                side, name = lasting[0]
                raise UserError(
                    f"{folder}: stopped after 2 of {count} pairs: {side} is INVALID in both: {name}: {failed[1][lasting[0]]}",
                    "remove the cause and measure again, or add --force",
                )
    return folder, len(pairs)


@contextlib.contextmanager
def folder_for_runs(config: Config) -> Iterator[Path]:
    """A folder for several runs; if nothing was stored in it, it is removed.

    If the output is a bucket, it must be writable; whoever calls this uploads the folder at the end (uploading.finish).
    """
    config, upload = prepare(config)
    folder = store.new_folder(config.output)
    mark(folder, upload)
    try:
        yield folder
    finally:
        discard_if_unused(folder)


def _run(config: Config, folder: Path, number: int, show: conduct.Show | None) -> Measured:
    config = msgspec.structs.replace(config, output=str(folder), seed=config.seed + number)
    measured = conduct.measure(config, show)
    store.point_latest(folder)
    return measured


def _server(starter: Starter | None, config: Config, log: Path) -> contextlib.AbstractContextManager[None]:
    if starter is None:
        return contextlib.nullcontext()
    return started(starter.command, config.server, log, starter.patience)


def _write(folder: Path, known: PairList) -> None:
    with atomic_file(folder / PAIRS) as partial:
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(known), indent=2) + b"\n")


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Treat SIGTERM between the runs as Ctrl-C, so that servers that were started are ended."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    earlier = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, earlier)
