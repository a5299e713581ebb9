"""The table of options: one row for each flag of the commands that measure, compare and report.

A row says what the flag is called, which commands take it, what its help says, how its value is read, and which key of the config it
sets. The command line (cli/options.py) and the keywords of the Python API (public/settings.py) are made from these rows, so an option
has one name and one meaning everywhere, and a new one is one row. `docs/reference/options.md` is written from them, too.

Building the command line must be fast, so this module imports nothing heavy before it reads a value.
"""

import functools
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from inferometer.apis import scheme_of
from inferometer.errors import UserError
from inferometer.units import format_seconds, parse_seconds

Read = Callable[[Any, str], Any]
"""Reads a value, as text or as Python code has it; the second argument is what messages call the option. Raises ValueError or
UserError if the value is not right."""
Call = Callable[[str], str]
"""What messages call the option with this name: `--rate` on the command line, `rate` in Python."""


class Option(NamedTuple):
    """One row of the table."""

    spelling: str
    """The names and the metavar, as the help shows them: `-q --quiet`, `--rate LEVELS`. The first long name counts."""
    commands: str
    """The commands that take it."""
    help: str
    """Empty: a former spelling, which scripts may use and which the help does not list."""
    key: str = ""
    """The key of the config that it sets. Options with a key are keywords of `inferometer.run`, too."""
    type: Any = str
    """str, int, float, or the tuple of values to choose from."""
    least: int | None = None
    """The least value of a whole number."""
    default: Any = None
    read: Read | None = None
    repeats: bool = False
    sets: Any = True
    """What an option without a value sets its key to."""
    named: str = ""
    """What messages about the key call it; empty: the key."""
    becomes: str = ""
    """The name of the option that a former spelling stands for."""
    notes: Mapping[str, str] = {}
    """What the help adds for single commands."""

    @property
    def flags(self) -> list[str]:
        """The names on the command line."""
        return [word for word in self.spelling.split() if word.startswith("-")]

    @property
    def metavar(self) -> str:
        """What stands for the value in the help; empty for a switch."""
        return self.spelling.split()[-1] if not self.spelling.split()[-1].startswith("-") else ""

    @property
    def name(self) -> str:
        """The keyword: the first long name, with underscores."""
        return next(flag for flag in self.flags if flag.startswith("--"))[2:].replace("-", "_")

    @property
    def is_switch(self) -> bool:
        return not self.metavar and self.type is str

    def help_for(self, command: str) -> str:
        return " ".join(part for part in (self.help, self.notes.get(command, "")) if part)


# --- how values are read ---------------------------------------------------------------------------------------------


def _levels(kind: type[int] | type[float]) -> Read:
    """Read a number or a list of numbers (1,8,64), and leave a range (START:END[:STEP]) to the config."""

    def read(value: Any, name: str) -> Any:
        if not isinstance(value, str) or ":" in value:
            return value
        try:
            numbers = [kind(part) for part in value.split(",")]
        except ValueError:
            whole = "whole " * (kind is int)
            raise ValueError(
                f"{value!r} is neither a {whole}number nor a range (START:END[:STEP]) or a list (1,8,64)."
            ) from None
        return numbers if len(numbers) > 1 else numbers[0]

    return read


def _duration(example: str, least: float = 0.0) -> Read:
    def read(value: Any, name: str) -> float:
        try:
            seconds = float(parse_seconds(value))
        except ValueError as error:
            raise UserError(f"{name}: {error}", f"write it as {example}") from None
        if seconds < least:
            raise UserError(f"{name} must be at least {format_seconds(least)} (got {value})", f"write it as {example}")
        return seconds

    return read


def _share(value: Any, name: str) -> float:
    text = str(value).strip()
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise UserError(f"{name}: expected a share such as 5%, got {value!r}", "write it as 5%") from None
    if not 0 < share <= 1:
        raise UserError(f"{name} must be more than 0 and at most 100% (got {value})", "write it as 5%")
    return share


def _positive(what: str) -> Read:
    def read(value: Any, name: str) -> Any:
        if not 0 < value < 1e9:
            raise UserError(f"{name} must be more than 0 (got {value:g})", f"give {what}")
        return value

    return read


