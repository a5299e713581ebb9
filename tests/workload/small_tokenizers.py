"""Small tokenizers of other kinds than the built-in one, trained in a moment, for tests of prompt lengths."""

import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from inferometer.workload.tokenizer import prose

TEXT = prose()[:60_000].splitlines()


def byte_level() -> Tokenizer:
    """GPT-2 style, with a space before the text and one token per digit."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=True)]
    )
    tokenizer.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=1500, show_progress=False))
    return tokenizer


def word_piece() -> Tokenizer:
    """BERT style: lower case, [CLS] and [SEP] (which do not count), truncation and padding (which must have no effect)."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[UNK]", "[CLS]", "[SEP]", "[PAD]"]
    tokenizer.train_from_iterator(
        TEXT, trainers.WordPieceTrainer(vocab_size=2000, special_tokens=special, show_progress=False)
    )
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    tokenizer.enable_truncation(20)
    tokenizer.enable_padding(length=30)
    return tokenizer


def unigram() -> Tokenizer:
    """SentencePiece style, as used by T5 and ALBERT."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.train_from_iterator(
        TEXT, trainers.UnigramTrainer(vocab_size=2000, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False)
    )
    return tokenizer


def spanning() -> Tokenizer:
    """A BPE without a pre-tokenizer, like that of Llama 2: tokens may span words."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    sentences = [sentence for line in TEXT[:150] for sentence in line.split(". ")]
    tokenizer.train_from_iterator(
        sentences,
        trainers.BpeTrainer(vocab_size=1500, special_tokens=["<unk>"], show_progress=False, max_token_length=24),
    )
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def characters() -> Tokenizer:
    """One token per character, so that no word is a single token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.train_from_iterator(
        TEXT,
        trainers.BpeTrainer(vocab_size=256, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False),
    )
    return tokenizer


def byte_fallback() -> Tokenizer:
    """Like that of Llama 2 and Mistral: no pre-tokenizer, but no token spans words either."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    words = [f" {word}" for line in TEXT for word in line.split(" ")]
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokenizer.normalizer = normalizers.Replace(" ", "▁")  # words have their space already
    tokenizer.train_from_iterator(
        words, trainers.BpeTrainer(vocab_size=1800, special_tokens=special, show_progress=False)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def regular_expression() -> Tokenizer:
    """Like those of Llama 3 and Qwen: split by a regular expression, then byte-level."""
    pattern = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|begin_of_text|>", "<|eot_id|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        TEXT,
        trainers.BpeTrainer(vocab_size=3000, special_tokens=special, initial_alphabet=alphabet, show_progress=False),
    )
    return tokenizer


def unsplit_unigram() -> Tokenizer:
    """A unigram model whose tokens may span words: whole phrases are tokens."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(split=False)
    phrases = [" ".join(line.split(" ")[i : i + 3]) for line in TEXT[:200] for i in range(0, line.count(" "), 3)]
    tokenizer.train_from_iterator(
        phrases,
        trainers.UnigramTrainer(vocab_size=1500, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False),
    )
    return tokenizer


TOKENIZERS: dict[str, Callable[[], Tokenizer]] = {
    "byte_level": byte_level,
    "word_piece": word_piece,
    "unigram": unigram,
    "spanning": spanning,
    "characters": characters,
    "byte_fallback": byte_fallback,
    "regular_expression": regular_expression,
    "unsplit_unigram": unsplit_unigram,
}

QUICK = ("builtin", "byte_level", "word_piece", "spanning")
NAMES = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in ("builtin", *TOKENIZERS)]
"""The built-in tokenizer and all others, for `parametrize`: `make test` uses only some of them."""


@cache
def _trained(name: str) -> str:
    return str(TOKENIZERS[name]().to_str())


def save(name: str, folder: Path) -> str:
    """Save this tokenizer to a folder and return its path."""
    folder = folder / name
    folder.mkdir()
    (folder / "tokenizer.json").write_text(_trained(name), encoding="utf-8")
    return str(folder)


@cache
def saved(name: str) -> str | None:
    """Save this tokenizer to a temporary folder once, for tests that cannot use a fixture; None for `builtin`."""
    return None if name == "builtin" else save(name, Path(tempfile.mkdtemp(prefix="tokenizers-")))
