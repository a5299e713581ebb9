"""Models that compute at once, in the loop with responses of any size, or in another process."""

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from models_fakes import TENSORS, Call, flat, run, wants

from inferometer.errors import UserError
from inferometer.serve.backends.identity import pairs, passed_on
from inferometer.serve.models import configs, repository
from inferometer.serve.models.registry import Models
from inferometer.serve.models.repository import ModelSource
from inferometer.serve.models.types import Emit, Finish, Inference, Loaded, Loading, Parameters, Tensors
from inferometer.tensors import from_numpy

CONFIG = f'backend: "mine" {TENSORS}'
DECOUPLED = CONFIG + "model_transaction_policy { decoupled: true }"


def serving(test: Callable[[Models], Any], load: Callable[[Loading], Loaded], config: str = CONFIG) -> None:
    async def main() -> None:
        models = Models(asyncio.get_running_loop(), device="cpu")
        models.add_source(ModelSource("m", config=config, loader=load))
        await models.start()
        try:
            await test(models)
        finally:
            await models.close()

    run(main())


# --- at once ---------------------------------------------------------------------------------------------------------


def picky(loading: Loading) -> Loaded:
    names = pairs(loading)

    def instant(inputs: Tensors, parameters: Parameters) -> Tensors:
        if parameters.get("fail"):
            raise ValueError("negative")
        return {} if parameters.get("nothing") else passed_on(inputs, names)

    return Loaded(instant=instant, slots=0)


def test_a_model_that_computes_at_once_responds_before_submit_returns() -> None:
    async def test(models: Models) -> None:
        for wanted in ((), wants("OUTPUT0"), wants("OUTPUT0", classes=1)):
            call = Call("m", flat(7), wanted=wanted).on(models)
            assert (call.ends, len(call.responses), models.in_flight) == ([None], 1, 0)
        stats = models.find("m").counted.message()
        assert (stats.execution_count, stats.inference_stats.success.count) == (3, 3)
        assert stats.last_inference > 1_600_000_000_000

    serving(test, picky)


def test_errors_of_a_model_that_computes_at_once_are_responses() -> None:
    async def test(models: Models) -> None:
        why = await Call("m", flat(1), parameters={"fail": True}).on(models).refused()
        assert (why.code, why.message) == ("INTERNAL", "ValueError: negative")
        why = await Call("m", flat(1), parameters={"nothing": True}, wanted=wants("OUTPUT0")).on(models).refused()
        assert why.message == "the model did not return output 'OUTPUT0', which was requested"
        stats = models.find("m").counted.message()
        assert (stats.execution_count, stats.inference_stats.fail.count) == (0, 2)

    serving(test, picky)


# --- begun in the loop -----------------------------------------------------------------------------------------------


def repeating(loading: Loading) -> Loaded:
    """Load a model that sends responses of the sizes 0, 1, 2, ... all at once."""

    def begin(inputs: Tensors, first: Inference, emit: Emit, finish: Finish) -> None:
        for size in range(int(str(first.parameters["responses"]))):
            emit({"OUTPUT0": from_numpy("OUTPUT0", np.zeros(size, np.float32))})
        finish(None)

    pairs(loading)
    return Loaded(begin=begin, slots=0)


def test_only_a_decoupled_model_sends_any_number_of_responses() -> None:
    def call(models: Models, responses: int) -> Call:
        return Call("m", flat(1), parameters={"responses": responses}).on(models)

    async def decoupled(models: Models) -> None:
        assert [len(response[0].data) for response in call(models, 3).responses] == [0, 4, 8]
        assert (call(models, 0).ends, models.in_flight) == ([None], 0)

    async def ordinary(models: Models) -> None:
        assert len(call(models, 3).responses) == 1
        assert (await call(models, 0).refused()).message == "the model returned no response"

    serving(decoupled, repeating, DECOUPLED)
    serving(ordinary, repeating)


# --- in another process ----------------------------------------------------------------------------------------------


def definition(backend: str, process: str = "") -> Loading:
    text = f'parameters {{ key: "process" value {{ string_value: "{process}" }} }}' if process else ""
    return Loading("m", configs.from_pbtxt(text), backend=backend)


def test_the_parameter_process_decides_where_a_model_runs() -> None:
    assert repository.wants_process(definition("torch", "1"), False)
    assert not repository.wants_process(definition("torch"), False)
    assert repository.wants_process(definition("torch"), True)
    assert not repository.wants_process(definition("torch", "0"), True)
    assert not repository.wants_process(definition("identity"), True)
    with pytest.raises(UserError, match="parameter process must be a whole number"):
        repository.wants_process(definition("torch", "yes"), True)
