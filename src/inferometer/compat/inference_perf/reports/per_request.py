"""per_request_lifecycle_metrics.json: one entry per request, in the order in which they ended.

`info` has the fields of all releases: nested blocks as of 0.6, and beside them the flat ones that tools for 0.4 read.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.compat.inference_perf.error_types import error_type
from inferometer.compat.inference_perf.reports.failures import error_message
from inferometer.compat.inference_perf.reports.goodput import Objectives, objectives
from inferometer.compat.inference_perf.reports.requests import SERVER, Requests
from inferometer.compat.inference_perf.spec import Spec
from inferometer.units import NS

NAME = "per_request_lifecycle_metrics.json"
FIELDS = {"request": True, "response": True, "info": True, "response_chunks": True, "computed_metrics": False}
"""report.request_lifecycle.per_request_fields and its defaults."""
_BLOCK = 4096
"""Entries that exist as Python objects at a time: they take many times the space of their JSON."""
_COMPUTED = (
    "request_latency",
    "normalized_time_per_output_token",
    "time_to_first_token",
    "time_per_output_token",
    "inter_token_latency",
)
_COLUMNS = (
    "id",
    "stage",
    "chunk_start",
    "chunk_count",
    "failure",
    "attempts",
    "cached",
    "session",
    "turn",
    "class",
    "counted_by",
)


class PerRequest:
    """The file, which is made piece by piece as it is written. Its length is the number of entries."""

    def __init__(self, requests: Requests, spec: Spec) -> None:
        self._requests, self._spec = requests, spec

    def __len__(self) -> int:
        return len(self._requests.end)

    def __iter__(self) -> Iterator[bytes]:
        fields = FIELDS | (self._spec["report"]["request_lifecycle"].get("per_request_fields") or {})
        entries = _Entries(self._requests, self._spec, fields)
        order = np.argsort(self._requests.end, kind="stable")
        for at in range(0, len(order), _BLOCK):
            text = msgspec.json.format(msgspec.json.encode(list(entries.of(order[at : at + _BLOCK]))), indent=2)
            yield b",\n" if at else b"[\n"
            yield text[len(b"[\n") : -len(b"\n]")]
        yield b"\n]" if len(order) else b"[\n\n]"

    def __bytes__(self) -> bytes:
        return b"".join(self)


Content = bytes | PerRequest
"""Of a file."""


class _Entries:
    """Builds the entries of requests."""

    def __init__(self, requests: Requests, spec: Spec, fields: dict[str, bool]) -> None:
        self._requests, self._fields = requests, fields
        self._objectives: Objectives = objectives(spec)
        self._has_adapters = bool(spec["load"].get("lora_traffic_split"))
        pieces = list(requests.run.chunks())
        empty = np.zeros(0, np.int64)
        self._arrival = np.concatenate([empty, *(piece.arrival for piece in pieces)])
        self._tokens = np.concatenate([empty, *(piece.tokens for piece in pieces)])

    def of(self, chosen: NDArray[np.int64]) -> Iterator[dict[str, Any]]:
        """The entries of the requests at these indices."""
        requests = self._requests
        values: dict[str, list[Any]] = {name: requests.rows[name][chosen].tolist() for name in _COLUMNS}
        for name in ("start", "end", "ok", "n_in", "n_out", "server_out", "token_times"):
            values[name] = getattr(requests, name)[chosen].tolist()
        values["retried"], values["wasted"] = requests.retried[chosen].tolist(), requests.wasted[chosen].tolist()
        for name in _COMPUTED:
            values[name] = requests.latencies[name][chosen].tolist()
        names = tuple(values)
        for row in zip(*values.values(), strict=True):
            yield self._entry(dict(zip(names, row, strict=True)))

    def _entry(self, row: dict[str, Any]) -> dict[str, Any]:
        fields = self._fields
        body = self._requests.bodies.get(row["id"])
        entry: dict[str, Any] = {"start_time": row["start"], "end_time": row["end"]}
        if fields["request"]:
            entry["request"] = body.request if body else None
        if fields["response"]:
            entry["response"] = body.response if body else None
        chunks = slice(row["chunk_start"], row["chunk_start"] + row["chunk_count"])
        chunk_times = self._arrival[chunks] / NS
        token_times = chunk_times
        if row["token_times"] > row["chunk_count"]:
            token_times = np.repeat(chunk_times, np.maximum(self._tokens[chunks], 1))
        if fields["info"]:
            entry["info"] = self._info(row, chunk_times.tolist(), token_times.tolist())
        if fields["computed_metrics"] and row["ok"]:
            entry["computed_metrics"] = self._computed(row, token_times)
        entry["error"] = None
        if not row["ok"]:
            failure = self._requests.run.records.failures[row["failure"] - 1]
            entry["error"] = {"error_type": error_type(failure.code), "error_msg": error_message(failure)}
        return entry

    def _info(self, row: dict[str, Any], chunk_times: list[float], token_times: list[float]) -> dict[str, Any]:
        n_in, n_out = _whole(row["n_in"]), _whole(row["n_out"])
        response: dict[str, Any] | None = None
        if row["ok"]:
            response = {"output_tokens": n_out or 0, "server_usage": _usage(row)}
            if self._requests.is_streamed:
                response |= {"response_chunks": []} if self._fields["response_chunks"] else {}
                response |= {"chunk_times": chunk_times, "output_token_times": token_times}
        adapter = self._requests.run.records.classes[row["class"]] if self._has_adapters and row["class"] >= 0 else None
        info = {
            "request_metrics": {"text": {"input_tokens": n_in or 0}, "image": None, "video": None, "audio": None},
            "response_metrics": response,
            "extra_info": self._extra_info(row),
            "lora_adapter": adapter,
            "labels": {},
            "graph_event_id": None,
            "input_tokens": n_in or 0,
            "output_tokens": n_out or 0,
            "output_token_times": token_times if self._requests.is_streamed else [],
        }
        if row["retried"]:
            info |= {
                "retries_attempted": max(row["attempts"] - 1, 1),
                "retries_recovered": row["ok"],
                "retry_wasted_sec": _known(row["wasted"]),
            }
        return info

    def _extra_info(self, row: dict[str, Any]) -> dict[str, Any]:
        """The user and the number of the turn, from 1; nothing for a request that does not belong to a conversation."""
        if row["turn"] < 0:
            return {}
        stage = self._requests.run.manifest.plan[row["stage"]]
        user = row["session"] - stage.first_id if stage.users else row["session"]
        return {"user_session": f"user_session_{user}", "chat_round": row["turn"] + 1}

    def _computed(self, row: dict[str, Any], token_times: NDArray[np.float64]) -> dict[str, Any]:
        gaps = np.diff(token_times).tolist() if self._requests.is_streamed else []
        return {name: _known(row[name]) for name in _COMPUTED} | {
            "inter_token_latencies": gaps,
            "input_tokens": _whole(row["n_in"]),
            "output_tokens": _whole(row["n_out"]),
            "ttft_slo_sec": self._objectives.ttft_header,
            "tpot_slo_sec": self._objectives.tpot_header,
        }


def _usage(row: dict[str, Any]) -> dict[str, Any] | None:
    """The server's usage, as far as it is recorded; None if the server did not count."""
    if row["counted_by"] != SERVER:
        return None
    n_in, n_out = _whole(row["n_in"]), _whole(row["server_out"])
    usage: dict[str, Any] = {
        "prompt_tokens": n_in,
        "completion_tokens": n_out,
        "total_tokens": (n_in or 0) + (n_out or 0),
    }
    if row["cached"] >= 0:
        usage["prompt_tokens_details"] = {"cached_tokens": row["cached"]}
    return usage


def _known(value: float) -> float | None:
    return None if value != value else value  # noqa: PLR0124 - NaN is missing


def _whole(value: float) -> int | None:
    return None if value != value else int(value)  # noqa: PLR0124
