"""Language models with random weights, compared with transformers' own generate() and forward()."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from backend_help import field, given, listed, loading, run_model, words

from inferometer.errors import UserError
from inferometer.serve.models.types import Inference, Loaded, Refused, TextPart
from inferometer.serve.openai.requests import Fields, TextRequest
from inferometer.tensors import to_numpy

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
tokenizers = pytest.importorskip("tokenizers")
backend = pytest.importorskip("inferometer.serve.backends.transformers", reason="transformers is not installed")
decoder = pytest.importorskip("inferometer.serve.backends.text.decoder", reason="transformers is not installed")
pytestmark = pytest.mark.transformers

T = TypeVar("T")
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
def writer(writer_folder: Path) -> Iterator[Loaded]:
    with opened(writer_folder, max_batch="4") as loaded:
        yield loaded


@contextlib.contextmanager
def opened(folder: Path, **parameters: str) -> Iterator[Loaded]:
    loaded = backend.load(loading(folder, parameters=parameters))
    try:
        yield loaded
    finally:
        loaded.close()


class Written:
    """A text for the OpenAI endpoints, with everything that was called back."""

    def __init__(self, prompt: list[int], max_tokens: int = 12, temperature: float = 0.0, **more: Any) -> None:
        self.parts: list[TextPart] = []
        self.over: asyncio.Future[Refused | None] = asyncio.get_running_loop().create_future()
        fields = Fields(temperature=temperature, **more)
        self.asked = TextRequest("completion", fields, [prompt], n_out=max_tokens)

    def begin(self, loaded: Loaded) -> None:
        assert loaded.begin is not None
        emit: Any = self.parts.append
        self.cancel: Any = loaded.begin({}, Inference("m", {}, text=self.asked), emit, self.over.set_result)

    @property
    def texts(self) -> list[str]:
        return [part.text for part in self.parts[1:]]  # the first one only says that the request is accepted

    @property
    def count(self) -> int:
        return sum(part.tokens for part in self.parts)

    @property
    def end(self) -> str | None:
        return self.parts[-1].finish_reason

    @property
    def words(self) -> list[int]:
        return [WORDS.index(word) for word in "".join(self.texts).split()]


def written(loaded: Loaded, *requests: dict[str, Any]) -> list[Written]:
    """Generate all texts at the same time."""

    async def main() -> list[Written]:
        made = [Written(**one) for one in requests]
        for one in made:
            one.begin(loaded)
        await asyncio.wait_for(asyncio.gather(*(one.over for one in made)), 60)
        return made

    return asyncio.run(in_new_loop(loaded, main))


def language(loaded: Loaded) -> Any:
    return loaded.begin.__self__  # type: ignore[union-attr]


async def in_new_loop(loaded: Loaded, main: Callable[[], Awaitable[T]]) -> T:
    """A server has one loop; here every test has its own."""
    language(loaded).engine._loop = None
    return await main()


def pieces(loaded: Loaded, prompt: str = "w1 w2 w3", **more: Any) -> list[str]:
    """Generate a text over KServe."""

    async def main() -> list[str]:
        made: list[str] = []
        over: asyncio.Future[Refused | None] = asyncio.get_running_loop().create_future()
        inputs = given(text_input=words(prompt), **more)

        def emit(out: Any) -> None:
            made.append(to_numpy(out["text_output"])[0].decode())

        assert loaded.begin is not None
        loaded.begin(inputs, Inference("m", inputs), emit, over.set_result)
        refused = await asyncio.wait_for(over, 60)
        if refused is not None:
            raise refused
        return made

    return asyncio.run(in_new_loop(loaded, main))


def expected_tokens(model: Any, prompt: list[int], count: int, **more: Any) -> list[int]:
    made = model.generate(torch.tensor([prompt]), max_new_tokens=count, do_sample=False, **more)
    return list(made[0, len(prompt) :].tolist())


def ids(count: int, start: int = 3) -> list[int]:
    return [3 + (start * 7 + i * 5) % 61 for i in range(count)]


def number(value: float, kind: str) -> Any:
    return np.array([value], kind)


def test_concurrent_texts_of_different_length_match_generate(causal: Any, writer: Loaded) -> None:
    """More texts than slots, with prompts that are read alone and together, and texts that end while others run."""
    sizes = [(3, 12), (1, 5), (30, 20), (50, 14), (2, 1), (29, 3), (31, 8), (40, 24), (7, 30)]
    made = written(writer, *({"prompt": ids(size, i), "max_tokens": count} for i, (size, count) in enumerate(sizes)))
    for i, (one, (size, count)) in enumerate(zip(made, sizes, strict=True)):
        assert one.words == expected_tokens(causal, ids(size, i), count)
        assert (one.end, one.count) == ("length", count)
    assert len({one.parts[-1].started for one in made}) > 1


def test_long_prompts_are_read_in_chunks(tmp_path: Path) -> None:
    """Some texts end while the prompt of another one is read."""
    sizes = [(300, 12), (4, 2), (128, 3), (257, 12), (129, 12)]
    model = seeded(transformers.LlamaForCausalLM, llama(max_position_embeddings=600))
    with torch.no_grad():
        model.lm_head.weight[:3] = 0
    with opened(saved(tmp_path, model)) as loaded:
        made = written(loaded, *({"prompt": ids(size, size), "max_tokens": count} for size, count in sizes))
    for one, (size, count) in zip(made, sizes, strict=True):
        assert one.words == expected_tokens(model, ids(size, size), count)


def test_kserve_sends_one_piece_per_token(causal: Any, writer: Loaded) -> None:
    for prompt in ("w1 w2 w3", "w9"):
        tokens = expected_tokens(causal, word_tokenizer()(prompt)["input_ids"], 12)
        assert pieces(writer, prompt, max_tokens=number(12, "i4")) == [f" {WORDS[token]}" for token in tokens]


def test_configuration_is_decoupled_and_lists_the_inputs(writer_folder: Path) -> None:
    options = loading(writer_folder)
    backend.load(options).close()
    assert options.config.model_transaction_policy.decoupled
    assert options.config.max_batch_size == 0
    assert listed(options.config.input)[:3] == [
        ("text_input", "STRING", (1,)), ("max_tokens", "INT32", (1,)), ("temperature", "FP32", (1,)),
    ]  # fmt: skip
    assert [one.name for one in options.config.input if not one.optional] == ["text_input"]
    assert listed(options.config.output) == [("text_output", "STRING", (1,))]


def test_max_tokens_and_the_context_length_end_generation(writer_folder: Path, writer: Loaded) -> None:
    with opened(writer_folder, max_tokens="3") as few:
        assert len(pieces(few)) == 3
    assert writer.max_len == 64
    assert len(pieces(writer, " ".join(["w1"] * 60))) == 4
    assert len(pieces(writer, " ".join(["w1"] * 60), max_tokens=number(2, "i4"))) == 2
    with opened(writer_folder, max_length="8") as short:
        assert len(pieces(short)) == 5


def test_an_end_of_text_token_ends_generation_and_is_not_sent(causal: Any, tmp_path: Path) -> None:
    tokens = expected_tokens(causal, ids(3), 12)
    end = next(token for token in tokens[2:] if tokens.index(token) >= 2)
    causal.generation_config.eos_token_id = [63, end]
    try:
        folder = saved(tmp_path, causal)
    finally:
        causal.generation_config.eos_token_id = None
    before = tokens[: tokens.index(end)]
    with opened(folder) as loaded:
        plain, ignoring, later = written(
            loaded, *({"prompt": ids(3)} | more for more in ({}, {"ignore_eos": True}, {"min_tokens": 9}))
        )
    assert (plain.words, plain.count, plain.end) == (before, len(before), "stop")
    assert (ignoring.words, ignoring.end) == (tokens, "length")
    assert later.words[: len(before)] == before
    assert later.count >= 9
    assert end not in later.words[:9]


def test_a_cancelled_text_frees_its_slot(writer_folder: Path) -> None:
    async def main() -> None:
        first, second = Written(ids(3), max_tokens=60), Written(ids(4), max_tokens=2)
        first.begin(loaded)
        second.begin(loaded)  # waits for the only slot
        while not first.count:
            await asyncio.sleep(0.001)
        first.cancel()
        await asyncio.wait_for(second.over, 60)
        assert second.count == 2
        assert (first.end, first.over.result()) == (None, None)

    with opened(writer_folder, max_batch="1") as loaded:
        asyncio.run(main())


def test_only_the_texts_that_fail_are_refused(causal: Any, writer: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = language(writer).engine._decoder
    real = engine.prefill

    def prefill(slots: list[int], chunks: list[list[int]], *more: Any) -> Any:
        if [63, 4] in chunks:
            raise ValueError("not this one")
        return real(slots, chunks, *more)

    with monkeypatch.context() as patched:
        patched.setattr(engine, "prefill", prefill)
        good, bad, other = written(writer, {"prompt": ids(40)}, {"prompt": [63, 4]}, {"prompt": ids(50)})
    refused = bad.over.result()
    assert refused is not None
    assert (refused.code, refused.message) == ("INTERNAL", "ValueError: not this one")
    assert good.words == expected_tokens(causal, ids(40), 12)
    assert other.words == expected_tokens(causal, ids(50), 12)


def test_tokens_outside_the_vocabulary_are_refused(writer: Loaded) -> None:
    for tokens in ([64], [-1]):
        (refused,) = written(writer, {"prompt": tokens})
        assert "tokens must be in 0..63" in str(refused.over.result())


def test_out_of_memory_is_an_error_of_the_running_texts_only(writer: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise torch.OutOfMemoryError("no memory")

    with monkeypatch.context() as patched:
        patched.setattr(language(writer).engine._decoder, "decode", fail)
        (failed,) = written(writer, {"prompt": ids(3)})
    refused = failed.over.result()
    assert refused is not None
    assert "no memory" in refused.message
    assert written(writer, {"prompt": ids(3)})[0].count == 12


def test_sampling_is_reproducible_with_a_seed(writer: Loaded) -> None:
    greedy, *drawn = written(
        writer, *({"prompt": ids(3), "max_tokens": 20} | more for more in (
            {}, *({"temperature": 2.0, "seed": seed} for seed in (1, 1, 2)),
            {"temperature": 2.0, "seed": 1, "top_p": 1e-6}, {"temperature": 2.0, "seed": 1, "top_k": 1},
            {"temperature": 2.0}, {"temperature": 2.0},
        ))
    )  # fmt: skip
    one, same, other, only_p, only_k, *unseeded = (each.words for each in drawn)
    assert one == same
    assert one != other
    assert one != greedy.words
    assert only_p == only_k == greedy.words
    assert unseeded[0] != unseeded[1]


def test_sampling_follows_the_logits() -> None:
    logits = torch.log(torch.tensor([[0.15, 0.5, 0.3, 0.05]])).expand(4000, 4)
    uniform = torch.from_numpy(np.random.default_rng(0).random(4000, np.float32))

    def shares(temperature: float = 1, top_p: float = 1, top_k: float = 0, excluded: float = 0) -> list[float]:
        controls = torch.tensor([[temperature, top_p, top_k, 0.0, excluded]]).repeat(4000, 1)
        controls[:, 3] = uniform
        made = decoder.sample(logits.clone(), controls, torch.tensor([1])).tolist()
        return [made.count(i) / 4000 for i in range(4)]

    assert shares() == pytest.approx([0.15, 0.5, 0.3, 0.05], abs=0.03)
    assert shares(top_p=0.75) == pytest.approx([0, 0.625, 0.375, 0], abs=0.03)
    assert shares(top_k=2) == pytest.approx([0, 0.625, 0.375, 0], abs=0.03)
    assert shares(temperature=0) == [0, 1, 0, 0]
    assert shares(temperature=0, excluded=1) == [0, 0, 1, 0]
    assert shares(excluded=1) == pytest.approx([0.3, 0, 0.6, 0.1], abs=0.03)


def test_a_stop_text_ends_generation_and_is_not_sent(writer: Loaded) -> None:
    whole = pieces(writer, max_tokens=number(12, "i4"))
    end = "".join(whole[4:6])[1:-1]  # within two tokens, ending and beginning inside them
    text = "".join(whole)
    stopped = "".join(pieces(writer, max_tokens=number(12, "i4"), stop=words("never", end)))
    assert stopped == text[: text.index(end)]
    assert "".join(pieces(writer, max_tokens=number(12, "i4"), stop=words("never", ""))) == text
    ended, later = written(
        writer, *({"prompt": word_tokenizer()("w1 w2 w3")["input_ids"], "stop": (end,)} | more for more in (
            {}, {"min_tokens": 12},
        ))
    )  # fmt: skip
    assert ("".join(ended.texts), ended.end) == (stopped, "stop")
    assert later.count == 12


def test_pieces_are_whole_characters(tmp_path: Path) -> None:
    """A token is a byte, and the model repeats a text: each token is followed by the next one of the text."""
    tokenizer = byte_tokenizer()
    text = tokenizer("a\u00e9\u732bb")["input_ids"]
    model = transformers.LlamaForCausalLM(llama(vocab_size=256, hidden_size=256, num_hidden_layers=1))
    with torch.no_grad():
        for weights in model.parameters():
            weights.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(256))
        model.model.norm.weight.fill_(1)
        for token, following in zip(text, [*text[1:], text[0]], strict=True):
            model.lm_head.weight[following, token] = 1
    with opened(saved(tmp_path, model, tokenizer)) as loaded:
        (made,) = written(loaded, {"prompt": text, "max_tokens": 9})
    assert made.texts == ["a", "", "\u00e9", "", "", "\u732b", "b", "a", ""]


def test_bytes_that_are_not_valid_text_do_not_stop_the_model(tmp_path: Path):
    """With byte fallback, as in Llama's tokenizers, an invalid sequence of bytes changes the text before it."""
    names = [*(f"<0x{byte:02X}>" for byte in range(128, 256)), "a", "b", "<unk>"]
    made = tokenizers.Tokenizer(
        tokenizers.models.BPE({name: i for i, name in enumerate(names)}, [], unk_token="<unk>", byte_fallback=True)
    )
    made.decoder = tokenizers.decoders.Sequence([tokenizers.decoders.ByteFallback(), tokenizers.decoders.Fuse()])
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>")
    model = seeded(transformers.LlamaForCausalLM, llama(vocab_size=len(names)))
    with opened(saved(tmp_path, model, tokenizer)) as loaded:
        one = {"prompt": [128], "max_tokens": 50, "temperature": 2.0}
        assert [text.count for text in written(loaded, *({**one, "seed": seed} for seed in range(20)))] == [50] * 20


