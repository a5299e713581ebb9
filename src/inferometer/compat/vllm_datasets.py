"""The datasets of `vllm bench serve`: their options, and our data that means the same.

A dataset whose requests cannot be the same is refused. All prompts depend on the seed alone, as in vllm (`salt: none`).
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from inferometer.compat.command_line import Given, Option

_UNUSED = "it is for a dataset that is not supported"


def _of(dataset: str) -> str:
    return f"it is for --dataset-name {dataset}, which is not supported"


OPTIONS = (
    Option("--dataset-name", default="random", becomes="data.type"),
    Option("--dataset-path", becomes="data.path"),
    Option("--seed", int, 0, becomes="seed"),
    Option("--num-prompts", int, 1000, becomes="load.requests"),
    Option("--input-len", int, becomes="data.input"),
    Option("--output-len", int, becomes="data.output"),
    Option("--no-stream", takes="flag", no_effect="rows are read as they are needed"),
    Option(
        "--no-oversample",
        takes="flag",
        refused="a dataset with too few rows is repeated",
        instead="lower --num-prompts",
    ),
    Option("--skip-chat-template", takes="flag", becomes="data"),
    Option("--disable-shuffle", takes="flag", becomes="data.shuffle"),
    Option("--enable-multimodal-chat", takes="flag", refused="prompts are text"),
    Option("--random-input-len", int, 1024, becomes="data.input"),
    Option("--random-output-len", int, 128, becomes="data.output"),
    Option("--random-range-ratio", default="0.0", becomes="data.input"),
    Option("--random-prefix-len", int, 0, becomes="data.prefix"),
    Option("--random-batch-size", int, 1, becomes="data"),
    Option("--sharegpt-output-len", int, becomes="data.output"),
    Option("--custom-output-len", int, 256, becomes="data.output"),
    Option("--custom-ensure-client-side-data", takes="flag", no_effect="it is for images"),
    Option("--prefix-repetition-prefix-len", int, 256, becomes="data.prefix"),
    Option("--prefix-repetition-suffix-len", int, 256, becomes="data.question"),
    Option("--prefix-repetition-num-prefixes", int, 10, becomes="data.groups"),
    Option("--prefix-repetition-output-len", int, 128, becomes="data.output"),
    Option("--hf-subset", becomes="data.subset"),
    Option("--hf-split", becomes="data.split"),
    Option("--hf-name", refused="datasets come from the hub", instead="give the name of the dataset as --dataset-path"),
    Option("--hf-output-len", int, becomes="data.output"),
    Option("--timed-trace-chunk-hash-size", int, 16, becomes="data.block"),
    Option("--timed-trace-sec-multiplier", float, 1.0, becomes="data.unit"),
    Option("--timed-trace-label-timestamp", default="timestamp", becomes="data.columns"),
    Option("--timed-trace-label-input-length", default="input_length", becomes="data.columns"),
    Option("--timed-trace-label-output-length", default="output_length", becomes="data.columns"),
    Option("--timed-trace-label-hash-ids", default="hash_ids", becomes="data.columns"),
    Option("--self-timed", takes="flag", becomes="load.type"),
    Option("--no-self-timed", takes="flag", becomes="load.type"),
    Option("--no-reranker", takes="flag", refused=_of("random-rerank")),
    Option("--random-mm-base-items-per-request", refused=_of("random-mm")),
    Option("--random-mm-num-mm-items-range-ratio", refused=_of("random-mm")),
    Option("--random-mm-limit-mm-per-prompt", refused=_of("random-mm")),
    Option("--random-mm-bucket-config", refused=_of("random-mm")),
    Option("--sonnet-input-len", refused=_of("sonnet")),
    Option("--sonnet-output-len", refused=_of("sonnet")),
    Option("--sonnet-prefix-len", refused=_of("sonnet")),
    Option("--spec-bench-output-len", refused=_of("spec_bench")),
    Option("--spec-bench-category", refused=_of("spec_bench")),
    Option("--speed-bench-dataset-subset", refused=_of("speed_bench")),
    Option("--speed-bench-output-len", refused=_of("speed_bench")),
    Option("--speed-bench-category", refused=_of("speed_bench")),
    Option("--blazedit-min-distance", refused=_UNUSED),
    Option("--blazedit-max-distance", refused=_UNUSED),
    Option("--asr-max-audio-len-sec", refused=_UNUSED),
    Option("--asr-min-audio-len-sec", refused=_UNUSED),
    Option("--bfcl-categories", refused=_UNUSED),
)


class Dataset(msgspec.Struct):
    """A dataset, translated."""

    data: dict[str, Any]
    requests: int
    ignores_eos: bool = False
    """Whether vllm asks for responses of the full length, even without --ignore-eos."""
    load: dict[str, Any] | None = None
    """The load, if the dataset decides about it."""


def translate(given: Given, api: str) -> Dataset:
    """Translate the dataset. Raises UserError when it is not supported."""
    name = given["--dataset-name"]
    if name in _REFUSED:
        raise given.refuse("--dataset-name", *_REFUSED[name])
    if name not in _DATASETS:
        raise given.refuse("--dataset-name", "this dataset is not known", f"use one of {', '.join(_DATASETS)}")
    if "--self-timed" in given and name != "timed_trace":
        raise given.refuse("--self-timed", "it goes with --dataset-name timed_trace")
    return _DATASETS[name](given, api)


def _tokenizer(given: Given) -> dict[str, str]:
    mode = given["--tokenizer-mode"]
    if mode not in ("auto", "hf", "slow"):
        raise given.refuse(
            "--tokenizer-mode", "this kind of tokenizer is not chosen by a mode", "name it with --tokenizer"
        )
    if "--skip-tokenizer-init" in given:
        return {}
    named = given["--tokenizer"] or given["--model"]
    if named is None:
        given.notes.append("data.tokenizer: --model is not given, so the server's own tokenizer is used (/tokenize).")
        return {"tokenizer": "server"}
    return {"tokenizer": named if "/" in named or Path(named).exists() else f"hub:{named}"}


def _path(given: Given) -> str:
    if "--dataset-path" not in given:
        raise given.refuse("--dataset-name", "it needs a file", "give --dataset-path")
    path: str = given["--dataset-path"]
    return path


def _output(given: Given, option: str) -> Any:
    """The number of output tokens: --output-len has precedence over the option of the dataset."""
    return given["--output-len"] if "--output-len" in given else given[option]


# --- generated prompts -----------------------------------------------------------------------------------------------


def _random(given: Given, api: str) -> Dataset:
    if given["--random-batch-size"] != 1:
        raise given.refuse("--random-batch-size", "a request has one input", "leave it out")
    ratios = _ratios(given)
    mean = given["--input-len"] if "--input-len" in given else given["--random-input-len"]
    input_ = _around(mean, ratios[0])
    output = _around(_output(given, "--random-output-len"), ratios[1])
    data: dict[str, Any]
    if prefix := given["--random-prefix-len"]:
        data = {
            "type": "shared_prefix",
            "groups": 1,
            "prompts": 0,
            "prefix": prefix,
            "question": input_,
            "prefix_as": "text",
        }
        given.notes.append(
            "data: prompts are natural text here; in vllm they are random tokens. Lengths and the prefix are the same."
        )
    else:
        data = {"type": "random", "input": input_}
    if api != "embeddings":
        data["output"] = output
    return Dataset(data | _tokenizer(given) | {"salt": "none"}, given["--num-prompts"], ignores_eos=True)


def _ratios(given: Given) -> tuple[float, float]:
    """The half widths of the ranges of input and output, as a share of the mean."""
    try:
        ratio = json.loads(given["--random-range-ratio"])
        pair = (float(ratio["input"]), float(ratio["output"])) if isinstance(ratio, dict) else (float(ratio),) * 2
        if all(0 <= one < 1 for one in pair):
            return pair
    except (ValueError, KeyError, TypeError):
        pass
    raise given.refuse("--random-range-ratio", "it must be from 0 up to, but not including, 1", "correct it")


def _around(mean: int, ratio: float) -> int | dict[str, Any]:
    return {"type": "ratio", "mean": mean, "ratio": ratio} if ratio else mean


def _prefix_repetition(given: Given, api: str) -> Dataset:
    groups = given["--prefix-repetition-num-prefixes"]
    per_prefix = given["--num-prompts"] // max(groups, 1)
    if groups < 1 or not per_prefix:
        raise given.refuse(
            "--prefix-repetition-num-prefixes", "there must be at least one, and one prompt for each", "correct it"
        )
    data = {
        "type": "shared_prefix",
        "groups": groups,
        "prompts": per_prefix,
        "prefix": given["--prefix-repetition-prefix-len"],
        "question": given["--prefix-repetition-suffix-len"],
        "output": _output(given, "--prefix-repetition-output-len"),
        "prefix_as": "text",
    }
    return Dataset(data | _tokenizer(given) | {"salt": "none"}, groups * per_prefix)


# --- files and hubs --------------------------------------------------------------------------------------------------


def _rows(given: Given) -> dict[str, Any]:
    return _tokenizer(given) | {"shuffle": "--disable-shuffle" not in given}


def _sharegpt(given: Given, api: str) -> Dataset:
    output = _output(given, "--sharegpt-output-len")
    data: dict[str, Any] = (
        {"type": "sharegpt", "path": _path(given), "turns": "first"} | _rows(given) | {"min_input": 4}
    )
    if output is None:
        data |= {"max_input": 1024, "output": "reference", "min_output": 4, "max_output": 2044}
        given.notes.append(
            "data: vllm also leaves out rows whose prompt and response have more than 2048 tokens together."
        )
    else:
        data |= {"max_input": min(1024, 2048 - output), "output": output}
    return Dataset(data, given["--num-prompts"])


def _custom(given: Given, api: str) -> Dataset:
    _check_template(given)
    output = _output(given, "--custom-output-len")
    columns = {"prompt": "prompt"}
    data: dict[str, Any] = {"type": "jsonl", "path": _path(given), "columns": columns} | _rows(given)
    if output == -1:
        columns["output"] = "output_tokens"
    else:
        data["output"] = output
        given.notes.append(
            "data: a row with `output_tokens` (or `output`) has that length here; vllm ignores it unless --custom-output-len is -1."
        )
    return Dataset(data, given["--num-prompts"])


def _check_template(given: Given) -> None:
    if "--skip-chat-template" not in given:
        raise given.refuse(
            "--dataset-name",
            "vllm puts its prompts into the model's chat template before they are sent",
            "add --skip-chat-template, with --backend openai-chat if the server should apply the template",
        )


_HUB: dict[str, dict[str, Any]] = {
    name: {"columns": {"prompt": "problem", "response": "solution"}, "output": "reference"}
    for name in ("AI-MO/aimo-validation-aime", "AI-MO/NuminaMath-1.5", "AI-MO/NuminaMath-CoT")
} | {
    "likaixin/InstructCoder": {
        "template": "{input}\n\n{instruction} Just output the code, do not include any explanation.",
        "output": 200,
    }
}
"""The hub's datasets whose prompts vllm makes in a way that can be written in our config."""


