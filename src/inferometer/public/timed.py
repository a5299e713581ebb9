"""`inferometer.timed`: how long a block of code takes, once or many times, on a CPU or a GPU."""

import importlib
import time
from types import TracebackType
from typing import Any

from inferometer.analysis.durations import Durations, describe_durations
from inferometer.errors import UserError


class Timed:
    """The durations of a block of code. Use it in a `with` statement as often as there is something to measure."""

    def __init__(self, name: str = "", *, cuda: bool | str = False) -> None:
        self._name = name
        self._synchronise = _synchroniser(cuda) if cuda else None
        self._begin: int | None = None
        self._seconds: list[float] = []

    def __enter__(self) -> "Timed":
        if self._begin is not None:
            raise UserError(f"timed {self._name!r}: the block is being measured already", "use another timer inside it")
        if self._synchronise is not None:
            self._synchronise()
        self._begin = time.perf_counter_ns()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Note the duration, unless the block has raised."""
        begin, self._begin = self._begin, None
        if kind is None and begin is not None:
            if self._synchronise is not None:
                self._synchronise()
            self._seconds.append((time.perf_counter_ns() - begin) / 1e9)

    @property
    def name(self) -> str:
        """What is measured."""
        return self._name

    @property
    def seconds(self) -> float:
        """The latest duration. Raises Error when nothing was measured."""
        if not self._seconds:
            raise UserError(f"timed {self._name!r}: nothing was measured yet", "use it in a `with` statement")
        return self._seconds[-1]

    @property
    def all(self) -> tuple[float, ...]:
        """Every duration, in the order of measuring."""
        return tuple(self._seconds)

    @property
    def statistics(self) -> Durations:
        """Their `count`, `mean`, `sd`, `min`, `max`, `median`, `p95` and `p99`, in seconds."""
        return describe_durations(self._seconds)

    def __str__(self) -> str:
        return f"{self._name}: {self.statistics}" if self._name else str(self.statistics)


def timed(name: str = "", *, cuda: bool | str = False) -> Timed:
    """Measure how long a block of code takes.

        with inferometer.timed("step", cuda=True) as t:
            model(**inputs)
        print(t.seconds)

    To measure many times, keep the timer and enter it again; `statistics` describes all durations. `cuda`: a GPU works on after the
    call that started it has returned, so wait for it before and after the block; a name, such as "cuda:1", is that of the device.
    """
    return Timed(name, cuda=cuda)


def _synchroniser(cuda: bool | str) -> Any:
    """Waits for a GPU. Raises UserError when there is none."""
    try:
        torch = importlib.import_module("torch")  # an extra
    except ImportError:
        raise UserError(
            "timed: cuda needs PyTorch, which is not installed", "pip install 'inferometer[torch]'"
        ) from None
    if not torch.cuda.is_available():
        raise UserError("timed: this machine has no GPU that PyTorch can use", "leave out cuda")
    device = None if cuda is True else cuda
    return lambda: torch.cuda.synchronize(device)
