"""Secrets: a key given in any way appears in no file, log or report that we write."""

import json
import sys
import tempfile
from pathlib import Path

import pytest
from command import LENIENT, cli, options
from helpers import STREAM, Client, http_response, polite, scripted

from inferometer import store
from inferometer.cli import visible_keys

KEYS = {
    "header": "hdr-5f2c9e1a7b3d",
    "environment": "env-8d41c07be992",
    "file": "fil-3b90aa71cc5e",
    "password": "pwd-e77a1c20f4b8",
    "body": "bdy-1c9d0b7e6a25",
}


@pytest.mark.parametrize("given", list(KEYS))
def test_a_key_is_in_nothing_that_we_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    """The server quotes the key wherever it can: in errors, cut off in a body that is not JSON, as a finish reason, as a label."""
    secret = KEYS[given]
    refused = json.dumps({"error": {"message": f"bad key {secret}"}}).encode()
    replies = [
        b"HTTP/1.1 400 Bad Request\r\nContent-Length: %d\r\n\r\n" % len(refused) + refused,
        http_response(b'data: {"x": "%s%s\n\n' % (b"-" * 181, secret.encode())),  # 10 of its characters are shown
        http_response(STREAM.replace(b'"stop"', json.dumps(secret).encode())),
        b"HTTP/1.1 400 Bad Request\r\nContent-Length: 5000\r\n\r\n"
        + (b" " * 4084 + secret.encode()).ljust(5000),  # cut
    ]
    page = b'# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{model_name="%s"} 1\n' % secret.encode()
    monkeypatch.setenv("OUR_KEY", KEYS["environment"])
    monkeypatch.chdir(tmp_path)
    keys = tmp_path.parent / f"{tmp_path.name}-keys"
    keys.mkdir()
    (keys / "key").write_text(KEYS["file"])

    def respond(client: Client) -> None:
        count = 0
        while (request := client.request()) is not None:
            count += 1
            client.sock.sendall(replies[count % 4] if request[0].startswith("POST") else http_response(page))

    with scripted(respond) as url:
        server: dict[str, object] = {"url": url, "model": "m"}
        server |= {
            "header": {"headers": {"Authorization": f"Bearer {secret}"}},
            "environment": {"api_key_env": "OUR_KEY"},
            "file": {"api_key_file": str(keys / "key")},
            "password": {"url": url.replace("://", f"://user:{secret}@")},
            "body": {"body": {"api_key": secret}},
        }[given]
        config = keys / "bench.json"
        config.write_text(json.dumps({"server": server, "load": {"type": "closed", "concurrency": 2, "requests": 12}}))
        exports = [
            part for name in ("json", "html", "csv", "markdown", "junit") for part in (f"--{name}", f"out.{name}")
        ]
        kept = () if given == "body" else ("--keep", "text")  # bodies are stored as they are sent
        scraped = {"observe.prometheus": f"[{url}/metrics]"}
        results = [cli("run", config, *exports, *kept, *options(LENIENT | scraped), "--explain")]
    results += [cli("report", "runs/LATEST", "--why"), cli("runs", "--json"), cli("runs")]
    assert results[0].status in (0, 1), results[0]
    assert any(path.name == "manifest.json" for path in tmp_path.rglob("*"))
    assert_nowhere(secret[:10], tmp_path, *(result.out + result.err for result in results))
    assert "malformed_json" in results[0].out and any(run.series for run in map(store.read, tmp_path.glob("runs/2*")))


def test_a_key_is_not_in_the_spool_of_a_killed_run_nor_in_the_log_of_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An internal error after the measurement leaves the spool, and a log with a traceback."""
    secret = KEYS["header"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def fail(*arguments: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("inferometer.conduct.measuring.save", fail)
    (tmp_path.parent / f"{tmp_path.name}.json").write_text(
        json.dumps({"server": {"url": "URL", "model": "m", "headers": {"x-api-key": secret}}})
    )
    with scripted(polite) as url:
        source = tmp_path.parent / f"{tmp_path.name}.json"
        source.write_text(source.read_text().replace("URL", url))
        result = cli("run", source, "--requests", "4", *options(LENIENT))
    assert result.status == 3
    assert list(tmp_path.glob("inferometer-*.log")) and list(tmp_path.glob("runs/*/spool/draft.json"))
    assert_nowhere(secret, tmp_path, result.out + result.err)


def assert_nowhere(secret: str, folder: Path, *texts: str) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            assert secret.encode() not in path.read_bytes(), path
    for text in texts:
        assert secret not in text


# --- keys on the command line ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ("--set", "server.headers.Authorization=Bearer KEY"),
        ("--set=server.headers.x-api-key=KEY",),
        ("--set", "server.headers={Authorization: KEY}"),
        ("--set", "server.body.api_key=KEY"),
        ("--header", "Authorization: KEY"),
        ("-H", "Authorization:Bearer KEY"),
        ("--header", "Authorization=Bearer KEY"),
        ("--header", "Authorization Bearer KEY"),
        ("--server.api_key", "KEY"),
        ("--tokenizer.token=KEY",),
        ("--api.headers", '{"Authorization": "KEY"}'),
        ("--api.headers.x-api-key", "KEY"),
        ("run", "http://user:KEY@127.0.0.1:8000"),
    ],
)
def test_a_key_on_the_command_line_is_warned_of(arguments: tuple[str, ...]) -> None:
    text = visible_keys.warning(arguments)
    assert text is not None and "visible in the list of processes" in text and "KEY" not in text.replace("api_key", "")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--set", "server.api_key_env=KEY"),
        ("--set", "server.timeouts.first_token=5s"),
        ("--set", "server.headers.x-trace=1"),
        ("--header", "x-trace: 1"),
        ("--api.headers", '{"x-trace": "1"}'),
        ("--server.api_key_file", "path"),
        ("run", "http://127.0.0.1:8000", "--set", "server.tls.key=key.pem"),
    ],
)
def test_other_settings_are_not_warned_of(arguments: tuple[str, ...]) -> None:
    assert visible_keys.warning(arguments) is None


def test_the_warning_comes_once_and_before_everything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    result = cli("run", "http://127.0.0.1:1", *(2 * ["--set", "server.headers.Authorization=Bearer abcdefgh"]))
    assert result.err.count("visible in the list of processes") == 1
    assert "abcdefgh" not in result.err and sys.argv
