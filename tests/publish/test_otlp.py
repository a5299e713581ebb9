"""Spans and metrics of whole runs, sent to a receiver of OTLP that works, or does not."""

import socket
import ssl
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("opentelemetry.proto")

import grpc
import grpc_peers
import trustme
from command import cli
from helpers import STREAM, Client, http_response, measure, polite, scripted
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from otlp_receiver import RECEIVERS, Received, http_receiver

from inferometer.conduct import measuring
from inferometer.config import from_mapping
from inferometer.errors import UserError
from inferometer.publish import otlp, otlp_transport
from inferometer.records import MISSING, Run

pytestmark = pytest.mark.otlp

OFFSET = 1_700_000_000 * 10**9
"""Wall clock minus monotonic clock in these tests."""
LOAD = {"type": "closed", "concurrency": 2, "requests": 20, "ramp_up": 0}


@pytest.fixture(autouse=True)
def one_offset_of_the_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (measuring, otlp):
        monkeypatch.setattr(module, "wall_offset", lambda: OFFSET)


def exported(folder: Path, url: str, receiver: str, **more: Any) -> Run:
    """Make a run of 20 requests with an export to the receiver."""
    settings = {"url": receiver} | more.pop("otlp", {})
    run, _ = measure(folder, url, export={"otlp": settings}, **{"load": LOAD} | more)
    return run


class Recording:
    """A server that notes the headers of POST requests, and sends the same body to all."""

    def __init__(self, body: bytes = STREAM) -> None:
        self._body = body
        self.headers: list[dict[str, str]] = []

    def __call__(self, client: Client) -> None:
        while request := client.request():
            if request[0].startswith("POST"):
                self.headers.append(request[1])
            client.send(http_response(self._body))


def values(span: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}


def by_id(received: Received) -> dict[int, Span]:
    spans = {int(values(span)["inferometer.request_id"].rpartition("-")[2], 16): span for span in received.spans}
    assert len(spans) == len(received.spans), "each request has one span"
    return spans


@pytest.mark.parametrize("protocol", RECEIVERS)
def test_every_request_is_a_span_with_the_recorded_times(tmp_path: Path, protocol: str) -> None:
    with scripted(polite) as url, RECEIVERS[protocol]() as (receiver, received):
        run = exported(tmp_path, url, receiver)
    assert not run.manifest.observer_errors
    spans = by_id(received)
    rows = run.records.rows
    assert sorted(spans) == sorted(rows["id"].tolist())
    for row in rows:
        span = spans[row["id"]]
        t0 = run.manifest.t0_wall_ns
        assert span.start_time_unix_nano == t0 + row["sent"]
        assert span.end_time_unix_nano == t0 + row["done"]
        assert [(event.name, event.time_unix_nano) for event in span.events] == [
            ("first_token", t0 + row["first_token"])
        ]
        own = values(span)
        assert own.pop("inferometer.ttft_s") == pytest.approx((row["first_token"] - row["sent"]) / 1e9)
        assert own.pop("inferometer.lag_s") == pytest.approx((row["sent"] - row["intended"]) / 1e9)
        assert own.pop("inferometer.request_id").endswith(f"-{row['id']:012x}")
        assert own == {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": "m",
            "gen_ai.usage.input_tokens": 5,
            "gen_ai.usage.output_tokens": 2,
            "server.address": "127.0.0.1",
            "server.port": int(url.rpartition(":")[2]),
            "http.response.status_code": 200,
            "inferometer.run": run.folder.name,
            "inferometer.stage": "1 closed 2",
        }
        assert (span.name, span.kind) == ("chat m", Span.SPAN_KIND_CLIENT)
        assert span.status.code == Status.STATUS_CODE_UNSET
    assert len({(span.trace_id, span.span_id) for span in spans.values()}) == len(spans)
    assert values(received.traces[0].resource_spans[0].resource)["service.name"] == "inferometer"