def _price(value: Any, name: str) -> dict[str, Any]:
    """Read `12.5`, `12.5/server` or `2.5/gpu` as keys of the section `cost`."""
    number, _, per = str(value).partition("/")
    example = f"write {name} 12.5 for a server, or {name} 2.5/gpu for a GPU"
    if per.strip().lower() not in ("", "server", "gpu"):
        raise UserError(f"{name} {value}: a price is per server or per GPU, not per {per.strip()}", example)
    try:
        price = float(number)
    except ValueError:
        raise UserError(f"{name} {value}: {number.strip()!r} is not a number", example) from None
    if not (math.isfinite(price) and price > 0):
        raise UserError(f"{name} {value}: must be more than 0", example)
    return {"price_per_hour": price, "per": per.strip().lower() or "server"}


def _gpus(value: Any, name: str) -> Any:
    if value < 1:
        raise UserError(f"{name} {value}: must be at least 1", "give the number of GPUs of all servers together")
    return value


def _user_rate(value: Any, name: str) -> Any:
    if not (math.isfinite(value) and value > 0):
        raise UserError(f"{name} {value:g}: must be more than 0", f"give tokens per second and user: {name} 50")
    return value


def _percentiles(value: Any, name: str) -> list[float]:
    from inferometer.config.report import parse_percentiles  # noqa: PLC0415 - building the command line must be fast

    return parse_percentiles(value) if isinstance(value, str) else list(value)


def _header(value: Any, name: str) -> dict[str, str]:
    if isinstance(value, Mapping):
        return dict(value)
    header, colon, content = value.partition(":")
    if not colon or not header.strip():
        raise UserError(f"{name}: not of the form NAME:VALUE", f"write, for example, {name} 'X-Team: ours'")
    return {header.strip(): content.strip()}


def _fleet(value: Any, name: str) -> dict[str, str]:
    kind, separator, address = value.partition("://")
    if kind not in ("local", "ray") or (separator and (kind == "local" or not address)):
        raise UserError(f"{name} {value}: is neither a fleet nor its address", "write local, ray or ray://HOST:PORT")
    return {"type": kind} | ({"address": address} if address else {})


# --- the table -------------------------------------------------------------------------------------------------------

_SERVER = "run ab capacity compare-protocols infer"
_STDOUT = "Use - for standard output."

