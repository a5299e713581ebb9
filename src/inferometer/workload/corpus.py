"""Natural text that prompts are cut from: the built-in corpus, or a file of the user's own (data.corpus)."""

import gzip
import zlib
from functools import cache
from pathlib import Path

import msgspec

from inferometer.errors import UserError
from inferometer.workload import tokenizer

LONGEST = 8 * 1024 * 1024
"""Characters of a file that are used. More text would only take longer to measure."""
_SENTENCE_ENDS = frozenset('.?!"”。？！」…')
_UNSPACED = 24
"""A corpus with longer words than this on average is taken for text without spaces between words."""
_REMEDY = "give a text file in UTF-8, or one compressed with gzip (.gz)"


class Corpus(msgspec.Struct, frozen=True):
    """Text with single spaces between its words, starting with a space."""

    text: str
    words: list[str]
    ends_sentence: list[bool]
    """For each word."""
    is_builtin: bool

    @property
    def is_spaced(self) -> bool:
        """False for text in a script without spaces between words."""
        return len(self.text) <= _UNSPACED * len(self.words)


@cache
def load(path: str | None = None) -> Corpus:
    """Return the built-in corpus, or that in this file."""
    words = tokenizer.paragraph_words() if path is None else _words(path)
    return Corpus(" " + " ".join(words), words, [word[-1] in _SENTENCE_ENDS for word in words], path is None)


@cache
def content(path: str) -> bytes:
    """Return the bytes of the file, decompressed."""
    try:
        data = Path(path).expanduser().read_bytes()
        return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path} cannot be decompressed: {error}", _REMEDY, key="data.corpus") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}", _REMEDY, key="data.corpus") from None


def _words(path: str) -> list[str]:
    try:
        text = content(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text: byte {error.start}", _REMEDY, key="data.corpus") from None
    words = text[:LONGEST].split()
    if len(text) > LONGEST and len(words) > 1:
        words.pop()  # it may have been cut
    if not words:
        raise UserError(f"{path} has no words", _REMEDY, key="data.corpus")
    return words
