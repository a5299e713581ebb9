"""Language models with random weights, compared with transformers' own generate() and forward()."""

import contextlib
import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backend_help import field, given, listed, loading, run_model, words
from hypothesis import given as for_all
from hypothesis import strategies as st

from inferometer.errors import UserError
from inferometer.serve.backends import generation
from inferometer.serve.backends import transformers as backend
from inferometer.serve.models.types import Loaded, Refused
from inferometer.tensors import from_numpy, to_numpy

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
tokenizers = pytest.importorskip("tokenizers")
pytestmark = pytest.mark.transformers

WORDS = ["<pad>", "<unk>", "</s>", *(f"w{i}" for i in range(61))]
TEXTS = ["w1 w2 w3", "w4", "w5 w6 w7 w8 w9 w10", "w60 unknown"]


def word_tokenizer(**more: Any) -> Any:
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: i for i, word in enumerate(WORDS)}, "<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    names = {"unk_token": "<unk>", "eos_token": "</s>", "pad_token": "<pad>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, **{**names, **more})


def byte_tokenizer() -> Any:
    """Return a tokenizer with one token per byte: characters beyond ASCII span several tokens."""
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    made = tokenizers.Tokenizer(tokenizers.models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made)


def llama(**more: Any) -> Any:
    sizes = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64}
    ends = {"eos_token_id": None, "bos_token_id": None, "pad_token_id": 0}
    return transformers.LlamaConfig(**{**sizes, **heads, **ends, "initializer_range": 1.0, **more})


def bert(**more: Any) -> Any:
    return transformers.BertConfig(
        **{
            "vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2,
            "num_attention_heads": 2, "max_position_embeddings": 8, "initializer_range": 1.0, **more,
        }
    )  # fmt: skip


def saved(folder: Path, model: Any, tokenizer: Any = None) -> Path:
    model.eval().save_pretrained(folder)
    (tokenizer or word_tokenizer()).save_pretrained(folder)
    return folder


