"""Tokenizers built in other ways than ours, small and trained in a moment, to try prompts of an exact length on."""

from collections.abc import Callable
from pathlib import Path

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
    """GPT-2 style with a space put before the text, and digits apart."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=True)]
    )
    made.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=1500, show_progress=False))
    return made


def word_piece() -> Tokenizer:
    """BERT style: lower case, [CLS] and [SEP] around (which do not count), truncation and padding set (which must not act)."""
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[UNK]", "[CLS]", "[SEP]", "[PAD]"]
    made.train_from_iterator(
        TEXT, trainers.WordPieceTrainer(vocab_size=2000, special_tokens=special, show_progress=False)
    )
    made.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    made.enable_truncation(20)
    made.enable_padding(length=30)
    return made


def unigram() -> Tokenizer:
    """SentencePiece style: T5, ALBERT and their kin."""
    made = Tokenizer(models.Unigram())
    made.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.train_from_iterator(
        TEXT, trainers.UnigramTrainer(vocab_size=2000, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False)
    )
    return made


def spanning() -> Tokenizer:
    """A BPE that cuts nothing beforehand, as Llama 2's: tokens may span words."""
    made = Tokenizer(models.BPE(unk_token="<unk>"))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    sentences = [sentence for line in TEXT[:150] for sentence in line.split(". ")]
    made.train_from_iterator(
        sentences,
        trainers.BpeTrainer(vocab_size=1500, special_tokens=["<unk>"], show_progress=False, max_token_length=24),
    )
    made.decoder = decoders.Metaspace()
    return made


def characters() -> Tokenizer:
    """Every character a token: no word is one."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.train_from_iterator(
        TEXT,
        trainers.BpeTrainer(vocab_size=256, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False),
    )
    return made


MADE: dict[str, Callable[[], Tokenizer]] = {
    "byte_level": byte_level,
    "word_piece": word_piece,
    "unigram": unigram,
    "spanning": spanning,
    "characters": characters,
}


def save(name: str, folder: Path) -> str:
    """A folder with this tokenizer."""
    folder = folder / name
    folder.mkdir()
    MADE[name]().save(str(folder / "tokenizer.json"))
    return str(folder)
