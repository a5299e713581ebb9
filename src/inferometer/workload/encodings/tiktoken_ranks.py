"""tiktoken: its named encodings, files of ranks (.tiktoken), and Mistral's tekken.json, which is the same in JSON."""

import base64
import binascii
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from inferometer.errors import UserError
from inferometer.workload.tokenizer import KEY, REMEDY

_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How a text is split for ranks from a file, which does not say it: as for cl100k_base and Llama 3."""


class TikToken:
    has_ends = True
    is_local = True
    adds_up = True  # all patterns in use split before a space that a letter follows

    def __init__(self, name: str, encoding: Any, identity: bytes, offset: int = 0, folder: Path | None = None) -> None:
        self.name = name
        self.identity = identity
        self.folder = folder
        self._encoding = encoding
        self._offset = offset
        """The id of rank 0."""

    def encode(self, text: str) -> list[int]:
        return self._shifted(self._encoding.encode_ordinary(text), self._offset)

    def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
        return [self._shifted(ids, self._offset) for ids in self._encoding.encode_ordinary_batch(list(texts))]

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self._encoding.decode(self._shifted(ids, -self._offset))
        return text

    def count(self, text: str) -> int:
        return len(self._encoding.encode_ordinary(text))

    def count_batch(self, texts: Iterable[str]) -> list[int]:
        return [len(ids) for ids in self._encoding.encode_ordinary_batch(list(texts))]

    def ends(self, text: str) -> list[int]:
        """Of a character that is several tokens, each of them ends where the character does."""
        chars, ends = 0, []
        for token in self._encoding.decode_tokens_bytes(self._encoding.encode_ordinary(text)):
            chars += sum(byte & 0xC0 != 0x80 for byte in token)  # the other bytes continue a character
            ends.append(chars)
        return ends

    def ordinary_ids(self) -> list[int]:
        return list(self._ordinary)

    @cached_property
    def _ordinary(self) -> list[int]:
        tokens = self._encoding.token_byte_values()
        return sorted(self._encoding.encode_single_token(token) + self._offset for token in tokens)

    @staticmethod
    def _shifted(ids: Sequence[int], by: int) -> list[int]:
        return [id + by for id in ids] if by else list(ids)


def named(name: str) -> TikToken:
    """Load an encoding by its name (`cl100k_base`) or that of a model (`gpt-4o`)."""
    library = _library(f"tiktoken:{name}")
    known = library.list_encoding_names()
    if name not in known:
        try:
            name = library.encoding_name_for_model(name)
        except KeyError:
            close = get_close_matches(name, known, 1)
            raise UserError(
                f"tiktoken has no encoding {name}" + (f" (did you mean {close[0]}?)" if close else ""),
                f"use one of {', '.join(known)}, or the name of an OpenAI model",
                key=KEY,
            ) from None
    try:
        encoding = library.get_encoding(name)
    except Exception as error:  # those of its HTTP client
        raise UserError(
            f"tiktoken cannot get the encoding {name}: {str(error)[:200]}",
            "check the connection, set TIKTOKEN_CACHE_DIR to a folder that has it, or give a local .tiktoken file",
            key=KEY,
        ) from None
    return TikToken(f"tiktoken:{name}", encoding, b"\n".join([name.encode(), *encoding.token_byte_values()]))


def ranks(name: str, file: Path) -> TikToken:
    """Load a .tiktoken file: a line for each token, with its bytes in base64 and its rank."""
    data = _bytes(file)
    try:
        pairs = (line.split() for line in data.splitlines() if line)
        found = {base64.b64decode(token, validate=True): int(rank) for token, rank in pairs}
        encoding = _encoding(name, found, _PATTERN)
    except (ValueError, binascii.Error) as error:
        raise UserError(f"tokenizer {file} is not a file of tiktoken ranks: {error}", REMEDY, key=KEY) from None
    return TikToken(name, encoding, data, folder=file.parent)


class _Entry(msgspec.Struct):
    rank: int
    token_bytes: str


class _Config(msgspec.Struct):
    pattern: str
    default_vocab_size: int
    default_num_special_tokens: int


class _Tekken(msgspec.Struct):
    config: _Config
    vocab: list[_Entry]


def tekken(name: str, file: Path) -> TikToken:
    """Load Mistral's tekken.json. Its special tokens have the first ids, the token of rank 0 the next one."""
    data = _bytes(file)
    try:
        content = msgspec.json.decode(data, type=_Tekken)
        config = content.config
        used = config.default_vocab_size - config.default_num_special_tokens
        found = {base64.b64decode(entry.token_bytes): entry.rank for entry in content.vocab if entry.rank < used}
        encoding = _encoding(name, found, config.pattern)
    except (msgspec.MsgspecError, ValueError, binascii.Error) as error:
        raise UserError(f"tokenizer {file} is not a tekken.json: {error}", REMEDY, key=KEY) from None
    return TikToken(name, encoding, data, config.default_num_special_tokens, file.parent)


def _encoding(name: str, ranks: dict[bytes, int], pattern: str) -> Any:
    library = _library(name)
    missing = next((byte for byte in range(256) if bytes([byte]) not in ranks), None)
    if missing is not None:  # the library would end the process
        raise ValueError(f"there is no token for the byte 0x{missing:02x}")
    return library.Encoding(name=name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})


def _bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise UserError(f"tokenizer {file} cannot be read: {error.strerror}", REMEDY, key=KEY) from None


def _library(name: str) -> Any:
    try:
        import tiktoken  # noqa: PLC0415
    except ImportError:
        raise UserError(
            f"tokenizer {name} needs the library tiktoken",
            "pip install 'inferometer[tokenizers]', or give the model's tokenizer.json",
            key=KEY,
        ) from None
    return tiktoken
