"""Reads a config whose `server` section may be missing, because nothing is sent."""

from collections.abc import Sequence
from typing import Any

from inferometer.apis import APIS, DEFAULT_APIS
from inferometer.config import from_mapping
from inferometer.config.schema import Config


def read(tree: dict[str, Any], overrides: Sequence[str], source: str) -> tuple[Config, bool]:
    """Return the config, and whether the user gave a load. A missing server becomes one that takes this kind of data."""
    has_load = "load" in tree or any(each.startswith("load.") for each in overrides)
    server = tree.get("server") or {}
    if (
        isinstance(server, dict)
        and "url" not in server
        and not any(each.startswith("server.url") for each in overrides)
    ):
        tree = tree | {"server": _any_server(tree, overrides) | server}
    return from_mapping(tree, overrides, source), has_load


def _any_server(tree: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    data = tree.get("data")
    kind = data.get("type") if isinstance(data, dict) else None
    kind = next((each.partition("=")[2] for each in reversed(overrides) if each.startswith("data.type=")), kind)
    fitting = (api for api in APIS.values() if kind in api.data_types)
    api = next(fitting, APIS[DEFAULT_APIS["http"]])
    method = {"method": "package.Service/Method"} if api.has_method else {}
    return {"url": f"{api.schemes[0]}://127.0.0.1:8000", "api": api.name} | method