def _hub(given: Given, api: str) -> Dataset:
    path = _path(given)
    if path not in _HUB:
        raise given.refuse(
            "--dataset-path",
            "how vllm makes prompts of this dataset cannot be expressed",
            f"write data: {{type: hub, path: {path}}} with columns or a template yourself; known are {', '.join(_HUB)}",
        )
    if "template" in _HUB[path]:
        _check_template(given)
    data: dict[str, Any] = {"type": "hub", "path": path, "rows": given["--num-prompts"]} | _HUB[path] | _rows(given)
    data |= {
        key: given[option] for key, option in (("subset", "--hf-subset"), ("split", "--hf-split")) if option in given
    }
    output = _output(given, "--hf-output-len")
    if output is not None:
        data["output"] = output
    elif data["output"] == "reference":
        data |= {"min_input": 4, "max_input": 2048, "min_output": 4}
    return Dataset(data, given["--num-prompts"])


_UNITS = {1.0: "s", 1e-3: "ms", 1e-6: "us", 1e-9: "ns"}


def _timed_trace(given: Given, api: str) -> Dataset:
    multiplier = given["--timed-trace-sec-multiplier"]
    if multiplier not in _UNITS:
        raise given.refuse("--timed-trace-sec-multiplier", "times are in s, ms, us or ns", "use 1, 0.001, 1e-6 or 1e-9")
    labels = {"time": "timestamp", "input": "input-length", "output": "output-length", "hash_ids": "hash-ids"}
    data = {
        "type": "trace",
        "path": _path(given),
        "format": "jsonl",
        "columns": {key: given[f"--timed-trace-label-{label}"] for key, label in labels.items()},
        "unit": _UNITS[multiplier],
        "block": given["--timed-trace-chunk-hash-size"],
    }
    requests = given["--num-prompts"]
    load = None if "--no-self-timed" in given else {"type": "trace", "requests": requests}
    if load is not None and given["--max-concurrency"]:
        load |= {"max_concurrency": given["--max-concurrency"], "when_full": "queue"}
    return Dataset(data | _tokenizer(given) | {"salt": "none"}, requests, ignores_eos=True, load=load)