def test_traffic_classes_and_stages_are_in_the_spans(tmp_path: Path) -> None:
    prompts = {"type": "prompts", "prompts": ["hello"], "output": 2}
    classes = [{"name": "small", "data": prompts}, {"name": "large", "data": prompts, "model": "other"}]
    stages = {"stages": [{"type": "closed", "concurrency": 1, "requests": 10, "name": name} for name in ("a", "b")]}
    with scripted(polite) as url, http_receiver() as (receiver, received):
        run = exported(tmp_path, url, receiver, load=stages, data={"type": "mix", "classes": classes})
    spans = by_id(received)
    for row in run.records.rows:
        own, name = values(spans[row["id"]]), run.records.classes[row["class"]]
        assert own["inferometer.class"] == name and own["inferometer.stage"] == "ab"[row["stage"]]
        assert own["gen_ai.request.model"] == {"small": "m", "large": "other"}[name]


def failing(client: Client) -> None:
    """Respond to the first request of a connection with an error, and to others with a stream."""
    number = 0
    while client.request():
        broken = b'HTTP/1.1 500 Oops\r\nContent-Length: 24\r\n\r\n{"error": "out of order"}'[:-1]
        client.send(broken if number == 0 else http_response())
        number += 1


def test_failed_requests_are_spans_with_an_error(tmp_path: Path) -> None:
    with scripted(failing) as url, http_receiver() as (receiver, received):
        run = exported(tmp_path, url, receiver)
    spans, failures = by_id(received), run.records.failures
    failed = run.records.rows[run.records.rows["failure"] > 0]
    assert len(failed) >= 2
    for row in failed:
        span, reason = spans[row["id"]], failures[row["failure"] - 1]
        assert span.status.code == Status.STATUS_CODE_ERROR and span.status.message == reason.message
        own = values(span)
        assert own["error.type"] == reason.code == "http_500" and own["http.response.status_code"] == 500
    assert sum(span.status.code == Status.STATUS_CODE_ERROR for span in spans.values()) == len(failed)


def test_a_request_that_was_never_sent_has_a_span_at_its_intended_instant(tmp_path: Path) -> None:
    load = {"type": "constant", "rate": 200, "duration": "200ms", "max_concurrency": 1, "when_full": "drop"}

    def slow(client: Client) -> None:
        while client.request():
            time.sleep(0.05)
            client.send(http_response())

    with scripted(slow) as url, http_receiver() as (receiver, received):
        run = exported(tmp_path, url, receiver, load=load)
    rows = run.records.rows
    dropped = rows[rows["sent"] == MISSING]
    assert len(dropped)
    for row in dropped:
        span = by_id(received)[row["id"]]
        assert span.start_time_unix_nano == run.manifest.t0_wall_ns + row["intended"]
        assert values(span)["error.type"] == "dropped" and "inferometer.lag_s" not in values(span)


@pytest.mark.parametrize("protocol", RECEIVERS)
def test_metrics_count_what_the_records_have(tmp_path: Path, protocol: str) -> None:
    with scripted(polite) as url, RECEIVERS[protocol]() as (receiver, received):
        run = exported(tmp_path, url, receiver, otlp={"spans": False})
    assert not received.spans
    metrics, rows = received.last_metrics, run.records.rows
    (completed,) = metrics["inferometer_requests_completed"].sum.data_points
    assert completed.as_int == len(rows) and values(completed)["stage"] == "1 closed 2"
    (e2e,) = metrics["inferometer_e2e_seconds"].histogram.data_points
    seconds = (rows["done"] - rows["sent"]) / 1e9
    assert e2e.count == len(rows) and e2e.sum == pytest.approx(seconds.sum())
    counts = np.histogram(seconds, [-np.inf, *e2e.explicit_bounds, np.inf])[0]
    assert list(e2e.bucket_counts) == counts.tolist()
    assert metrics["inferometer_e2e_seconds"].unit == "s"
    assert metrics["inferometer_in_flight"].gauge.data_points[0].as_double == 0


def test_metrics_may_be_left_out(tmp_path: Path) -> None:
    with scripted(polite) as url, http_receiver() as (receiver, received):
        exported(tmp_path, url, receiver, otlp={"metrics": False})
    assert not received.metrics and len(received.spans) == 20