TABLE: dict[str, tuple[Option, ...]] = {
    "The config": (
        Option("--config FILE", "ab", help="A config file (YAML) for everything but server.url."),
        Option("--set KEY=VALUE", "run ab capacity engines data", repeats=True,
            notes={"capacity": "The search sets `load` itself."},
            help="Set any key of the config, over the file: --set data.input=1024. Can be repeated. `inferometer docs config` lists the "
                 "keys."),
        Option("--set server.KEY=VALUE", "compare-protocols triton", repeats=True,
            help="Set a key of the config's section server, such as server.api_key_env=VARIABLE or server.tls.ca=FILE (`inferometer docs "
                 "config` lists them). Can be repeated."),
    ),
    "The server": (
        Option("--model NAME", "run ab capacity infer", key="server.model", named="--model NAME",
            help="The model to use. Default: the first that the server lists."),
        Option("--model PATH|NAME", "engines", key="model",
            help="The model that every engine serves: a folder, or a name on the hub."),
        Option("--model NAME", "compare-protocols", default="identity",
            help="The model. One with one input and one output of any size, such as a model that returns its input, is measured with "
                 "tensors of several sizes."),
        Option("--grpc URL", "compare-protocols", help="The server's gRPC port: grpc://HOST:PORT, or HOST:PORT."),
        Option("--engine TYPE[:MODE][,KEY=VALUE...]", "engines", repeats=True,
            help="An engine, instead of those of the file: vllm, transformers:serial, transformers:batched,batch=8, "
                 "'command,url=http://127.0.0.1:9000', vllm,max-model-len=1024,env.OMP_NUM_THREADS=1. Can be repeated."),
        Option("--header NAME:VALUE", _SERVER, key="server.headers", read=_header, repeats=True,
            help="A header of every request; over gRPC, metadata. Can be repeated."),
        Option("--api-key-env VARIABLE", _SERVER, key="server.api_key_env", named="--api-key-env",
            help="Environment variable that holds the API key."),
        Option("--api-key-file FILE", _SERVER, key="server.api_key_file", named="--api-key-file",
            help="File that holds the API key."),
        Option("--insecure", _SERVER, key="server.tls.verify", sets=False, named="--insecure",
            help="TLS: do not verify the server's certificate."),
        Option("--start-a CMD", "ab", help="Shell command that starts server A for each of its runs."),
        Option("--start-b CMD", "ab", help="The same for server B."),
        Option("--start-timeout TIME", "ab", default="10m", read=_duration("90s or 10m"),
            help="How long a started server may take to respond."),
    ),
    "The load": (
        Option("--rate LEVELS", "run ab", key="load.rate", read=_levels(float), notes={"run": "1:64:adaptive finds the knee."},
            help="Open loop: send N requests per second on average, at random (Poisson) times, no matter how fast the server responds. "
                 "5,10,20 or 100:500:100 or 1:64:x2 measures a stage for each level."),
        Option("--concurrency LEVELS", "run ab engines", key="load.concurrency", read=_levels(int),
            notes={"run": "1:64:adaptive finds the knee. Default: 16.", "ab": "Default: 16.", "engines": "Default: 1,8."},
            help="Closed loop: keep N requests in flight; each response makes room for the next request. 1,8,64 or 1:8:2 or 1:64:x2 "
                 "measures a stage for each level."),
        Option("--concurrency N", "compare-protocols", type=int, least=1, default=1,
            help="The number of requests in flight."),
        Option("--duration TIME", "run ab", key="load.duration",
            help="Measure for this long, such as 30s or 5m; 45 is 45s. Default: 30s."),
        Option("--duration TIME", "compare-protocols",
            help="How long to measure each cell, in each round. Default: 3s."),
        Option("--duration TIME", "calibrate", default="4s", read=_duration("4s"),
            help="How long each step takes, from 1s to 1m."),
        Option("--seconds TIME", "calibrate", read=_duration("4s"), becomes="duration", help=""),
        Option("--requests N", "run ab", key="load.requests", type=int,
            help="Measure with this many requests instead."),
        Option("--requests N", "engines compare-protocols", key="load.requests", type=int, least=1,
            notes={"engines": "per level. Default: 64.", "compare-protocols": "per cell instead."},
            help="Measure with this many requests"),
        Option("--pairs N", "ab", type=int, least=2, default=8, help="The number of pairs of runs."),
        Option("--repeat N", "run", type=int, least=1, default=1,
            help="Measure N times, with a fresh seed each, and show how much the figures vary between runs."),
        Option("--repeat N", "engines", key="repeat", type=int, least=1,
            help="Measure everything in N interleaved rounds."),
        Option("--rounds N", "compare-protocols", type=int, least=1, default=1,
            help="How many times to measure all cells; each round begins with another protocol."),
        Option("--abort-on LIMIT", "run ab", key="abort.on", repeats=True,
            help="End a run early, as INVALID, when this limit is exceeded after the first 10 s: 'failure_rate > 20%', "
                 "'consecutive_failures > 50', 'ttft.p99 > 30s' or 'e2e > 60s', for example. Can be repeated. `abort` in the config has "
                 "more."),
    ),
    "The search": (
        Option("--by", "capacity", type=("rate", "concurrency", "users"), default="rate",
            help="What is raised: requests per second, requests in flight, or users who think between requests."),
        Option("--budget TIME", "capacity", read=_duration("2m or 90s", 10.0),
            help="How long the search may take. Default: 2m, or longer for a server whose responses take that long."),
        Option("--percentile", "capacity", type=("p50", "p90", "p95", "p99"), default="p90",
            help="The percentile at which presets are judged. p99 takes ten times as many requests as p90."),
        Option("--think TIME", "capacity", default="20s", read=_duration("2m or 90s"),
            help="How long a person thinks between a response and the next message."),
        Option("--start N", "capacity", type=float, read=_positive("the first rate to try, such as 2"),
            help="The first level after the closed loops. Default: one that will probably hold."),
        Option("--precision SHARE", "capacity", default="5%", read=_share,
            help="End when the interval is as narrow as this."),
        Option("--at-least N", "capacity", type=float, read=_positive("the level that must hold, such as 4"),
            help="The level that must hold, such as 4 requests per second: exit with status 1 unless it holds. It is the first after the "
                 "closed loops. Default: any level."),
    ),
    "What is sent": (
        Option("--input-tokens --input N", "run ab capacity engines", key="data.input", type=int,
            help="The number of tokens in each prompt, without what a chat template adds."),
        Option("--output-tokens N", "run ab capacity engines infer", key="data.output", type=int,
            help="The number of tokens to generate per request."),
        Option("--max-tokens N", "run infer", type=int, becomes="output_tokens", help=""),
        Option("--prompt TEXT", "run ab", key="data.prompts", repeats=True,
            help="Send this prompt instead of synthetic ones. Can be repeated: the prompts are sent in turn."),
        Option("--sizes SIZES", "compare-protocols",
            help="The sizes of the tensor, separated by commas, for a model with one input of any size. Default: 1kB,100kB,10MB."),
        Option("--data FILE|YAML", "compare-protocols",
            help="What to send, for any model: the data section of a config file, or one as text, such as '{batch: 8, length: 128}'. "
                 "Default: random inputs."),
        Option("--fill HOW", "compare-protocols",
            help="The same as data.fill: zeros, ones, random, @FILE, or '{input_ids: ones}'."),
        Option("--shape NAME=1,3,224,224", "compare-protocols", repeats=True,
            help="Full shape of an input, including the batch. Can be repeated."),
        Option("--image FILE|FOLDER", "run compare-protocols", key="data.path", named="--image",
            help="A tensor server: send this image, or those in the folder in turn, as `inferometer infer --image` does."),
        Option("--scaling", "run compare-protocols infer", key="data.scaling", named="--scaling",
            type=("none", "inception", "vgg", "unit", "imagenet"),
            help="Image: 0..255; -1..1; minus the mean of each channel; 0..1; or torchvision's mean and std (default: inception for "
                 "floats, none for integers)."),
        Option("--crop RESIZE:SIZE", "run compare-protocols infer", key="data.crop", named="--crop",
            help="Image: resize the shorter side and cut out the middle, such as 256:224 (default: resize to the model's size)."),
    ),
    "The judgement": (
        Option("--slo OBJECTIVE", "run ab capacity engines report", key="slo", repeats=True,
            notes={"capacity": "Default: chat, and inference for tensor servers."},
            help="Judge by this service level objective, such as 'ttft.p99 < 500ms' or 'failure_rate < 0.1%', or by a preset (chat, "
                 "code, summarize, interactive, inference), instead of by those of the config (`slo`). Can be repeated. `inferometer "
                 "docs slo` has the grammar."),
        Option("--strict", "run report merge",
            help="Exit with status 1 also if an objective is undecided, even if the measured value is within the limit, or if it is met "
                 "by margin only."),
        Option("--strict", "capacity",
            help="Only what was shown with 95 % confidence counts for the exit status. By default, what likely holds counts, too."),
        Option("--fail-if CONDITION", "compare ab", repeats=True,
            help="Exit with status 1 if this is shown, such as 'ttft.p99 worse by 5%'. Can be repeated."),
        Option("--strict", "compare ab",
            help="Exit with status 1 also if a condition is undecided, even if the measured figures are within it."),
        Option("--force", "compare ab", help="Compare runs that differ or are INVALID; the notes say in what."),
        Option("--price-per-hour PRICE[/gpu]", "run report engines", key="cost", read=_price,
            help="What a server costs per hour, such as 12.5, or a GPU: 2.5/gpu. The report then has the cost per million tokens, or per "
                 "million inferences."),
        Option("--gpus N", "run report engines", key="cost.gpus", type=int, read=_gpus,
            help="The number of GPUs that serve the model, of all servers together: rates are also given per GPU."),
        Option("--cheapest-at TOKENS/S", "run report engines", key="cost.cheapest_at", type=float, read=_user_rate, repeats=True,
            named="--cheapest-at",
            help="Say which of the measured loads is the cheapest at which a user still sees this many output tokens per second, "
                 "interpolated between loads. Can be repeated."),
    ),
    "The client, and what is observed": (
        Option("--observe URL", "run", key="observe.prometheus", repeats=True, named="--observe",
            help="Scrape this Prometheus endpoint during the run, instead of the server's own /metrics. Can be repeated, for replicas."),
        Option("--metrics-port N", "run", key="export.metrics_port", type=int, named="--metrics-port",
            help="Offer live figures to Prometheus at http://127.0.0.1:N/metrics during the run."),
        Option("--otlp URL", "run", key="export.otlp.url", named="--otlp",
            help="Send metrics, and a span per request, to this OpenTelemetry receiver."),
        Option("--fleet local|ray[://HOST:PORT]", "run", key="fleet", read=_fleet,
            help="Where the client's processes run: on this machine (default), or on the nodes of a Ray cluster: the one at HOST:PORT or "
                 "in RAY_ADDRESS, or else one that is started for the run. `fleet` in the config has more."),
        Option("--shard K/N", "run",
            help="Measure only part K of N, counted from 0, beside other clients that measure the other parts. auto/N: the number is "
                 "that of the Pod in an Indexed Job. Needs --start-at; `inferometer merge` makes one run of the parts."),
        Option("--start-at TIME", "run",
            help="Start at this instant of the wall clock: 2026-11-17T12:00:00Z, or +30s for 30 s from now."),
    ),
    "Where results go": (
        Option("--output FOLDER|URL", "run ab capacity engines merge", key="output",
            named="--output (`output` in the file)",
            help="Where the results are stored, in a folder of their own: ./parts, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX. Default: "
                 "runs."),
        Option("--output FOLDER", "compare-protocols triton",
            help="Keep the runs in this folder. Default: they are not kept."),
        Option("--store PLACE", "run merge triton", becomes="output", help=""),
        Option("--out FOLDER", "compare-protocols", becomes="output", help=""),
        Option("--resume FOLDER", "engines",
            help="Continue the campaign in FOLDER: finished parts are not measured again."),
        Option("--keep", "run", key="keep", type=("text",), repeats=True, named="--keep",
            help="Store more in the run's folder. text: the bodies of requests and the generated texts, in bodies.parquet."),
        Option("--json PATH", "ab capacity compare compare-protocols engines infer calibrate data",
            help=f"Write the results as JSON. {_STDOUT}"),
        Option("--html PATH", "ab capacity compare engines",
            help=f"Write a report with charts as one HTML file, which works without a network. {_STDOUT}"),
        Option("--markdown PATH", "ab capacity compare engines",
            help=f"Write the results as Markdown, for a pull request. {_STDOUT}"),
        Option("--junit PATH", "ab capacity compare engines",
            help=f"Write JUnit XML: a test case for each condition, objective or engine. {_STDOUT}"),
        Option("--csv PATH", "engines", help=f"Write a line per engine and level as CSV. {_STDOUT}"),
        Option("--chart FILE", "compare-protocols", help="Draw a chart: .svg, .png or .html."),
    ),
    "The report": (
        Option("--percentiles LIST", "run report", key="report.percentiles", read=_percentiles,
            help="Show these percentiles, such as 50,75,99.9, instead of the usual ones."),
        Option("--histogram", "run report", help="Add histograms of the time to first token and the end-to-end time."),
        Option("--why", "run",
            help="Add why the slow requests were slow: which cause explains how much of p99 - p50."),
        Option("--why [ID]", "report",
            help="Add why the slow requests were slow: which cause explains how much of p99 - p50. With the id of a request: where its "
                 "time went."),
        Option("--as", "report", type=("vllm-bench", "inference-perf"),
            help="Print what this tool would report for the same requests, by its own definitions, beside our figures and the reason for "
                 "each difference. --json then writes that."),
        Option("--open", "report",
            help="Open the HTML report in a browser. Without --html, it is RUN_DIR/report.html."),
        Option("--explain", "run report merge", help="Add the definition of every metric and check to the report."),
        Option("-q --quiet", "run ab capacity engines compare-protocols merge", help="Show no progress."),
    ),
}  # fmt: skip
"""All options, in the order of the help, by the headings there."""