@pytest.mark.parametrize(
    ("inputs", "what"),
    [
        ({"max_tokens": number(0, "i4")}, "Expected `int` >= 1 - at `$.max_tokens`"),
        ({"temperature": number(-1, "f4")}, "Expected `float` >= 0.0 - at `$.temperature`"),
        ({"top_p": number(0, "f4")}, "Expected `float` > 0.0 - at `$.top_p`"),
        ({"temperature": number(np.nan, "f4")}, "$.temperature"),
        (
            {"prompt": " ".join(["w1"] * 64)},
            "64 prompt tokens plus max_tokens 1 exceed the model's maximum of 64 tokens",
        ),
        ({"prompt": "w1 " * 1000}, "a text of 3000 characters exceeds the model's maximum of 64 tokens"),
        ({"prompt": ""}, "the text has no tokens"),
    ],
)
def test_invalid_parameters_are_refused(writer: Loaded, inputs: dict[str, Any], what: str) -> None:
    with pytest.raises(Refused) as caught:
        pieces(writer, **inputs)
    assert caught.value.code == "INVALID_ARGUMENT"
    assert what in caught.value.message


def test_an_invalid_prompt_is_refused(writer: Loaded) -> None:
    assert writer.begin is not None
    with pytest.raises(Refused, match="input 'text_input': an element is not valid UTF-8"):
        writer.begin(given(text_input=words(b"\xff")), Inference("m", {}), print, print)


