"""TLS: a private CA, client certificates, no verification, and failures."""

import socket
import ssl
import struct
from pathlib import Path

import pytest
import trustme
from helpers import STREAM, Client, http_response, measure, polite, scripted

from inferometer.errors import UserError


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def context(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1", "localhost").configure_cert(context)
    return context


@pytest.fixture
def ca_file(authority: trustme.CA, tmp_path: Path) -> str:
    path = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(path)
    return str(path)


def test_run_over_tls_with_a_private_ca(tmp_path: Path, context: ssl.SSLContext, ca_file: str) -> None:
    run, summary = measure(tmp_path, scripted(polite, context), server={"tls": {"ca": ca_file}})
    assert summary.counts.ok == 6
    assert run.records.rows["chunk_count"].tolist() == [2] * 6


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_without_verification(tmp_path: Path, context: ssl.SSLContext, version: ssl.TLSVersion) -> None:
    context.maximum_version = version
    with scripted(polite, context) as url:
        assert measure(tmp_path, url, server={"tls": {"verify": False}})[1].counts.ok == 6


def test_certificate_of_an_unknown_authority_is_a_clear_error(tmp_path: Path, context: ssl.SSLContext) -> None:
    with scripted(polite, context) as url, pytest.raises(UserError) as caught:
        measure(tmp_path, url)
    assert "certificate is not accepted" in caught.value.what
    assert "server.tls.ca" in caught.value.remedy
    assert not list(tmp_path.glob("*/spool"))


def test_client_certificate(tmp_path: Path, authority: trustme.CA, context: ssl.SSLContext, ca_file: str) -> None:
    context.verify_mode = ssl.CERT_REQUIRED
    authority.configure_trust(context)
    mine = authority.issue_cert("me@example.org")
    cert = tmp_path / "me.pem"
    mine.private_key_and_cert_chain_pem.write_to_path(cert)
    with scripted(polite, context) as url:
        assert measure(tmp_path, url, server={"tls": {"ca": ca_file, "cert": str(cert)}})[1].counts.ok == 6


def test_plain_http_behind_an_https_url(tmp_path: Path) -> None:
    with scripted(polite) as url, pytest.raises(UserError, match="the TLS handshake failed"):
        measure(tmp_path, url.replace("http:", "https:"), server={"timeouts": {"connect": "300ms"}})


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_response_ends_with_close_notify_even_if_the_socket_stays_open(
    tmp_path: Path, context: ssl.SSLContext, ca_file: str, version: ssl.TLSVersion
) -> None:
    context.maximum_version = version

    def script(client: Client) -> None:
        if client.request():
            client.send(
                b"HTTP/1.1 200 OK\r\n\r\n" + STREAM
            )  # without a length, the response lasts until the server closes
            client.sock.unwrap()  # type: ignore[attr-defined]
            client.sock.recv(1)

    _, summary = measure(
        tmp_path, scripted(script, context), server={"tls": {"ca": ca_file}, "timeouts": {"total": "30s"}}
    )
    assert (summary.counts.ok, summary.counts.by_failure) == (6, {})


@pytest.mark.parametrize(("linger", "did"), [(0, "reset"), (None, "closed")])
def test_connection_that_ends_during_the_handshake_is_a_tls_failure(
    tmp_path: Path, context: ssl.SSLContext, ca_file: str, linger: int | None, did: str
) -> None:
    """The server accepts the connections opened before the start, for one response each, and none after that."""

    def script(client: Client) -> None:
        if client.number < 3:
            encrypted = Client(context.wrap_socket(client.sock, server_side=True), client.number)
            if encrypted.request():
                encrypted.send(http_response(extra="Connection: close\r\n"))
            encrypted.sock.close()
            return
        client.sock.recv(65_536)
        if linger is not None:
            client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, linger))

    with scripted(script) as url:
        run, summary = measure(tmp_path, url.replace("http:", "https:"), server={"tls": {"ca": ca_file}})
    assert (summary.counts.ok, summary.counts.by_failure) == (2, {"tls": 4})
    assert [failure.message for failure in run.records.failures] == [
        f"the server {did} the connection during the handshake"
    ]


@pytest.mark.parametrize("tls", [{"ca": "/nowhere.pem"}, {"cert": "/nowhere.pem"}])
def test_missing_files_are_named_in_the_error(tmp_path: Path, tls: dict[str, str]) -> None:
    with pytest.raises(UserError, match=r"/nowhere\.pem"):
        measure(tmp_path, "https://127.0.0.1:1", server={"tls": tls})
