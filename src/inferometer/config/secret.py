"""Secrets: which settings are secret, and how they are kept out of files and messages."""

import contextlib
import json
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any
from urllib.parse import unquote, unquote_plus, urlsplit, urlunsplit

from inferometer.config.data import Data, Mix
from inferometer.config.schema import Config, Server
from inferometer.errors import UserError
from inferometer.printable import REMOVED, SHORTEST_SECRET, hide

_NAME = re.compile(r"key|token$|secret|password|authorization|cookie|credential", re.IGNORECASE)
_SHORTEST_PLAIN = 8
"""A header whose name does not suggest a secret is hidden only if its value is this long: shorter ones may be common words."""


def is_secret(name: object) -> bool:
    return bool(_NAME.search(str(name)))


def observe_words(config: Config) -> tuple[str, ...]:
    """The secrets in the settings of `observe` and `export`, but for tokens that are read from a file or the environment."""
    promql, otlp = config.observe.promql, config.export.otlp
    sections = [section for section in (promql, otlp) if section is not None]
    found = _in_headers(header for section in sections for header in section.headers.items())
    scraped = [] if config.observe.prometheus == "auto" else config.observe.prometheus
    urls = [*scraped, *(section.url for section in sections)]
    found += _passwords(urls) + _in_queries(urls)
    return _longest_first(found)


def without_password(url: str) -> str:
    """The URL without a user and password, and without its query, which may contain a token."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return REMOVED
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def words(server: Server, headers: dict[str, str], data: Data | None = None) -> tuple[str, ...]:
    """The secrets of the config that a server might echo; `headers` are those of the API key. `data` may have traffic classes."""
    secrets = [value.rpartition(" ")[2] for value in headers.values()]
    classes = data.classes if isinstance(data, Mix) else []
    secrets += _in_headers(chain(server.headers.items(), *(class_.headers.items() for class_ in classes)))
    secrets += _passwords(server.urls)
    secrets += _in_body(server.body) + _in_body(server.parameters) + _in_body([class_.body for class_ in classes])
    return _longest_first(secrets)


def _in_headers(headers: Iterable[tuple[str, str]]) -> list[str]:
    return [
        part
        for name, value in headers
        for part in (value, value.rpartition(" ")[2])
        if len(part) >= _SHORTEST_PLAIN or is_secret(name)
    ]


def _passwords(urls: Iterable[str]) -> list[str]:
    found = []
    for url in urls:
        with contextlib.suppress(ValueError):
            found.append(unquote(urlsplit(url).password or ""))
    return found


def _in_queries(urls: Iterable[str]) -> list[str]:
    """The values of parameters, both as they are written in the URL and as they are meant."""
    pairs = [pair.partition("=")[::2] for url in urls for pair in url.partition("?")[2].partition("#")[0].split("&")]
    return _in_headers((name, each) for name, value in pairs for each in (value, unquote_plus(value)))


def _longest_first(secrets: Iterable[str]) -> tuple[str, ...]:
    """The secrets, and as they are written within JSON."""
    long = [word for word in secrets if len(word) >= SHORTEST_SECRET]
    escaped = [json.dumps(word, ensure_ascii=is_ascii)[1:-1] for word in long for is_ascii in (True, False)]
    return tuple(sorted({*long, *escaped}, key=len, reverse=True))


def _in_body(tree: Any, secret: bool = False) -> list[str]:
    if isinstance(tree, dict):
        return [word for name, value in tree.items() for word in _in_body(value, secret or is_secret(name))]
    if isinstance(tree, list):
        return [word for value in tree for word in _in_body(value, secret)]
    return [tree] if secret and isinstance(tree, str) else []


@contextlib.contextmanager
def hidden(secrets: tuple[str, ...]) -> Iterator[None]:
    """Remove the secrets from errors raised in the block, which may quote the server."""
    try:
        yield
    except UserError as error:
        error.what, error.remedy = hide(error.what, secrets), hide(error.remedy, secrets)
        raise
