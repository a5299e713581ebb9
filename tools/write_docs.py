"""`make docs`: writes the pages of docs/ that are generated from the code: configuration, metrics, checks, failures, servers' metrics, JSON Schemas."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import inference_perf_keys as key_table
import json_schema

from inferometer.analysis.breakdown import PARTS
from inferometer.analysis.checks import CHECKS
from inferometer.analysis.efficiency import DEFINITIONS as EFFICIENCY
from inferometer.analysis.metrics import METRICS, OTHER_TOOLS, RATES, TOOL_FIGURES
from inferometer.analysis.tail_parts import CAUSES
from inferometer.config.reference import engines_markdown, markdown
from inferometer.options import TABLE
from inferometer.server_metrics.families import SERVERS, Row, Server
from inferometer.server_metrics.vocabulary import QUANTITIES
from inferometer.wire.failures import CODES

DOCS = Path(__file__).parents[1] / "docs"


def metrics() -> str:
    rows = [f"| `{metric.name}` | {metric.unit} | {metric.definition} |" for metric in METRICS.values()]
    rates = [f"| `throughput.{name}` | {definition} |" for name, definition in RATES.items()]
    parts = [f"| `breakdown.{name}` | {definition} |" for name, definition in PARTS.items()]
    checks = [f"| `{rule.name}` | {rule.definition} |" for rule in CHECKS.values()]
    others = [f"| `{name}` | {' | '.join(names)} |" for name, *names in OTHER_TOOLS]
    figures = [
        f"| {tool} | {figure.label} | `{figure.ours}` | {figure.definition} |"
        for tool, figures in TOOL_FIGURES.items()
        for figure in figures
    ]
    causes = [f"| `tail.{name}` | {cause.definition} |" for name, cause in CAUSES.items()]
    efficiency = [f"| `{name}` | {definition} |" for name, definition in EFFICIENCY.items()]
    failures = [f"| `{code}` | {meaning} |" for code, meaning in CODES.items()]
    return "\n".join(
        [
            "# What the numbers mean\n",
            "<!-- Written by `make docs` from the tables in the code. Do not edit by hand. -->\n",
            "Every report prints the definitions it used if you pass `--explain`. [How it measures](../explanation/measurement.md) says how the\n"
            "values are taken, and [Statistics that hold under load](../explanation/statistics.md) what is made of them.\n",
            "## Metrics\n\n| name | unit | definition |\n|---|---|---|",
            *rows,
            "\n## Rates\n\nRates leave out the edges of a stage: see [Throughput](../explanation/statistics.md#throughput).\n\n| name | definition |\n|---|---|",
            *rates,
            "\n## What other tools call them\n\nFigures compare only if their definitions agree. In open loop, `ttft` and `e2e` count from the instant at\n"
            "which the plan intended to send a request, so they include the time that it waited; most other tools count from the send, as\n"
            "`ttft_service` and `e2e_service` do. `itl` is a gap between chunks; what AIPerf and GenAI-Perf call inter-token latency is `tpot`.\n"
            "A dash means that the tool does not report the figure.\n\n"
            "| here | vLLM (`vllm bench serve`) | inference-perf | AIPerf | GenAI-Perf | MLPerf Inference |\n|---|---|---|---|---|---|",
            *others,
            "\n### Their definitions\n\n`inferometer report RUN --as vllm-bench` and `--as inference-perf` compute these from the records of a run, beside\n"
            "our own figures. The definitions are those of `vllm/benchmarks/serve.py` and `vllm/benchmarks/lib/endpoint_request_func.py` in vLLM, and\n"
            "of `inference_perf/reportgen/base.py` in inference-perf 0.7. Both tools count every request of the run, with its start and its end, and\n"
            "interpolate percentiles between two values; here, warm-up and cool-down are left out, and a percentile is a value that was measured.\n\n"
            "| tool | figure | closest here | definition |\n|---|---|---|---|",
            *figures,
            "\n## Where the time went\n\nMeans, for servers that report their own times: see\n"
            "[where the time went](../how-to/kserve-server.md#where-the-time-went).\n\n| name | definition |\n|---|---|",
            *parts,
            "\n## Why requests were slow\n\nCauses that explain the difference between p99 and p50: see\n"
            "[why slow requests are slow](../how-to/slow-requests.md).\n\n| name | definition |\n|---|---|",
            *causes,
            "\n## Cost and efficiency\n\nWith a price, a number of GPUs, or observed energy: see [what a load costs](../how-to/cost.md).\n\n"
            "| name | definition |\n|---|---|",
            *efficiency,
            "\n## Checks\n\nA run is VALID if none of these fails. Each row says what has to be true; a check marked as a warning does not make the run INVALID. The\n"
            "printed percentiles are the p50, p90, p95 and p99 of the latencies: [The verdict](../explanation/statistics.md#the-verdict) explains how\n"
            "checks of the client are judged. `limits.*` are [keys of the configuration](config.md#limits).\n\n| name | what it checks |\n|---|---|",
            *checks,
            "\n## Failures\n\n`http_NNN` stands for every status other than 200. Each failure keeps the server's own message, cut to a bounded length.\n\n"
            "| code | meaning |\n|---|---|",
            *failures,
            "",
        ]
    )


def server_metrics() -> str:
    shown = {name: server for name, server in SERVERS.items() if name not in ("ray_vllm", "inferometer")}
    quantities = {name: each for name, each in QUANTITIES.items() if each.kind != "info"}
    offered = {name: {row.quantity for row in server.rows} for name, server in shown.items()}
    return "\n".join(
        [
            "# What servers report\n",
            "<!-- Written by `make docs` from the tables in the code. Do not edit by hand. -->\n",
            "Every server has its own names for its metrics. Inferometer stores them under these names and reports them under one name for\n"
            "each quantity, in one unit, whatever the server.\n",
            "## Quantities\n\n| name | kind | unit | definition |\n|---|---|---|---|",
            *(f"| `{name}` | {each.kind} | {each.unit} | {each.definition} |" for name, each in quantities.items()),
            "\n## Which server offers what\n",
            f"| | {' | '.join(_short(server.title) for server in shown.values())} |",
            f"|---|{':-:|' * len(shown)}",
            *(
                f"| `{name}` | {' | '.join('x' if name in offered[server] else '' for server in shown)} |"
                for name in quantities
            ),
            "\n## Names\n",
            "If a server has several names for a quantity (older and newer versions), the first one on its page counts. Counters may end in\n"
            "`_total`, and `:` may be written `_`, as some Prometheus servers do. A page may have metrics of several servers: then those\n"
            "labelled with the measured model count, otherwise those of the server that comes first here.",
            *(_server(server) for server in shown.values()),
            _COUNTING,
        ]
    )


def _short(title: str) -> str:
    return title.replace("TensorRT-LLM in Triton", "TRT-LLM in Triton").split(" (")[0]


def _server(server: Server) -> str:
    rows: dict[str, list[Row]] = {}
    for row in server.rows:
        rows.setdefault(row.quantity, []).append(row)
    lines = [f"\n### {server.title}\n"]
    if server is SERVERS["vllm"]:
        lines.append(
            "The simulator of `inferometer serve` uses these names. Under Ray Serve they start with `ray_vllm:`.\n"
        )
    if server is SERVERS["triton"]:
        lines.append("`inferometer serve` uses these names for tensor models.\n")
    lines.append("| quantity | metric | |\n|---|---|---|")
    for quantity, own in rows.items():
        names = ", or ".join(" + ".join(_metric(server, row, name) for name in row.names) for row in own)
        notes = "; ".join(row.note for row in own if row.note)
        lines.append(f"| `{quantity}` | {names} | {notes} |")
    lacking = [f"`{either[0]}`" for either in _WANTED if not rows.keys() & set(either)]
    if lacking and server is not SERVERS["dcgm"]:
        lines.append(f"\nNot offered: {', '.join(lacking)}.")
    return "\n".join(lines)


def _metric(server: Server, row: Row, name: str) -> str:
    only = [f'{label}="{values[0]}"' for label, values in row.only]
    unless = [f'{label}!~"{chr(124).join(values)}"' for label, values in row.unless]
    conditions = ",".join([*only, *unless]).replace("|", "\\|")
    unit = _UNITS.get((QUANTITIES[row.quantity].unit, row.scale), "")
    return f"`{server.prefix}{name}{f'{{{conditions}}}' if conditions else ''}`{unit}"


_UNITS = {
    ("s", 1e-3): " (in ms)",
    ("s", 1e-6): " (in us)",
    ("share", 0.01): " (in %)",
    ("bytes", 2.0**20): " (in MiB)",
    ("J", 1e-3): " (in mJ)",
}
_WANTED = (
    ("running",),
    ("waiting",),
    ("kv_cache_use",),
    ("prefix_cache_hits", "prefix_cache_hit_rate"),
    ("preemptions",),
    ("spec_acceptance", "spec_accepted"),
    ("requests",),
    ("failures",),
    ("input_tokens",),
    ("output_tokens",),
    ("ttft",),
    ("itl", "tpot"),
    ("e2e", "e2e_seconds"),
    ("queue_time", "queue_seconds"),
    ("prefill_time", "prefill_seconds"),
    ("decode_time", "decode_seconds"),
)
"""Quantities that users look for; a server that offers one of a group offers it."""
_COUNTING = """
## How a window is counted

