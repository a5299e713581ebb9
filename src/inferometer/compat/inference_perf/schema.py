"""inference-perf's config keys (release 0.7, and those of later versions that are known): kind, default, and what each does here.

The table of docs/reference/inference-perf.md is made from this one (tools/inference_perf_keys.py).
"""

import os
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from inferometer.compat.inference_perf.data_keys import (
    COUNT,
    DATA,
    FROM_0,
    NO_SESSIONS,
    NOT_NEGATIVE,
    POSITIVE,
    REAL,
    TRACE,
    WHOLE,
)
from inferometer.compat.inference_perf.kinds import (
    LATER,
    REQUIRED,
    Choice,
    Either,
    Flag,
    Items,
    Key,
    Kind,
    Map,
    Number,
    Section,
    Text,
)
from inferometer.compat.inference_perf.spec import Spec
from inferometer.errors import UserError


def timestamp() -> str:
    """The local time as `{timestamp}` in a path."""
    return f"{datetime.now():%Y%m%d-%H%M%S}"


_API = Section(
    {
        "type": Key(
            kind=Choice(("completion", "chat", "anthropic_messages", "embeddings")),
            default="completion",
            runs="`server.api`; embeddings are refused",
        ),
        "streaming": Key(kind=Flag(), default=False, runs="`server.stream`"),
        "headers": Key(kind=Map(Text()), is_secret=True, runs="`server.headers`; the values are not stored"),
        "slo_unit": Key(kind=Choice(("s", "ms", "us")), runs="the unit of objectives in headers; default ms"),
        "slo_ttft_header": Key(kind=Text(), runs="the header of the TTFT objective; default `x-slo-ttft-UNIT`"),
        "slo_tpot_header": Key(kind=Text(), runs="the header of the TPOT objective; default `x-slo-tpot-UNIT`"),
        "response_format": Key(
            kind=Section(
                {
                    "type": Key(
                        kind=Choice(("json_schema", "json_object")),
                        default="json_schema",
                        runs="`server.body.response_format`",
                    ),
                    "name": Key(kind=Text(), default="structured_output", runs="`server.body.response_format`"),
                    "json_schema": Key(kind=Map(), runs="`server.body.response_format`"),
                }
            ),
            runs="`server.body.response_format`",
        ),
        "session_id_header_key": Key(kind=Text(), runs="a header with the session's id"),
        "session_token_header_key": Key(kind=Text(), runs="`sessions.token_header`"),
        "embeddings": Key(
            kind=Section(
                {
                    "batch_size": Key(kind=COUNT, refused=LATER),
                    "dimensions": Key(kind=COUNT, refused=LATER),
                    "encoding_format": Key(kind=Text(), refused=LATER),
                }
            ),
            refused=LATER,
        ),
    }
)

_SERVER = Section(
    {
        "type": Key(
            kind=Choice(("vllm", "sglang", "tgi", "mock")),
            default="vllm",
            runs="the names of the server's metrics; mock is refused",
        ),
        "model_name": Key(kind=Text(), runs="`server.model`; default the first that the server lists"),
        "base_url": Key(kind=Text(), default=REQUIRED, runs="`server.url`"),
        "ignore_eos": Key(kind=Flag(), default=True, runs="`server.ignore_eos`"),
        "api_key": Key(kind=Text(), is_secret=True, runs="the API key, which is never logged or stored"),
        "cert_path": Key(kind=Text(), runs="`server.tls.cert`"),
        "key_path": Key(kind=Text(), runs="`server.tls.key`"),
    }
)

_TOKENIZER = Section(
    {
        "pretrained_model_name_or_path": Key(kind=Text(), runs="`data.tokenizer`; default the model's name"),
        "trust_remote_code": Key(
            kind=Flag(), takes_null=True, runs="no effect: a tokenizer's files are read, and its code is never executed"
        ),
        "token": Key(kind=Text(), is_secret=True, runs="the hub's token, which is never logged or stored"),
        "load_timeout": Key(
            kind=POSITIVE, default=300.0, takes_null=True, runs="300 or null only: a tokenizer loads without a limit"
        ),
    }
)

