"""From a YAML file and `--set` overrides to a Config, or to an error that names the key and the nearest right one."""

import difflib
import re
from collections.abc import Iterable
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec
import yaml

from inferometer.apis import APIS, DEFAULT_APIS, Api, names, scheme_of
from inferometer.config import ranges
from inferometer.config.schema import (
    Bursts,
    Closed,
    Config,
    Load,
    Messages,
    Ramp,
    Seconds,
    Stages,
    StageSpec,
    Steps,
    Tensors,
    Window,
    stages_of,
)
from inferometer.config.secret import is_secret
from inferometer.errors import UserError
from inferometer.units import format_seconds, parse_seconds

_WINDOWS = 10
_SHORTEST_WINDOW = 0.01


class _Loader(yaml.SafeLoader):
    """YAML 1.1 takes 1:8:2 for a number to the base of 60; here it is text, as in YAML 1.2."""

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        tag: str = super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]
        is_base_60 = tag.endswith((":int", ":float")) and ":" in value
        return "tag:yaml.org,2002:str" if is_base_60 else tag


def read_tree(path: str) -> dict[str, Any]:
    """The YAML file at `path` as plain dicts and lists."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{path}: not a text file", "give a YAML file in UTF-8") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(
            f"{path!r}: {reason}" if not path.isprintable() else f"{path}: {reason}",
            "give the path of a YAML file, or a URL: http://HOST:PORT, grpc://HOST:PORT",
        ) from None
    try:
        tree = _copy(yaml.load(text, _Loader))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise UserError(f"{path}:{where} is not YAML: {_problem(error)}", "mend the file") from None
    if not isinstance(tree, dict):
        raise UserError(f"{path}: holds no sections", "it needs at least `server: {url: ...}`")
    return tree


def _problem(error: Exception) -> str:
    """What YAML has against it, on one line."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply, or contains itself"
    return str(getattr(error, "problem", None) or error).partition("\n")[0]


def from_mapping(tree: dict[str, Any], overrides: Iterable[str] = (), source: str = "config") -> Config:
    """A Config from plain dicts and lists, with `key.path=value` overrides applied."""
    tree = _copy(tree)
    for override in overrides:
        _apply(tree, override)
    _default_types(tree)
    ranges.expand(tree, source)
    try:
        config: Config = msgspec.convert(tree, Config, dec_hook=_quantity)
    except msgspec.ValidationError as error:
        raise _explain(str(error), tree, source) from None
    _give_time_to_settle(config)
    _check(config, source)
    return config


def _default_types(tree: dict[str, Any]) -> None:
    """`type` may be left out where another key tells it, or where the default is meant."""
    load, data = tree.get("load"), tree.get("data")
    if isinstance(load, dict):
        load.setdefault("type", "stages" if "stages" in load else "poisson" if "rate" in load else "closed")
    server = tree.get("server")
    if not isinstance(server, dict):
        return
    api = _resolve_api(server)
    if api is None:
        return  # the check of the value names the right ones
    if data is None:
        tree["data"] = {"type": api.data_types[0]}
    elif isinstance(data, dict):
        data.setdefault("type", _data_type(data, api))


def _data_type(data: dict[str, Any], api: Api) -> str:
    """The type of a data section that does not state it: the one that has its keys, or the API's default."""
    if "path" in data:
        return "jsonl" if "jsonl" in api.data_types else "messages"
    return next((name for name in ("prompts", "messages") if name in data), api.data_types[0])


def _resolve_api(server: dict[str, Any]) -> Api | None:
    """Replace `auto` by the API that it means, and set `stream` if the file does not."""
    urls = server.get("url")
    first = urls[0] if isinstance(urls, list) and urls else urls
    if server.get("api", "auto") == "auto":
        server["api"] = DEFAULT_APIS[scheme_of(first if isinstance(first, str) else "")]
    api = APIS.get(str(server["api"]))
    if server.get("stream") is None and api is not None:
        server["stream"] = api.is_streamed
    return api


def _copy(tree: Any) -> Any:
    if isinstance(tree, dict):  # YAML 1.1 reads the keys `on` and `off` as true and false
        return {"on" if key is True else "off" if key is False else str(key): _copy(tree[key]) for key in tree}
    return [_copy(value) for value in tree] if isinstance(tree, list) else tree


