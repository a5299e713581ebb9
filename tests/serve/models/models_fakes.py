"""Fake models that the test controls step by step, and requests that record their responses."""

import asyncio
import functools
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvloop

from inferometer.serve import backends
from inferometer.serve.backends.identity import pairs, passed_on
from inferometer.serve.models.registry import Models
from inferometer.serve.models.types import NEVER, Inference, Loaded, Loading, Parameters, Refused, Tensors, Wanted
from inferometer.tensors import Tensor, from_numpy, to_numpy
from inferometer.timing.clock import now

WAIT_S = 30


def run(test: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(test, WAIT_S)

    uvloop.run(bounded())


def asynchronous(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test in an event loop of its own."""

    @functools.wraps(test)
    def run_test(*arguments: Any, **named: Any) -> None:
        run(test(*arguments, **named))

    return run_test


# --- requests --------------------------------------------------------------------------------------------------------


class Call:
    """A request and its recorded responses."""

    def __init__(self, model: str, *inputs: Tensor, deadline: int = NEVER, **words: Any) -> None:
        self.responses: list[tuple[Tensor, ...]] = []
        self.ends: list[Refused | None] = []
        self.over = asyncio.Event()
        self.responded = asyncio.Event()
        self.inference = Inference(
            model,
            {tensor.name: tensor for tensor in inputs},
            responded=self._respond,
            ended=self._ended,
            arrived=now(),
            deadline=deadline,
            **words,
        )

    def _respond(self, outputs: tuple[Tensor, ...]) -> None:
        assert not self.ends
        self.responses.append(outputs)
        self.responded.set()

    def _ended(self, why: Refused | None) -> None:
        self.ends.append(why)
        self.over.set()

    def on(self, models: Models) -> "Call":
        models.submit(self.inference)
        return self

    async def outputs(self) -> dict[str, Any]:
        """Return the arrays of the only response."""
        await self.over.wait()
        assert self.ends == [None], self.ends
        (outputs,) = self.responses
        return {output.name: to_numpy(output) for output in outputs}

    async def refused(self) -> Refused:
        await self.over.wait()
        (why,) = self.ends
        assert why is not None
        return why


def fp32(*rows: list[float], name: str = "INPUT0") -> Tensor:
    """Return a batch of these rows."""
    return from_numpy(name, np.array(rows, np.float32))


def flat(*values: float) -> Tensor:
    """Return a tensor for a model without a batch dimension."""
    return from_numpy("INPUT0", np.array(values, np.float32))


def wants(name: str, **words: Any) -> tuple[Wanted, ...]:
    return (Wanted(name, **words),)


def why_not(models: Models, call: Call) -> Refused:
    """Return why the request is refused at once."""
    call.on(models)
    (why,) = call.ends
    assert why is not None
    return why


# --- backends --------------------------------------------------------------------------------------------------------


class Gate:
    """A model that starts a batch when allowed: each `open` lets one through."""

    def __init__(self) -> None:
        self.batches: list[list[float]] = []
        """The first value of each row, of the batches that started."""
        self.begun = threading.Semaphore(0)
        self.opened = threading.Semaphore(0)
        self.closed = threading.Event()
        self.loads = 0

    def open(self, times: int = 1) -> None:
        self.opened.release(times)

    async def wait_begun(self) -> None:
        assert await asyncio.get_running_loop().run_in_executor(None, self.begun.acquire, True, WAIT_S)


GATES: dict[str, Gate] = {}


def gate(loading: Loading) -> Loaded:
    names, it = pairs(loading), GATES.setdefault(loading.name, Gate())
    it.loads += 1

    def compute(inputs: Tensors, parameters: Parameters) -> Tensors:
        it.batches.append([float(row[0]) for row in to_numpy(next(iter(inputs.values())))])
        it.begun.release()
        it.opened.acquire()
        return passed_on(inputs, names)

    return Loaded(run=compute, slots=int(loading.parameter("slots", "1")), close=it.closed.set)


def stream(loading: Loading) -> Loaded:
    """Load a decoupled model that sends as many responses as the first value says, each when the gate opens."""
    names, it = pairs(loading), GATES.setdefault(loading.name, Gate())

    def compute(inputs: Tensors, parameters: Parameters) -> Iterator[Tensors]:
        try:
            for _ in range(int(to_numpy(next(iter(inputs.values()))).flat[0])):
                it.begun.release()
                it.opened.acquire()
                yield passed_on(inputs, names)
        finally:
            it.closed.set()

    return Loaded(run=compute)


def broken(loading: Loading) -> Loaded:
    pairs(loading)

    def compute(inputs: Tensors, parameters: Parameters) -> Tensors:
        raise ValueError("the weights\nare gone")

    return Loaded(run=compute)


def exiting(loading: Loading) -> Loaded:
    pairs(loading)

    def compute(inputs: Tensors, parameters: Parameters) -> Tensors:
        raise SystemExit(3)

    return Loaded(run=compute)


def unloadable(loading: Loading) -> Loaded:
    raise RuntimeError("no such weights")


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Gate]]:
    """The backends above, by name; call it to get a model's gate."""
    for name in ("gate", "stream", "broken", "exiting", "unloadable"):
        monkeypatch.setitem(backends.LOADERS, name, f"models_fakes:{name}")
    GATES.clear()
    yield lambda name: GATES.setdefault(name, Gate())
    for each in GATES.values():  # threads that still wait
        each.open(1000)


# --- servers ---------------------------------------------------------------------------------------------------------

TENSORS = """
input [{ name: "INPUT0", data_type: TYPE_FP32, dims: [ -1 ] }]
output [{ name: "OUTPUT0", data_type: TYPE_FP32, dims: [ -1 ] }]
parameters { key: "warmup" value { string_value: "0" } }
"""


def write_model(repository: Path, name: str, config: str, version: str = "1") -> Path:
    folder = repository / name
    (folder / version).mkdir(parents=True, exist_ok=True)
    (folder / "config.pbtxt").write_text(config)
    return folder


@asynccontextmanager
async def serving(repository: Path, configs: dict[str, str] | None = None, **words: Any) -> AsyncIterator[Models]:
    for name, config in (configs or {}).items():
        write_model(repository, name, config)
    models = Models(asyncio.get_running_loop(), device="cpu", **words)
    models.add(str(repository))
    await models.start()
    try:
        yield models
    finally:
        await models.close()


def served(*configs: Any, **words: Any) -> Callable[..., Callable[..., None]]:
    """Run a test in an event loop of its own, with the Models of a repository of these configurations as its first argument."""

    def decorated(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
        wanted = list(inspect.signature(test).parameters.values())[1:]
        names = {one.name for one in wanted}
        always = [name for name in ("tmp_path", "fakes") if name not in names]

        def run_test(**fixtures: Any) -> None:
            async def main() -> None:
                async with serving(fixtures["tmp_path"], *configs, **words) as models:
                    await test(models, **{name: one for name, one in fixtures.items() if name in names})

            run(main())

        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        fixtures = [*wanted, *(inspect.Parameter(name, kind) for name in always)]
        run_test.__signature__ = inspect.Signature(fixtures)  # type: ignore[attr-defined]
        return run_test

    return decorated