def test_models_that_cannot_be_batched_are_computed_one_text_after_the_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sizes = {name: getattr(llama(), name) for name in (
        "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "max_position_embeddings", "eos_token_id", "bos_token_id", "pad_token_id",
    )}  # fmt: skip
    config = transformers.MistralConfig(**sizes, sliding_window=8, initializer_range=1.0)
    model = seeded(transformers.MistralForCausalLM, config)
    with torch.no_grad():
        model.lm_head.weight[:3] = 0
    with opened(saved(tmp_path, model)) as loaded:
        made = written(loaded, *({"prompt": ids(size, size)} for size in (3, 20, 9)))
    assert "computed one after the other: ValueError: it has a DynamicSlidingWindowLayer of 8 tokens" in caplog.text
    for one, size in zip(made, (3, 20, 9), strict=True):
        assert one.words == expected_tokens(model, ids(size, size), 12)


def test_other_architectures_match_generate(tmp_path: Path) -> None:
    config = transformers.GPT2Config(
        vocab_size=64, n_embd=16, n_layer=2, n_head=2, n_positions=64, eos_token_id=None, bos_token_id=None,
        initializer_range=1.0,
    )  # fmt: skip
    model = seeded(transformers.GPT2LMHeadModel, config)
    tokens = [expected_tokens(model, ids(size, size), 8, pad_token_id=0) for size in (3, 20)]
    with opened(saved(tmp_path, model)) as loaded:
        made = written(loaded, *({"prompt": ids(size, size), "max_tokens": 8} for size in (3, 20)))
    assert ["".join(one.texts).split() for one in made] == [
        word_tokenizer().decode(some, skip_special_tokens=True).split() for some in tokens
    ]