def test_paths_are_added_unless_they_are_given(tmp_path: Path) -> None:
    with scripted(polite) as url, http_receiver() as (receiver, received):
        exported(tmp_path, url, f"{receiver}/v1/traces")
    assert len(received.spans) == 20 and received.metrics


# --- receivers that do not work ---------------------------------------------------------------------------------------


def nobody() -> str:
    """Return an address at which nobody listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{sock.getsockname()[1]}"


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_a_dead_receiver_costs_a_line_of_the_report(tmp_path: Path, scheme: str, capfd: Any) -> None:
    receiver = f"{scheme}://{nobody()}"
    with scripted(polite) as url:
        began = time.monotonic()
        run = exported(tmp_path, url, receiver)
    assert time.monotonic() - began < 8, "a refused connection is not waited for"
    problem = run.manifest.observer_errors["otlp spans"]
    assert problem.startswith(f"20 of 20 spans were not sent to {receiver}: ") and "onnect" in problem
    assert run.manifest.observer_errors["otlp metrics"].startswith("1 of 1 messages were not sent")
    assert len(run.records.rows) == 20 and not run.records.failures
    assert capfd.readouterr() == ("", "")


def test_a_dead_receiver_is_no_error_of_the_command(tmp_path: Path) -> None:
    few = ("--model", "m", "--requests", "5", "--concurrency", "1", "--prompt", "hello", "--output", "2")
    with scripted(polite) as url:
        output = ("--set", f"output={tmp_path}", "--set", "client.probe=false")
        receiver = f"grpc://{nobody()}"
        result = cli("run", url, *few, *output, "--otlp", receiver)
    assert result.status in (0, 1), "a busy machine may fail a check"
    warning = f"{receiver}: cannot connect: Connection refused; what is sent there will be lost\n"
    assert result.err.count(warning) == 1
    assert "rror" not in result.err and "grpc" not in result.err.replace(warning, "")
    assert " 5 ok   0 failed" in result.out and "observer otlp spans: 5 of 5 spans were not sent" in result.out


def test_a_receiver_with_tls_must_have_a_known_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = trustme.CA()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(server)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    seen = Recording(b"")
    with scripted(polite) as url, scripted(seen, server) as receiver:
        unknown = exported(tmp_path, url, receiver)
        assert not seen.headers
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        known = exported(tmp_path, url, receiver)
    assert "certificate is not accepted" in unknown.manifest.observer_errors["otlp spans"]
    assert not known.manifest.observer_errors and len(seen.headers) == 2


@pytest.mark.parametrize("protocol", RECEIVERS)
def test_a_receiver_that_refuses_everything_is_in_the_report(tmp_path: Path, protocol: str) -> None:
    with scripted(polite) as url, RECEIVERS[protocol](lambda _: 503) as (receiver, received):
        run = exported(tmp_path, url, receiver)
    problem = run.manifest.observer_errors["otlp spans"]
    assert problem.startswith("20 of 20 spans") and "out of order" in problem
    assert not received.spans and received.messages <= 3, "it is not tried over and over"


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_a_receiver_that_never_responds_is_given_up_at_the_deadline(tmp_path: Path, scheme: str) -> None:
    def hang(client: Client) -> None:
        client.request()
        time.sleep(60)

    with scripted(polite) as url, scripted(hang) as receiver:
        began = time.monotonic()
        run = exported(tmp_path, url, receiver.replace("http", scheme), otlp={"timeout": "300ms"})
        took = time.monotonic() - began
    problem = run.manifest.observer_errors["otlp spans"]
    assert problem.startswith("20 of 20 spans were not sent")
    assert any(reason in problem for reason in ("no response", "DEADLINE", "no time left"))
    assert took < 10 and len(run.records.rows) == 20
    assert "did not end" not in str(run.manifest.observer_errors)


@pytest.mark.parametrize("protocol", RECEIVERS)
def test_spans_wait_for_a_receiver_that_comes_back(
    tmp_path: Path, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The spool keeps them, so nothing is lost."""
    monkeypatch.setattr(otlp, "_MOST_SPANS", 7)
    monkeypatch.setattr(otlp, "_FIRST_PAUSE", 0.05)
    monkeypatch.setattr(otlp.OtlpExport, "interval", 0.1)
    load = {"type": "constant", "rate": 40, "duration": "1s"}
    with (
        scripted(polite) as url,
        RECEIVERS[protocol](lambda number: 503 if 1 <= number < 3 else 200) as (receiver, received),
    ):
        run = exported(tmp_path, url, receiver, load=load, otlp={"metrics": False})
    assert not run.manifest.observer_errors
    assert sorted(by_id(received)) == list(range(40))


