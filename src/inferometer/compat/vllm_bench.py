"""The command line of `vllm bench serve` (and its predecessor benchmark_serving.py): its options, and our config that means the same.

The options and defaults are those of vllm/benchmarks/serve.py and vllm/benchmarks/datasets. Its datasets are in vllm_datasets.py.
"""

import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from inferometer.compat import vllm_datasets
from inferometer.compat.command_line import Given, Option, header_pairs, headers, parse, url_without_password
from inferometer.errors import UserError

NAMES = {
    "server.url": "--base-url",
    "server.model": "--model",
    "data.path": "--dataset-path",
    "data.tokenizer": "--tokenizer",
    "load.rate": "--request-rate",
    "load.requests": "--num-prompts",
    "load.concurrency": "--max-concurrency",
    "report.percentiles": "--metric-percentiles",
}
"""What vllm calls our settings."""

_API_KEY = "OPENAI_API_KEY"
_APIS = {
    "openai": ("completions", "/v1/completions"),
    "vllm": ("completions", "/v1/completions"),
    "openai-chat": ("chat", "/v1/chat/completions"),
    "openai-embeddings": ("embeddings", "/v1/embeddings"),
}
"""Backends, with our API and the path that it has."""
_SAMPLING = ("top-p", "top-k", "min-p", "temperature", "frequency-penalty", "presence-penalty", "repetition-penalty")
_METRICS = {"ttft": "ttft", "tpot": "tpot", "e2el": "e2e"}
_RECORDS = "every run stores its requests, their times and its settings in a folder of its own"
_HTML = "`inferometer report RUN --html FILE` has charts of a run"

OPTIONS = (
    Option("--backend --endpoint-type", default="openai", becomes="server.api"),
    Option("--base-url", becomes="server.url"),
    Option("--host", default="127.0.0.1", becomes="server.url"),
    Option("--port", int, 8000, becomes="server.url"),
    Option("--endpoint", default="/v1/completions", becomes="server.url"),
    Option("--header", takes="values", becomes="server.headers"),
    Option("--insecure", takes="flag", becomes="server.tls.verify"),
    Option("--model", becomes="server.model"),
    Option("--served-model-name", becomes="server.model"),
    Option("--tokenizer", becomes="data.tokenizer"),
    Option("--tokenizer-mode", default="auto", becomes="data.tokenizer"),
    Option("--skip-tokenizer-init", takes="flag", becomes="data.tokenizer"),
    Option("--trust-remote-code", takes="flag", no_effect="tokenizers are read without running code"),
    Option("--max-concurrency", int, becomes="load.concurrency"),
    Option("--request-rate", float, math.inf, becomes="load.rate"),
    Option("--burstiness", float, 1.0, becomes="load.burstiness"),
    Option("--ramp-up-strategy", choices=("linear", "exponential"), becomes="load.rate"),
    Option("--ramp-up-start-rps", float, becomes="load.rate"),
    Option("--ramp-up-end-rps", float, becomes="load.rate"),
    Option("--num-warmups", int, 0, becomes="measure.warmup"),
    Option("--probe-request-rate", float, 0.0, becomes="load"),
    Option("--ignore-eos", takes="flag", becomes="server.ignore_eos"),
    Option("--logprobs", int, becomes="server.body"),
    Option("--use-beam-search", takes="flag", refused="beam search is not requested", instead="use --extra-body"),
    *(Option(f"--{name}", int if name == "top-k" else float, becomes="server.body") for name in _SAMPLING),
    Option("--extra-body", becomes="server.body"),
    Option("--chat-template-kwargs", refused="prompts are not rendered with a chat template by the client"),
    Option("--lora-modules", takes="values", becomes="data.classes"),
    Option("--lora-assignment", default="random", choices=("random", "round-robin"), becomes="data.classes"),
    Option("--goodput", takes="values", becomes="slo"),
    Option("--metric-percentiles", default="99", becomes="report.percentiles"),
    Option("--percentile-metrics", no_effect="the report has the percentiles of every metric"),
    Option("--save-result", takes="flag", becomes="report.json"),
    Option("--result-dir", becomes="report.json"),
    Option("--result-filename", becomes="report.json"),
    Option("--save-detailed", takes="flag", becomes="keep"),
    Option("--append-result", takes="flag", no_effect=_RECORDS),
    Option("--label", no_effect=_RECORDS),
    Option("--metadata", takes="values", no_effect=_RECORDS),
    Option("--request-id-prefix", no_effect="every request has an id of its own"),
    Option("--ready-check-timeout-sec", no_effect="the server is reached before a run starts"),
    Option("--disable-tqdm", takes="flag", no_effect="use --quiet to see no progress"),
    Option("--plot-timeline", takes="flag", no_effect=_HTML),
    Option("--timeline-itl-thresholds", no_effect=_HTML),
    Option("--plot-dataset-stats", takes="flag", no_effect="`inferometer data` shows a workload without sending it"),
    Option("--profile", takes="flag", refused="the server's profiler is not started from here"),
    Option("--config", refused="options in a file are not read", instead="put them on the command line"),
    *vllm_datasets.OPTIONS,
)


