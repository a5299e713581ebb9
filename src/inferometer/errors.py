"""Errors that a user can fix: one line that says what is wrong, and one that says what to do next.

The CLI prints them and exits with status 2; no other exception is expected to reach it. An error about a setting carries the
config key of that setting, and a remedy refers to settings as `{server.api}` or, with a value, `{server.api=kserve}`. Only the command knows what its user calls a
setting (a key of the file, a flag), so the names are filled in when the error is shown (`named`).
"""

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping

from inferometer.printable import printable

_KEY = re.compile(
    r"\{((?:server|data|load|sessions|client|fleet|measure|limits|output|observe|export|abort|storage)(?:\.\w+)*)(?:=([^}]+))?\}"
)


ANY_KEY = "KEY=VALUE"
"""Among a command's names for settings: the flag that sets those without a name."""


class UserError(Exception):
    """What is wrong, and what to do about it."""

    def __init__(self, what: str, remedy: str = "", key: str = "", source: str = "") -> None:
        super().__init__(what)
        self.what = what
        """Without the key and the source."""
        self.remedy = remedy
        """With settings as `{server.api}` or `{server.api=kserve}`."""
        self.key = key
        """The setting at fault, such as `server.api`."""
        self.source = source
        """Where the setting was made, such as the name of the config file."""
        self.names: Mapping[str, str] = {}
        """What the command calls its settings, if not by their config keys."""
        self.fallback = ""
        """The remedy if there is none."""

    @property
    def line(self) -> str:
        """What is wrong, as it is shown: `bench.yaml: load.rate: must be more than 0, got -5`."""
        return printable(": ".join(part for part in (self.source, self._name(self.key), self.what) if part))

    @property
    def next_step(self) -> str:
        """What to do next, as it is shown."""
        return printable(_KEY.sub(lambda match: self._setting(*match.groups()), self.remedy or self.fallback))

    def _name(self, key: str) -> str:
        return self.names.get(key, key)

    def _setting(self, key: str, value: str | None) -> str:
        if value is None:
            return self._name(key)
        if key in self.names:
            return f"{self.names[key]} {value}"
        return f"{self.names[ANY_KEY]} {key}={value}" if ANY_KEY in self.names else f"{key}: {value}"

    def __str__(self) -> str:
        return f"{self.line} ({self.next_step})" if self.next_step else self.line

    def __reduce__(self) -> tuple[type["UserError"], tuple[str, str, str, str]]:
        return type(self), (self.what, self.remedy, self.key, self.source)


@contextlib.contextmanager
def named(names: Mapping[str, str] | None = None, source: str = "", fallback: str = "") -> Iterator[None]:
    """Show errors of the block with a command's own names for settings.

    `source` is put before errors about a setting that do not have one yet; `fallback` is the remedy of errors without one.
    """
    try:
        yield
    except UserError as error:
        error.names = names or error.names
        error.fallback = fallback or error.fallback
        if error.key:
            error.source = error.source or source
        raise


KEY_WANTED = ("http_401", "http_403", "grpc_UNAUTHENTICATED", "grpc_PERMISSION_DENIED")
"""Failure codes (wire/failures.py) of a server that requires an API key."""

# Remedies that several folders give.
ANOTHER_FOLDER = "write to another folder: {output}"
GIVE_KEY = "give the API key with {server.api_key_env} or {server.api_key_file}"
WRONG_KEY = (
    "check the API key that was sent ({server.api_key_env}, {server.api_key_file}): the server does not accept it"
)
OTHER_GRPC = "check {server.url}; for any other gRPC service use {server.api=grpc} and {server.method}"
OTHER_HTTP = "check {server.url} and its path; for OpenAI's endpoints use {server.api=chat}, completions or embeddings"
CHECK_VERSION = "check {server.version}"
SEND_LESS = "send smaller tensors, or use the server's HTTP port, or {server.shared_memory}"
TRUST = "name the CA's PEM file with {server.tls.ca}, or turn verification off with {server.tls.verify}"


def key_remedy(headers: Iterable[str]) -> str:
    """What to do when a server wants an API key, by the names of the headers that it was sent."""
    return WRONG_KEY if {"authorization", "x-api-key"} & {name.lower() for name in headers} else GIVE_KEY