def rows_of(command: str) -> dict[str, Option]:
    """The options of a command, by name."""
    return {row.name: row for rows in TABLE.values() for row in rows if command in row.commands.split()}


def names_of(command: str) -> dict[str, str]:
    """What the messages of a command call the keys that its options set."""
    return {row.key: row.named for row in rows_of(command).values() if row.named}


def read(row: Option, value: Any, name: str) -> Any:
    """The value of an option. One that can be repeated takes a list, or one value."""
    if row.is_switch:
        return row.sets if value else (None if row.key else False)
    if not row.repeats:
        return value if row.read is None else row.read(value, name)
    values = [value] if isinstance(value, str | Mapping | int | float) else list(value)
    found: list[Any] = values if row.read is None else [row.read(one, name) for one in values]
    return functools.reduce(operator.or_, found) if found and isinstance(found[0], dict) else found


# --- from options to the config --------------------------------------------------------------------------------------


def put(tree: dict[str, Any], command: str, given: Mapping[str, Any], call: Call, is_stable: bool = False) -> list[str]:
    """Put the options of a command that were given over a config, and return the keys that they set.

    `is_stable`: the load ends when it is stable, by a setting that is put over the config later. Raises UserError when options exclude
    each other.
    """
    rows = rows_of(command)
    chosen = {name: given[name] for name in rows if rows[name].key and _is_given(given.get(name))}
    _check(tree, chosen, call)
    if "prompt" in chosen:
        tree["data"] = {"type": "prompts"}
    if images := [name for name in ("image", "scaling", "crop") if name in chosen]:
        _make_images(tree, images[0], "image" in chosen, call)
    if chosen.get("fleet", {}).get("type") == "local":
        tree["fleet"] = {}  # its other keys are about Ray
    if "rate" in rows:
        _put_load(tree, chosen, call, is_stable)
    keys = {rows[name].key for name in chosen}
    for name, value in chosen.items():
        if name not in _LOAD or "rate" not in rows:
            put_value(tree, rows[name].key, value)
    return sorted(keys | ({"load.rate", "load.concurrency"} if {"rate", "concurrency"} & chosen.keys() else set()))


