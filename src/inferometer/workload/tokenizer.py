"""Counts tokens, with the built-in tokenizer or one from a local folder. Neither needs a network.

The built-in tokenizer is a small byte-level BPE. tools/build_tokenizer.py trained it on the corpus that is shipped with it.
Its counts for the words of that corpus are shipped too, so that generating prompts with it needs no tokenizer at all: the
`tokenizers` library and the tokenizer itself are loaded when something else is counted.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from inferometer.errors import UserError

if TYPE_CHECKING:
    import tokenizers

BUILTIN = Path(__file__).parent / "builtin"
REMEDY = "give a folder with a tokenizer.json, or the file itself; leave it out to use the built-in tokenizer"


class Tokenizer:
    """Text to tokens and back, without special tokens."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        """`builtin`, or the path that the user gave."""
        self.path = path
        """Its tokenizer.json."""

    @cached_property
    def _inner(self) -> "tokenizers.Tokenizer":
        return _read(self.path)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._inner.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self._inner.decode(list(ids), skip_special_tokens=False)
        return text

    def count(self, text: str) -> int:
        return len(self._inner.encode(text, add_special_tokens=False))

    def count_batch(self, texts: Iterable[str]) -> list[int]:
        """Tokens in each text; several times as fast as counting one by one."""
        return [len(encoding) for encoding in self._inner.encode_batch_fast(list(texts), add_special_tokens=False)]

    def ends(self, text: str) -> list[int]:
        """Where each token of the text ends, as an offset in characters."""
        return [end for _, end in self._inner.encode(text, add_special_tokens=False).offsets]


@cache
def load(path: str | None = None) -> Tokenizer:
    """The built-in tokenizer, or the one in this folder or file."""
    if path is None:
        return Tokenizer("builtin", BUILTIN / "tokenizer.json")
    file = Path(path).expanduser()
    if file.is_dir():
        file = file / "tokenizer.json"
        if not file.exists():
            raise UserError(f"tokenizer folder {path} has no tokenizer.json", REMEDY)
    if not file.exists():
        raise UserError(f"tokenizer {path} does not exist", REMEDY)
    tokenizer = Tokenizer(path, file)
    _ = tokenizer._inner  # a file that is not a tokenizer is an error here
    return tokenizer


def _read(file: Path) -> "tokenizers.Tokenizer":
    import tokenizers  # noqa: PLC0415  (slow to import)

    try:
        inner = tokenizers.Tokenizer.from_str(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"tokenizer {file} cannot be read: {error.strerror}", REMEDY) from None
    except Exception as error:  # the library raises bare Exception for anything that is not a tokenizer
        raise UserError(f"tokenizer {file} is not a tokenizer.json: {str(error)[:200]}", REMEDY) from None
    inner.no_truncation()
    inner.no_padding()
    return inner


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