_METRICS = Section(
    {
        "type": Key(kind=Choice(("prometheus", "default")), default="default", runs="prometheus: with the block below"),
        "prometheus": Key(
            kind=Section(
                {
                    "url": Key(kind=Text(), runs="`observe.promql.url`"),
                    "scrape_interval": Key(kind=COUNT, default=15, runs="the wait before the last query"),
                    "filters": Key(kind=Items(Text()), default=[], runs="label matchers of each query"),
                    "google_managed": Key(
                        kind=Flag(), default=False, refused="Google's managed Prometheus cannot be queried"
                    ),
                    "bearer_token": Key(kind=Text(), is_secret=True, refused=LATER),
                    "verify_ssl": Key(kind=Flag(), refused=LATER),
                    "headers": Key(kind=Map(Text()), is_secret=True, refused=LATER),
                }
            ),
            runs="`observe.promql`",
        ),
    }
)

_RATE_STAGE = Section(
    {
        "rate": Key(
            kind=Either((POSITIVE, Text())), default=REQUIRED, runs="`rate` of the stage; an expression in t is refused"
        ),
        "duration": Key(kind=COUNT, default=REQUIRED, runs="`duration` of the stage"),
        "num_requests": Key(kind=COUNT, runs="an error for these loads, as in inference-perf"),
        "concurrency_level": Key(kind=COUNT, runs="an error for these loads, as in inference-perf"),
        "stop_condition": Key(kind=Text(), refused=LATER),
        "request_interval": Key(kind=Either((REAL, Text())), refused=LATER),
    }
)
_CONCURRENT_STAGE = Section(
    {
        "num_requests": Key(kind=COUNT, default=REQUIRED, runs="`requests` of the stage"),
        "concurrency_level": Key(kind=COUNT, default=REQUIRED, runs="`concurrency` of the stage"),
        "rate": Key(kind=REAL, runs="overwritten, as in inference-perf"),
        "duration": Key(kind=Number(), runs="overwritten, as in inference-perf"),
    }
)
_SESSION_STAGE = Section(
    {
        "concurrent_sessions": Key(kind=FROM_0, default=REQUIRED, refused=NO_SESSIONS),
        "num_sessions": Key(kind=COUNT, refused=NO_SESSIONS),
        "session_rate": Key(kind=POSITIVE, refused=NO_SESSIONS),
        "timeout": Key(kind=POSITIVE, refused=NO_SESSIONS),
        "max_stage_duration": Key(kind=POSITIVE, refused=NO_SESSIONS),
    }
)
STAGES = {
    "constant": _RATE_STAGE,
    "poisson": _RATE_STAGE,
    "trace_replay": _RATE_STAGE,
    "concurrent": _CONCURRENT_STAGE,
    "trace_session_replay": _SESSION_STAGE,
}
"""The keys of a stage by load.type."""

_LOAD = Section(
    {
        "type": Key(kind=Choice(tuple(STAGES)), default="constant", runs="`load`; trace_session_replay is refused"),
        "interval": Key(kind=NOT_NEGATIVE, default=1.0, runs="`load.pause` between stages"),
        "stages": Key(
            kind=Items(Either((_RATE_STAGE, _CONCURRENT_STAGE, _SESSION_STAGE))), default=[], runs="`load.stages`"
        ),
        "sweep": Key(
            kind=Section(
                {
                    "type": Key(
                        kind=Choice(("linear", "geometric")), default=REQUIRED, runs="how the rates are spaced"
                    ),
                    "num_requests": Key(kind=COUNT, default=2000, runs="the requests of the search"),
                    "timeout": Key(kind=POSITIVE, default=60.0, runs="the time limit of the search"),
                    "num_stages": Key(kind=COUNT, default=5, runs="the number of stages"),
                    "stage_duration": Key(kind=COUNT, default=180, runs="`duration` of each stage"),
                    "saturation_percentile": Key(
                        kind=Number(least=0, most=100), default=95.0, runs="the percentile of the rates"
                    ),
                }
            ),
            runs="a search for the saturation, then stages",
        ),
        "num_workers": Key(
            kind=FROM_0,
            default=lambda: max(1, os.cpu_count() or 1),
            runs="limits the concurrency with `worker_max_concurrency`",
        ),
        "worker_max_concurrency": Key(
            kind=FROM_0, default=100, runs="`max_concurrency` of a stage, times `num_workers`"
        ),
        "worker_max_tcp_connections": Key(
            kind=FROM_0, default=2500, runs="the most connections, times `num_workers`, if it is not the default"
        ),
        "trace": Key(kind=TRACE, runs="the times of requests"),
        "circuit_breakers": Key(kind=Items(Text()), default=[], runs="the breakers that end a stage"),
        "request_timeout": Key(kind=POSITIVE, runs="`server.timeouts.total`; default 300 s"),
        "request_retries": Key(kind=FROM_0, default=0, runs="`client.retries`"),
        "request_retry_backoff_sec": Key(kind=NOT_NEGATIVE, default=0.5, runs="`client.retry_backoff`"),
        "stage_teardown_grace_seconds": Key(kind=NOT_NEGATIVE, default=120.0, runs="`client.grace`"),
        "lora_traffic_split": Key(
            kind=Items(
                Section(
                    {
                        "name": Key(kind=Text(), default=REQUIRED, runs="`model` of a traffic class"),
                        "split": Key(kind=REAL, default=REQUIRED, runs="`share` of a traffic class"),
                    }
                )
            ),
            runs="`data.classes`, one per adapter",
        ),
        "base_seed": Key(kind=WHOLE, default=lambda: int(time.time() * 1000), runs="`seed`"),
    }
)


