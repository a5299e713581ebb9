"""`--set server.KEY=VALUE` of `triton` and `compare-protocols`, against a server that requires a certificate and a token."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from command import Result, assert_one_line, cli

from inferometer.serve.background import Running, serving
from inferometer.serve.settings import Settings, Tls

TOKEN = "s3cret-t0ken"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca")
    for name in ("server", "client"):
        authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(folder / name)
    (folder / "token").write_text(TOKEN)
    return {path.name: str(path) for path in folder.iterdir()}


@pytest.fixture(scope="module")
def closed(files: dict[str, str]) -> Iterator[Running]:
    tls = Tls(files["server"], files["server"], files["ca"])
    with serving(Settings(models=("identity",), http=0, grpc=0, tls=tls, token=TOKEN)) as server:
        yield server


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_this_process: None) -> None:
    monkeypatch.chdir(tmp_path)


def triton(url: str, *more: str) -> Result:
    return cli("triton", "-m", "identity", "-u", url, "-c", "5", "-w", "0", *more)


def keys(files: dict[str, str], *names: str) -> list[str]:
    values = {"tls.ca": files["ca"], "tls.cert": files["client"], "api_key_file": files["token"]}
    return [word for name in names for word in ("--set", f"server.{name}={values[name]}")]


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_triton_sends_certificate_and_token(closed: Running, files: dict[str, str], protocol: str) -> None:
    url = closed.grpc if protocol == "grpc" else closed.url
    result = triton(url, *keys(files, "tls.ca", "tls.cert", "api_key_file"))
    assert result.status in (0, 1), result
    assert result.out.startswith("Throughput: ")
    assert_one_line(triton(url, *keys(files, "tls.ca", "tls.cert")), "server.api_key_file")
    assert_one_line(triton(url, *keys(files, "tls.cert", "api_key_file")), "server.tls.ca")
    assert triton(url, *keys(files, "tls.ca", "api_key_file")).status == 2


def test_all_protocols_send_certificate_and_token(closed: Running, files: dict[str, str], tmp_path: Path) -> None:
    result = cli(
        "compare-protocols", closed.url, "--grpc", closed.grpc, "--sizes", "40", "--requests", "3", "--json", "-",
        "--output", tmp_path, *keys(files, "tls.ca", "tls.cert"), "--api-key-file", files["token"], "--header", "X-Own: 5",
    )  # fmt: skip
    assert result.status in (0, 1), result
    assert [cell["ok"] for cell in json.loads(result.out)["cells"]] == [3] * 4
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert stored and TOKEN.encode() not in stored and TOKEN not in result.out + result.err


@pytest.mark.parametrize("command", [("triton", "-m", "identity"), ("compare-protocols",)], ids=lambda given: given[0])
@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ("load.rate=5", "only keys of the section server"),
        ("server=5", "only keys of the section server"),
        ("server.api=chat", "this command sets that key itself"),
        ("server.url=http://127.0.0.1:1", "this command sets that key itself"),
        ("server.api_key_env", "not of the form key=value"),
        ("server.api_kee_env=X", "api_key_env"),
    ],
)
def test_settings_that_are_refused(command: tuple[str, ...], setting: str, why: str, closed: Running) -> None:
    where = ("-u", closed.url) if command[0] == "triton" else (closed.url,)
    assert_one_line(cli(*command, *where, "--set", setting), setting.partition("=")[0], why)