def translate(words: Sequence[str], variables: Mapping[str, str] | None = None) -> tuple[dict[str, Any], Given]:
    """Translate the words after `vllm bench serve`. Returns our config, as its YAML file would contain it, and the options, with notes.

    `variables` are those that the command line sets; vllm also reads OPENAI_API_KEY from its environment.
    """
    given = parse("vllm bench serve", OPTIONS, words)
    if given["--probe-request-rate"]:
        raise given.refuse("--probe-request-rate", "requests beside the workload are not supported")
    if given["--num-prompts"] < 1:
        raise given.refuse("--num-prompts", "there must be at least one", "give the number of requests")
    api = _api(given)
    dataset = vllm_datasets.translate(given, api)
    config: dict[str, Any] = {
        "server": _server(given, api, dataset.ignores_eos) | _key(given, variables or {}),
        "data": _with_adapters(given, dataset.data),
        "load": dataset.load or _load(given, dataset.requests),
    }
    if given["--num-warmups"]:
        _warm_up(given, config)
    if "--goodput" in given:
        config["slo"] = [_goodput(given)]
        given.notes.append("slo: vllm reports the goodput without a target. Raise 1% to the share that you expect.")
    config["seed"] = given["--seed"]
    if "--save-detailed" in given:
        config["keep"] = "text"
    config["report"] = _report(given)
    return config, given


# --- server ----------------------------------------------------------------------------------------------------------


def _api(given: Given) -> str:
    if given["--backend"] not in _APIS:
        raise given.refuse("--backend", "its API is not supported", f"use one of {', '.join(_APIS)}")
    return _APIS[given["--backend"]][0]


def _server(given: Given, api: str, ignores_eos: bool) -> dict[str, Any]:
    server: dict[str, Any] = {"url": _url(given)}
    if model := given["--served-model-name"] or given["--model"]:
        server["model"] = model
    server["api"] = api
    is_text = api != "embeddings"
    server["stream"] = is_text
    if is_text:
        server["ignore_eos"] = ignores_eos or "--ignore-eos" in given
        server["max_tokens_field"] = "max_completion_tokens" if api == "chat" else "max_tokens"
    if body := _body(given, api):
        server["body"] = body
    server |= headers(given, "--header", header_pairs(given, "--header", "="))
    if "--insecure" in given:
        server["tls"] = {"verify": False}
    server["timeouts"] = {"total": "6h"}
    return server


def _url(given: Given) -> str:
    host = given["--host"]
    base = given["--base-url"] or f"http://{f'[{host}]' if ':' in host else host}:{given['--port']}"
    path = _APIS[given["--backend"]][1]
    endpoint = given["--endpoint"]
    if not endpoint.endswith(path):
        raise UserError(
            f"vllm bench serve: --endpoint {endpoint}: requests of --backend {given['--backend']} go to {path}",
            f"give --endpoint {path}",
        )
    return url_without_password(given, "--base-url", base.rstrip("/") + endpoint.removesuffix(path))


def _body(given: Given, api: str) -> dict[str, Any]:
    from inferometer.config.secret import is_secret  # noqa: PLC0415 - the whole config

    body: dict[str, Any] = {"repetition_penalty": 1.0} if api == "completions" else {}
    if "--logprobs" in given:
        if api != "completions":
            raise given.refuse("--logprobs", "vllm sends it with completions only")
        body["logprobs"] = given["--logprobs"]
    body |= {name.replace("-", "_"): given[f"--{name}"] for name in _SAMPLING if f"--{name}" in given}
    if "--extra-body" in given:
        try:
            extra = json.loads(given["--extra-body"])
        except ValueError:
            extra = None
        if not isinstance(extra, dict):
            raise given.refuse("--extra-body", "it is not a JSON object", "check its quotes")
        for name in filter(is_secret, list(extra)):
            del extra[name]
            given.warnings.append(
                f"--extra-body: the value of {name} is not written; add it to server.body when you run."
            )
        body |= extra
    return body


def _key(given: Given, variables: Mapping[str, str]) -> dict[str, str]:
    """The API key, which vllm reads from its environment unless a header has one."""
    if any(header.lower().startswith("authorization=") for header in given["--header"] or []):
        return {}
    if _API_KEY in variables:
        given.warnings.append(f"{_API_KEY}: the API key is not written: set the variable when you run.")
    return {"api_key_env": _API_KEY} if _API_KEY in variables or os.environ.get(_API_KEY) else {}


