"""Tokenizers: text to tokens and back, from several sources. Special tokens of a file do not count.

The built-in tokenizer is a small byte-level BPE. tools/build_tokenizer.py trained it on the corpus that is shipped with it.
Its counts for the words of that corpus are shipped too, so that generating prompts with it needs no tokenizer at all: the
`tokenizers` library and the tokenizer itself are loaded when something else is counted.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Protocol

import msgspec

from inferometer.errors import UserError

BUILTIN = Path(__file__).parent / "builtin"
BUILTIN_NAME = "builtin"
REMEDY = "give a folder with a tokenizer.json, or the file itself; leave it out to use the built-in tokenizer"


class Tokenizer(Protocol):
    """Text to tokens and back, without special tokens. One implementation per library (encodings/)."""

    @property
    def name(self) -> str:
        """`builtin`, or what the user gave."""
        ...

    @property
    def identity(self) -> bytes:
        """What makes two tokenizers the same, for the digest: the bytes of the file, not its path."""
        ...

    @property
    def adds_up(self) -> bool:
        """No token spans two words, so that a text that starts with a space and a word always adds the same number of tokens."""
        ...

    @property
    def has_ends(self) -> bool:
        """Whether `ends` is available."""
        ...

    @property
    def is_local(self) -> bool:
        """Whether counting is so cheap that thousands of words can be counted."""
        ...

    def encode(self, text: str) -> list[int]: ...

    def encode_batch(self, texts: Iterable[str]) -> list[list[int]]: ...

    def decode(self, ids: Sequence[int]) -> str: ...

    def count(self, text: str) -> int: ...

    def count_batch(self, texts: Iterable[str]) -> list[int]:
        """Tokens in each text; several times as fast as counting one by one."""
        ...

    def ends(self, text: str) -> list[int]:
        """Where each token of the text ends, as an offset in characters."""
        ...

    def ordinary_ids(self) -> list[int]:
        """The ids of tokens that stand for text, ascending: no special tokens."""
        ...


@cache
def load(name: str | None = None) -> Tokenizer:
    """Return the built-in tokenizer, or the one that the user names."""
    from inferometer.workload.encodings.huggingface import HuggingFace  # noqa: PLC0415

    if name is None:
        return HuggingFace(BUILTIN_NAME, BUILTIN / "tokenizer.json")
    file = Path(name).expanduser()
    if file.is_dir():
        file = file / "tokenizer.json"
        if not file.exists():
            raise UserError(f"tokenizer folder {name} has no tokenizer.json", REMEDY)
    if not file.exists():
        raise UserError(f"tokenizer {name} does not exist", REMEDY)
    tokenizer = HuggingFace(name, file)
    tokenizer.check()
    return tokenizer


@cache
def prose() -> str:
    """The built-in corpus. Each line is a heading or a paragraph."""
    return (BUILTIN / "prose.txt").read_text(encoding="utf-8")


class Counts(msgspec.Struct, frozen=True):
    """What the built-in tokenizer makes of the words of its corpus (measure_builtin)."""

    words: tuple[str, ...]
    """Those that are one token when written " word", most frequent first. The tokenizer splits a text before each space that is
    followed by a letter, so the counts add up: " a b c" is three tokens."""
    starts: tuple[int, ...]
    """Tokens of each of these at the start of a text."""
    corpus: tuple[int, ...]
    """Tokens that each distinct word of the paragraphs adds after another word, in the order of their first appearance."""


@cache
def counts() -> Counts:
    return msgspec.json.decode((BUILTIN / "counts.json").read_bytes(), type=Counts)


def words() -> tuple[str, ...]:
    """The words of the corpus that the built-in tokenizer encodes as one token when written " word"."""
    return counts().words


def paragraph_words() -> list[str]:
    """The words of the corpus's paragraphs; headings are left out."""
    return [word for line in prose().splitlines() if line[-1] in '.?!"' for word in line.split(" ")]


def measure_builtin() -> Counts:
    """Count with the built-in tokenizer what counts.json holds."""
    tokenizer = load()
    candidates = [word for word, _ in Counter(re.findall(r"\b[a-z]+\b", prose())).most_common()]
    singles = [f" {word}" for word in candidates]
    words = [word for word, n in zip(candidates, tokenizer.count_batch(singles), strict=True) if n == 1]
    alone = tokenizer.count("a")
    corpus = tokenizer.count_batch(f"a {word}" for word in dict.fromkeys(paragraph_words()))
    return Counts(tuple(words), tuple(tokenizer.count_batch(words)), tuple(n - alone for n in corpus))
