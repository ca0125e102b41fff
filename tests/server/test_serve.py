"""A server begins and ends: addresses, tokens, TLS."""

from __future__ import annotations

import ipaddress
import socket
import ssl
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

import ondisk
from ondisk.errors import ConfigError, DatasetNotFound, InvalidInput, StorageError
from ondisk.replication.http_source import HttpSource
from ondisk.server.admission import Limits
from ondisk.server.serve import is_loopback, listen, serve, tls_of

from .conftest import data


@pytest.fixture(scope="module")
def pem(tmp_path_factory) -> Path:
    """Make a certificate for 127.0.0.1: cert.pem, key.pem, both.pem."""
    folder = tmp_path_factory.mktemp("tls")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )
    plain, secret = serialization.NoEncryption(), serialization.BestAvailableEncryption(b"secret")
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (folder / "cert.pem").write_bytes(certificate)
    (folder / "key.pem").write_bytes(key.private_bytes(*form, plain))
    (folder / "both.pem").write_bytes(certificate + key.private_bytes(*form, plain))
    (folder / "secret.pem").write_bytes(key.private_bytes(*form, secret))
    return folder


@pytest.mark.parametrize(("certificate", "key"), [("cert.pem", "key.pem"), ("both.pem", None)])
def test_tls_carries_queries_and_ranges(serving, create, pem, certificate, key):
    dataset = create("large", fields={"n": "integer"})
    dataset.append(data(100, 50_000))
    (name,) = {datum.location.segment for datum in dataset.query()}
    served = serving(dataset.path, tls=tls_of(str(pem / certificate), key and str(pem / key)))
    trusted = ssl.create_default_context(cafile=pem / "cert.pem")
    with httpx.Client(base_url=f"https://127.0.0.1:{served.port}", verify=trusted) as client:
        assert client.post("/dataset/large/query", json={"style": "data"}).content == (dataset.path / name).read_bytes()
        assert client.get(f"/dataset/large/data/{name}").content == (dataset.path / name).read_bytes()
    with pytest.raises(httpx.HTTPError):
        served.client.get("/health")


@pytest.mark.check
def test_with_tls_the_cookie_of_a_browser_is_secure(serving, filled, pem):
    token = "0123456789abcdef"
    served = serving(filled, token=token.encode(), tls=tls_of(str(pem / "both.pem"), None))
    trusted = ssl.create_default_context(cafile=pem / "cert.pem")
    with httpx.Client(base_url=f"https://127.0.0.1:{served.port}", verify=trusted) as client:
        assert "Secure" in client.post("/login", data={"token": token}).headers["set-cookie"]


@pytest.mark.check
def test_a_replica_says_how_to_trust_the_certificate_of_its_source(serving, filled, pem):
    served = serving(filled, tls=tls_of(str(pem / "both.pem"), None))
    url = f"https://127.0.0.1:{served.port}/dataset/filled"
    with HttpSource(url, pause=0.001) as source, pytest.raises(StorageError, match="certificate") as caught:
        source.describe()
    assert "SSL_CERT_FILE" in caught.value.hint


def test_a_replica_says_that_the_certificate_is_for_another_host(serving, filled, pem, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(pem / "cert.pem"))
    served = serving(filled, tls=tls_of(str(pem / "both.pem"), None))
    with HttpSource(f"https://127.0.0.1:{served.port}/dataset/filled") as source:
        assert source.describe().name == "filled"
    with (
        HttpSource(f"https://localhost:{served.port}/dataset/filled", pause=0.001) as source,
        pytest.raises(StorageError, match="certificate is not valid for 'localhost'") as caught,
    ):
        source.describe()
    assert "the host name in the URL" in caught.value.hint


@pytest.mark.parametrize(
    ("certificate", "key"),
    [
        ("none.pem", "key.pem"),
        ("cert.pem", "none.pem"),
        ("key.pem", None),
        ("cert.pem", None),
        ("cert.pem", "secret.pem"),
    ],
)
def test_files_that_make_no_tls_are_refused_and_nobody_is_asked_for_a_password(pem, certificate, key):
    with pytest.raises(ConfigError, match="PEM"):
        tls_of(str(pem / certificate), key and str(pem / key))


def test_an_address_that_others_reach_needs_a_token(filled):
    listener = listen("0.0.0.0", 0)
    with pytest.raises(InvalidInput, match="--token-file"):
        serve([str(filled)], listener, pytest.fail)
    assert listener.fileno() == -1


@pytest.mark.parametrize(("host", "expected"), [("127.0.0.1", True), ("localhost", True), ("0.0.0.0", False)])
def test_loopback_is_what_only_this_machine_reaches(host, expected):
    with listen(host, 0) as listener:
        assert is_loopback(listener) is expected


def test_the_kernel_does_not_delay_small_pieces_of_answers():
    """An idle poll took 45 ms instead of 1: asyncio sets TCP_NODELAY only on sockets that say their protocol."""
    with listen("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP


def test_an_address_that_cannot_be_used_is_an_error():
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(StorageError, match="cannot listen on"):
        listen("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(StorageError, match="cannot listen on"):
        listen("no-such-host.invalid", 0)


def test_what_is_no_dataset_is_not_served(tmp_path):
    with pytest.raises(DatasetNotFound):
        serve([str(tmp_path)], listen("127.0.0.1", 0), pytest.fail)


@pytest.mark.check
def test_the_end_waits_for_answers_but_not_forever_and_leaves_nothing_open(serving, create, open_files):
    dataset = create("large", fields={"n": "integer"})
    dataset.append(data(400, 100_000))
    dataset.close()
    servers, threads = [], threading.active_count()

    def started(server):
        servers.append(server)
        is_up.set()

    is_up = threading.Event()
    arguments = [str(dataset.path)], listen("127.0.0.1", 0), started
    thread = threading.Thread(target=serve, args=arguments, kwargs={"limits": Limits(grace=1)})
    thread.start()
    assert is_up.wait(60)
    with socket.create_connection(("127.0.0.1", servers[0].port)) as connection:
        connection.sendall(b"POST /dataset/large/query HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(5)
        servers[0].stop()
        thread.join(60)
    assert not thread.is_alive()
    assert open_files() == 0
    assert threading.active_count() == threads
    with ondisk.open(dataset.path) as again:
        assert again.delete("") == 400
