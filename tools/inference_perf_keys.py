"""docs/reference/inference-perf.md: every key of inference-perf's config, and what differs, from the tables in the code."""

from inferometer.compat.inference_perf import reports, translating
from inferometer.compat.inference_perf.data_keys import DISTRIBUTION
from inferometer.compat.inference_perf.kinds import LATER, REQUIRED, Either, Key, Kind, describe, walk
from inferometer.compat.inference_perf.schema import SCHEMA

_HEAD = """# inference-perf's config keys

<!-- Written by `make docs` from the tables in the code. Do not edit by hand. -->

`inferometer inference-perf --config_file FILE` accepts every key of inference-perf 0.7, and says what it does with each. Every key is also a
flag: `--load.interval 5`. [How to switch](../how-to/from-inference-perf.md) has the rest.

A key that is refused is always an error: the run would not be what the config describes. An unknown key is an error that names the likely
right one; `--lenient` drops it with a warning. `[]` stands for the entries of a list. Keys of a later version that no release has yet are
marked so.
"""


def markdown() -> str:
    """The page."""
    rows: dict[str, list[str]] = {}
    for path, key in all_keys():
        rows.setdefault(_section(path), []).append(f"| `{'.'.join(path)}` | {_values(key)} | {_meaning(key)} |")
    parts = [_HEAD]
    for section, lines in rows.items():
        parts += [f"## {section}\n", "| key | values, default | here |\n|---|---|---|", *lines, ""]
    parts += [
        "## What differs\n",
        "Where inference-perf's behaviour is a known flaw, ours is right by default. `compat: exact` in the file, or `--compat exact`,\n"
        "repeats inference-perf's, so that figures compare with its own.\n",
        "| what | by default | with `compat: exact` |\n|---|---|---|",
        *(f"| {row.name} | {row.ours} | {row.exact} |" for row in (*translating.DIFFERENCES, *reports.DIFFERENCES)),
        "\nSome fields of the report files differ in both cases:\n",
        "| field | here |\n|---|---|",
        *(f"| {row.name} | {row.ours} |" for row in reports.LIMITS),
    ]
    return "\n".join(parts).rstrip() + "\n"


def all_keys() -> list[tuple[tuple[str, ...], Key]]:
    """All keys with their paths. Those of a distribution are there once, as `DISTRIBUTION.min`."""
    own = set(DISTRIBUTION.keys)
    distributions = {path for path, key in walk(SCHEMA) if _is_distribution(key.kind)}
    rest = [(path, key) for path, key in walk(SCHEMA) if not (path[-1] in own and path[:-1] in distributions)]
    return [*rest, *walk(DISTRIBUTION, ("DISTRIBUTION",))]


def _is_distribution(kind: Kind) -> bool:
    return kind is DISTRIBUTION or (isinstance(kind, Either) and DISTRIBUTION in kind.kinds)


def _section(path: tuple[str, ...]) -> str:
    """The heading of a key: the blocks of `data` and `load` have one each."""
    if path[0] == "DISTRIBUTION":
        return "Distributions"
    name = path[1].removesuffix("[]") if path[0] in ("data", "load") and len(path) > 2 else ""
    return f"{path[0]}.{name}" if name else path[0].removesuffix("[]")


def _values(key: Key) -> str:
    kind = _kind(key.kind)
    if key.default is REQUIRED:
        return f"{kind}; required"
    if callable(key.default) or key.default is None or key.default == {}:
        return kind
    default = str(key.default).lower() if isinstance(key.default, bool) else str(key.default)
    return f"{kind}; `{default}`"


def _kind(kind: Kind) -> str:
    if kind is DISTRIBUTION:
        return "a distribution"
    if isinstance(kind, Either):
        return " or ".join(_kind(each) for each in kind.kinds)
    return describe(kind).replace(" | ", ", ")


def _meaning(key: Key) -> str:
    if key.refused == LATER:
        return "refused: a key of a later version"
    short = f"; also `{key.short}`" if key.short else ""
    return f"refused: {key.refused}" if key.refused else key.runs + short
