"""`inferometer calibrate`: what this machine itself can do."""

from typing import TYPE_CHECKING

import click

from inferometer.cli.options import Command, options_of
from inferometer.cli.uploads import write_json
from inferometer.errors import UserError
from inferometer.units import format_seconds

if TYPE_CHECKING:
    from inferometer.calibrate import Calibration


@click.command(cls=Command)
@options_of("calibrate")
def command(duration: float, json: str | None) -> int:
    """Measure what this machine itself adds to a latency, and how much load it can generate.

    \b
    inferometer calibrate
    inferometer calibrate --duration 10s --json calibration.json

    The load goes to a null server on loopback, which responds at once, so what is measured is the client. Do not trust a
    latency below the added latency, nor a rate near the ceiling: there you would measure this machine. The figures are for
    one client process; a run may use several (client.processes).

    Exit status: 0 measured, 2 bad input, 3 internal error.
    """

    from inferometer.calibrate import STEPS, calibrate  # noqa: PLC0415
    from inferometer.report.output import check_paths  # noqa: PLC0415
    from inferometer.report.safe_console import SafeConsole  # noqa: PLC0415

    check_paths({"--json": json})
    if not 1 <= duration <= 60:
        raise UserError(f"--duration must be from 1s to 1m (got {format_seconds(duration)})", "write it as 4s")
    progress = SafeConsole(stderr=True)
    done = 0

    def note(step: str) -> None:
        nonlocal done
        done += 1
        progress.print(f"[dim]{done}/{STEPS}[/dim] {step}", highlight=False)

    found = calibrate(duration, note)
    if json != "-":
        click.echo(_text(found), nl=False)
    write_json(json, found)
    return 0


def _text(found: "Calibration") -> str:
    """The figures in three columns."""
    rows = [
        (
            "ceiling",
            f"{_count(found.requests_per_second)} requests/s",
            f"{_time(found.cpu_per_request)} of CPU per request",
        ),
        (
            "streaming",
            f"{_count(found.chunks_per_second)} chunks/s per core",
            f"{_time(found.cpu_per_chunk)} of CPU per chunk",
        ),
        ("added latency", f"{_time(found.added_latency_p50)} p50", f"{_time(found.added_latency_p99)} p99"),
        ("error of a gap", f"{_time(found.itl_error_p50)} p50", f"{_time(found.itl_error_p99)} p99"),
    ]
    for rate, p50 in found.lag_p50.items():
        rows.append((f"lag at {int(rate):,}/s", f"{_time(p50)} p50", f"{_time(found.lag_p99[rate])} p99"))
    rows.append(("clock", f"{found.stamps} timestamps", found.timer))
    first, second = (max(len(row[column]) for row in rows) for column in (0, 1))
    lines = [f"{name:<{first}}   {one:<{second}}   {other}" for name, one, other in rows]
    if any(part.startswith("- ") for row in rows for part in row):
        lines.append("-: too few values; measure longer with --duration")
    return "".join(f"{line}\n" for line in lines)


def _count(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else format_seconds(seconds)