A stage, or a run without stages, is one window. For gauges it is the time of the requests that the latencies count, from the first to the end of the last
response. For counters and histograms it is the whole stage with its warm-up, so that they can be compared with the requests that were sent.

**Gauges** count at the successful scrapes in the window. Label sets (engines, GPUs) and replicas are added up, except shares, temperatures and
clocks, which are averaged. The maximum is that of the sum, or of any single value if values are averaged.

**Counters and histograms** count from the last scrape at or before the start of the window to the last one at or before its end, on all
replicas together. A metric that is not on the page at first counts from 0, because servers report some metrics only after the first
request. If one of these two scrapes failed on any replica, the figure is missing, with the reason.

**Quantiles** are interpolated within buckets, as PromQL's `histogram_quantile` does. Their precision is that of the server's buckets: between
edges at 5 s and 10 s, a p50 of 7.5 s only says that it is in between. Within the first bucket the mean limits them: a p90 is at most ten
times the mean. A quantile above the last edge is not known. Buckets are stored at the start of the run, when a stage begins, and at the
end. Replicas with different buckets are merged at the edges that all of them have.

**Resets.** If a counter falls, or the server reports that its process was started again, the server was restarted: what the counter grew before
and what it has grown since then count, and the result is marked as a lower bound.

**One server twice.** Two endpoints that report the same start of their process, to the fraction of a second, and have the same series are one
server, and count once. The requests of a proxy (Dynamo's front end, LiteLLM) are not added to those of the servers behind it, if those are
scraped too; and GPUs are taken from the DCGM exporter if there is one.
"""


def options() -> str:
    """The table of options, by heading."""
    lines = [
        "# Options\n",
        "<!-- Written by `make docs` from the tables in the code. Do not edit by hand. -->\n",
        "The options of the commands that measure, compare and report. An option has one name and one meaning in all of them. Most are short\n"
        "forms of a key of [the configuration](config.md), which `--set` would set as well; those of `run` and `capacity` are also keywords of\n"
        "[`inferometer.run` and `inferometer.capacity`](python.md#run): `--output-tokens 32` is `output_tokens=32`. [The command line](cli.md) has\n"
        "the commands themselves, and `inferometer COMMAND --help` the options that only one of the others has.",
    ]
    for heading, rows in TABLE.items():
        lines.append(f"\n## {heading}\n\n| option | key | commands | |\n|---|---|---|---|")
        for row in rows:
            if row.help:
                names = ", ".join(f"`{name}`" for name in row.flags)
                values = (
                    f"`{'`, `'.join(row.type)}`"
                    if isinstance(row.type, tuple)
                    else f"`{row.metavar}`" * bool(row.metavar)
                )
                key = f"`{row.key}`" * bool(row.key)
                commands = ", ".join(f"`{name}`" for name in row.commands.split())
                notes = "".join(f" `{name}`: {note}" for name, note in row.notes.items() if note not in row.help)
                default = f" Default: {row.default}." if row.default is not None else ""
                cells = (f"{names} {values}".strip(), key, commands, f"{row.help}{default}{notes}")
                lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join([*lines, ""])


def _schema(make: Callable[[], json_schema.Tree]) -> str:
    return json_schema.encode(make())


PAGES = {
    "reference/config.md": markdown,
    "reference/engines.md": engines_markdown,
    "reference/inference-perf.md": key_table.markdown,
    "reference/metrics.md": metrics,
    "reference/options.md": options,
    "reference/server-metrics.md": server_metrics,
    **{f"reference/schema/{name}.schema.json": partial(_schema, make) for name, make in json_schema.SCHEMAS.items()},
}

if __name__ == "__main__":
    for name, text in PAGES.items():
        (DOCS / name).parent.mkdir(exist_ok=True)
        (DOCS / name).write_text(text(), encoding="utf-8")
