"""Scraping endpoints that are healthy, slow, dead or something else."""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence

import pytest
from helpers import Client, http_response, scripted

from inferometer.config.schema import Server
from inferometer.errors import UserError
from inferometer.observe import metrics_endpoints, scrape
from inferometer.observe.observer import Observer, Observers
from inferometer.observe.scrape import Endpoint, Scrape, fetch
from inferometer.probe.connect import Peer
from inferometer.probe.kserve import ModelFacts
from inferometer.probe.reach import Reached
from inferometer.series import TimeSeries
from inferometer.wire.kserve.control import ModelMetadata, ServerMetadata
from inferometer.wire.target import parse

PAGE = """# TYPE requests_total counter
requests_total {n}
# TYPE waiting gauge
waiting {w}
# TYPE e2e histogram
e2e_bucket{{le="1"}} {n}
e2e_bucket{{le="+Inf"}} {n}
e2e_sum {n}.5
e2e_count {n}
nothing NaN
up{{job="x"}} 1
"""


def endpoint(url: str, path: str = "/metrics") -> Endpoint:
    return Endpoint(Peer(parse(url)), path, f"{url}{path}")


def pages(*contents: str) -> Callable[[Client], None]:
    """Return a script that responds with these pages, one per connection; the last one again and again."""

    def script(client: Client) -> None:
        if client.request():
            client.send(http_response(contents[min(client.number, len(contents) - 1)].encode()))

    return script


def page(n: int, w: int = 0) -> str:
    return PAGE.format(n=n, w=w)


