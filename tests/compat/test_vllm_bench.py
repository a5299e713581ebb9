"""The options of `vllm bench serve`: what each becomes, or why it is refused."""

import copy
import math
import shlex
from typing import Any

import pytest
from helpers import setting

from inferometer.compat.command_line import Given
from inferometer.compat.vllm_bench import OPTIONS, translate
from inferometer.config import Config, from_mapping
from inferometer.config.loads import stages_of
from inferometer.errors import UserError

DEFAULTS = {
    "server": {
        "url": "http://127.0.0.1:8000",
        "model": "org/m",
        "api": "completions",
        "stream": True,
        "ignore_eos": True,
        "max_tokens_field": "max_tokens",
        "body": {"repetition_penalty": 1.0},
        "timeouts": {"total": "6h"},
    },
    "data": {"type": "random", "input": 1024, "output": 128, "tokenizer": "org/m", "salt": "none"},
    "load": {"type": "closed", "concurrency": 1000, "requests": 1000, "ramp_up": 0},
    "seed": 0,
    "report": {"percentiles": [50, 99]},
}


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def translated(line: str) -> tuple[dict[str, Any], Given]:
    """Translate a command line for model org/m, and check that the result is a valid config."""
    config, given = translate(["--model", "org/m", *shlex.split(line)])
    assert isinstance(from_mapping(copy.deepcopy(config)), Config)
    return config, given


def test_defaults_are_explicit() -> None:
    config, given = translated("")
    assert config == DEFAULTS
    assert given.notes == ["load: vllm sends all 1000 requests at once: --request-rate is inf."]


SHAREGPT = "--dataset-name sharegpt --dataset-path s.json"
CUSTOM = "--dataset-name custom --dataset-path c.jsonl --skip-chat-template"
TRACE = "--dataset-name timed_trace --dataset-path t.jsonl"
CHAT = "--backend openai-chat --endpoint /v1/chat/completions"