def _apply(tree: dict[str, Any], override: str) -> None:
    """`load.rate=50` or `load.stages.0.rate=50`: the value is read as YAML."""
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise UserError(f"--set {override}: not of the form key=value", "write for example --set load.rate=50")
    try:
        value = _copy(yaml.load(text, _Loader))
    except (yaml.YAMLError, ValueError, RecursionError):
        raise UserError(f"--set {key}=...: the value is not YAML", "quote it: --set 'key=\"value\"'") from None
    *path, last = key.strip().split(".")
    node: Any = tree
    for name in path:
        if isinstance(node, dict) and node.get(name) is None:  # not there, or left empty
            node[name] = {}
        node = node[_position(node, name, override)] if isinstance(node, list) else node[name]
        if not isinstance(node, dict | list):
            raise UserError(
                f"--set {override}: {name} is a single value, not a section", "see docs/config.md for the keys"
            )
    if isinstance(node, list):
        node[_position(node, last, override)] = value
    else:
        node[last] = value


def _position(items: list[Any], name: str, override: str) -> int:
    if not name.isdecimal() or int(name) >= len(items):
        raise UserError(
            f"--set {override}: {name!r} is not an entry of that list", f"it has the entries 0 to {len(items) - 1}"
        )
    return int(name)


def _quantity(kind: type, value: object) -> object:
    if kind is Seconds:
        return Seconds(parse_seconds(value))
    if kind is Window:
        text = str(value)
        if text != "auto" and not text.isdecimal():
            try:
                parse_seconds(value)
            except ValueError:
                raise ValueError(
                    f"expected a count of requests, a duration such as 5s, or auto, got {value!r}"
                ) from None
        return Window(text)
    raise NotImplementedError(kind)


def _check(config: Config, source: str) -> None:
    """What the types cannot say: every stage ends, a rate that varies has the time to, headers are headers."""
    for number, stage in enumerate(stages_of(config.load)):
        where = f"load.stages.{number}" if isinstance(config.load, Stages) else "load"
        _check_stable(stage, where, source)
        if not stage.duration and not stage.requests:
            raise UserError(
                f"{source}: {where} never ends", f"give {where}.duration (such as 30s) or {where}.requests, more than 0"
            )
        if isinstance(stage, Ramp | Steps | Bursts) and not stage.duration:
            raise UserError(f"{source}: {where}.duration is missing", "a rate that changes needs the time to do so")
        if isinstance(stage, Bursts) and not stage.on:
            raise UserError(f"{source}: {where}.on is 0", "give the time that a burst lasts")
    for name, value in config.server.headers.items():
        if not (name + value).isprintable() or not (name + value).isascii() or not name or set(name) & set(": "):
            raise UserError(
                f"{source}: server.headers: {name!r} cannot stand in a request",
                "names and values are plain ASCII, on one line",
            )
    if config.server.urls == []:
        raise UserError(f"{source}: server.url is an empty list", "give at least one base URL")
    _check_protocol(config, source)


def _give_time_to_settle(config: Config) -> None:
    """A stage that ends when it is stable may take ten windows, unless it says how much it may take."""
    for stage in stages_of(config.load):
        if stage.stable and not stage.duration and not stage.requests:
            stage.duration = Seconds(_WINDOWS * stage.window)


def _check_stable(stage: StageSpec, where: str, source: str) -> None:
    if not stage.stable:
        return
    if isinstance(stage, Ramp | Steps | Bursts):
        raise UserError(
            f"{source}: {where}.stable: a load that changes cannot be stable", "leave it out, or take a constant load"
        )
    if stage.window < _SHORTEST_WINDOW:
        raise UserError(f"{source}: {where}.window is too short to tell anything", "give 10ms or more, such as 5s")
    if stage.duration and stage.duration < 3 * stage.window:
        raise UserError(
            f"{source}: {where}.stable: {format_seconds(stage.duration)} has no room for three windows of {format_seconds(stage.window)}",
            f"raise {where}.duration, or lower {where}.window",
        )


