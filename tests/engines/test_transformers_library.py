"""Hugging Face transformers as a library: every mode generates what plain `model.generate` does, and notes when."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_models import text_model

from inferometer.config.engines import EngineSpec
from inferometer.engines.inprocess.library import Library, start_library
from inferometer.types import Request

pytestmark = [pytest.mark.transformers, pytest.mark.slow]

MODES = ("serial", "batched", "continuous")
PROMPTS = ["bami dako", "mira dako bali bami fosi rele", "vika", "dasu bali mika fodi"]
TOKENS = 7


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return text_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def plain(model: Path) -> Any:
    """What the model generates greedily, one prompt at a time."""
    import torch  # noqa: PLC0415
    import transformers  # noqa: PLC0415

    loaded = transformers.AutoModelForCausalLM.from_pretrained(model, dtype="float32").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)

    def generate(prompt: str, tokens: int, chat: bool = False) -> tuple[int, ...]:
        given: Any = tokenizer(prompt, return_tensors="pt")
        if chat:
            messages = [{"role": "user", "content": prompt}]
            given = tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
            )
        with torch.no_grad():
            made = loaded.generate(**given, do_sample=False, max_new_tokens=tokens, pad_token_id=2)
        return tuple(made[0, given["input_ids"].shape[1] :].tolist())

    return generate


@pytest.fixture(scope="module", params=MODES)
def library(request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Library]:
    folder = tmp_path_factory.mktemp(request.param)
    spec = EngineSpec(
        type="transformers", mode=request.param, name=request.param, dtype="float32", env={"OMP_NUM_THREADS": "1"}
    )
    made = start_library(spec, str(model), folder / "log", folder, 300, max_batch=4)
    yield made
    made.close()


def requests(n_out: int = TOKENS) -> list[Request]:
    return [Request(id, prompt, 0, n_out) for id, prompt in enumerate(PROMPTS)]


def test_the_start_has_phases_and_facts(library: Library) -> None:
    assert list(library.phases) == ["imported", "weights loaded", "warmed up"]
    assert library.facts["dtype"] == "float32"
    assert (library.facts["device"], library.facts["max length"], library.facts["chat template"]) == (
        "cpu",
        "256",
        "the model's",
    )
    assert library.facts["prefix cache"] == ("on" if library.spec.mode == "continuous" else "off")
    assert {"torch", "transformers"} <= library.versions.keys()


def test_outputs_are_those_of_generate(library: Library, plain: Any) -> None:
    made = library.complete(requests(), TOKENS)
    assert [each.ids for each in made] == [plain(prompt, TOKENS) for prompt in PROMPTS]
    assert all(each.text.strip() for each in made)


def test_the_chat_template_is_used_when_asked_to(library: Library, plain: Any) -> None:
    made = library.complete(requests()[:2], TOKENS, chat=True)
    assert [each.ids for each in made] == [plain(prompt, TOKENS, chat=True) for prompt in PROMPTS[:2]]
    messages = Request(0, [{"role": "user", "content": PROMPTS[0]}], 0, TOKENS)
    assert library.complete([messages], TOKENS)[0].ids == made[0].ids


def test_a_level_has_the_requested_lengths_and_real_times(library: Library) -> None:
    mode, level = library.spec.mode, 1 if library.spec.mode == "serial" else 3
    given = [Request(id, prompt, 0, TOKENS + id) for id, prompt in enumerate(PROMPTS)]
    generated = library.generate(given, level, count=7)
    assert [row.failure for row in generated.rows] == [""] * 7
    assert [row.n_out for row in generated.rows] == [TOKENS + row.request for row in generated.rows]
    for row in generated.rows:
        assert generated.began <= row.sent < row.done <= generated.ended
        if mode == "batched":
            assert (row.first, row.last, row.arrivals) == (None, None, ())
            continue
        assert sum(row.tokens) == row.n_out
        assert list(row.arrivals) == sorted(row.arrivals)
        assert row.sent < row.arrivals[0] == row.first <= row.last == row.arrivals[-1] <= row.done  # type: ignore[operator]


def test_batches_are_padded_and_end_together(library: Library) -> None:
    if library.spec.mode != "batched":
        pytest.skip("only static batches are padded")
    generated = library.generate(requests(), 4, count=4)
    assert len({row.done for row in generated.rows}) == len({row.sent for row in generated.rows}) == 1
    widest = max(row.n_in for row in generated.rows)
    useful = sum(row.n_in + row.n_out for row in generated.rows)
    assert generated.padding == pytest.approx(1 - useful / (4 * (widest + TOKENS)))


def test_continuous_batching_keeps_as_many_in_flight_as_asked(library: Library) -> None:
    if library.spec.mode != "continuous":
        pytest.skip("about continuous batching")
    rows = library.generate(requests(20), 3, count=12).rows
    flying = [sum(other.sent <= row.sent < other.done for other in rows) for row in rows]
    assert max(flying) == 3
    assert min(flying[2:]) == 3  # a request is sent when another one has ended


def test_a_prompt_that_is_too_long_fails_alone(library: Library) -> None:
    given = [*requests(), Request(4, "bami " * 400, 0, TOKENS)]
    rows = library.generate(given, 1 if library.spec.mode == "serial" else 5, count=5).rows
    assert [row.failure for row in rows] == ["", "", "", "", "engine_error"]
    assert "context has only 256" in rows[4].message


def test_an_output_of_open_length_ends_with_the_text_or_the_context(library: Library) -> None:
    (row,) = library.generate([Request(0, "bami " * 60, 0, 0)], 1, count=1).rows
    assert row.n_in + row.n_out == 256  # this model never ends a text


def test_a_profile_of_a_level_is_a_trace(library: Library, tmp_path: Path) -> None:
    library.start_profile()
    library.generate(requests(2), 1 if library.spec.mode == "serial" else 2, count=2)
    trace = library.stop_profile(tmp_path / "trace.json")
    assert '"traceEvents"' in trace.read_text()


def test_a_model_that_does_not_exist_is_an_error(model: Path, tmp_path: Path) -> None:
    from inferometer.engines.launching import EngineError  # noqa: PLC0415

    spec = EngineSpec(type="transformers", mode="serial", name="t", env={"HF_HUB_OFFLINE": "1"})
    with pytest.raises(EngineError, match="nowhere") as caught:
        start_library(spec, str(tmp_path / "nowhere"), tmp_path / "log", tmp_path, 120)
    assert caught.value.reason == "failed"
