"""Made-up runs for pages about several runs: sides that differ by a known factor."""

from pathlib import Path

import msgspec
import numpy as np
import synthetic_run as made

from inferometer.analysis.comparison import Compared, Side, compare
from inferometer.analysis.fail_if import parse
from inferometer.analysis.summary import Measured, summarise
from inferometer.records import Failure, StagePlan

STAGES = (
    StagePlan(type="closed", open=False, name="first", concurrency=8, requests=300),
    StagePlan(type="closed", open=False, name="second", concurrency=8, requests=300),
)


def measured(name: str, scale: float = 1.0, seed: int = 0, failed: int = 0, stages: bool = False) -> Measured:
    """A closed loop whose responses take `scale` times as long; the name is that of its folder."""
    rows, chunks = made.closed_rows(seed=seed)
    for column in ("first_byte", "first_token", "first_content", "last_token", "done"):
        rows[column] = rows["sent"] + ((rows[column] - rows["sent"]) * scale).astype(np.int64)
    starts = np.repeat(rows["sent"], rows["chunk_count"])
    chunks = msgspec.structs.replace(chunks, arrival=starts + ((chunks.arrival - starts) * scale).astype(np.int64))
    failures: tuple[Failure, ...] = ()
    if failed:
        made.fail(rows, list(range(0, 600, 600 // failed))[:failed])
        failures = (Failure("http_503", "busy"),)
    plan = {"plan": STAGES} if stages else {}
    if stages:
        rows["stage"] = rows["id"] >= 300
    url = f"http://{name.partition('/')[0]}:8000"
    config = made.manifest().config | {"server": made.manifest().config["server"] | {"url": url}}  # type: ignore[operator]
    run = made.run(rows, chunks, failures=failures, seeds={"seed": seed}, config=config, **plan)
    run = msgspec.structs.replace(run, folder=Path("/runs") / name)
    return run, summarise(run)


def side(name: str, *scales: float, **about: object) -> Side:
    runs = tuple(measured(f"{name}/{seed}", scale, seed, **about) for seed, scale in enumerate(scales))  # type: ignore[arg-type]
    return Side(f"runs/{name}", runs)


def compared(a: Side, b: Side, *conditions: str) -> Compared:
    return Compared(a, b, compare(a, b, [parse(each) for each in conditions]))


FASTER = (0.9, 0.905, 0.895)


def pairs(*conditions: str) -> Compared:
    """Three pairs; B is 10 % faster."""
    return compared(side("a", 1.0, 1.0, 1.0), side("b", *FASTER), *conditions)
