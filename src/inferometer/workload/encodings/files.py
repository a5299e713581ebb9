"""Tokenizers from local files: which of a folder's files is the tokenizer, and which library reads it."""

from collections.abc import Callable
from pathlib import Path

from inferometer.errors import UserError
from inferometer.workload.tokenizer import KEY, REMEDY, Tokenizer


def _json(name: str, file: Path) -> Tokenizer:
    from inferometer.workload.encodings.huggingface import HuggingFace  # noqa: PLC0415

    tokenizer = HuggingFace(name, file)
    tokenizer.check()
    return tokenizer


def _tekken(name: str, file: Path) -> Tokenizer:
    from inferometer.workload.encodings import tiktoken_ranks  # noqa: PLC0415

    return tiktoken_ranks.tekken(name, file)


def _tiktoken(name: str, file: Path) -> Tokenizer:
    from inferometer.workload.encodings import tiktoken_ranks  # noqa: PLC0415

    return tiktoken_ranks.ranks(name, file)


def _sentencepiece(name: str, file: Path) -> Tokenizer:
    from inferometer.workload.encodings.sentencepiece_model import SentencePiece  # noqa: PLC0415

    return SentencePiece(name, file)


FORMATS: dict[str, Callable[[str, Path], Tokenizer]] = {
    "tokenizer.json": _json,
    "*tekken*.json": _tekken,
    "*.tiktoken": _tiktoken,
    "*.model": _sentencepiece,
}
"""By the name of the file. In a folder, the first that is there is used."""


def load(name: str) -> Tokenizer:
    """Load the tokenizer in this folder or file."""
    path = Path(name).expanduser()
    if not path.is_dir():
        read = next((read for pattern, read in FORMATS.items() if path.match(pattern)), _json)
        return read(name, path)
    for pattern, read in FORMATS.items():
        for file in sorted(path.glob(pattern)):
            return read(name, file)
    raise UserError(
        f"tokenizer folder {name} has no tokenizer.json (nor a tekken.json, .tiktoken or .model file)", REMEDY, key=KEY
    )
