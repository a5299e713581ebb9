"""tokenizer.json: the format of Hugging Face's `tokenizers` library, which the built-in tokenizer has, too."""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inferometer.errors import UserError
from inferometer.workload.tokenizer import BUILTIN_NAME, KEY, REMEDY

if TYPE_CHECKING:
    import tokenizers

_BATCH = 4_000_000
"""Characters encoded at a time: the library keeps much more than the ids of each token."""
_SAMPLE = (
    "The old captain, who repaired 12 rusty anchors, said: Ask Anna. Then window lantern Orchard velvet (of the) sea"
)
"""Text in which every space that is followed by a letter should separate tokens."""
_CROSSING = re.compile(r"[^\s▁Ġ][\s▁Ġ]+[^\W_]")
"""A token of letters on both sides of a space."""


class HuggingFace:
    has_ends = True
    is_local = True

    def __init__(self, name: str, file: Path) -> None:
        self.name = name
        self.file = file

    @property
    def folder(self) -> Path:
        return self.file.parent

    def check(self) -> None:
        """Raise UserError if the file is not a tokenizer."""
        _ = self._inner

    @cached_property
    def _inner(self) -> "tokenizers.Tokenizer":
        return _read(self.file)

    @property
    def identity(self) -> bytes:
        return self.file.read_bytes()

    @cached_property
    def adds_up(self) -> bool:
        return self.name == BUILTIN_NAME or _splits_words(self._inner) or _has_no_token_across_words(self._inner)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._inner.encode(text, add_special_tokens=False).ids
        return ids

    def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self._encodings(texts)]

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self._inner.decode(list(ids), skip_special_tokens=False)
        return text

    def count(self, text: str) -> int:
        return len(self._inner.encode(text, add_special_tokens=False))

    def count_batch(self, texts: Iterable[str]) -> list[int]:
        return [len(encoding) for encoding in self._encodings(texts)]

    def ends(self, text: str) -> list[int]:
        return [end for _, end in self._inner.encode(text, add_special_tokens=False).offsets]

    def ordinary_ids(self) -> list[int]:
        added = self._inner.get_added_tokens_decoder()
        return sorted(id for id in self._inner.get_vocab(with_added_tokens=True).values() if id not in added)

    def _encodings(self, texts: Iterable[str]) -> Iterator[Any]:
        """Encode on all cores, a batch at a time."""
        batch: list[str] = []
        chars = 0
        for text in texts:
            batch.append(text)
            chars += len(text)
            if chars >= _BATCH:
                yield from self._inner.encode_batch_fast(batch, add_special_tokens=False)
                batch, chars = [], 0
        if batch:
            yield from self._inner.encode_batch_fast(batch, add_special_tokens=False)


def _read(file: Path) -> "tokenizers.Tokenizer":
    import tokenizers  # noqa: PLC0415  (slow to import)

    try:
        inner = tokenizers.Tokenizer.from_str(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"tokenizer {file} cannot be read: {error.strerror}", REMEDY, key=KEY) from None
    except Exception as error:  # the library raises bare Exception for anything that is not a tokenizer
        raise UserError(f"tokenizer {file} is not a tokenizer.json: {str(error)[:200]}", REMEDY, key=KEY) from None
    inner.no_truncation()
    inner.no_padding()
    return inner


def _splits_words(inner: "tokenizers.Tokenizer") -> bool:
    """Whether the text is split into words before anything is looked up in the vocabulary."""
    if inner.pre_tokenizer is None:
        return False
    text = inner.normalizer.normalize_str(_SAMPLE) if inner.normalizer else _SAMPLE
    starts = {start for _, (start, _) in inner.pre_tokenizer.pre_tokenize_str(text)}
    words = [match.start() for match in re.finditer(r"[ ▁](?=\w)", text)]
    return bool(words) and all(at in starts or at + 1 in starts for at in words)


def _has_no_token_across_words(inner: "tokenizers.Tokenizer") -> bool:
    """Whether every token of the vocabulary is within a word. (Other models than these treat unsplit text as one word.)"""
    if type(inner.model).__name__ not in ("BPE", "Unigram"):
        return False
    return not any(_CROSSING.search(token) for token in inner.get_vocab(with_added_tokens=False))
