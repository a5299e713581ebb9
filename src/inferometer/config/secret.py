"""What no file and no screen may show: which names stand for secrets, and a server's words without ours in them."""

import contextlib
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, urlsplit

from inferometer.config.schema import Server
from inferometer.errors import UserError

REMOVED = "(removed)"
_NAME = re.compile(r"key|token$|secret|password|authorization|cookie|credential", re.IGNORECASE)
_SHORTEST = 4
_SHORTEST_PLAIN = 8
"""A header that is not called a secret hides its value only if that is no common word."""


def is_secret(name: object) -> bool:
    return bool(_NAME.search(str(name)))


def words(server: Server, headers: dict[str, str]) -> tuple[str, ...]:
    """Everything of the config that a server might repeat to us and that is not to be kept; `headers`: the API key's."""
    found = [value.rpartition(" ")[2] for value in headers.values()]
    for name, value in server.headers.items():
        found += [part for part in (value, value.rpartition(" ")[2]) if len(part) >= _SHORTEST_PLAIN or is_secret(name)]
    for url in server.urls:
        try:
            found.append(unquote(urlsplit(url).password or ""))
        except ValueError:
            continue
    found += _in_body(server.body) + _in_body(server.parameters)
    return tuple(sorted({word for word in found if len(word) >= _SHORTEST}, key=len, reverse=True))


def _in_body(tree: Any, secret: bool = False) -> list[str]:
    if isinstance(tree, dict):
        return [word for name, value in tree.items() for word in _in_body(value, secret or is_secret(name))]
    if isinstance(tree, list):
        return [word for value in tree for word in _in_body(value, secret)]
    return [tree] if secret and isinstance(tree, str) else []


@contextlib.contextmanager
def hidden(secrets: tuple[str, ...]) -> Iterator[None]:
    """Errors that hold a server's words come out without the secrets."""
    try:
        yield
    except UserError as error:
        raise type(error)(hide(error.what, secrets), error.remedy) from None


def hide(text: str, secrets: tuple[str, ...]) -> str:
    """`text` without the secrets, and without the start of one that its bounded length cut off."""
    for secret in secrets:
        text = text.replace(secret, REMOVED)
    if text.endswith("..."):
        for secret in secrets:
            for length in range(len(secret) - 1, _SHORTEST - 1, -1):
                if text.endswith(secret[:length] + "..."):
                    text = text[: -length - 3] + REMOVED
                    break
    return text