# --- load ------------------------------------------------------------------------------------------------------------


def _load(given: Given, requests: int) -> dict[str, Any]:
    rate, limit = given["--request-rate"], given["--max-concurrency"]
    if limit is not None and limit < 1:
        raise given.refuse("--max-concurrency", "it must be at least 1", "correct it")
    if given["--ramp-up-strategy"]:
        rates = _ramp(given, requests)
    elif math.isinf(rate):
        if limit is None:
            given.notes.append(f"load: vllm sends all {requests} requests at once: --request-rate is inf.")
        return {
            "type": "closed",
            "concurrency": min(limit or requests, requests),
            "requests": requests,
            "ramp_up": 0,
        }
    else:
        rates = {"rate": rate, "requests": requests}
    burstiness = given["--burstiness"]
    load: dict[str, Any] = {"type": "poisson"} | rates
    if math.isinf(burstiness):
        load["type"] = "constant"
    elif burstiness != 1:
        load |= {"type": "gamma", "burstiness": burstiness}
    if limit is not None:
        load |= {"max_concurrency": limit, "when_full": "queue"}
        given.notes.append("load: the wait for one of the --max-concurrency slots counts as latency here, not in vllm.")
    return load


def _ramp(given: Given, requests: int) -> dict[str, Any]:
    """A rate over time. In vllm it grows with the number of requests n that were sent, so that rate(t) solves dn/dt = rate(n)."""
    start, end = given["--ramp-up-start-rps"], given["--ramp-up-end-rps"]
    if start is None or end is None or "--request-rate" in given:
        raise given.refuse(
            "--ramp-up-strategy", "it needs a start and an end, and no --request-rate",
            "give --ramp-up-start-rps and --ramp-up-end-rps",
        )  # fmt: skip
    if not 0 < start <= end:
        raise given.refuse("--ramp-up-start-rps", "it must be more than 0, and at most the end", "correct it")
    if start == end:
        return {"rate": start, "requests": requests}
    if given["--ramp-up-strategy"] == "linear":
        growth = (end - start) / requests
        return {"rate": f"{start:g} * exp({growth:.12g} * t)", "duration": _seconds(math.log(end / start) / growth)}
    growth = start * math.log(end / start) / requests
    return {"rate": f"{start:g} / (1 - {growth:.12g} * t)", "duration": _seconds((1 - start / end) / growth)}


def _seconds(value: float) -> str:
    return f"{value:.9g}s"


def _warm_up(given: Given, config: dict[str, Any]) -> None:
    """Send the warm-up requests first, in the same stage: they do not count."""
    load, warmups = config["load"], given["--num-warmups"]
    if load.get("concurrency") == load.get("requests") or "requests" not in load:
        raise given.refuse(
            "--num-warmups", "all requests are sent in one burst or a ramp", "leave it out, or limit --max-concurrency"
        )
    load["requests"] += warmups
    config["measure"] = {"warmup": warmups}


# --- the rest --------------------------------------------------------------------------------------------------------


def _with_adapters(given: Given, data: dict[str, Any]) -> dict[str, Any]:
    adapters = given["--lora-modules"]
    if not adapters:
        return data
    if given["--lora-assignment"] == "round-robin":
        raise given.refuse("--lora-assignment", "adapters are chosen at random", "use random")
    return {"type": "mix", "classes": [{"name": name, "model": name, "data": data} for name in adapters]}


def _goodput(given: Given) -> str:
    conditions = []
    for pair in given["--goodput"]:
        name, _, limit = pair.partition(":")
        try:
            conditions.append(f"{_METRICS[name]}<={float(limit):g}ms")
        except (KeyError, ValueError):
            raise given.refuse(
                "--goodput", f"{pair!r} is not ttft, tpot or e2el with a limit in milliseconds", "write ttft:500"
            ) from None
    return f"goodput({' & '.join(conditions)}) > 1%"


def _report(given: Given) -> dict[str, Any]:
    try:
        percentiles = [float(one) for one in given["--metric-percentiles"].split(",")]
    except ValueError:
        raise given.refuse("--metric-percentiles", "it is a list of numbers: 50,99", "correct it") from None
    report: dict[str, Any] = {
        "percentiles": [float(f"{one:g}") if one % 1 else int(one) for one in sorted({50.0, *percentiles})]
    }
    if "--save-result" in given and "--result-filename" in given:
        report["json"] = os.path.join(given["--result-dir"] or "", given["--result-filename"])  # noqa: PTH118
        given.notes.append("report.json: the file is in our own format (docs/reference/schema).")
    elif "--save-result" in given:
        given.notes.append(f"--save-result has no effect here without --result-filename: {_RECORDS}.")
    return report
