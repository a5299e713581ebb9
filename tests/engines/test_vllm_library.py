"""vLLM as a library: `LLM.generate` in its own interpreter, which has none of our packages."""

from collections.abc import Iterator

import pytest
from engine_help import children_of, is_alive
from needs import INSTALLED
from tiny_models import text_model
from waiting import until

from inferometer.config.engines import EngineSpec
from inferometer.engines.inprocess.library import Library, start_library
from inferometer.types import Request

pytestmark = [pytest.mark.vllm, pytest.mark.transformers, pytest.mark.slow]

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Library]:
    folder = tmp_path_factory.mktemp("vllm")
    spec = EngineSpec(
        type="vllm",
        mode="batched",
        name="vllm",
        dtype="float32",
        args={"max-model-len": 256, "enforce-eager": True},
        env=ENVIRONMENT | {"HF_HOME": str(folder)},
        python=str(INSTALLED / "vllm/bin/python"),
    )
    made = start_library(spec, str(text_model(folder / "tiny")), folder / "log", folder / "traces", 600, max_batch=3)
    yield made
    made.close()


def test_vllm_generates_in_batches_and_says_when_the_first_token_came(library: Library) -> None:
    given = [Request(id, "bami dako " * (id + 1), 0, 6 + id) for id in range(4)]
    generated = library.generate(given, 2, count=4)
    assert [(row.failure, row.n_out) for row in generated.rows] == [("", 6), ("", 7), ("", 8), ("", 9)]
    for row in generated.rows:
        assert row.first is not None and row.last is not None
        assert row.sent < row.first < row.last <= row.done
    assert generated.rows[0].done == generated.rows[1].done < generated.rows[2].sent
    assert library.facts["max length"] == "256"
    assert (library.facts["prefix cache"], library.facts["dtype"]) == ("on", "float32")


def test_vllm_completes_texts_and_messages(library: Library) -> None:
    text, chat = (library.complete([Request(0, "bami dako", 0, 5)], 5, chat=chat)[0] for chat in (False, True))
    assert text.ids is not None and chat.ids is not None
    assert len(text.ids) == len(chat.ids) == 5
    assert text.ids != chat.ids


def test_a_prompt_that_is_too_long_fails(library: Library) -> None:
    (row,) = library.generate([Request(0, "bami " * 400, 0, 5)], 1, count=1).rows
    assert row.failure == "engine_error"
    assert "maximum context length" in row.message


def test_no_process_of_vllm_is_left(library: Library) -> None:
    family = [library.pid, *children_of(library.pid)]
    assert len(family) > 1
    library.close()
    until(lambda: not any(map(is_alive, family)))