def test_chats_use_the_tokenizers_template(writer: Loaded, writer_folder: Path) -> None:
    def encoded(role: str) -> list[list[int]]:
        messages = [{"role": role, "content": "w1 w2"}]
        return language(writer).encode(TextRequest("chat", Fields(), ["w1 w2"], messages))  # type: ignore[no-any-return]

    with pytest.raises(Refused, match="model m has no chat template"):
        encoded("user")
    tokenizer = language(writer).tokenizer
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m.role != 'user' %}{{ raise_exception('only users') }}{% endif %}"
        "w9 {{ m.content }} {% endfor %}{% if add_generation_prompt %}w8{% endif %}"
    )
    try:
        assert encoded("user") == [word_tokenizer()("w9 w1 w2 w8")["input_ids"]]
        with pytest.raises(Refused, match="the chat template: TemplateError: only users"):
            encoded("system")
    finally:
        tokenizer.chat_template = None


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


def test_embeddings_of_several_requests_are_computed_together(encoder_folder: Path) -> None:
    loaded = backend.load(loading(encoder_folder))
    assert loaded.run_texts is not None
    assert loaded.max_len == 8

    def request(*parts: Any, **fields: Any) -> TextRequest:
        return TextRequest("embedding", Fields(**fields), list(parts))

    asked = (*TEXTS[:1],), (*TEXTS[1:],)
    tokens = TextRequest("tokenize", Fields(), ["w1 w2"])
    wrong = request([1, 99999]), request([3] * 9), request("w1", dimensions=3)
    first, others, listed_tokens, *refused = loaded.run_texts([*(request(*one) for one in asked), tokens, *wrong])
    assert isinstance(first, TextPart)
    assert isinstance(others, TextPart)
    assert isinstance(listed_tokens, TextPart)
    made = [np.frombuffer(row, np.float32) for row in (*first.data, *others.data)]
    np.testing.assert_allclose(made, run_model(loaded, text=batch(*TEXTS))["embedding"], rtol=1e-3, atol=1e-5)
    assert (first.prompt_tokens, others.prompt_tokens, listed_tokens.data) == (3, 9, [4, 5])
    assert [str(one) for one in refused] == [
        "tokens must be in 0..63 (got 99999)",
        "9 tokens of an input exceed the model's maximum of 8 tokens",
        "dimensions must be 16, the length of this model's vectors (got 3)",
    ]


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
    assert "int5" in refused(writer_folder, parameters={"dtype": "int5"})
    assert "max_batch_size is 8, but requests for text are not joined" in refused(writer_folder, max_batch_size=8)
    for name, value in (("max_batch", "x"), ("max_length", "-1"), ("kv_memory", "2")):
        with pytest.raises(UserError, match=f"parameter {name} must be"):
            backend.load(loading(writer_folder, parameters={name: value}))
    wrong = refused(writer_folder, input=[field("prompt", "STRING", 1)])
    assert "the configuration has prompt, the model only text_input, max_tokens" in wrong
    assert "the configuration has vector, the model only embedding" in refused(
        encoder_folder, output=[field("vector", "FP32", 16)]
    )


def test_code_that_comes_with_a_model_is_never_run(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        '{"model_type": "mine", "architectures": ["MineForCausalLM"], "auto_map": {"AutoConfig": "mine.MineConfig"}}'
    )
    (tmp_path / "mine.py").write_text("raise SystemExit('run')\n")
    assert "failed to load" in refused(tmp_path)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_reduced_precision_is_supported(encoder_folder: Path, dtype: str) -> None:
    loaded, plain = (backend.load(loading(encoder_folder, parameters={"dtype": one})) for one in (dtype, "float32"))
    made, truth = (run_model(one, text=batch("w1 w2"))["embedding"] for one in (loaded, plain))
    assert made.dtype == np.float32
    assert (made != truth).any()
    np.testing.assert_allclose(made, truth, atol=0.15)
