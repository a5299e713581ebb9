"""SentencePiece models (.model), as of Llama 2, Gemma and T5."""

import os
import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from inferometer.errors import UserError
from inferometer.workload.tokenizer import KEY, REMEDY

_CROSSING = re.compile(r"[^▁]▁+\w")
"""A piece with letters on both sides of a space."""


class SentencePiece:
    has_ends = True
    is_local = True

    def __init__(self, name: str, file: Path) -> None:
        self.name = name
        self.folder = file.parent
        try:
            self.identity = file.read_bytes()
        except OSError as error:
            raise UserError(f"tokenizer {file} cannot be read: {error.strerror}", REMEDY, key=KEY) from None
        library = _library(name)
        try:
            self._processor = library.SentencePieceProcessor(model_proto=self.identity)
            is_model = self._processor.get_piece_size() > 0
        except (RuntimeError, OSError):
            is_model = False
        if not is_model:
            raise UserError(f"tokenizer {file} is not a SentencePiece model", REMEDY, key=KEY)

    @cached_property
    def adds_up(self) -> bool:
        pieces = self._processor.id_to_piece(list(range(self._processor.get_piece_size())))
        return not any(_CROSSING.search(piece) for piece in pieces)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._processor.encode(text)
        return ids

    def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
        ids: list[list[int]] = self._processor.encode(list(texts), num_threads=os.cpu_count() or 1)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self._processor.decode(list(ids))
        return text

    def count(self, text: str) -> int:
        return len(self.encode(text))

    def count_batch(self, texts: Iterable[str]) -> list[int]:
        return [len(ids) for ids in self.encode_batch(texts)]

    def ends(self, text: str) -> list[int]:
        """Of a character that is several tokens, each of them ends where the character does."""
        ends: list[int] = []
        for start, end in reversed(self._processor.encode(text, return_type="offset_mapping")["offsets"]):
            ends.append(
                ends[-1] if start == end and ends else end
            )  # the library has all but the last one end before it
        return ends[::-1]

    def ordinary_ids(self) -> list[int]:
        processor = self._processor
        special = (processor.is_control, processor.is_unknown, processor.is_unused, processor.is_byte)
        return [id for id in range(processor.get_piece_size()) if not any(kind(id) for kind in special)]


def _library(name: str) -> Any:
    try:
        import sentencepiece  # noqa: PLC0415
    except ImportError:
        raise UserError(
            f"tokenizer {name} needs the library sentencepiece",
            "pip install 'inferometer[tokenizers]', or give the model's tokenizer.json",
            key=KEY,
        ) from None
    return sentencepiece