@pytest.mark.parametrize("protocol", RECEIVERS)
def test_losses_are_counted_exactly_when_the_receiver_breaks_midway(
    tmp_path: Path, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otlp, "_MOST_SPANS", 7)
    with (
        scripted(polite) as url,
        RECEIVERS[protocol](lambda number: 200 if number < 2 else 503) as (receiver, received),
    ):
        run = exported(tmp_path, url, receiver, otlp={"metrics": False})
    assert 0 < len(received.spans) < 20
    assert run.manifest.observer_errors["otlp spans"].startswith(f"{20 - len(received.spans)} of 20 spans")


def test_a_message_that_the_receiver_rejects_is_lost_and_the_next_one_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otlp.OtlpExport, "interval", 0.1)
    monkeypatch.setattr(otlp, "_FIRST_PAUSE", 0.05)
    load = {"type": "constant", "rate": 40, "duration": "1s"}
    with scripted(polite) as url, http_receiver(lambda number: 400 if number == 1 else 200) as (receiver, received):
        run = exported(tmp_path, url, receiver, load=load, otlp={"metrics": False})
    lost = 40 - len(received.spans)
    assert 0 < lost < 40
    assert run.manifest.observer_errors["otlp spans"].startswith(f"{lost} of 40 spans were not sent")
    assert "HTTP 400" in run.manifest.observer_errors["otlp spans"]


def test_a_receiver_of_traces_alone_gets_all_spans(tmp_path: Path) -> None:
    """Its refusal of the metrics must not keep spans back."""
    with scripted(polite) as url, http_receiver(refused="metrics") as (receiver, received):
        run = exported(tmp_path, url, receiver)
    assert len(received.spans) == 20
    assert list(run.manifest.observer_errors) == ["otlp metrics"]


@pytest.mark.parametrize("protocol", RECEIVERS)
def test_spans_that_the_receiver_rejects_are_counted(tmp_path: Path, protocol: str) -> None:
    with scripted(polite) as url, RECEIVERS[protocol](rejected=3) as (receiver, _):
        run = exported(tmp_path, url, receiver)
    assert run.manifest.observer_errors["otlp spans"] == f"3 of 20 spans were not sent to {receiver}: too old"


def test_headers_are_sent_and_stored_nowhere(tmp_path: Path) -> None:
    secret = "a-very-secret-word"
    headers = {"Authorization": f"Bearer {secret}"}
    for protocol, receive in RECEIVERS.items():
        with scripted(polite) as url, receive() as (receiver, received):
            run = exported(tmp_path / protocol, url, receiver, otlp={"headers": headers})
        assert {name.lower(): value for name, value in received.headers[0].items()}["authorization"].endswith(secret)
        assert not [file for file in run.folder.rglob("*") if file.is_file() and secret.encode() in file.read_bytes()]


# --- traceparent -----------------------------------------------------------------------------------------------------


def traced(spans: dict[int, Span]) -> set[str]:
    return {f"00-{span.trace_id.hex()}-{span.span_id.hex()}-01" for span in spans.values()}


def test_http_requests_carry_the_trace_of_their_span(tmp_path: Path) -> None:
    server = Recording()
    with scripted(server) as url, http_receiver() as (receiver, received):
        exported(tmp_path, url, receiver, otlp={"traceparent": True}, client={"processes": 2})
    spans = by_id(received)
    by_request = {headers["x-request-id"]: headers["traceparent"] for headers in server.headers}
    assert len(by_request) == 20 and set(by_request.values()) == traced(spans)
    for name, header in by_request.items():
        assert spans[int(name.rpartition("-")[2], 16)].trace_id.hex() == header.split("-")[1]