_LOAD = ("rate", "concurrency", "duration", "requests")


def _is_given(value: Any) -> bool:
    return value is not None and value not in ((), [])


def _check(tree: dict[str, Any], chosen: dict[str, Any], call: Call) -> None:
    """Raise UserError when options exclude each other, or the URL."""
    if "rate" in chosen and "concurrency" in chosen:
        raise UserError(
            f"{call('rate')} (open loop) and {call('concurrency')} (closed loop) exclude each other",
            "give one of them; {load.max_concurrency=N} limits an open loop",
        )
    if "prompt" in chosen and "image" in chosen:
        raise UserError(
            f"{call('prompt')} and {call('image')} exclude each other: a request has one or the other",
            "leave out one of them",
        )
    if "prompt" in chosen and "input_tokens" in chosen:
        raise UserError(
            f"{call('input_tokens')} and {call('prompt')}: a given prompt already has its length",
            "leave out one of them",
        )
    server = tree.get("server")
    url = server.get("url") if isinstance(server, dict) else None
    has_tokens = chosen.get("input_tokens") or chosen.get("output_tokens")
    if has_tokens and isinstance(url, str) and scheme_of(url) == "grpc":
        raise UserError(
            f"{call('input_tokens')} and {call('output_tokens')} are tokens of prompts, but over gRPC tensors or messages are sent",
            "use {data.shape=...} or {data.batch=...}",
        )


