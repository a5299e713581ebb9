"""The errors that a user can mend.

Each is one line that says what is wrong, and one that says what to do next. The CLI prints it and exits with 2; no other
exception is expected to reach it.
"""

import contextlib
from collections.abc import Iterator, Mapping


class UserError(Exception):
    """What is wrong (`what`), and what to do about it (`remedy`)."""

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.what} ({self.remedy})" if self.remedy else self.what

    def __reduce__(self) -> tuple[type["UserError"], tuple[str, str]]:
        return type(self), (self.what, self.remedy)


KEY_WANTED = ("http_401", "http_403", "grpc_UNAUTHENTICATED", "grpc_PERMISSION_DENIED")
"""How a server says no to who shows no key, as codes of failures (wire/failures.py)."""

ANOTHER_FOLDER = "give another folder: --set output=DIR, or `output` in the file"
GIVE_KEY = "set server.api_key_env or server.api_key_file"
OTHER_GRPC = "check the URL; any other gRPC service is asked with server.api grpc and server.method"
OTHER_HTTP = "check the URL and its path; OpenAI's endpoints are asked with server.api chat or completions"
CHECK_VERSION = "check server.version"
SEND_LESS = "send smaller tensors, or take the server's HTTP port, or server.shared_memory"
TRUST = "set server.tls.ca to the CA's PEM file, or server.tls.verify to false"
"""Remedies as `run` has them, for which another command has a flag of its own, or none (`reworded`)."""


@contextlib.contextmanager
def reworded(words: Mapping[str, str]) -> Iterator[None]:
    """Remedies within the block, said as the command has them."""
    try:
        yield
    except UserError as error:
        for written, said in words.items():
            error.remedy = error.remedy.replace(written, said)
        raise
