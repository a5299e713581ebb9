"""From a YAML file and `--set` overrides to a Config; raises UserError with the key at fault."""

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from inferometer.apis import APIS, DEFAULT_APIS, Api, scheme_of
from inferometer.config import ranges
from inferometer.config.check import check
from inferometer.config.convert import convert, copied
from inferometer.config.data.trace_formats import has_times
from inferometer.config.explain import explain
from inferometer.config.fields import Seconds
from inferometer.config.loads import stages_of
from inferometer.config.schema import Config
from inferometer.errors import UserError, named

_WINDOWS = 10


class Discovery(NamedTuple):
    """What a running server shows: each takes its URL."""

    scheme: Callable[[str], str]
    """Completes a URL that has no scheme, such as `localhost:8000`."""
    api: Callable[[str], str]
    """The API of a server, if nothing else decides it."""


def read_tree(path: str, or_url: bool = False) -> dict[str, Any]:
    """Read the YAML file at `path` as plain dicts and lists; `-` is standard input. `or_url`: a URL would do as well."""
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{path}: not a text file", "give a YAML file in UTF-8") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(
            f"{path!r}: {reason}" if not path.isprintable() else f"{path}: {reason}",
            "give the path of a YAML file" + (", or a URL: http://HOST:PORT, grpc://HOST:PORT" if or_url else ""),
        ) from None
    try:
        tree = copied(_parse_yaml(text))
    except ValueError as error:
        raise UserError(f"{path}:{error}", "fix the file") from None
    except RecursionError:
        raise UserError(f"{path}: is not YAML: it is nested too deeply, or contains itself", "fix the file") from None
    if not isinstance(tree, dict):
        raise UserError(f"{path}: there are no sections in the file", "it needs at least `server: {url: ...}`")
    return tree


def _parse_yaml(text: str) -> Any:
    from inferometer.config import yaml_text  # noqa: PLC0415 - client processes, which get a Config, do without it

    return yaml_text.parse(text)


def from_mapping(
    tree: dict[str, Any],
    overrides: Iterable[str] = (),
    source: str = "config",
    discovery: Discovery | None = None,
) -> Config:
    """Make a Config from plain dicts and lists, with `key.path=value` overrides applied.

    `source` names their origin in errors. `discovery` asks the server what the tree leaves out; without it, URLs need a scheme.
    """
    with named(source=source, fallback="see `inferometer docs config`"):
        tree = overridden(tree, overrides)
        if discovery is not None:
            _complete_urls(tree, discovery.scheme)
        _set_defaults(tree, discovery)
        ranges.expand(tree)
        try:
            config = convert(tree)
        except msgspec.ValidationError as error:
            raise explain(error, tree) from None
        if config.sweep:
            raise UserError("only the command `inferometer run` measures a grid of settings", "leave it out", "sweep")
        _limit_settling(config)
        check(config)
        return config


# --- overrides -------------------------------------------------------------------------------------------------------