def _check_protocol(config: Config, source: str) -> None:
    """The URL's scheme, the API and the data go together."""
    server, data = config.server, config.data
    api = APIS[server.api]
    schemes = {scheme_of(url) for url in server.urls}
    if len(schemes) > 1:
        raise UserError(f"{source}: server.url mixes gRPC and HTTP", "measure one protocol at a time")
    (scheme,) = schemes
    if scheme not in api.schemes:
        if scheme == "http":
            raise UserError(f"{source}: server.api: {api.name} wants a grpc:// URL", "write grpc://HOST:PORT")
        spoken = " or ".join(row.name for row in APIS.values() if "grpc" in row.schemes)
        raise UserError(
            f"{source}: server.api: {api.name} is not spoken over gRPC", f"use an http:// URL, or api {spoken}"
        )
    if api.has_method and not server.method:
        raise UserError(f"{source}: server.method is missing", "name the method: package.Service/Method")
    if server.stream and scheme not in api.stream_schemes:
        remedy = "use a grpc:// URL, or api: generate" if api.request == "tensors" else "leave it out"
        raise UserError(f"{source}: server.stream: api {api.name} is not streamed over HTTP", remedy)
    if server.shared_memory and api.request != "tensors":
        fitting = " or ".join(names(request="tensors"))
        raise UserError(
            f"{source}: server.shared_memory: api {api.name} passes no tensors", f"leave it out, or use api {fitting}"
        )
    kind = data.__struct_config__.tag
    if kind not in api.data_types:
        by_server = (
            "server.api: kserve for a tensor server, or "
            if isinstance(data, Tensors) and scheme == "http"
            else "a grpc:// URL with server.api: grpc, or "
            if isinstance(data, Messages)
            else ""
        )
        *most, last = api.data_types
        fitting = f"{', '.join(most)} or {last}" if most else last
        raise UserError(
            f"{source}: data.type: {kind} does not go with api {api.name}", f"use {by_server}data.type: {fitting}"
        )
    if isinstance(data, Tensors) and data.sequence:
        length = data.sequence if isinstance(data.sequence, int) else 0  # streams: the file is read later
        check_sequences(config.load, length, f"{source}: data.sequence")
        _check_whole(config.load, length, source)
    if isinstance(data, Messages) and bool(data.messages) == bool(data.path):
        raise UserError(
            f"{source}: data: messages or path is needed, and not both", "give data.messages as JSON, or a file"
        )


def check_sequences(load: Load, longest: int, where: str) -> None:
    """The load is one for sequences of up to so many requests; 0: that is not known."""
    for stage in stages_of(load):
        if not isinstance(stage, Closed):
            raise UserError(
                f"{where}: a sequence's next request waits for the last answer",
                "use load.type: closed; its concurrency is the number of sequences at a time",
            )
        least = longest * stage.concurrency
        if 0 < stage.requests < least:
            raise UserError(
                f"{where}: load.requests ({stage.requests}) has no room for a sequence of {longest} for each user",
                f"give {least} or more",
            )


def _check_whole(load: Load, length: int, source: str) -> None:
    for stage in stages_of(load):
        if length and stage.requests % length:
            raise UserError(
                f"{source}: load.requests: {stage.requests} are not whole sequences of {length}",
                f"give a multiple of {length}",
            )


# --- errors ----------------------------------------------------------------------------------------------------------

_MOST_SHOWN = 80
_AT = re.compile(r" - at `\$(.*)`$")


def _explain(message: str, tree: dict[str, Any], source: str) -> UserError:
    """msgspec's message, said in the file's own terms."""
    path = _path_to(message, tree)
    what = _AT.sub("", message)
    where = ".".join(path)
    if unknown := re.search(r"unknown field `(.*)`", what):
        keys = _keys_at(path, tree)
        near = difflib.get_close_matches(unknown[1], keys, 1, 0.5)
        here = ".".join([*path, unknown[1]])
        remedy = f"did you mean {'.'.join([*path, near[0]])}?" if near else f"known here: {', '.join(keys)}"
        return UserError(f"{source}: unknown key {here}", remedy)
    if missing := re.search(r"missing required field `(.*)`", what):
        return UserError(
            f"{source}: {'.'.join([*path, missing[1]])} is missing", "add it; docs/config.md says what it takes"
        )
    if tag := re.search(r"Invalid (?:enum )?value '?(.*?)'?$", what):
        choices = _choices(path, tree)
        near = difflib.get_close_matches(tag[1], choices, 1, 0.5)
        remedy = f"did you mean {near[0]}? " if near else ""
        return UserError(f"{source}: {where}: there is no {tag[1]!r}", f"{remedy}it takes {' | '.join(choices)}")
    value, remedy = _value_at(path, tree), "see docs/config.md"
    if what.startswith("Expected `str") and isinstance(value, int | float):
        remedy = f'quote it: {where}: "...", or --set \'{where}="..."\''
    elif what.startswith("Expected `array") and isinstance(value, int | float):
        remedy = f"put it in brackets: {where}: [{value}], or --set '{where}=[{value}]'"
    return UserError(f"{source}: {where or 'the file'}: {_plain(what)}{_shown(path, tree)}", remedy)


