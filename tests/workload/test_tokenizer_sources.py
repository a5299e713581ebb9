"""Tokenizers from the hub, tiktoken, SentencePiece, tekken files and the server: exact prompts with each, and clear errors."""

import base64
import json
import sys
import types
from pathlib import Path

import pytest
import small_tokenizers

from inferometer import workload
from inferometer.config.data import Synthetic
from inferometer.errors import UserError
from inferometer.workload import text
from inferometer.workload.encodings import hub, server
from inferometer.workload.tokenizer import Tokenizer, load, prose


def check_exact(tokenizer: Tokenizer) -> None:
    """Texts of all lengths are exact, alone and joined, and `ends` and `decode` are consistent with `encode`."""
    wanted = [1, 2, 3, 5, 8, 13, 40, 200, 600]
    made = text.texts(tokenizer, wanted, 0, range(len(wanted)), salt="s")
    assert [len(ids) for ids in tokenizer.encode_batch(made)] == wanted == tokenizer.count_batch(made)
    more = text.texts(tokenizer, wanted, 0, range(len(wanted)), purpose="more", continues=True)
    for before, after, n in zip(made, text.fit(tokenizer, made, more, wanted), wanted, strict=True):
        ids = tokenizer.encode(before + after)
        assert ids[:n] == tokenizer.encode(before)
        assert len(ids) == 2 * n
    if tokenizer.has_ends:
        sample = "The old captain. 雪が降る, naïve"
        ends = tokenizer.ends(sample)
        assert len(ends) == tokenizer.count(sample)
        assert ends[-1] == len(sample)
        assert ends == sorted(ends)
        assert tokenizer.decode(tokenizer.encode("the old captain")).strip() == "the old captain"
        assert set(tokenizer.encode("the old captain")) <= set(tokenizer.ordinary_ids())


# --- files -----------------------------------------------------------------------------------------------------------


def rank_bytes() -> list[bytes]:
    """Tokens by rank: all bytes, and what byte pairs of some text merge into."""
    tokens = [bytes([byte]) for byte in range(256)]
    for word in {f" {word}".encode() for word in prose()[:20_000].replace(".", "").split()}:
        tokens += [word[:end] for end in range(2, len(word) + 1) if word[:end] not in tokens]
    return tokens


@pytest.fixture
def rank_file(tmp_path: Path) -> Path:
    file = tmp_path / "small.tiktoken"
    lines = (f"{base64.b64encode(token).decode()} {rank}" for rank, token in enumerate(rank_bytes()))
    file.write_text("\n".join(lines))
    return file


