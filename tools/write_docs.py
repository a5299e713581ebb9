"""`make docs`: writes the pages of docs/ that are generated from the code: configuration, metrics, checks and failures."""

from pathlib import Path

from inferometer.analysis.breakdown import PARTS
from inferometer.analysis.checks import CHECKS
from inferometer.analysis.metrics import METRICS, OTHER_TOOLS, RATES
from inferometer.config.reference import markdown
from inferometer.wire.failures import CODES

DOCS = Path(__file__).parents[1] / "docs"


def metrics() -> str:
    rows = [f"| `{metric.name}` | {metric.unit} | {metric.definition} |" for metric in METRICS.values()]
    rates = [f"| `throughput.{name}` | {definition} |" for name, definition in RATES.items()]
    parts = [f"| `breakdown.{name}` | {definition} |" for name, definition in PARTS.items()]
    checks = [f"| `{rule.name}` | {rule.definition} |" for rule in CHECKS.values()]
    others = [f"| `{name}` | {' | '.join(names)} |" for name, *names in OTHER_TOOLS]
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
            "| here | vLLM (`vllm bench serve`) | AIPerf | GenAI-Perf | MLPerf Inference |\n|---|---|---|---|---|",
            *others,
            "\n## Where the time went\n\nMeans, for servers that report their own times: see\n"
            "[where the time went](../how-to/kserve-server.md#where-the-time-went).\n\n| name | definition |\n|---|---|",
            *parts,
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


PAGES = {"reference/config.md": markdown, "reference/metrics.md": metrics}

if __name__ == "__main__":
    for name, text in PAGES.items():
        (DOCS / name).write_text(text(), encoding="utf-8")