def _switches(runs: str, **defaults: bool) -> dict[str, Key]:
    return {name: Key(kind=Flag(), default=default, takes_null=True, runs=runs) for name, default in defaults.items()}


_REPORT = Section(
    {
        "request_lifecycle": Key(
            kind=Section(
                _switches(
                    "whether the file is written",
                    summary=True,
                    per_stage=True,
                    per_request=False,
                    per_adapter=True,
                    per_adapter_stage=False,
                )
                | {
                    "percentiles": Key(
                        kind=Items(Number(least=0, most=100)),
                        default=[0.1, 1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9],
                        runs="the percentiles of the files",
                    ),
                    "use_server_output_tokens": Key(
                        kind=Flag(), default=False, runs="which count of tokens the figures use"
                    ),
                    "max_error_messages": Key(kind=FROM_0, default=100, runs="the number of messages per failure"),
                    "per_request_fields": Key(
                        kind=Section(
                            _switches(
                                "a field of the per-request file",
                                request=True,
                                response=True,
                                info=True,
                                response_chunks=True,
                                computed_metrics=False,
                            )
                        ),
                        default={},
                        runs="the fields of the per-request file",
                    ),
                }
            ),
            default={},
            runs="the report files",
        ),
        "prometheus": Key(
            kind=Section(_switches("whether the file is written", summary=True, per_stage=False)),
            default={},
            takes_null=True,
            runs="the files of Prometheus figures",
        ),
        "session_lifecycle": Key(
            kind=Section(_switches("whether the file is written", summary=True, per_stage=True, per_session=False)),
            default={},
            takes_null=True,
            runs="the files of session figures",
        ),
        "goodput": Key(
            kind=Section({"constraints": Key(kind=Map(REAL), default=dict, runs="the goodput of the files")}),
            runs="the goodput of the files",
        ),
    }
)

_PLACE = {
    "path": Key(kind=Text(), default=lambda: f"reports-{timestamp()}", runs="where the files are written"),
    "report_file_prefix": Key(kind=Text(), runs="put before each file's name"),
}
_BUCKET = {"bucket_name": Key(kind=Text(), default=REQUIRED, runs="the bucket")} | _PLACE
_STORAGE = Section(
    {
        "local_storage": Key(
            kind=Section(_PLACE), default={}, runs="a folder; the run itself is in its `inferometer/`"
        ),
        "google_cloud_storage": Key(kind=Section(_BUCKET), runs="gs://BUCKET/PATH"),
        "simple_storage_service": Key(
            kind=Section(
                _BUCKET
                | {
                    "endpoint_url": Key(kind=Text(), runs="the endpoint of MinIO and the like"),
                    "region_name": Key(kind=Text(), runs="the region"),
                    "addressing_style": Key(kind=Choice(("auto", "virtual", "path")), runs="path or virtual hosts"),
                }
            ),
            runs="s3://BUCKET/PATH",
        ),
    }
)

