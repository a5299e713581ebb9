"""A run that is measured in parts, each by a client that is not in contact with the others: `inferometer run --shard K/N --start-at TIME`.

All parts are computed from the same config and seed, so that together they are exactly the plan. They start at one instant of the
wall clock. merging.py makes one run of them.
"""

import hashlib
import secrets
from collections.abc import Mapping
from datetime import datetime

from inferometer import manifest, workload
from inferometer.config.loads import Stages, stages_of
from inferometer.config.schema import Config
from inferometer.errors import UserError
from inferometer.prepare.plans import whole_plan
from inferometer.prepare.setup import Part, Setup
from inferometer.records import RunPart
from inferometer.units import NS, format_seconds, parse_seconds

INDEX = "JOB_COMPLETION_INDEX"
"""The variable in which Kubernetes gives each Pod of an Indexed Job its number."""
_EXAMPLE = "2026-11-17T12:00:00Z"


# --- what the command line says --------------------------------------------------------------------------------------


def part_and_start(
    shard: str | None, start_at: str | None, environment: Mapping[str, str], now_ns: int
) -> tuple[Part | None, int]:
    """Read --shard and --start-at: the part of the run, and the wall clock at t=0 in nanoseconds since 1970; 0: it is not set."""
    part = parse_part(shard, environment) if shard is not None else None
    if part is not None and start_at is None:
        raise UserError("--shard needs --start-at: all parts of a run start together", "give all of them the same time")
    return part, parse_start(start_at, now_ns) if start_at is not None else 0


def parse_part(text: str, environment: Mapping[str, str]) -> Part:
    """Read `--shard K/N` or `--shard auto/N`. Raises UserError when it is not one of N parts."""
    number, _, of = text.partition("/")
    if number == "auto":
        if INDEX not in environment:
            raise UserError(
                f"--shard {text}: the variable {INDEX} is not set",
                f"`auto` is for the Pods of an Indexed Job of Kubernetes; elsewhere, count the parts: --shard 0/{of or 'N'}",
            )
        number = environment[INDEX]
    if not (number.isdecimal() and of.isdecimal() and int(of)):
        raise UserError(f"--shard {text}: not a part of a run", "write K/N, such as 0/4 for the first of four parts")
    if int(number) >= int(of):
        raise UserError(
            f"--shard {text}: there is no part {int(number)} of {int(of)}",
            f"parts are counted from 0: the last one is {int(of) - 1}/{int(of)}",
        )
    return Part(int(number), int(of))


def parse_start(text: str, now_ns: int) -> int:
    """Read `--start-at`: the wall clock at t=0, in nanoseconds since 1970. Raises UserError when it has passed."""
    if text.startswith("+"):
        try:
            return now_ns + round(parse_seconds(text[1:]) * NS)
        except ValueError:
            raise _not_a_time(text) from None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise _not_a_time(text) from None
    if at.tzinfo is None:
        raise UserError(f"--start-at {text}: the time has no time zone", f"add one, such as Z for UTC: {_EXAMPLE}")
    start = round(at.timestamp() * 1e6) * 1000
    if start < now_ns:
        raise UserError(
            f"--start-at {text}: this was {format_seconds((now_ns - start) / NS)} ago by the clock of this machine",
            "give a time that all clients can be ready at, such as two minutes from now",
        )
    return start


def _not_a_time(text: str) -> UserError:
    return UserError(
        f"--start-at {text}: not a time", f"write a time of day such as {_EXAMPLE}, or +30s for 30 s from now"
    )


# --- what follows for a run ------------------------------------------------------------------------------------------


def check_part(config: Config, part: Part | None) -> None:
    """Raise UserError for a load that parts would have to agree on while they run."""
    if part is None or part.of == 1:
        return
    if isinstance(config.load, Stages) and config.load.drain:
        raise UserError(
            "stages that wait until the requests before have ended cannot be divided into parts, which do not know of each other",
            "set it to false, and leave time between stages with load.pause",
            "load.drain",
        )
    if any(spec.stable for spec in stages_of(config.load)):
        raise UserError(
            "a stage that ends when it is stable cannot be divided into parts: each would end at another time",
            "give the stage a duration or a number of requests instead",
            "load.stable",
        )


def tag_of(part: Part | None, start_ns: int, seed: int) -> str:
    """Return the run's own word (prepare/setup.py). All parts that start at the same instant have the same."""
    if part is None:
        return secrets.token_hex(4)
    return hashlib.sha256(f"{start_ns} {seed} {part.of}".encode()).hexdigest()[:8]


def folder_stem(part: Part | None, start_ns: int, tag: str) -> str:
    """Return what the name of a part's folder starts with: its start and the run's word, so that the parts of a run are together."""
    if part is None:
        return ""
    return f"{datetime.fromtimestamp(start_ns / NS):%Y%m%d-%H%M%S}-{tag}-part{part.number}"


def part_record(setup: Setup) -> RunPart | None:
    """Return what the manifest says about the part; None if it is a whole run."""
    if setup.part is None:
        return None
    plan = whole_plan(setup.config, setup.probe.e2e_ns, setup.turns)
    return RunPart(
        number=setup.part.number,
        of=setup.part.of,
        start_ns=setup.start_ns,
        plan=manifest.stage_plans(setup.config, plan, setup.turns),
        distinct=workload.distinct(setup.config.data) or 0,
    )