def values(series: Sequence[TimeSeries], name: str, **labels: str) -> list[float]:
    chosen = [each for each in series if each.name == name and labels.items() <= each.labels.items()]
    return [value for each in chosen for value in each.value.tolist()]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Read often, and wait for as long as a busy machine takes."""
    monkeypatch.setattr(fetch, "__defaults__", (30.0,))
    monkeypatch.setattr(scrape, "_READ_EVERY_S", 0.001)
    yield


@pytest.mark.usefixtures("quick")
def test_samples_are_stored_when_they_change_and_buckets_at_marks() -> None:
    script = pages(page(0), page(0), page(1, 5), page(2, 5), page(3), page(4), page(4))
    with scripted(script) as url:
        watch = Scrape(endpoint(url), 1)
        watch.start()
        watch.sample()
        watch.mark(1)
        watch.sample()
        series = watch.end()
    assert values(series, "up") == [1] * 7
    assert values(series, "requests_total") == values(series, "e2e_count") == [0, 1, 2, 3, 4]
    assert values(series, "waiting") == [0, 5, 0]
    assert values(series, "e2e_bucket", le="1") == [0, 2, 4]
    assert values(series, "nothing") == []
    assert {each.labels["target"] for each in series} == {f"{url}/metrics"}
    assert {each.source for each in series} == {"prometheus"}
    assert watch.problems() == {}


@pytest.mark.usefixtures("quick")
def test_a_series_that_leaves_the_page_has_no_value_until_it_comes_back() -> None:
    first, second = 'running{engine="a"} 8\nb_bucket{le="1"} 2\n', 'running{engine="b"} 8\nb_bucket{le="2"} 2\n'
    with scripted(pages(first, first, second, second, "", first)) as url:
        watch = Scrape(endpoint(url), 1)
        watch.start()
        watch.sample()
        watch.mark(1)
        watch.sample()
        series = watch.end()
    assert str(values(series, "running", engine="a")) == "[8.0, nan, 8.0]"
    assert str(values(series, "running", engine="b")) == "[8.0, nan]"
    assert str(values(series, "b_bucket", le="1")) == "[2.0, nan, 2.0]"
    assert str(values(series, "b_bucket", le="2")) == "[2.0, nan]"
    at = {each.labels["engine"]: each.at.tolist() for each in series if each.name == "running"}
    assert at["a"][1] == at["b"][0], "both at the time of the page"


@pytest.mark.usefixtures("quick")
def test_a_scrape_that_fails_does_not_end_series() -> None:
    def script(client: Client) -> None:
        (pages("running 8"), missing, pages("running 8"))[min(client.number, 2)](client)

    with scripted(script) as url:
        watch = Scrape(endpoint(url), 1)
        watch.sample()
        watch.sample()
        assert values(watch.end(), "running") == [8]


@pytest.mark.usefixtures("quick")
def test_a_server_that_counts_late_is_read_until_it_has_counted() -> None:
    with scripted(pages(page(0), page(0), page(7), page(8), page(9), page(9))) as url:
        watch = Scrape(endpoint(url), 1)
        watch.start()
        series = watch.end()
    assert values(series, "requests_total")[-1] == 9


@pytest.mark.usefixtures("quick")
def test_what_grows_with_time_alone_is_not_waited_for() -> None:
    read = itertools.count()

    def script(client: Client) -> None:
        client.request()
        n = next(read)
        text = (
            f"# TYPE process_cpu_seconds_total counter\nprocess_cpu_seconds_total {n}\nenergy_total {n}.5\nheat {n}\n"
        )
        client.send(http_response(text.encode()))

    with scripted(script) as url:
        Scrape(endpoint(url), 1).start()
    assert next(read) == 2


@pytest.mark.usefixtures("quick")
def test_the_time_of_a_sample_is_between_request_and_response() -> None:
    with scripted(pages(page(0))) as url:
        watch = Scrape(endpoint(url), 1)
        before = time.monotonic_ns()
        watch.sample()
        after = time.monotonic_ns()
        series = watch.end()
    assert before < series[0].at[0] < after


@pytest.mark.usefixtures("quick")
def test_a_label_named_target_is_kept_under_another_name() -> None:
    with scripted(pages('a{target="x"} 1')) as url:
        series = Scrape(endpoint(url), 1).end()
    assert series[-1].labels == {"exported_target": "x", "target": f"{url}/metrics"}


def trickle(client: Client) -> None:
    client.request()
    client.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    for _ in range(1000):
        client.send(b"#")
        time.sleep(0.02)


def silent(client: Client) -> None:
    client.request()
    client.request()


def announced(client: Client) -> None:
    client.request()
    client.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10000000\r\n\r\n")
    client.request()


def endless(client: Client) -> None:
    client.request()
    client.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(200):
        client.send(b"10000\r\n" + b"#" * 65536 + b"\r\n")


def close(client: Client) -> None:
    client.request()


def cut(client: Client) -> None:
    client.request()
    client.send(http_response(page(1).encode())[:-20])


def html(client: Client) -> None:
    client.request()
    client.send(http_response(b"<html><body>Welcome"))


NOT_FOUND = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"


def missing(client: Client) -> None:
    client.request()
    client.send(NOT_FOUND)


def compressed(client: Client) -> None:
    client.request()
    client.send(http_response(b"\x1f\x8b", "Content-Encoding: gzip\r\n"))


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (trickle, "timed out after 200 ms"),
        (silent, "timed out after 200 ms"),
        (announced, "the response is larger than 8 MiB"),
        (endless, "the response is larger than 8 MiB"),
        (close, "the server closed the connection without sending a response"),
        (cut, "the connection or stream closed in the middle of the response"),
        (html, "the page does not have metrics: it starts with '<html><body>Welcome'"),
        (missing, "HTTP status 404"),
        (compressed, "the page is encoded (gzip), although that was not accepted"),
    ],
)
def test_the_reason_why_an_endpoint_cannot_be_read(
    script: Callable[[Client], None], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if script in (trickle, silent):
        monkeypatch.setattr(fetch, "__defaults__", (0.2,))
    with scripted(script) as url:
        watch = Scrape(endpoint(url), 1)
        series = watch.end()
    assert watch.problems() == {f"{url}/metrics": reason}
    assert {each.name for each in series} == {"up"} and values(series, "up") == [0]


@pytest.mark.usefixtures("quick")
def test_scrapes_that_failed_are_counted_by_reason() -> None:
    def script(client: Client) -> None:
        (pages(page(1)), html, missing, missing)[min(client.number, 3)](client)

    with scripted(script) as url:
        watch = Scrape(endpoint(url), 1)
        for _ in range(4):
            watch.sample()
    series = watch.end()  # now the connection is refused
    assert values(series, "up") == [1, 0, 0, 0, 0]
    welcome = "the page does not have metrics: it starts with '<html><body>Welcome'"
    assert watch.problems() == {
        f"{url}/metrics": f"4 of 5 scrapes failed: HTTP status 404 (2); {welcome} (1); connection refused (1)"
    }


def test_the_live_figures_are_those_of_the_latest_page(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("inferometer.server_metrics.families")
    texts = [f"vllm:num_requests_running {n}\nvllm:kv_cache_usage_perc {n / 10}" for n in (2, 4)]
    with scripted(pages(*texts)) as url:
        watch = Scrape(endpoint(url), 1)
        watch.sample()
        watch.sample()
        assert watch.now() == {"running": 4, "kv_cache_use": 0.4}
    watch.sample()
    assert watch.now() == {}


class Showing(Observer):
    def __init__(self, **figures: float) -> None:
        self._figures = figures

    def now(self) -> dict[str, float]:
        return self._figures


def test_the_live_figures_of_several_targets_are_sums_and_shares_are_means() -> None:
    observers = Observers({"a": Showing(running=2, kv_cache_use=0.5), "b": Showing(running=3, kv_cache_use=0.7)})
    assert observers.now() == {"running": 5, "kv_cache_use": pytest.approx(0.6)}


# --- which endpoints -------------------------------------------------------------------------------------------------


def server_of(url: str | list[str], headers: dict[str, str] | None = None) -> Server:
    return Server(url=url, api="chat", headers=headers or {})


def reached_of(server: Server, kserve: str = "", **secrets: str) -> Reached:
    facts = ModelFacts(ServerMetadata(kserve), ModelMetadata("m")) if kserve else None
    return Reached(tuple(map(parse, server.urls)), (), "m", secrets, facts)


def given(*urls: str) -> list[Endpoint]:
    server = server_of("http://127.0.0.1:8000/v1", headers={"X-Own": "own"})
    return metrics_endpoints.given(urls, server, reached_of(server, Authorization="Bearer key-1"))


def test_a_url_without_a_path_gets_one() -> None:
    found = given("http://a:1", "http://a:2/", "http://a:3/custom/v1", "http://u:secret@a:4/m?token=x")
    assert [each.url for each in found] == [
        "http://a:1/metrics", "http://a:2/metrics", "http://a:3/custom/v1", "http://a:4/m"
    ]  # fmt: skip
    assert [each.path for each in found] == ["/metrics", "/metrics", "/custom/v1", "/m?token=x"]
    assert found[3].headers == {"Authorization": "Basic dTpzZWNyZXQ="}


def test_urls_that_differ_in_the_query_alone_are_endpoints_of_their_own() -> None:
    """The query is not shown: it may have a token."""
    found = given("http://a:1/m?job=x", "http://a:1/m?job=y", "http://a:1/m?job=x", "http://a:2/m")
    assert [(each.url, each.path) for each in found] == [
        ("http://a:1/m", "/m?job=x"), ("http://a:1/m#2", "/m?job=y"), ("http://a:2/m", "/m")
    ]  # fmt: skip


def test_only_the_measured_server_gets_the_api_key() -> None:
    measured, other_port, other_host = given("http://127.0.0.1:8000", "http://127.0.0.1:8002", "http://other:8000")
    assert measured.headers["Authorization"] == "Bearer key-1" and measured.headers["X-Own"] == "own"
    assert other_port.headers == other_host.headers == {}


@pytest.mark.parametrize(
    "url", ["foo", "9100", "ftp://a/metrics", "http://", "http://a:b/", "grpc://a:8001", "", "http://[a"]
)
def test_what_is_not_an_http_url_is_an_error(url: str) -> None:
    with pytest.raises(UserError) as error:
        given(url)
    assert error.value.key == "observe.prometheus" and "http://HOST:PORT/metrics" in error.value.next_step
    assert error.value.what == f"{url!r} is not an HTTP URL"


@pytest.mark.parametrize("url", ["ftp://u:secret@a/m?secret", "u:secret@a:9100", "foo?token=secret"])
def test_a_url_that_is_not_one_is_quoted_without_secrets(url: str) -> None:
    with pytest.raises(UserError) as error:
        given(url)
    assert "secret" not in str(error.value)


def test_a_url_without_a_scheme_is_an_http_url() -> None:
    found = given("localhost:9100", "10.0.0.7:9100/m?a=b", "[::1]:9100", "localhost")
    assert [each.url for each in found] == [
        "http://localhost:9100/metrics", "http://10.0.0.7:9100/m", "http://[::1]:9100/metrics", "http://localhost/metrics"
    ]  # fmt: skip
    assert found[1].path == "/m?a=b"


def offered(url: str | list[str], kserve: str = "", **secrets: str) -> list[str]:
    server = server_of(url)
    return [each.url for each in metrics_endpoints.offered(server, reached_of(server, kserve, **secrets))[0]]


def test_the_endpoint_of_each_server_is_found_below_its_prefix_or_at_the_root() -> None:
    seen: list[tuple[str, str]] = []

    def script(client: Client) -> None:
        request = client.request()
        assert request is not None
        path = request[0].split()[1]
        seen.append((path, request[1].get("authorization", "")))
        client.send(NOT_FOUND if path.startswith("/a") else http_response(b"x 1"))

    with scripted(script) as url, scripted(html) as other:
        found = offered([f"{url}/a/v1", f"{url}/b/v1", f"{url}/v1", other, "http://127.0.0.1:1"], Authorization="key")
    assert found == [f"{url}/metrics", f"{url}/b/metrics"]
    assert sorted(set(seen)) == [("/a/metrics", "key"), ("/b/metrics", "key"), ("/metrics", "key")]


def status(code: int) -> Callable[[Client], None]:
    """Return a script that responds with this HTTP status."""

    def script(client: Client) -> None:
        client.request()
        client.send(f"HTTP/1.1 {code} No\r\nContent-Length: 0\r\n\r\n".encode())

    return script


NO_ENDPOINT = [pages(""), pages("{}"), html, status(404), status(405), status(501)]
FAILING = [silent, trickle, close, cut, status(401), status(403), status(503)]


@pytest.mark.parametrize("script", [*NO_ENDPOINT, *FAILING])
def test_an_endpoint_that_cannot_be_read_now_is_kept_unlike_one_that_is_not_there(
    script: Callable[[Client], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_endpoints, "_LOOK_TIMEOUT", 0.1)
    with scripted(script) as url:
        assert offered(url) == ([f"{url}/metrics"] if script in FAILING else [])


def test_an_endpoint_that_can_be_read_is_preferred_to_one_that_cannot() -> None:
    def by_path(client: Client) -> None:
        request = client.request()
        assert request is not None
        client.send(b"HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n" if "/a/" in request[0] else http_response(b"x 1"))

    with scripted(by_path) as url:
        assert offered(f"{url}/a") == [f"{url}/metrics"]


def test_the_metrics_of_triton_are_on_another_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        metrics_endpoints, "fetch", lambda each, _: (0, scrape.parse_page("x 1")) if ":8002" in each.url else _refuse()
    )
    assert offered("grpc://127.0.0.1:8001", "triton") == ["http://127.0.0.1:8002/metrics"]
    assert offered("http://[::1]:8000", "triton") == ["http://[::1]:8002/metrics"]
    assert offered("http://127.0.0.1:8000", "other") == offered("grpc://127.0.0.1:9000", "triton") == []


def _refuse() -> tuple[int, scrape.Page]:
    raise scrape.NotOffered("refused")