def _section(tree: dict[str, Any], name: str) -> dict[str, Any]:
    """The config's section to put an option into. If it is not a section, the config's own check reports that."""
    found = tree.get(name)
    if found is None:
        found = tree[name] = {}
    return found if isinstance(found, dict) else {}


def put_value(tree: dict[str, Any], key: str, value: Any) -> None:
    """Set the value at a dotted key of a config; one of several keys is put over those that are there."""
    *path, last = key.split(".")
    for name in path:
        tree = _section(tree, name)
    if isinstance(value, dict):
        _section(tree, last).update(value)
    else:
        tree[last] = value


def _put_load(tree: dict[str, Any], chosen: dict[str, Any], call: Call, is_stable: bool) -> None:
    """A level replaces the config's load, except for what ends it."""
    ends: dict[str, Any] = {name: chosen[name] for name in ("duration", "requests") if name in chosen}
    for name, kind in (("rate", "poisson"), ("concurrency", "closed")):
        if name in chosen:
            tree["load"] = {"type": kind, name: chosen[name]} | _end_of_load(_section(tree, "load"), ends, is_stable)
            return
    if ends:
        load = _section(tree, "load")
        if "stages" in load:
            raise UserError(
                f"{call('duration')} and {call('requests')}: the file has several stages",
                "use {load.stages.0.duration=...} for one of them",
            )
        for name in ("duration", "requests"):
            load.pop(name, None)
        load.update(ends)


def _end_of_load(load: dict[str, Any], given: dict[str, Any], is_stable: bool) -> dict[str, Any]:
    """What ends the load: the options, else the file, else 30 s, unless it ends when it is stable."""
    settling = {name: load[name] for name in ("stable", "window") if name in load}
    ends = given or {name: load[name] for name in ("duration", "requests") if name in load}
    if not ends and not is_stable and "stable" not in settling:
        ends = {"duration": "30s"}
    return ends | settling


def _make_images(tree: dict[str, Any], first: str, has_path: bool, call: Call) -> None:
    """Make the data images. They need an API of tensors, so it is set if the file does not."""
    data = _section(tree, "data")
    if not has_path and data.get("type") != "images":
        raise UserError(f"{call(first)} needs {call('image')}", f"give {call('image')} FILE, or leave it out")
    if data.get("type", "images") != "images" or "prompts" in data:
        data = tree["data"] = {}
    data["type"] = "images"
    server = _section(tree, "server")
    if server.get("api", "auto") == "auto":
        server["api"] = "kserve"