TRANSLATED: dict[str, dict[str, Any]] = {
    "--base-url https://h/x/": {"server.url": "https://h/x"},
    "--host ::1 --port 9": {"server.url": "http://[::1]:9"},
    "--endpoint /prefix/v1/completions": {"server.url": "http://127.0.0.1:8000/prefix"},
    "--insecure": {"server.tls": {"verify": False}},
    CHAT: {"server.api": "chat", "server.max_tokens_field": "max_completion_tokens", "server.body": None},
    "--backend openai-embeddings --endpoint /v1/embeddings": {
        "server.api": "embeddings",
        "server.stream": False,
        "data.output": None,
    },
    "--header a=b c=d": {"server.headers": {"a": "b", "c": "d"}},
    "--served-model-name n": {"server.model": "n", "data.tokenizer": "org/m"},
    "--tokenizer t/x --tokenizer-mode hf": {"data.tokenizer": "t/x"},
    "--tokenizer gpt2": {"data.tokenizer": "hub:gpt2"},
    "--skip-tokenizer-init": {"data.tokenizer": None},
    "--max-concurrency 8": {"load.type": "closed", "load.concurrency": 8, "load.requests": 1000},
    "--num-prompts 5 --max-concurrency 8": {"load.concurrency": 5, "load.requests": 5},
    "--request-rate 2.5": {"load.type": "poisson", "load.rate": 2.5, "load.requests": 1000},
    "--request-rate 2 --burstiness 0.5": {"load.type": "gamma", "load.burstiness": 0.5},
    "--request-rate 2 --burstiness inf": {"load.type": "constant"},
    "--request-rate 2 --max-concurrency 8": {"load.max_concurrency": 8, "load.when_full": "queue"},
    "--ramp-up-strategy linear --ramp-up-start-rps 3 --ramp-up-end-rps 3": {"load.rate": 3.0, "load.requests": 1000},
    "--max-concurrency 4 --num-warmups 10": {"load.requests": 1010, "measure.warmup": 10},
    "--dataset-name prefix_repetition --ignore-eos": {"server.ignore_eos": True},
    "--logprobs 2 --temperature 0 --top-k 3 --top-p 0.5 --min-p 0.1": {
        "server.body": {
            "repetition_penalty": 1.0,
            "logprobs": 2,
            "temperature": 0,
            "top_k": 3,
            "top_p": 0.5,
            "min_p": 0.1,
        }
    },
    "--frequency-penalty 1 --presence-penalty 2 --repetition-penalty 3": {
        "server.body": {"frequency_penalty": 1, "presence_penalty": 2, "repetition_penalty": 3}
    },
    '--extra-body \'{"a": {"b": 1}}\'': {"server.body": {"repetition_penalty": 1.0, "a": {"b": 1}}},
    "--goodput ttft:500 tpot:50 e2el:2000": {"slo": ["goodput(ttft<=500ms & tpot<=50ms & e2e<=2000ms) > 1%"]},
    "--metric-percentiles 25,99.9": {"report.percentiles": [25, 50, 99.9]},
    "--save-result --result-dir d --result-filename f.json": {"report.json": "d/f.json"},
    "--save-detailed": {"keep": "text"},
    "--seed 7": {"seed": 7},
    "--input-len 5 --output-len 6": {"data.input": 5, "data.output": 6},
    "--random-input-len 5 --random-output-len 6": {"data.input": 5, "data.output": 6},
    "--random-range-ratio 0.5": {
        "data.input": {"type": "ratio", "mean": 1024, "ratio": 0.5},
        "data.output": {"type": "ratio", "mean": 128, "ratio": 0.5},
    },
    '--random-range-ratio \'{"input": 0.3, "output": 0}\'': {
        "data.input": {"type": "ratio", "mean": 1024, "ratio": 0.3},
        "data.output": 128,
    },
    "--random-prefix-len 10": {
        "data.type": "shared_prefix",
        "data.groups": 1,
        "data.prefix": 10,
        "data.question": 1024,
    },
    "--dataset-name prefix_repetition --num-prompts 25": {
        "data.groups": 10,
        "data.prompts": 2,
        "data.prefix": 256,
        "data.question": 256,
        "data.output": 128,
        "load.requests": 20,
        "server.ignore_eos": False,
    },
    "--dataset-name prefix_repetition --prefix-repetition-prefix-len 1 --prefix-repetition-suffix-len 2 "
    "--prefix-repetition-num-prefixes 3 --prefix-repetition-output-len 4": {
        "data.prefix": 1,
        "data.question": 2,
        "data.groups": 3,
        "data.output": 4,
    },
    SHAREGPT: {
        "data.type": "sharegpt",
        "data.path": "s.json",
        "data.turns": "first",
        "data.shuffle": True,
        "data.output": "reference",
        "data.min_input": 4,
        "data.max_input": 1024,
    },
    f"{SHAREGPT} --sharegpt-output-len 1500 --disable-shuffle": {
        "data.output": 1500,
        "data.max_input": 548,
        "data.shuffle": False,
    },
    CUSTOM: {"data.type": "jsonl", "data.path": "c.jsonl", "data.columns": {"prompt": "prompt"}, "data.output": 256},
    f"{CUSTOM} --custom-output-len -1": {"data.columns": {"prompt": "prompt", "output": "output_tokens"}},
    "--dataset-name hf --dataset-path AI-MO/NuminaMath-CoT --hf-split train --hf-subset s --hf-output-len 9": {
        "data.type": "hub",
        "data.columns": {"prompt": "problem", "response": "solution"},
        "data.split": "train",
        "data.subset": "s",
        "data.output": 9,
    },
    TRACE: {
        "data.type": "trace",
        "data.unit": "s",
        "data.block": 16,
        "load": {"type": "trace", "requests": 1000},
        "server.ignore_eos": True,
    },
    f"{TRACE} --self-timed --timed-trace-sec-multiplier 0.001 --timed-trace-chunk-hash-size 512": {
        "data.unit": "ms",
        "data.block": 512,
    },
    f"{TRACE} --timed-trace-label-timestamp a --timed-trace-label-input-length b --timed-trace-label-output-length c "
    "--timed-trace-label-hash-ids d": {"data.columns": {"time": "a", "input": "b", "output": "c", "hash_ids": "d"}},
    f"{TRACE} --no-self-timed --request-rate 3": {"load.type": "poisson"},
}


@pytest.mark.parametrize("line", TRANSLATED)
def test_option_is_translated(line: str) -> None:
    config, _ = translated(line)
    assert {key: setting(config, key) for key in TRANSLATED[line]} == TRANSLATED[line]


@pytest.mark.parametrize("strategy", ["linear", "exponential"])
def test_ramp_sends_all_requests_at_the_rates_of_vllm(strategy: str) -> None:
    """vllm's rate depends on how many requests were sent; summing up its gaps gives the duration of our formula."""
    line = f"--num-prompts 2000 --ramp-up-strategy {strategy} --ramp-up-start-rps 2 --ramp-up-end-rps 20"
    config, _ = translated(line)
    (stage,) = stages_of(from_mapping(config).load)
    shares = [n / 1999 for n in range(2000)]
    rates = [2 + 18 * share if strategy == "linear" else 2 * 10**share for share in shares]
    assert stage.duration == pytest.approx(math.fsum(1 / rate for rate in rates), rel=0.002)
    end = eval(str(config["load"]["rate"]), {"t": stage.duration, "exp": math.exp})
    assert end == pytest.approx(20, rel=1e-6)