@pytest.fixture
def tekken_file(tmp_path: Path) -> Path:
    tokens = rank_bytes()
    vocabulary = [
        {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
        for rank, token in enumerate(tokens)
    ]
    config = {
        "pattern": r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        "num_vocab_tokens": len(tokens),
        "default_vocab_size": len(tokens) + 10 - 5,
        "default_num_special_tokens": 10,
        "version": "v3",
    }
    folder = tmp_path / "mistral"
    folder.mkdir()
    (folder / "tekken.json").write_text(json.dumps({"config": config, "vocab": vocabulary}))
    return folder / "tekken.json"


@pytest.fixture(scope="session")
def sentencepiece_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    import sentencepiece  # noqa: PLC0415

    folder = tmp_path_factory.mktemp("sentencepiece")
    (folder / "corpus.txt").write_text("\n".join(prose()[:60_000].splitlines()))
    for kind, split in (("unigram", True), ("bpe", True), ("spanning", False)):
        sentencepiece.SentencePieceTrainer.train(
            input=str(folder / "corpus.txt"), model_prefix=str(folder / kind), vocab_size=1000, minloglevel=2,
            model_type="unigram" if kind == "spanning" else kind, split_by_whitespace=split, byte_fallback=kind == "bpe",
        )  # fmt: skip
    return {kind: folder / f"{kind}.model" for kind in ("unigram", "bpe", "spanning")}


@pytest.mark.tokenizers
def test_a_file_of_tiktoken_ranks(rank_file: Path) -> None:
    tokenizer = load(str(rank_file))
    check_exact(tokenizer)
    assert tokenizer.encode(" the")[0] >= 256
    assert tokenizer.identity == rank_file.read_bytes()


@pytest.mark.tokenizers
def test_tekken(tekken_file: Path) -> None:
    tokenizer = load(str(tekken_file))
    check_exact(tokenizer)
    assert tokenizer.encode("a") == [ord("a") + 10]  # after the special tokens
    assert max(tokenizer.ordinary_ids()) == len(rank_bytes()) + 10 - 5 - 1  # the vocabulary is cut
    assert load(str(tekken_file.parent)).encode("the sea") == tokenizer.encode("the sea")


@pytest.mark.tokenizers
@pytest.mark.parametrize("kind", ["unigram", "bpe", "spanning"])
def test_sentencepiece(sentencepiece_files: dict[str, Path], kind: str) -> None:
    tokenizer = load(str(sentencepiece_files[kind]))
    check_exact(tokenizer)
    assert tokenizer.adds_up == (kind != "spanning")


@pytest.mark.tokenizers
@pytest.mark.parametrize(
    ("name", "content", "wrong"),
    [
        ("a.tiktoken", b"no ranks", "is not a file of tiktoken ranks"),
        ("a.tiktoken", b"YQ== 0", "there is no token for the byte 0x00"),
        ("tekken.json", b"{}", "is not a tekken.json"),
        ("a.model", b"", "is not a SentencePiece model"),
        ("a.model", b"\x00\x01", "is not a SentencePiece model"),
    ],
)
def test_a_file_of_another_format_is_an_error(tmp_path: Path, name: str, content: bytes, wrong: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=wrong):
        load(str(tmp_path / name))


@pytest.mark.parametrize(("name", "library"), [("a.tiktoken", "tiktoken"), ("a.model", "sentencepiece")])
def test_a_missing_library_is_an_error_that_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, library: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    (tmp_path / name).write_bytes(b"".join(base64.b64encode(bytes([b])) + b" %d\n" % b for b in range(256)))
    with pytest.raises(UserError, match=rf"needs the library {library} \(pip install 'inferometer\[tokenizers\]'"):
        load(str(tmp_path / name))


@pytest.mark.tokenizers
def test_an_unknown_encoding_of_tiktoken_is_an_error() -> None:
    with pytest.raises(UserError, match=r"no encoding cl100k_bas \(did you mean cl100k_base\?\)"):
        load("tiktoken:cl100k_bas")


# --- the hub ---------------------------------------------------------------------------------------------------------


def test_a_tokenizer_from_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = []

    def snapshot_download(repository: str, revision: str | None, allow_patterns: list[str]) -> str:
        wanted.append((repository, revision, "tokenizer.json" in allow_patterns))
        return str(small_tokenizers.saved("byte_level"))

    library = types.SimpleNamespace(snapshot_download=snapshot_download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", library)
    assert hub.load("org/name@v1").encode("the") == load(small_tokenizers.saved("byte_level")).encode("the")
    assert load("org/small-model").count("the") == 1
    assert load("hub:gpt2").count("the") == 1
    assert wanted == [("org/name", "v1", True), ("org/small-model", None, True), ("gpt2", None, True)]


def test_a_tokenizer_that_the_hub_does_not_give_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def snapshot_download(*_: object, **__: object) -> str:
        raise OSError("\n404: no such repository\nmore")

    monkeypatch.setitem(sys.modules, "huggingface_hub", types.SimpleNamespace(snapshot_download=snapshot_download))
    with pytest.raises(
        UserError, match=r"data\.tokenizer: tokenizer org/nothing is neither a local path nor .*: 404: no such repo"
    ):
        load("org/nothing")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=r"org/other is not a local path.*pip install 'inferometer\[hub\]'"):
        load("org/other")


@pytest.mark.parametrize("name", ["bultin", "severe"])
def test_an_unknown_name_is_an_error_with_a_suggestion(name: str) -> None:
    with pytest.raises(UserError, match=rf"tokenizer {name} does not exist \(did you mean (builtin|server)\?\)"):
        load(name)


# --- the server ------------------------------------------------------------------------------------------------------


@pytest.fixture
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.ServerTokenizer, "provided", None)


@pytest.mark.usefixtures("no_server")
@pytest.mark.parametrize("name", ["builtin", "spanning", "characters"])
def test_the_server_counts(name: str) -> None:
    inner = load(small_tokenizers.saved(name))
    server.provide(inner.encode_batch)
    check_exact(load("server"))
    spec = Synthetic(input=40, tokenizer="server")
    assert inner.count_batch(str(request.payload) for request in workload.build(spec, 0, range(5))) == [40] * 5
    first = workload.digest(spec, 0)
    server.provide(load(small_tokenizers.saved("unigram")).encode_batch)
    assert workload.digest(spec, 0) != first


@pytest.mark.usefixtures("no_server")
def test_without_a_server_its_tokenizer_is_an_error() -> None:
    with pytest.raises(UserError, match=r"can only be used in a run.*\(give the model's own tokenizer"):
        load("server")
