"""config.yaml: the effective config, without its secrets."""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import yaml

from inferometer.compat.inference_perf.reports.goodput import slo_headers
from inferometer.compat.inference_perf.spec import Spec
from inferometer.config.secret import without_password

REDACTED = "[REDACTED]"
_SECRETS = re.compile(r"^(api_key|token|bearer_token|password|secret|secret_key|access_key|credentials)$")
_URL = re.compile(r"^[a-z][a-z0-9+.-]*://", re.IGNORECASE)


def config_file(spec: Spec) -> bytes:
    """The config as YAML, with every key, and null for what is not set. `compat` is ours: it is there if it is set."""
    own = {name: section for name, section in spec.items() if name != "compat" or section not in (None, "right")}
    kept = set(slo_headers(spec.get("api") or {}).values())
    return yaml.safe_dump(_redacted(own, kept), sort_keys=False, allow_unicode=True).encode()


def _redacted(tree: Any, kept: set[str]) -> Any:
    """A copy without keys, tokens, values of headers and passwords of URLs. `kept` are headers that are not secret."""
    if isinstance(tree, Mapping):
        return {str(key): _value(str(key), value, kept) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_redacted(value, kept) for value in tree]
    if isinstance(tree, str) and _URL.match(tree) and _has_secret(tree):
        return without_password(tree)
    return tree


def _value(key: str, value: Any, kept: set[str]) -> Any:
    if key == "headers" and isinstance(value, Mapping):
        return {str(name): each if str(name).lower() in kept else REDACTED for name, each in value.items()}
    return REDACTED if value is not None and _SECRETS.match(key) else _redacted(value, kept)


def _has_secret(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return True
    return "@" in parts.netloc or bool(parts.query)