def test_adapters_are_traffic_classes() -> None:
    config, _ = translated("--lora-modules a b --lora-assignment random")
    assert [(one["name"], one["model"]) for one in config["data"]["classes"]] == [("a", "a"), ("b", "b")]


def test_model_of_the_server_has_the_server_tokenizer() -> None:
    config, given = translate([])
    assert "model" not in config["server"]
    assert config["data"]["tokenizer"] == "server"
    assert any("/tokenize" in note for note in given.notes)


REFUSED = {
    "--backend tgi": "--backend tgi",
    "--backend openai-chat": "--endpoint /v1/completions",
    "--probe-request-rate 1": "--probe-request-rate 1",
    "--num-prompts 0": "--num-prompts 0",
    "--num-warmups 5": "--num-warmups 5",
    "--max-concurrency 0": "--max-concurrency 0",
    "--ramp-up-strategy linear": "--ramp-up-strategy linear",
    "--ramp-up-strategy linear --ramp-up-start-rps 0 --ramp-up-end-rps 1": "--ramp-up-start-rps",
    "--lora-modules a --lora-assignment round-robin": "--lora-assignment round-robin",
    "--goodput itl:5": "'itl:5'",
    "--metric-percentiles x": "--metric-percentiles x",
    "--extra-body [1]": "--extra-body",
    f"{CHAT} --logprobs 1": "--logprobs 1",
    "--tokenizer-mode mistral": "--tokenizer-mode mistral",
    "--random-range-ratio 1.5": "--random-range-ratio 1.5",
    "--random-batch-size 4": "--random-batch-size 4",
    "--dataset-name prefix_repetition --num-prompts 5": "--prefix-repetition-num-prefixes",
    "--dataset-name sharegpt": "needs a file",
    "--dataset-name custom --dataset-path c.jsonl": "chat template",
    "--dataset-name hf --dataset-path a/b": "--dataset-path a/b",
    "--dataset-name hf --dataset-path likaixin/InstructCoder": "chat template",
    "--self-timed": "timed_trace",
    f"{TRACE} --timed-trace-sec-multiplier 60": "--timed-trace-sec-multiplier 60",
    **{
        f"--dataset-name {name}": name
        for name in ("random-mm", "sonnet", "burstgpt", "spec_bench", "random-rerank", "nope")
    },
}


@pytest.mark.parametrize("line", REFUSED)
def test_meaning_that_cannot_be_kept_is_refused(line: str) -> None:
    with pytest.raises(UserError) as raised:
        translated(line)
    assert REFUSED[line] in raised.value.line
    assert raised.value.next_step


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_every_option_of_the_table_is_covered(option: Any) -> None:
    """An option that is translated has a case above; the others say in their row what becomes of them."""
    value = [] if option.takes == "flag" else ["1"]
    if option.refused:
        with pytest.raises(UserError, match=option.name):
            translate(["--model", "org/m", option.name, *value])
    elif option.no_effect:
        config, given = translate(["--model", "org/m", option.name, *value])
        assert config == DEFAULTS
        assert option.name in given.notes[0]
    else:
        cases = " ".join([*TRANSLATED, *REFUSED, "--model m --ramp-up-end-rps 1 --lora-modules a"])
        assert option.becomes and any(f"{name} " in f"{cases} " for name in option.names.split())


def test_bearer_token_becomes_the_name_of_a_variable() -> None:
    config, given = translated(
        "--header 'Authorization=Bearer sk-1' X-Api-Key=sk-2 --extra-body '{\"api_key\": \"sk-3\"}'"
    )
    assert config["server"]["api_key_env"] == "OPENAI_API_KEY"
    assert "sk-" not in f"{config} {given.notes} {given.warnings}"
    assert len(given.warnings) == 3


def test_key_of_the_environment_is_used_as_vllm_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    assert translated("")[0]["server"]["api_key_env"] == "OPENAI_API_KEY"


def test_password_of_the_url_is_left_out() -> None:
    config, given = translated("--base-url http://user:pw@h:1")
    assert config["server"]["url"] == "http://h:1"
    assert len(given.warnings) == 1
