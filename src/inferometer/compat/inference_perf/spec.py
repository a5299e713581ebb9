"""What the parts of this folder exchange."""

from typing import Any

import msgspec

from inferometer.errors import UserError

Spec = dict[str, Any]
"""An effective config of inference-perf: every key with its default, in the long spelling, as its config.yaml stores it. Secrets
are still in it: `reports` never writes them."""


class Translation(msgspec.Struct, frozen=True):
    """An effective config, translated. `translating.to_config` makes a Config of it, with the secrets."""

    config: dict[str, Any]
    """Our own config, as its YAML file would contain it, without secrets. Its stages have the numbers of the stages of
    inference-perf."""
    notes: tuple[str, ...] = ()
    """What was translated to what, one sentence each, for the log."""
    headers: dict[str, str] = {}
    """Headers with secrets, such as the API key: they belong into `server.headers` of a run, but not into a file or a log."""
    environment: dict[str, str] = {}
    """Environment variables with secrets that the run needs, such as the hub's token."""


def at(spec: Spec, key: str, default: Any = None) -> Any:
    """The value at a dotted key; `default` if it, or a section before it, is missing or null."""
    value: Any = spec
    for name in key.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return default if value is None else value


def is_exact(spec: Spec) -> bool:
    """Whether known flaws of inference-perf are to be reproduced."""
    return bool(at(spec, "compat", "right") == "exact")


def unsupported(key: str, what: str, remedy: str = "leave it out") -> UserError:
    """The error about a key or a value that inference-perf has and Inferometer does not support."""
    return UserError(f"{what} is not supported", remedy, key)