def seeded(kind: Any, config: Any, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return kind(config).eval()


# --- generation ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def causal() -> Any:
    made = seeded(transformers.LlamaForCausalLM, llama())
    with torch.no_grad():
        made.lm_head.weight[:3] = 0  # never a special token, which has no text
    return made


@pytest.fixture(scope="module")
def writer_folder(causal: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("writer"), causal)


@pytest.fixture(scope="module")
def writer(writer_folder: Path) -> Loaded:
    return backend.load(loading(writer_folder))


def pieces(loaded: Loaded, prompt: str = "w1 w2 w3", **more: Any) -> list[str]:
    assert loaded.run is not None
    responses: Any = loaded.run(given(text_input=words(prompt), **more), {})
    return [to_numpy(one["text_output"])[0].decode() for one in responses]


def expected_tokens(model: Any, prompt: str, count: int, **more: Any) -> list[int]:
    ids = word_tokenizer()(prompt, return_tensors="pt")
    made = model.generate(
        **{k: v for k, v in ids.items() if k != "token_type_ids"}, max_new_tokens=count, do_sample=False, **more
    )
    return list(made[0, ids["input_ids"].shape[1] :].tolist())


def number(value: float, kind: str) -> Any:
    return np.array([value], kind)


def test_greedy_text_matches_generate_with_one_piece_per_token(causal: Any, writer: Loaded) -> None:
    for prompt in ("w1 w2 w3", "w9", " ".join(f"w{i}" for i in range(30))):
        tokens = expected_tokens(causal, prompt, 12)
        assert pieces(writer, prompt, max_tokens=number(12, "i4")) == [f" {WORDS[token]}" for token in tokens]


def test_configuration_is_decoupled_and_lists_the_inputs(writer_folder: Path) -> None:
    options = loading(writer_folder)
    backend.load(options)
    assert options.config.model_transaction_policy.decoupled
    assert options.config.max_batch_size == 0
    assert listed(options.config.input)[:3] == [
        ("text_input", "STRING", (1,)), ("max_tokens", "INT32", (1,)), ("temperature", "FP32", (1,)),
    ]  # fmt: skip
    assert [one.name for one in options.config.input if not one.optional] == ["text_input"]
    assert listed(options.config.output) == [("text_output", "STRING", (1,))]


def test_max_tokens_and_the_context_length_end_generation(writer_folder: Path, writer: Loaded) -> None:
    few = backend.load(loading(writer_folder, parameters={"max_tokens": "3"}))
    assert len(pieces(few)) == 3
    assert len(pieces(writer, " ".join(["w1"] * 60))) == 4
    assert len(pieces(writer, " ".join(["w1"] * 60), max_tokens=number(2, "i4"))) == 2


def test_an_end_of_text_token_ends_generation_and_is_not_sent(causal: Any, tmp_path: Path) -> None:
    tokens = expected_tokens(causal, "w1 w2 w3", 12)
    end = next(token for token in tokens[2:] if tokens.index(token) >= 2)
    causal.generation_config.eos_token_id = [63, end]
    try:
        loaded = backend.load(loading(saved(tmp_path, causal)))
    finally:
        causal.generation_config.eos_token_id = None
    assert pieces(loaded) == [f" {WORDS[token]}" for token in tokens[: tokens.index(end)]]


def test_closing_ends_the_computation(writer_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    real = transformers.LlamaForCausalLM.forward

    def counted(self: Any, *arguments: Any, **more: Any) -> Any:
        calls.append(1)
        return real(self, *arguments, **more)

    counted.__signature__ = inspect.signature(real)  # type: ignore[attr-defined]
    monkeypatch.setattr(transformers.LlamaForCausalLM, "forward", counted)
    loaded = backend.load(loading(writer_folder))
    assert loaded.run is not None
    responses: Any = loaded.run(given(text_input=words("w1")), {})
    next(responses)
    next(responses)
    responses.close()
    assert len(calls) == 2
    with pytest.raises(StopIteration):
        next(responses)


def test_concurrent_texts_do_not_mix(writer: Loaded) -> None:
    alone = [pieces(writer, prompt, max_tokens=number(8, "i4")) for prompt in ("w1 w2", "w7")]
    assert writer.run is not None
    both: list[Any] = [
        writer.run(given(text_input=words(prompt), max_tokens=number(8, "i4")), {}) for prompt in ("w1 w2", "w7")
    ]
    mixed: list[list[str]] = [[], []]
    for pair in zip(*both, strict=True):
        for i, one in enumerate(pair):
            mixed[i].append(to_numpy(one["text_output"])[0].decode())
    assert mixed == alone


def test_inference_mode_does_not_leak_out_of_the_generator(writer: Loaded) -> None:
    assert writer.run is not None
    responses: Any = writer.run(given(text_input=words("w1")), {})
    next(responses)
    assert not torch.is_inference_mode_enabled()
    responses.close()


def test_sampling_is_reproducible_with_a_seed(writer: Loaded) -> None:
    def drawn(seed: int, **more: Any) -> list[str]:
        return pieces(
            writer, temperature=number(2.0, "f4"), seed=number(seed, "i8"), max_tokens=number(20, "i4"), **more
        )

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
    greedy = pieces(writer, max_tokens=number(20, "i4"))
    assert drawn(1) != greedy
    assert drawn(1, top_p=number(1e-6, "f4")) == greedy


def test_sampling_follows_the_logits() -> None:
    logits = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05]))
    generator = torch.Generator().manual_seed(0)

    def shares(**more: Any) -> list[float]:
        wish = generation.Wish("", 1, temperature=1.0, **more)
        found = [generation._chosen(torch, logits, wish, generator) for _ in range(4000)]
        return [found.count(i) / 4000 for i in range(4)]

    assert shares() == pytest.approx([0.5, 0.3, 0.15, 0.05], abs=0.03)
    assert shares(top_p=0.75) == pytest.approx([0.625, 0.375, 0, 0], abs=0.03)


def test_a_stop_text_ends_generation_and_is_not_sent(writer: Loaded) -> None:
    whole = pieces(writer, max_tokens=number(12, "i4"))
    end = "".join(whole[4:6])[1:-1]  # within two tokens, ending and beginning inside them
    text = "".join(whole)
    stopped = "".join(pieces(writer, max_tokens=number(12, "i4"), stop=words("never", end)))
    assert stopped == text[: text.index(end)]
    assert "".join(pieces(writer, max_tokens=number(12, "i4"), stop=words("never", ""))) == text