def overridden(tree: dict[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """A copy of the tree with `key.path=value` overrides applied."""
    tree = copied(tree)
    for override in overrides:
        _apply(tree, override)
    return tree


def _apply(tree: dict[str, Any], override: str) -> None:
    """Apply `load.rate=50` or `load.stages.0.rate=50`; the value is read as YAML."""
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise UserError(f"--set {override}: not of the form key=value", "write for example --set load.rate=50")
    try:
        value = copied(_parse_yaml(text))
    except (ValueError, RecursionError):
        raise UserError(f"--set {key}=...: the value is not YAML", "quote it: --set 'key=\"value\"'") from None
    put(tree, key.strip(), value, f"--set {override}")


def put(tree: dict[str, Any], key: str, value: Any, origin: str) -> None:
    """Set the value at a dotted key, in place; `origin` goes before errors."""
    *path, last = key.split(".")
    node: Any = tree
    for name in path:
        if isinstance(node, dict) and node.get(name) is None:  # missing or empty
            node[name] = {}
        node = node[_position(node, name, origin)] if isinstance(node, list) else node[name]
        if not isinstance(node, dict | list):
            raise UserError(
                f"{origin}: {name} is a single value, not a section",
                "see `inferometer docs config` for the keys",
            )
    if isinstance(node, list):
        node[_position(node, last, origin)] = value
    else:
        node[last] = value


def _position(items: list[Any], name: str, origin: str) -> int:
    if not name.isdecimal() or int(name) >= len(items):
        raise UserError(f"{origin}: {name!r} is not an entry of that list", f"it has the entries 0 to {len(items) - 1}")
    return int(name)


# --- defaults --------------------------------------------------------------------------------------------------------


def _complete_urls(tree: dict[str, Any], find_scheme: Callable[[str], str]) -> None:
    server = tree.get("server")
    urls = server.get("url") if isinstance(server, dict) else None
    if isinstance(urls, str):
        tree["server"]["url"] = urls if "://" in urls else find_scheme(urls)
    elif isinstance(urls, list):
        tree["server"]["url"] = [url if not isinstance(url, str) or "://" in url else find_scheme(url) for url in urls]


def _set_defaults(tree: dict[str, Any], discovery: Discovery | None) -> None:
    """Set `type` if it is left out, by the other keys of the section or to the default; and restore the word `off`."""
    load, data, client = tree.get("load"), tree.get("data"), tree.get("client")
    if isinstance(client, dict) and client.get("awake") is False:  # YAML 1.1 reads `off` as false
        client["awake"] = "off"
    if load is None and _is_timed_trace(data):
        tree["load"] = {"type": "trace"}
    if isinstance(load, dict) and "type" not in load:
        load["type"] = _load_type(load, data)
    server = tree.get("server")
    if not isinstance(server, dict):
        return
    api = _resolve_api(server, data, discovery)
    if api is None:
        return  # converting the tree will report it
    if data is None:
        tree["data"] = {"type": api.data_types[0]}
    elif isinstance(data, dict):
        data.setdefault("type", _data_type(data, api))
        _set_prompt_form(data, api)


def _load_type(load: dict[str, Any], data: Any) -> str:
    """The type of a load section without `type`: the one that has its keys, or that of the data."""
    for key, kind in (("stages", "stages"), ("rate", "poisson"), ("concurrency", "closed")):
        if key in load:
            return kind
    return "trace" if _is_timed_trace(data) else "closed"


def _is_timed_trace(data: Any) -> bool:
    """Whether the data is a trace with arrival times, which is then the load, too."""
    if not isinstance(data, dict) or data.get("type") != "trace":
        return False
    path, columns = data.get("path"), data.get("columns") or {}
    return isinstance(path, str) and isinstance(columns, dict) and has_times(path, columns)


def _data_type(data: dict[str, Any], api: Api) -> str:
    """The type of a data section without `type`: the one that has its keys, or the API's default."""
    if "path" in data:
        return next(name for name in ("jsonl", "messages", "images") if name in api.data_types)
    return next((name for name in ("prompts", "messages") if name in data), api.data_types[0])


def _set_prompt_form(data: dict[str, Any], api: Api) -> None:
    """Let prefixes and the turns of sessions be what the API takes: messages, or one text."""
    classes = data.get("classes")
    for each in classes if isinstance(classes, list) else ():
        if isinstance(each, dict) and isinstance(each.get("data"), dict):
            _set_prompt_form(each["data"], api)
    if data.get("type") in ("conversation", "trace"):
        data.setdefault("prompt", api.history or "messages")
    elif data.get("type") == "shared_prefix":
        data.setdefault("prefix_as", "system" if api.history == "messages" else "text")


def _resolve_api(server: dict[str, Any], data: Any, discovery: Discovery | None) -> Api | None:
    """Replace `auto` by the API that it means, of URL and data (or else the server), and set `stream` if the file does not."""
    urls = server.get("url")
    first = urls[0] if isinstance(urls, list) and urls else urls
    if server.get("api", "auto") == "auto":
        kind = data.get("type") if isinstance(data, dict) else None
        url = first if isinstance(first, str) else ""
        default = DEFAULT_APIS[scheme_of(url)] if data or discovery is None else discovery.api(url)
        server["api"] = "kserve" if kind in ("tensors", "images") else default
    api = APIS.get(str(server["api"]))
    if server.get("stream") is None and api is not None:
        server["stream"] = api.is_streamed
    return api


def _limit_settling(config: Config) -> None:
    """A stage that ends when it is stable may take ten windows, unless the file sets another limit."""
    for stage in stages_of(config.load):
        if stage.stable and not stage.duration and not stage.requests:
            stage.duration = Seconds(_WINDOWS * stage.window)
