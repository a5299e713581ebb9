"""The parts of a run's config that the analysis uses, read back from the manifest's plain dict."""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from inferometer.analysis.percentiles import PERCENTILES, name_of
from inferometer.apis import APIS, Api
from inferometer.config.cost import Cost
from inferometer.config.fields import Seconds
from inferometer.config.report import Report
from inferometer.config.schema import Limits, Measure, Timeouts
from inferometer.records import Manifest
from inferometer.units import NS, parse_seconds

Section = TypeVar("Section", Cost, Limits, Measure, Report)


def measure(manifest: Manifest) -> Measure:
    return _section(manifest.config.get("measure"), Measure)


def limits(manifest: Manifest) -> Limits:
    return _section(manifest.config.get("limits"), Limits)


def cost(manifest: Manifest) -> Cost:
    return _section(manifest.config.get("cost"), Cost)


def server_count(manifest: Manifest) -> int:
    """How many servers were measured together: one per URL."""
    url = text(manifest, "server", "url")
    return max(len(url), 1) if isinstance(url, list | tuple) else 1


def report(manifest: Manifest) -> Report:
    return _section(manifest.config.get("report"), Report)


def percentiles(manifest: Manifest) -> tuple[str, ...]:
    """The names of the percentiles that the report is to show, in ascending order; empty: the usual ones."""
    return tuple(name_of(each) for each in sorted(set(report(manifest).percentiles)))


def further_percentiles(manifest: Manifest) -> tuple[str, ...]:
    """Those of them that are not computed in any case."""
    return tuple(name for name in percentiles(manifest) if name not in PERCENTILES)


def slos(manifest: Manifest) -> list[str]:
    """The service level objectives, as they were written."""
    found = manifest.config.get("slo") or []
    return [str(slo) for slo in found] if isinstance(found, list | tuple) else [str(found)]


def abort_limits(manifest: Manifest) -> list[str]:
    """The limits that may end the run early, as they were written."""
    found = text(manifest, "abort", "on") or []
    return [str(limit) for limit in found] if isinstance(found, list | tuple) else [str(found)]


def text(manifest: Manifest, section: str, key: str) -> object:
    """One value of the config, unconverted; None if it is not set."""
    part = manifest.config.get(section)
    return part.get(key) if isinstance(part, dict) else None


def api(manifest: Manifest) -> Api:
    """The API that was measured."""
    return APIS.get(str(text(manifest, "server", "api")), APIS["chat"])


def sends_text(manifest: Manifest) -> bool:
    """Whether requests are prompts, rather than tensors or messages."""
    return api(manifest).request == "text"


def receives_text(manifest: Manifest) -> bool:
    """Whether responses are text, which has output tokens."""
    return api(manifest).response == "text"


def is_in_process(manifest: Manifest) -> bool:
    """Whether the run is of an engine without a server: no client and no network are part of it."""
    return manifest.server.get("in_process") is True


def has_new_prompts(manifest: Manifest) -> bool:
    """Whether each prompt is generated for this run. Later turns of a session still repeat the turns before, and files and lists of
    prompts may share a prefix on purpose."""
    return text(manifest, "data", "type") in ("synthetic", "random") and sends_text(manifest)


def unreached(manifest: Manifest) -> float:
    """Seconds without a connection after which a stage was given up."""
    timeouts = text(manifest, "server", "timeouts")
    return float(
        Timeouts().unreached if not isinstance(timeouts, dict) else timeouts.get("unreached", Timeouts().unreached)
    )


def number(values: dict[str, object], key: str) -> int | None:
    """An integer in one of the manifest's dicts; None if it is missing or not an integer."""
    value = values.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _section(tree: object, kind: type[Section]) -> Section:
    names = {field.name for field in msgspec.structs.fields(kind)}
    known = {key: value for key, value in tree.items() if key in names} if isinstance(tree, dict) else {}
    return msgspec.convert(known, kind, dec_hook=_quantity)


def _quantity(kind: type, value: object) -> object:
    return Seconds(parse_seconds(value)) if kind is Seconds else kind(str(value))


def settings_label(settings: Mapping[str, Any]) -> str:
    """The values of a grid's keys as text: `data.input 1024, data.output 64`."""
    return ", ".join(f"{key} {short_value(value)}" for key, value in settings.items())


def short_value(value: Any) -> str:
    """The value of a setting as text."""
    return str(value) if not isinstance(value, dict | list) else msgspec.json.encode(value).decode()


def node_clock_bounds(manifest: Manifest) -> list[float]:
    """By how many seconds the clock of each node of a fleet may be wrong against the run's time axis; empty: there are no nodes."""
    nodes = manifest.clock.get("nodes")
    return [float(node["bound_ns"]) / NS for node in nodes] if isinstance(nodes, list | tuple) else []


def clocks_apart(manifest: Manifest) -> float | None:
    """By how many seconds the clocks of any two nodes of a fleet may be apart; None: all shards have the same clock."""
    bounds = sorted(node_clock_bounds(manifest))
    return sum(bounds[-2:]) if len(bounds) > 1 else None