_DATASETS: dict[str, Callable[[Given, str], Dataset]] = {
    "random": _random,
    "sharegpt": _sharegpt,
    "custom": _custom,
    "prefix_repetition": _prefix_repetition,
    "hf": _hub,
    "timed_trace": _timed_trace,
}
_TEXT_ONLY = "requests are text"
_REFUSED = {
    "burstgpt": (
        "vllm uses only the rows of GPT-4 that have a response",
        "put these rows into a file, and use data: {type: trace, format: burstgpt}, with any load",
    ),
    "sonnet": ("its lines of poems cannot be chosen as vllm does", "use data: {type: synthetic} with corpus: FILE"),
    "spec_bench": ("its conversations by category are not known here", "use data: {type: jsonl}"),
    "speed_bench": ("its subsets are not known here", "use data: {type: jsonl}"),
    "txt-slices": ("slices of a text are not known here", "use data: {type: synthetic} with corpus: FILE"),
    "random-mm": (_TEXT_ONLY, "use --dataset-name random"),
    "random-rerank": ("there is no API for reranking", "use --dataset-name random"),
    "custom_audio": (_TEXT_ONLY, "use --dataset-name custom"),
    "custom_image": (_TEXT_ONLY, "use --dataset-name custom"),
}
"""Datasets that are refused: why, and what to do instead."""
