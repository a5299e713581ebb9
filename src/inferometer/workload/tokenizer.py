"""Counting tokens: the built-in tokenizer, or one from a local folder. Neither needs a network.

The built-in one is a small byte-level BPE that tools/build_tokenizer.py trained on the corpus shipped beside it. The
`tokenizers` library is imported on first use: it is not there for `--help`.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from inferometer.errors import UserError

if TYPE_CHECKING:
    import tokenizers

BUILTIN = Path(__file__).parent / "builtin"
REMEDY = "give a folder with a tokenizer.json, or that file; leave it out for the built-in tokenizer"


class Tokenizer:
    """Text to tokens and back, without special tokens."""

    def __init__(self, name: str, path: Path, inner: "tokenizers.Tokenizer") -> None:
        self.name = name
        """`builtin`, or the path as it was given."""
        self.path = path
        """The tokenizer.json it came from."""
        self._inner = inner

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._inner.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self._inner.decode(list(ids), skip_special_tokens=False)
        return text

    def count(self, text: str) -> int:
        return len(self._inner.encode(text, add_special_tokens=False))

    def count_batch(self, texts: Iterable[str]) -> list[int]:
        """The same for many texts at once, several times as fast."""
        return [len(encoding) for encoding in self._inner.encode_batch_fast(list(texts), add_special_tokens=False)]

    def ends(self, text: str) -> list[int]:
        """Where each token of the text ends, as an offset in characters."""
        return [end for _, end in self._inner.encode(text, add_special_tokens=False).offsets]


@cache
def load(path: str | None = None) -> Tokenizer:
    """The built-in tokenizer, or the one in this folder or file."""
    if path is None:
        return _read("builtin", BUILTIN / "tokenizer.json")
    file = Path(path).expanduser()
    if file.is_dir():
        file = file / "tokenizer.json"
        if not file.exists():
            raise UserError(f"tokenizer folder {path} has no tokenizer.json", REMEDY)
    if not file.exists():
        raise UserError(f"tokenizer {path} does not exist", REMEDY)
    return _read(path, file)


def _read(name: str, file: Path) -> Tokenizer:
    import tokenizers  # noqa: PLC0415  (heavy: only who counts tokens pays)

    try:
        inner = tokenizers.Tokenizer.from_str(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"tokenizer {file} cannot be read: {error.strerror}", REMEDY) from None
    except Exception as error:  # the library raises bare Exception for anything that is not a tokenizer
        raise UserError(f"tokenizer {file} is not a tokenizer.json: {str(error)[:200]}", REMEDY) from None
    inner.no_truncation()
    inner.no_padding()
    return Tokenizer(name, file, inner)


@cache
def prose() -> str:
    """The built-in corpus: a heading or a paragraph a line."""
    return (BUILTIN / "prose.txt").read_text(encoding="utf-8")


@cache
def words() -> tuple[str, ...]:
    """The corpus's words, commonest first, that are one token of the built-in tokenizer when written " word".

    The tokenizer cuts a text before each space that a letter follows, so the counts add up: " a b c" is three tokens.
    """
    found = [word for word, _ in Counter(re.findall(r"\b[a-z]+\b", prose())).most_common()]
    counts = load().count_batch([f" {word}" for word in found])
    return tuple(word for word, count in zip(found, counts, strict=True) if count == 1)