@for_all(
    st.lists(st.text("abc", max_size=4), max_size=12),
    st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
)
def test_stop_texts_are_found_across_pieces(cut: list[str], stop: list[str]) -> None:
    held, out, text = generation.Held(stop), "", "".join(cut)
    for piece in cut:
        out += held.add(piece)
        if held.stopped:
            break
    else:
        out += held.rest()
    if not any(one in text for one in stop):
        assert (out, held.stopped) == (text, False)
    else:
        assert held.stopped
        assert not any(one in out for one in stop)
        assert text.startswith(out)
        assert any(text[len(out) :].startswith(one) for one in stop)


@for_all(st.text(max_size=20), st.text(max_size=30))
def test_pieces_are_whole_characters_that_add_up_to_the_text(prompt: str, text: str) -> None:
    tokenizer = BYTES
    with contextlib.suppress(UnicodeEncodeError):
        before, tokens = tokenizer(prompt)["input_ids"], tokenizer(text)["input_ids"]
        growing = generation.Text(tokenizer, before)
        made = [growing.add(token) for token in tokens]
        assert "".join(made) + growing.rest() == text
        if "\ufffd" not in text:
            assert growing.rest() == ""
            assert all(len(piece) <= 1 for piece in made)


BYTES = byte_tokenizer()


def test_leading_spaces_of_words_are_kept() -> None:
    """As in SentencePiece: the space is part of the word and is dropped at the beginning of a text."""
    words_ = {"▁a": 0, "▁b": 1, "c": 2, "<unk>": 3}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words_, "<unk>"))
    made.decoder = tokenizers.decoders.Metaspace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>")
    assert tokenizer.decode([1]) == "b"
    growing = generation.Text(tokenizer, [0])
    assert [growing.add(token) for token in (1, 2, 0, 0)] == [" b", "c", " a", " a"]


def test_invalid_utf8_is_sent_at_the_end() -> None:
    wrong = BYTES.convert_tokens_to_ids(["Ģ"])  # 0x80: only ever the middle of a character
    growing = generation.Text(BYTES, [])
    made = [growing.add(wrong[0]) for _ in range(20)]
    assert ("".join(made) + growing.rest()) == "\ufffd" * 20
    assert any(made)


@pytest.mark.parametrize(
    ("inputs", "what"),
    [
        ({"max_tokens": number(0, "i4")}, "input 'max_tokens': must be at least 1 (got 0)"),
        ({"temperature": number(-1, "f4")}, "input 'temperature': must be at least 0 (got -1.0)"),
        ({"temperature": number(np.nan, "f4")}, "input 'temperature'"),
        ({"top_p": number(0, "f4")}, "input 'top_p': must be in (0, 1] (got 0.0)"),
        ({"max_tokens": np.array([1, 2], "i4")}, "input 'max_tokens': expected one number (got 2)"),
        ({"prompt": " ".join(["w1"] * 64)}, "the text has 64 tokens; the maximum, including the response, is 64"),
        ({"prompt": ""}, "the text has no tokens"),
    ],
)
def test_invalid_parameters_are_refused(writer: Loaded, inputs: dict[str, Any], what: str) -> None:
    with pytest.raises(Refused) as caught:
        pieces(writer, **inputs)
    assert caught.value.code == "INVALID_ARGUMENT"
    assert what in caught.value.message


def test_an_invalid_prompt_is_refused(writer: Loaded) -> None:
    assert writer.run is not None
    with pytest.raises(Refused, match="input 'text_input': an element is not valid UTF-8"):
        writer.run(given(text_input=words(b"\xff")), {})
    with pytest.raises(Refused, match="expected one text"):
        writer.run(given(text_input=words("a", "b")), {})


# --- embeddings ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def encoder() -> Any:
    return seeded(transformers.BertModel, bert())


@pytest.fixture(scope="module")
def encoder_folder(encoder: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("encoder"), encoder)


def batch(*texts: str) -> Any:
    return words(*texts).reshape(-1, 1)


