"""The simulator as a text model: requests that are cancelled or too long."""

import asyncio
from typing import Any

import numpy as np
import pytest

from inferometer.serve.models.registry import Models
from inferometer.serve.models.repository import ModelSource
from inferometer.serve.models.types import Inference, Refused
from inferometer.serve.sim.server import KSERVE_CONFIG, Simulator
from inferometer.serve.sim.settings import Batch, Fixed, Sim
from inferometer.tensors import Tensor, from_numpy
from inferometer.timing.clock import now
from inferometer.timing.loop import run


class Request:
    def __init__(self, models: Models, tokens: int, text: bytes = b"hello") -> None:
        self._models = models
        self.responses = 0
        self.ends: list[Refused | None] = []
        self.cancels_at = -1
        self.over = asyncio.Event()
        inputs = {
            "text_input": from_numpy("text_input", np.array([text], object)),
            "max_tokens": from_numpy("max_tokens", np.array([tokens], np.int32)),
        }
        self.inference = Inference("sim", inputs, responded=self._respond, ended=self._ended, arrived=now())

    def _respond(self, outputs: tuple[Tensor, ...]) -> None:
        self.responses += 1
        if self.responses == self.cancels_at:
            self._models.cancel(self.inference)

    def _ended(self, why: Refused | None) -> None:
        self.ends.append(why)
        self.over.set()


def serving(timing: Fixed | Batch, test: Any) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        simulator, models = Simulator(Sim(timing=timing), loop), Models(loop)
        models.add_source(ModelSource("sim", config=KSERVE_CONFIG, loader=simulator.loaded))
        await models.start()
        try:
            async with asyncio.timeout(20):
                await test(models, simulator)
        finally:
            await models.close()
            simulator.close()

    run(main())


TIMINGS = [Fixed(ttft=0, itl=0.0005, max_batch=1), Batch(prefill_rate=1e6, decode_step=0.0005, max_batch=1)]


@pytest.mark.parametrize("timing", TIMINGS, ids=["fixed", "batch"])
@pytest.mark.parametrize("cancels_at", [0, 1, 3])
def test_a_cancelled_request_leaves_nothing_behind(timing: Fixed | Batch, cancels_at: int) -> None:
    async def test(models: Models, simulator: Simulator) -> None:
        one, after = Request(models, 100_000), Request(models, 3)
        one.cancels_at = cancels_at  # from within a response
        models.submit(one.inference)
        models.submit(after.inference)
        if not cancels_at:
            models.cancel(one.inference)
        await one.over.wait()
        await after.over.wait()  # it has the only slot now
        assert [why and why.code for why in one.ends] == ["CANCELLED"]
        assert one.responses == cancels_at or not cancels_at
        assert (after.responses, after.ends) == (3, [None])
        assert (simulator.timing.n_running, len(simulator.timing.waiting)) == (0, 0)
        await models.unload("sim")  # waits for everything that still runs

    serving(timing, test)


@pytest.mark.parametrize(
    ("timing", "tokens", "what"),
    [
        (Fixed(), 2**31 - 1, "exceed the model's maximum of 131072"),
        (Batch(kv_tokens=42, block=4), 38, "3 prompt tokens plus max_tokens 38 exceed the size of the KV cache"),
    ],
)
def test_a_request_that_is_too_long_is_an_invalid_argument(timing: Fixed | Batch, tokens: int, what: str) -> None:
    async def test(models: Models, simulator: Simulator) -> None:
        one = Request(models, tokens)
        models.submit(one.inference)
        (why,) = one.ends
        assert why is not None
        assert why.code == "INVALID_ARGUMENT" and what in why.message

    serving(timing, test)


def test_a_request_that_just_fits_into_the_kv_cache_is_served() -> None:
    async def test(models: Models, simulator: Simulator) -> None:
        one = Request(models, 37)  # after 3 tokens of the prompt
        models.submit(one.inference)
        await one.over.wait()
        assert (one.responses, one.ends) == (37, [None])

    serving(Batch(kv_tokens=42, block=4, decode_step=0.0001), test)


def test_a_long_prompt_that_is_counted_in_a_thread_may_be_cancelled_meanwhile() -> None:
    async def test(models: Models, simulator: Simulator) -> None:
        cancelled, one = Request(models, 3, b"a  b " * 5000), Request(models, 3, b"a  b " * 5000)
        models.submit(cancelled.inference)
        models.submit(one.inference)
        models.cancel(cancelled.inference)
        await one.over.wait()
        assert (one.responses, one.ends) == (3, [None])
        assert [why and why.code for why in cancelled.ends] == ["CANCELLED"]
        assert (cancelled.responses, simulator.timing.n_running) == (0, 0)

    serving(Fixed(ttft=0, itl=0), test)


@pytest.mark.parametrize(("text", "what"), [(b"", "must not be empty"), (b"\xff", "not valid UTF-8")])
def test_a_prompt_without_text_is_an_invalid_argument(text: bytes, what: str) -> None:
    async def test(models: Models, simulator: Simulator) -> None:
        one = Request(models, 3, text)
        models.submit(one.inference)
        (why,) = one.ends
        assert why is not None
        assert why.code == "INVALID_ARGUMENT" and what in why.message

    serving(Fixed(), test)
