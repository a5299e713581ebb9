"""Tokenizers: text to tokens and back, from several sources. Special tokens of a file do not count.

The built-in tokenizer is a small byte-level BPE. tools/build_tokenizer.py trained it on the corpus that is shipped with it.
Its counts for the words of that corpus are shipped too, so that generating prompts with it needs no tokenizer at all: the
`tokenizers` library and the tokenizer itself are loaded when something else is counted.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from inferometer.errors import UserError

BUILTIN = Path(__file__).parent / "builtin"
BUILTIN_NAME = "builtin"
SERVER = "server"
TIKTOKEN = "tiktoken:"
HUB = "hub:"
_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w.-]+(@[\w.-]+)?")
KEY = "data.tokenizer"
REMEDY = (
    "give a folder with a tokenizer.json, or the file itself; org/name or hub:name for one from the hub; "
    "tiktoken:NAME; server; or leave it out to use the built-in tokenizer"
)


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
    def folder(self) -> Path | None:
        """Where the model's other files are, such as its chat template."""
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

    def __hash__(self) -> int:
        """Identity: what was measured with a tokenizer is kept by the object."""
        ...


class Source(NamedTuple):
    """A kind of name that the user may give, and what loads the tokenizer of such a name."""

    is_meant: Callable[[str], bool]
    load: Callable[[str], Tokenizer]


def _builtin(name: str) -> Tokenizer:
    from inferometer.workload.encodings.huggingface import HuggingFace  # noqa: PLC0415

    return HuggingFace(BUILTIN_NAME, BUILTIN / "tokenizer.json")


def _server(name: str) -> Tokenizer:
    from inferometer.workload.encodings import server  # noqa: PLC0415

    return server.load()


def _tiktoken(name: str) -> Tokenizer:
    from inferometer.workload.encodings import tiktoken_ranks  # noqa: PLC0415

    return tiktoken_ranks.named(name.partition(":")[2])


def _file(name: str) -> Tokenizer:
    from inferometer.workload.encodings import files  # noqa: PLC0415

    return files.load(name)


def _hub(name: str) -> Tokenizer:
    from inferometer.workload.encodings import hub  # noqa: PLC0415

    return hub.load(name.removeprefix(HUB))


SOURCES: dict[str, Source] = {
    "the built-in tokenizer": Source(lambda name: name == BUILTIN_NAME, _builtin),
    "the server's own": Source(lambda name: name == SERVER, _server),
    "an encoding of tiktoken": Source(lambda name: name.startswith(TIKTOKEN), _tiktoken),
    "a folder or a file": Source(lambda name: Path(name).expanduser().exists(), _file),
    "a name on the hub": Source(lambda name: name.startswith(HUB) or bool(_HUB_NAME.fullmatch(name)), _hub),
}
"""The first that is meant by a name loads it."""


def load(name: str | None = None) -> Tokenizer:
    """Return the tokenizer that the user names; None: the built-in one. Raises UserError when there is none of this name."""
    return _server(SERVER) if name == SERVER else _load(name or BUILTIN_NAME)


@cache
def _load(name: str) -> Tokenizer:
    source = next((source for source in SOURCES.values() if source.is_meant(name)), None)
    if source is None:
        raise UserError(f"tokenizer {name} does not exist{_similar(name)}", REMEDY, key=KEY)
    return source.load(name)


def _similar(name: str) -> str:
    """What the user may have meant."""
    close = get_close_matches(name, [BUILTIN_NAME, SERVER], 1) or get_close_matches(
        name, [path.name for path in Path(name).expanduser().absolute().parent.glob("*")], 1
    )
    return f" (did you mean {close[0]}?)" if close else ""


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
