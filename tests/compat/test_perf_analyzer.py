"""perf_analyzer's options: what each becomes, or why it is refused."""

import copy
import shlex
from typing import Any

import pytest
from helpers import setting

from inferometer.compat.command_line import Given
from inferometer.compat.perf_analyzer import OPTIONS, translate
from inferometer.config import Config, from_mapping
from inferometer.errors import UserError

DEFAULTS = {
    "server": {
        "url": "http://localhost:8000",
        "model": "m",
        "api": "kserve",
        "stream": False,
        "shared_memory": False,
        "timeouts": {"total": 0},
    },
    "data": {"type": "tensors", "fill": "random", "batch": 1, "strings": {"length": 128}},
    "load": {
        "type": "closed",
        "concurrency": 1,
        "ramp_up": 0,
        "stable": 0.1,
        "window": "5000ms",
        "duration": "50000ms",
    },
}


def translated(line: str) -> tuple[dict[str, Any], Given]:
    """Translate a command line for model m, and check that the result is a valid config."""
    config, given = translate(["-m", "m", *shlex.split(line)])
    assert isinstance(from_mapping(copy.deepcopy(config)), Config)
    return config, given


def test_defaults_are_explicit() -> None:
    config, given = translated("")
    assert config == DEFAULTS
    assert given.notes == []


TRANSLATED = {
    "-x 3": {"server.version": "3"},
    "-i grpc": {"server.url": "grpc://localhost:8001", "server.compression": "none"},
    "-i GRPC -u h:1": {"server.url": "grpc://h:1"},
    "-u h:1": {"server.url": "http://h:1"},
    "-u https://h:1 --ssl-https-ca-certificates-file ca.pem": {
        "server.url": "https://h:1",
        "server.tls": {"ca": "ca.pem"},
    },
    "-u https://h:1 --ssl-https-verify-peer 0": {"server.tls": {"verify": False}},
    "-u https://h --ssl-https-client-certificate-file c --ssl-https-private-key-file k": {
        "server.tls": {"cert": "c", "key": "k"}
    },
    "-i grpc -u h:1 --ssl-grpc-use-ssl --ssl-grpc-root-certifications-file ca": {
        "server.url": "grpcs://h:1",
        "server.tls": {"ca": "ca"},
    },
    "-i grpc --ssl-grpc-use-ssl --ssl-grpc-certificate-chain-file c --ssl-grpc-private-key-file k": {
        "server.tls": {"cert": "c", "key": "k"}
    },
    "-i grpc --streaming": {"server.stream": "persistent"},
    "-i grpc --grpc-compression-algorithm gzip": {"server.compression": "gzip"},
    "-i grpc --request-parameter n:4:int --request-parameter s:a:b:string --request-parameter f:true:bool": {
        "server.parameters": {"n": 4, "s": "a:b", "f": True}
    },
    "--input-tensor-format json --output-tensor-format json": {"server.api": "kserve-json"},
    "-H 'X-Team: ours'": {"server.headers": {"X-Team": "ours"}},
    "--shared-memory system": {"server.shared_memory": True},
    "--input-data zero": {"data.fill": "zeros", "data.strings": None},
    "-z": {"data.fill": "zeros"},
    "--input-data some.json": {"data.fill": "@some.json", "data.strings": None},
    "--data-directory folder": {"data.fill": "@folder"},
    "-b 8": {"data.batch": 8},
    "--shape A:3,224,224 --shape B:1": {"data.shape": {"A": [3, 224, 224], "B": [1]}},
    "--string-length 5": {"data.strings": {"length": 5}},
    "--string-data abc": {"data.strings": {"value": "abc"}},
    "--sequence-length 20 --sequence-length-variation 0": {"data.sequence": 20},
    "--concurrency-range 4": {"load.concurrency": 4},
    "--concurrency-range 1:8": {"load.concurrency": "1:8"},
    "--concurrency-range 1:8:2": {"load.concurrency": "1:8:2"},
    "-t 3": {"load.concurrency": 3},
    "--request-rate-range 100:500:100": {"load.type": "constant", "load.rate": "100:500:100"},
    "--request-rate-range 0.5 --request-distribution poisson": {"load.type": "poisson", "load.rate": 0.5},
    "--measurement-interval 1000": {"load.window": "1000ms", "load.duration": "10000ms"},
    "-p 1000 -r 3": {"load.window": "1000ms", "load.duration": "3000ms"},
    "-s 50": {"load.stable": 0.5},
    "--stability-percentage 999": {"load.stable": 9.99},
    "--request-count 100": {"load.requests": 100, "load.stable": None},
    "--request-count 100 --warmup-request-count 10": {"load.requests": 110, "measure.warmup": 10},
    "--collect-metrics": {"observe.prometheus": ["http://localhost:8002/metrics"], "observe.interval": "1000ms"},
    "--collect-metrics --metrics-url h:9/m --metrics-interval 500": {
        "observe.prometheus": ["http://h:9/m"],
        "observe.interval": "500ms",
    },
    "-f out.csv": {"report.perf_csv": "out.csv"},
}