_BREAKERS = Items(
    Section(
        {
            "name": Key(kind=Text(), default=REQUIRED, runs="named in `load.circuit_breakers`"),
            "metrics": Key(
                kind=Section(
                    {
                        "matches": Key(
                            kind=Items(Text(), least=1), default=REQUIRED, runs="JMESPath: which requests count"
                        ),
                        "rules": Key(
                            kind=Items(Text()), default=[], takes_null=True, runs="JMESPath: which of them are hits"
                        ),
                    },
                    is_strict=False,
                ),
                default=REQUIRED,
                runs="which requests are hits",
            ),
            "triggers": Key(
                kind=Items(
                    Section(
                        {
                            "type": Key(
                                kind=Choice(("consecutive", "rate_over_window")),
                                default=REQUIRED,
                                runs="what opens the breaker",
                            ),
                            "threshold": Key(
                                kind=Number(least=0), default=REQUIRED, runs="the number or share of hits"
                            ),
                            "window_sec": Key(kind=POSITIVE, runs="the length of the window"),
                            "min_samples": Key(
                                kind=FROM_0, default=0, runs="the least number of requests in the window"
                            ),
                        },
                        is_strict=False,
                    )
                ),
                default=[],
                runs="what opens the breaker",
            ),
        },
        is_strict=False,
    )
)

_OBSERVABILITY = Section(
    {
        "metrics": Key(
            kind=Section(
                {
                    "enabled": Key(kind=Flag(), default=False, refused=LATER),
                    "host": Key(kind=Text(), default="0.0.0.0", refused=LATER),
                    "port": Key(kind=COUNT, default=9464, refused=LATER),
                }
            ),
            refused=LATER,
        )
    }
)

SCHEMA = Section(
    {
        "api": Key(kind=_API, default={}, runs="the API"),
        "data": Key(kind=DATA, default={}, runs="the workload"),
        "load": Key(kind=_LOAD, default={}, runs="the load"),
        "metrics": Key(kind=_METRICS, runs="the server's own figures"),
        "report": Key(kind=_REPORT, default={}, runs="the report files"),
        "storage": Key(
            kind=_STORAGE,
            default={},
            takes_null=True,
            runs="where the files are written; null: only to standard output",
        ),
        "server": Key(kind=_SERVER, runs="the server; a run needs it"),
        "tokenizer": Key(kind=_TOKENIZER, runs="the tokenizer"),
        "circuit_breakers": Key(kind=_BREAKERS, runs="breakers that end a stage"),
        "observability": Key(kind=_OBSERVABILITY, refused=LATER),
        "compat": Key(
            kind=Choice(("right", "exact")),
            default="right",
            runs="a key of Inferometer: exact repeats inference-perf's flaws",
        ),
    }
)

SECRETS = (
    ("api", "headers"),
    ("server", "api_key"),
    ("tokenizer", "token"),
    ("metrics", "prometheus", "bearer_token"),
    ("metrics", "prometheus", "headers"),
)
"""Keys whose values are never logged or stored."""


def refuse(spec: Spec) -> None:
    """Raise UserError for the first key that is set and that the schema refuses. A value that is the default counts as not set."""
    for path, key in _set_keys(spec, SCHEMA, (), spec["load"]["type"]):
        if key.refused:
            raise UserError(
                f"not supported: {key.refused}", "leave it out, or run this config with inference-perf", ".".join(path)
            )


def _set_keys(tree: Any, kind: Kind, path: tuple[str, ...], load_type: str) -> Iterator[tuple[tuple[str, ...], Key]]:
    if path == ("load", "stages"):
        kind = Items(STAGES[load_type])
    if isinstance(kind, Either):
        kind = next((each for each in kind.kinds if isinstance(each, Section)), kind)
    if isinstance(kind, Items) and isinstance(tree, list):
        for number, value in enumerate(tree):
            yield from _set_keys(value, kind.of, (*path, str(number)), load_type)
    if not isinstance(kind, Section) or not isinstance(tree, dict):
        return
    for name, key in kind.keys.items():
        value = tree.get(name)
        if value is not None and value != key.default_value():
            yield (*path, name), key
            yield from _set_keys(value, key.kind, (*path, name), load_type)
