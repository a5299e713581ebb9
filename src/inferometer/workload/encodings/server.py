"""The tokenizer of the server under test, over its /tokenize endpoint. It is used before the first request is sent, and never later.

This folder knows no server: whoever builds a workload provides the function that encodes texts (probe/tokenize.py).
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import chain
from typing import ClassVar

from inferometer.errors import UserError
from inferometer.workload.tokenizer import KEY, SERVER, prose

Encode = Callable[[Sequence[str]], list[list[int]]]

_REMEDY = "give the model's own tokenizer: a folder with a tokenizer.json, or its name on the hub"


class ServerTokenizer:
    name = SERVER
    folder = None
    has_ends = False
    is_local = False
    adds_up = False  # not known
    provided: ClassVar["ServerTokenizer | None"] = None

    def __init__(self, encode: Encode) -> None:
        self._encode = encode

    @cached_property
    def identity(self) -> bytes:
        """The ids of some text: the server does not hand out its vocabulary."""
        ids = chain.from_iterable(self.encode_batch(prose()[:4000].splitlines()))
        return " ".join(map(str, ids)).encode()

    def encode(self, text: str) -> list[int]:
        return self._encode([text])[0]

    def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
        return self._encode(list(texts))

    def count(self, text: str) -> int:
        return len(self.encode(text))

    def count_batch(self, texts: Iterable[str]) -> list[int]:
        return [len(ids) for ids in self.encode_batch(texts)]

    def decode(self, ids: Sequence[int]) -> str:
        raise UserError("the server's tokenizer cannot turn token ids into text here", _REMEDY, key=KEY)

    def ends(self, text: str) -> list[int]:
        raise NotImplementedError

    def ordinary_ids(self) -> list[int]:
        raise UserError("the server's tokenizer does not list its vocabulary", _REMEDY, key=KEY)


def provide(encode: Encode) -> None:
    """Use this function as the tokenizer `server` in this process, from now on."""
    ServerTokenizer.provided = ServerTokenizer(encode)


def load() -> ServerTokenizer:
    """Return the tokenizer of the server that was provided last."""
    if ServerTokenizer.provided is None:
        raise UserError("the server's tokenizer can only be used in a run, with its server", _REMEDY, key=KEY)
    return ServerTokenizer.provided
