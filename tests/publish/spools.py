"""Made-up spools: what shards would have recorded, written in pieces."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.records import COUNTED_BY, ROW, Failure
from inferometer.store.spool import Control

MS = 1_000_000
T0 = 1_000 * MS
CODES = ("http_503", "total_timeout", "dropped")


def rows(count: int, **values: int) -> NDArray[np.void]:
    """Rows of a constant load: sent 1 ms late, first token after 20 ms, 11 tokens 10 ms apart, and their end."""
    made = np.zeros(count, ROW)
    made["intended"] = T0 + np.arange(count) * MS
    for name, later in {"sent": 1, "first_token": 20, "last_token": 120, "done": 121}.items():
        made[name] = made["intended"] + later * MS
    tokens = {"n_in": 5, "n_out": 11, "streamed_tokens": 11, "first_tokens": 1, "chunk_count": 11}
    for name, value in ({"class": -1, "replica": -1, "open_loop": 1, "counted_by": 1} | tokens | values).items():
        made[name] = value
    return made


def random_rows(seed: int, count: int, stages: int, classes: int) -> NDArray[np.void]:
    """Rows with all kinds of ends: successes, failures at any point, requests that were never sent, unknown tokens."""
    random = np.random.default_rng(seed)
    made = rows(count)
    made["stage"], made["open_loop"] = random.integers(0, stages, count), random.integers(0, 2, count)
    made["class"] = random.integers(0, classes, count) if classes else -1
    made["held"] = random.integers(0, MS, count)
    for name in ("sent", "first_token", "last_token", "done"):
        made[name] += (10 ** random.uniform(3, 11.5, count)).astype(np.int64)
    made["failure"] = random.integers(0, len(CODES) + 1, count)
    made["sent"][made["failure"] == 1 + CODES.index("dropped")] = 0
    for name in ("first_token", "last_token"):
        made[name][random.random(count) < 0.2] = 0
    for name in ("n_in", "n_out", "streamed_tokens"):
        made[name] = random.integers(-1, 20, count)
    made["counted_by"] = random.integers(0, len(COUNTED_BY), count)
    return made


class FakeShard:
    """Writes what one shard would."""

    def __init__(self, folder: Path, number: int, codes: Sequence[str] = CODES) -> None:
        self._file, self._failures = folder / f"{number}.rows", folder / f"{number}.failures"
        self.control = Control(folder / f"{number}.control", create=True)
        for code in codes:
            self.add_failure(code)

    def start(self) -> None:
        self.control["t0"] = self.control["heartbeat"] = T0

    def add_failure(self, code: str) -> None:
        with self._failures.open("ab") as file:
            file.write(msgspec.json.encode(Failure(code, "as usual")) + b"\n")

    def record(self, piece: NDArray[np.void]) -> None:
        with self._file.open("ab") as file:
            file.write(piece.tobytes())
        self.control["rows"] += len(piece)

    def recount(self, changed: NDArray[np.void]) -> None:
        """Replace all rows after the run, as when their tokens are counted then."""
        self._file.write_bytes(changed.tobytes())
        self.control["recounted"] = 1