def _path_to(message: str, tree: dict[str, Any]) -> list[str]:
    """The keys to what is wrong. Of a mapping with any keys msgspec says `[...]`: it is the first that is wrong all by itself."""
    found = _AT.search(message)
    path: list[str] = []
    for part in re.findall(r"[^.\[\]]+|(?<=\[)\.\.\.(?=\])", found[1] if found else ""):
        if part != "...":
            path.append(part)
        elif isinstance(entries := _value_at(path, tree), dict):
            path += [key for key in entries if _is_wrong_with(path, {key: entries[key]}, tree, message)][:1]
    return path


def _is_wrong_with(path: list[str], entry: dict[str, Any], tree: dict[str, Any], message: str) -> bool:
    """The same is wrong where the mapping at `path` has this one entry."""
    tree = _copy(tree)
    *parents, last = path
    parent = _value_at(parents, tree)
    parent[int(last) if isinstance(parent, list) else last] = entry
    try:
        msgspec.convert(tree, Config, dec_hook=_quantity)
    except msgspec.ValidationError as error:
        return str(error) == message
    return False


def _plain(what: str) -> str:
    if bound := re.match(r"Expected `(\w+)` (>=|>|<=|<) ([\d.]+)", what):
        words = {">=": "at least", ">": "more than", "<=": "at most", "<": "less than"}[bound[2]]
        return f"must be {words} {float(bound[3]):g}"
    if kinds := re.match(r"Expected `(.*)`, got `(.*)`", what):
        names = {"int": "a whole number", "float": "a number", "str": "text", "bool": "true or false", "object": "a section",
                 "array": "a list", "null": "nothing"}  # fmt: skip
        return "must be " + " or ".join(
            names.get(kind.strip(), kind.strip()) for kind in kinds[1].split("|") if kind.strip() != "null"
        )
    return re.sub(r", got .*", "", what)


def _shown(path: list[str], tree: Any) -> str:
    """What stands there, unless it may be a secret."""
    if any(name in ("headers", "body") or is_secret(name) for name in path):
        return ""
    text = repr(_value_at(path, tree))
    return f", got {text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + '...'}"


def _value_at(path: list[str], tree: Any) -> Any:
    for name in path:
        try:
            tree = tree[int(name)] if isinstance(tree, list) else tree[name]
        except (KeyError, IndexError, TypeError, ValueError):
            return None
    return tree


def _keys_at(path: list[str], tree: dict[str, Any]) -> list[str]:
    kinds = _structs_at(path, tree)
    return sorted({f.encode_name for kind in kinds for f in msgspec.structs.fields(kind)})


def _choices(path: list[str], tree: dict[str, Any]) -> list[str]:
    """What the literal or tag at `path` may be."""
    if path[-1] == "type":
        return sorted(kind.__struct_config__.tag for kind in _structs_at(path[:-1], {}))
    for kind in _structs_at(path[:-1], tree):
        hint = get_type_hints(kind).get(path[-1])
        literals = [arg for part in (get_args(hint) or ()) for arg in get_args(part)] or list(get_args(hint))
        if literals:
            return [str(value) for value in literals]
    return []


def _structs_at(path: list[str], tree: Any) -> list[Any]:
    """The section classes that may stand at `path`; the tree's own `type` keys choose among variants."""
    kinds: list[Any] = [Config]
    for name in path:
        tree = tree.get(name) if isinstance(tree, dict) else None
        if name.isdecimal():
            continue
        kinds = [s for kind in kinds if (hint := get_type_hints(kind).get(name)) for s in _structs_in(hint)]
        tag = tree.get("type") if isinstance(tree, dict) else None
        chosen = [kind for kind in kinds if tag is not None and kind.__struct_config__.tag == tag]
        kinds = chosen or kinds
    return kinds


def _structs_in(hint: Any) -> list[Any]:
    if get_origin(hint) in (Union, UnionType, Annotated, list):
        return [s for part in get_args(hint) for s in _structs_in(part)]
    return [hint] if isinstance(hint, type) and issubclass(hint, msgspec.Struct) else []