def test_each_turn_of_a_session_has_its_own_trace(tmp_path: Path) -> None:
    server = Recording()
    data = {"type": "conversation", "turns": 3, "input": 5, "output": 2}
    with scripted(server) as url, http_receiver() as (receiver, received):
        exported(
            tmp_path,
            url,
            receiver,
            otlp={"traceparent": True},
            data=data,
            load={"type": "closed", "concurrency": 2, "requests": 12, "unit": "requests"},
            sessions={"header": "X-Session"},
        )
    assert {headers["traceparent"] for headers in server.headers} == traced(by_id(received))
    assert all("x-session" in headers for headers in server.headers)


def test_grpc_calls_carry_the_trace_of_their_span(tmp_path: Path) -> None:
    seen: list[str] = []

    def unary(message: bytes, context: grpc.ServicerContext) -> bytes:
        seen.append(dict(context.invocation_metadata())["traceparent"])
        return message

    with grpc_peers.grpcio(Unary=unary) as url, http_receiver() as (receiver, received):
        run, _ = grpc_peers.run(tmp_path, url, export={"otlp": {"url": receiver, "traceparent": True}})
    spans = by_id(received)
    assert len(seen) == len(run.records.rows) and set(seen) == traced(spans)
    assert {span.name for span in spans.values()} == {"t.S/Unary"}
    assert run.records.rows["bytes_out"].min() > 70


def test_requests_carry_no_trace_unless_asked_for(tmp_path: Path) -> None:
    server = Recording()
    with scripted(server) as url:
        exported(tmp_path, url, f"http://{nobody()}")
    assert server.headers and not [headers for headers in server.headers if "traceparent" in headers]


# --- what the user got wrong -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["127.0.0.1:4318", "ftp://host", "http://", "grpc://host:4317/path", "http://host:x"])
def test_a_malformed_url_is_an_error_before_the_run(tmp_path: Path, url: str) -> None:
    with scripted(polite) as server, pytest.raises(UserError) as raised:
        exported(tmp_path, server, url)
    assert raised.value.key == "export.otlp.url" and "grpc://HOST:4317" in raised.value.remedy


@pytest.mark.parametrize(
    ("sections", "key"),
    [
        ({"server": {"headers": {"TraceParent": "00-0-0-01"}}}, "server.headers"),
        (
            {"server": {"url": "grpc://h", "stream": "persistent"}, "data": {"type": "tensors"}},
            "export.otlp.traceparent",
        ),
    ],
)
def test_a_request_cannot_have_two_traces_or_share_one(sections: dict[str, Any], key: str) -> None:
    tree = {"server": {"url": "http://h"}, "load": LOAD, "export": {"otlp": {"url": "http://r", "traceparent": True}}}
    tree["server"] |= sections.pop("server")
    with pytest.raises(UserError) as raised:
        from_mapping(tree | sections)
    assert raised.value.key == key


def test_data_with_a_traceparent_of_its_own_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"prompt": "hello", "headers": {"traceparent": "00-0-0-01"}}\n')
    with scripted(polite) as url, pytest.raises(UserError, match="already has a traceparent header"):
        exported(
            tmp_path / "runs",
            url,
            f"http://{nobody()}",
            otlp={"traceparent": True},
            data={"type": "jsonl", "path": str(file), "output": 2},
        )


def test_a_missing_extra_is_an_error_that_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("opentelemetry.proto")]:
        monkeypatch.setitem(sys.modules, name, None)
    for name in ("conduct.otlp", *(f"publish.{name}" for name in ("otlp", "otlp_transport", "otlp_metrics", "spans"))):
        monkeypatch.delitem(sys.modules, f"inferometer.{name}", raising=False)
    with scripted(polite) as url, pytest.raises(UserError) as raised:
        exported(tmp_path, url, "http://127.0.0.1:4318")
    assert raised.value.remedy == "pip install 'inferometer[otlp]'"


def test_grpc_without_grpcio_is_an_error_that_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(UserError, match="needs grpcio") as raised:
        otlp_transport.connect("grpc://127.0.0.1:4317", {})
    assert "pip install 'inferometer[otlp]'" in raised.value.remedy