@pytest.mark.parametrize("line", TRANSLATED)
def test_option_is_translated(line: str) -> None:
    config, _ = translated(line)
    assert {key: setting(config, key) for key in TRANSLATED[line]} == TRANSLATED[line]


NOTED = {
    "--percentile 75": "the mean latency decides",
    "--sequence-length 20": "varies it by 20 %",
    "--num-of-sequences 4": "one sequence per request in flight",
    "-i grpc -H X:y": "ignores it over gRPC",
}


@pytest.mark.parametrize("line", NOTED)
def test_difference_is_noted(line: str) -> None:
    _, given = translated(line)
    assert any(NOTED[line] in note for note in given.notes)


REFUSED = {
    "--service-kind openai": "--service-kind openai",
    "--service-kind tfserving": "KServe v2",
    "--trace-level TIMESTAMPS": "trace settings",
    "-i ftp": "http or grpc",
    "--streaming": "needs gRPC",
    "--grpc-compression-algorithm gzip": "needs gRPC",
    "--output-tensor-format json": "same format",
    "--shared-memory cuda": "--shared-memory cuda",
    "--request-parameter n:x:int": "'n:x:int'",
    "--ssl-https-client-certificate-type DER -u https://h": "PEM",
    "--ssl-https-private-key-type DER -u https://h": "PEM",
    "--ssl-https-verify-host 0 -u https://h": "--ssl-https-verify-host 0",
    "--input-data a --input-data b": "--input-data",
    "--shape A:x": "'A:x'",
    "--sequence-length 2 --sequence-length-variation 10": "--sequence-length-variation 10",
    "--sequence-length 2 --request-rate-range 5": "closed loop",
    "--latency-threshold 50": "--latency-threshold 50",
    "--concurrency-range 1:0": "--concurrency-range 1:0",
    "--concurrency-range x": "START:END:STEP",
    "--request-rate-range inf": "finite",
    "-H no-colon": "NAME:VALUE",
    "--concurrency-range 1 --request-rate-range 1": "--request-rate-range 1",
    "--measurement-mode count_windows": "--measurement-mode count_windows",
}


@pytest.mark.parametrize("line", REFUSED)
def test_meaning_that_cannot_be_kept_is_refused(line: str) -> None:
    with pytest.raises(UserError) as raised:
        translated(line)
    assert REFUSED[line] in raised.value.line
    assert raised.value.next_step


def test_model_is_required() -> None:
    with pytest.raises(UserError, match="-m: the name of the model is missing"):
        translate([])


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_every_option_of_the_table_is_covered(option: Any) -> None:
    """An option that is translated has a case above; the others say in their row what becomes of them."""
    value = [] if option.takes == "flag" else ["1"]
    if option.refused:
        with pytest.raises(UserError, match=option.name):
            translate(["-m", "m", option.name, *value])
    elif option.no_effect:
        config, given = translate(["-m", "m", option.name, *value])
        assert config == DEFAULTS
        assert option.name in given.notes[0]
    else:
        cases = " ".join([*TRANSLATED, *NOTED, *REFUSED, "-m m"])
        assert option.becomes and any(f"{name} " in f"{cases} " for name in option.names.split())


def test_secrets_are_left_out_of_the_config() -> None:
    config, given = translate(["-m", "m", "-H", "Authorization: Bearer sk-1", "-H", "X-Api-Key: sk-2"])
    assert config["server"]["api_key_env"] == "OPENAI_API_KEY"
    assert "sk-" not in f"{config} {given.notes} {given.warnings}"
    assert len(given.warnings) == 2


def test_secrets_are_sent_if_the_command_line_is_run() -> None:
    config, given = translate(["-m", "m", "-H", "Authorization: Bearer sk-1"], with_secrets=True)
    assert config["server"]["headers"] == {"Authorization": "Bearer sk-1"}
    assert given.warnings == []
