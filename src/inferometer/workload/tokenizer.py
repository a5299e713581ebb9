"""Counts tokens, with the built-in tokenizer or one from a local folder. Neither needs a network.

The built-in tokenizer is a small byte-level BPE. tools/build_tokenizer.py trained it on the corpus that is shipped with it.
The `tokenizers` library is imported on first use, so that `--help` stays fast.
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
REMEDY = "give a folder with a tokenizer.json, or the file itself; leave it out to use the built-in tokenizer"


class Tokenizer:
    """Text to tokens and back, without special tokens."""

    def __init__(self, name: str, path: Path, inner: "tokenizers.Tokenizer") -> None:
        self.name = name
        """`builtin`, or the path that the user gave."""
        self.path = path
        """The tokenizer.json that it was read from."""
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
        """Tokens in each text; several times as fast as counting one by one."""
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
    import tokenizers  # noqa: PLC0415  (slow to import)

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
    """The built-in corpus. Each line is a heading or a paragraph."""
    return (BUILTIN / "prose.txt").read_text(encoding="utf-8")


@cache
def words() -> tuple[str, ...]:
    """The words of the corpus, most frequent first, that the built-in tokenizer encodes as one token when written " word".

    The tokenizer splits a text before each space that is followed by a letter, so the counts add up: " a b c" is three
    tokens.
    """
    candidates = [word for word, _ in Counter(re.findall(r"\b[a-z]+\b", prose())).most_common()]
    counts = load().count_batch([f" {word}" for word in candidates])
    return tuple(word for word, count in zip(candidates, counts, strict=True) if count == 1)
