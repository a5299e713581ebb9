"""Spans of whole runs, sent to Arize Phoenix over HTTP and gRPC and read back from it."""

import json
import urllib.request
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from helpers import measure, polite, scripted
from real_server import started
from waiting import until

pytestmark = [pytest.mark.phoenix, pytest.mark.otlp]


@pytest.fixture(scope="module")
def phoenix() -> Iterator[dict[str, Any]]:
    with started("phoenix") as urls:
        yield urls


def spans_of(phoenix: dict[str, Any], run: str) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"{phoenix['spans']}?limit=1000") as response:
        return [span for span in json.load(response)["data"] if span["attributes"]["inferometer.run"] == run]


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_phoenix_has_every_request_as_a_span_of_a_language_model(
    tmp_path: Path, phoenix: dict[str, Any], protocol: str
) -> None:
    with scripted(polite) as url:
        run, _ = measure(
            tmp_path,
            url,
            load={"type": "closed", "concurrency": 4, "requests": 200},
            export={"otlp": {"url": phoenix[protocol], "metrics": False}},
        )
    assert not run.manifest.observer_errors
    until(lambda: len(spans_of(phoenix, run.folder.name)) >= 200, "Phoenix stores spans after it has responded")
    spans = spans_of(phoenix, run.folder.name)
    ids = [int(span["attributes"]["inferometer.request_id"].rpartition("-")[2], 16) for span in spans]
    assert sorted(ids) == sorted(run.records.rows["id"].tolist())
    sent = dict(zip(run.records.rows["id"].tolist(), run.records.rows["sent"].tolist(), strict=True))
    for id, span in zip(ids, spans, strict=True):
        assert span["name"] == "chat m" and span["span_kind"] == "LLM"
        assert span["attributes"]["llm.token_count.completion"] == 2
        assert [event["name"] for event in span["events"]] == ["first_token"]
        start = datetime.fromisoformat(span["start_time"]).timestamp() * 1e9
        assert start == pytest.approx(run.manifest.t0_wall_ns + sent[id], abs=1e6)