def test_an_embedding_is_the_mean_over_the_texts_tokens(encoder: Any, encoder_folder: Path) -> None:
    options = loading(encoder_folder)
    loaded = backend.load(options)
    assert listed(options.config.input) == [("text", "STRING", (1,))]
    assert listed(options.config.output) == [("embedding", "FP32", (16,))]
    assert options.config.max_batch_size == 32
    assert options.config.WhichOneof("scheduling_choice") == "dynamic_batching"
    made = run_model(loaded, text=batch(*TEXTS))["embedding"]
    assert made.shape == (4, 16)
    for text, row in zip(TEXTS, made, strict=True):
        with torch.inference_mode():
            truth = encoder(**word_tokenizer()(text, return_tensors="pt")).last_hidden_state[0].mean(0)
        np.testing.assert_allclose(row, truth.numpy(), rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(run_model(loaded, text=batch(text))["embedding"][0], row, rtol=1e-3, atol=1e-5)


def test_embeddings_are_normalized_if_so_configured(encoder_folder: Path) -> None:
    plain, unit = (backend.load(loading(encoder_folder, parameters={"normalize": one})) for one in "01")
    rows = run_model(plain, text=batch(*TEXTS))["embedding"]
    made = run_model(unit, text=batch(*TEXTS))["embedding"]
    np.testing.assert_allclose(np.linalg.norm(made, axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(made, rows / np.linalg.norm(rows, axis=1, keepdims=True), rtol=1e-4, atol=1e-6)


def test_long_texts_are_truncated(encoder_folder: Path) -> None:
    loaded = backend.load(loading(encoder_folder))
    long = " ".join(f"w{i}" for i in range(20))
    cut = " ".join(f"w{i}" for i in range(8))
    made = run_model(loaded, text=batch(long, cut))["embedding"]
    np.testing.assert_allclose(made[0], made[1], rtol=1e-5)
    shorter = backend.load(loading(encoder_folder, parameters={"max_length": "2"}))
    made = run_model(shorter, text=batch("w1 w2 w3", "w1 w2"))["embedding"]
    np.testing.assert_allclose(made[0], made[1], rtol=1e-5)


def test_without_batching_a_request_has_one_text(encoder_folder: Path) -> None:
    options = loading(encoder_folder, parameters={"default_max_batch_size": "0"})
    loaded = backend.load(options)
    assert options.config.max_batch_size == 0
    assert run_model(loaded, text=words("w1 w2"))["embedding"].shape == (16,)


def test_a_decoder_embeds_if_so_configured(writer_folder: Path, causal: Any) -> None:
    loaded = backend.load(loading(writer_folder, parameters={"task": "embed"}))
    with torch.inference_mode():
        truth = (
            causal.model(word_tokenizer()("w1 w2 w3", return_tensors="pt")["input_ids"]).last_hidden_state[0].mean(0)
        )
    np.testing.assert_allclose(
        run_model(loaded, text=batch("w1 w2 w3"))["embedding"][0], truth.numpy(), rtol=1e-3, atol=1e-5
    )


# --- classification --------------------------------------------------------------------------------------------------

LABELS = {0: "bad", 1: "so so", 2: "good"}


@pytest.mark.parametrize("kind", [None, "multi_label_classification"])
def test_scores_match_forward_and_labels_come_from_the_config(tmp_path: Path, kind: str | None) -> None:
    config = bert(id2label=LABELS, label2id={v: k for k, v in LABELS.items()}, problem_type=kind)
    model = seeded(transformers.BertForSequenceClassification, config)
    options = loading(saved(tmp_path, model))
    loaded = backend.load(options)
    assert loaded.labels == {"scores": ("bad", "so so", "good")}
    assert listed(options.config.output) == [("scores", "FP32", (3,))]
    made = run_model(loaded, text=batch(*TEXTS))["scores"]
    for text, row in zip(TEXTS, made, strict=True):
        with torch.inference_mode():
            logits = model(**word_tokenizer()(text, return_tensors="pt")).logits[0]
        truth = logits.sigmoid() if kind else logits.softmax(-1)
        np.testing.assert_allclose(row, truth.numpy(), rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(run_model(loaded, text=batch(text))["scores"][0], row, rtol=1e-3, atol=1e-5)


def test_a_single_score_is_returned_unchanged(tmp_path: Path) -> None:
    model = seeded(transformers.BertForSequenceClassification, bert(num_labels=1))
    loaded = backend.load(loading(saved(tmp_path, model)))
    with torch.inference_mode():
        truth = model(**word_tokenizer()("w1 w2", return_tensors="pt")).logits
    np.testing.assert_allclose(run_model(loaded, text=batch("w1 w2"))["scores"], truth.numpy(), rtol=1e-3)


def test_a_decoder_without_padding_token_classifies_batches(tmp_path: Path) -> None:
    model = seeded(transformers.LlamaForSequenceClassification, llama(num_labels=3, pad_token_id=None))
    loaded = backend.load(loading(saved(tmp_path, model, word_tokenizer(pad_token=None))))
    together = run_model(loaded, text=batch(*TEXTS))["scores"]
    for text, row in zip(TEXTS, together, strict=True):
        np.testing.assert_allclose(run_model(loaded, text=batch(text))["scores"][0], row, rtol=1e-3, atol=1e-5)


# --- what does not load ----------------------------------------------------------------------------------------------


def refused(path: Path | None, **config: Any) -> str:
    with pytest.raises(UserError) as caught:
        backend.load(loading(path, **config))
    assert "\n" not in str(caught.value)
    assert caught.value.remedy
    return caught.value.what


def test_an_incomplete_folder_is_reported_in_one_line(writer_folder: Path, tmp_path: Path) -> None:
    assert "there is no config.json" in refused(tmp_path)
    (tmp_path / "config.json").write_text("{")
    assert "failed to load" in refused(tmp_path)
    (tmp_path / "config.json").write_bytes((writer_folder / "config.json").read_bytes())
    assert "failed to load" in refused(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"junk")
    assert "failed to load" in refused(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save({"model.norm.weight": torch.ones(16)}, tmp_path / "pytorch_model.bin")
    assert "failed to load" in refused(tmp_path)


def test_weights_without_the_tasks_layers_are_refused(encoder_folder: Path) -> None:
    assert "lack" in refused(encoder_folder, parameters={"task": "classify"})


def test_invalid_tasks_dtypes_and_configurations_are_named(writer_folder: Path, encoder_folder: Path) -> None:
    assert "unknown task 'sing'" in refused(writer_folder, parameters={"task": "sing"})
    assert "unknown dtype 'int4'" in refused(writer_folder, parameters={"dtype": "int4"})
    assert "max_batch_size is 8, but text is generated for one request at a time" in refused(
        writer_folder, max_batch_size=8
    )
    wrong = refused(writer_folder, input=[field("prompt", "STRING", 1)])
    assert "the configuration has the input prompt" in wrong
    assert "the configuration has the output vector" in refused(encoder_folder, output=[field("vector", "FP32", 16)])


def test_code_that_comes_with_a_model_is_never_run(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        '{"model_type": "mine", "architectures": ["MineForCausalLM"], "auto_map": {"AutoConfig": "mine.MineConfig"}}'
    )
    (tmp_path / "mine.py").write_text("raise SystemExit('run')\n")
    assert "failed to load" in refused(tmp_path)


def test_the_hub_is_used_only_if_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requested: list[tuple[Any, ...]] = []

    def from_pretrained(name: str, **more: Any) -> Any:
        requested.append((name, more["local_files_only"], more["trust_remote_code"]))
        raise OSError("no network here")

    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", from_pretrained)
    assert "downloading from the Hugging Face Hub is not allowed" in refused(None, parameters={"model": "owner/name"})
    assert not requested
    for wrong in ("../up", "/etc", "a/b/c", "name", "owner/..", "./x"):
        assert "is not the name of a Hub model" in refused(None, parameters={"model": wrong, "hub": "1"})
    assert not requested
    assert "no network here" in refused(None, parameters={"model": "owner/name", "hub": "1"})
    (tmp_path / "config.json").write_text("{}")
    refused(tmp_path)
    assert requested == [("owner/name", False, False), (str(tmp_path), True, False)]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_reduced_precision_is_supported(encoder_folder: Path, dtype: str) -> None:
    loaded, plain = (backend.load(loading(encoder_folder, parameters={"dtype": one})) for one in (dtype, "float32"))
    made, truth = (run_model(one, text=batch("w1 w2"))["embedding"] for one in (loaded, plain))
    assert made.dtype == np.float32
    assert (made != truth).any()
    np.testing.assert_allclose(made, truth, atol=0.15)


def test_missing_transformers_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib  # noqa: PLC0415

    real = importlib.import_module

    def missing(name: str, package: str | None = None) -> Any:
        if name == "transformers":
            raise ImportError("No module named 'transformers'", name=name)
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(UserError, match="transformers is not installed") as caught:
        backend.load(loading(tmp_path))
    assert caught.value.remedy == "pip install 'inferometer[transformers]'"


def test_responses_are_bytes_tensors_of_one_element(writer: Loaded) -> None:
    assert writer.run is not None
    responses: Any = writer.run({"text_input": from_numpy("text_input", words("w1"))}, {})
    first = next(responses)["text_output"]
    responses.close()
    assert (first.name, first.datatype, first.shape) == ("text_output", "BYTES", (1,))
