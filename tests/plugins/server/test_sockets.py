"""Listening sockets."""

import contextlib
import os
import socket
import ssl
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from hotshoe.errors import ConfigError
from hotshoe_server.sockets import check_certificate, open_port, open_unix


def test_ports() -> None:
    with open_port("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        socket.create_connection(("127.0.0.1", port)).close()
        with pytest.raises(ConfigError, match=f"port {port} of 127.0.0.1 is taken"):
            open_port("127.0.0.1", port)
    open_port("127.0.0.1", port).close()


def test_the_kernel_keeps_little_for_who_reads_nothing() -> None:
    with open_port("127.0.0.1", 0) as listener, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(listener.getsockname())
        connection, _ = listener.accept()
        connection.settimeout(0.2)
        num_bytes = 0
        with connection, contextlib.suppress(TimeoutError):
            while num_bytes < 2**23:
                num_bytes += connection.send(bytes(2**16))
        assert num_bytes < 2**20


@pytest.mark.parametrize("host", ["256.256.256.256", "192.0.2.1"])
def test_addresses_that_are_not_here(host: str) -> None:
    with pytest.raises(ConfigError, match="cannot listen"):
        open_port(host, 0)


def test_unix_sockets_are_private_and_replace_dead_ones(tmp_path) -> None:
    path = tmp_path / "admin"
    with open_unix("--uds", str(path)):
        assert path.stat().st_mode & 0o777 == 0o600
        with pytest.raises(ConfigError, match="served by another process"):
            open_unix("--uds", str(path))
    assert path.exists()
    open_unix("--uds", str(path)).close()


def test_sockets_of_another_kind_are_left_alone(tmp_path) -> None:
    path = tmp_path / "log"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(path))
        with pytest.raises(ConfigError, match=r"--uds .*log may be another program's: .*remove"):
            open_unix("--uds", str(path))
        assert path.exists()


def test_the_umask_says_who_may_use_a_socket_that_is_not_private(tmp_path) -> None:
    before = os.umask(0o007)
    try:
        with open_unix("--uds", str(tmp_path / "open"), private=False):
            assert (tmp_path / "open").stat().st_mode & 0o777 == 0o770
    finally:
        assert os.umask(before) == 0o007


def test_files_are_never_replaced(tmp_path) -> None:
    path = tmp_path / "file"
    path.write_text("precious")
    with pytest.raises(ConfigError, match="no socket"):
        open_unix("--uds", str(path))
    assert path.read_text() == "precious"
    with pytest.raises(ConfigError, match=r"cannot listen on --uds .*: AF_UNIX path too long"):
        open_unix("--uds", str(tmp_path / ("x" * 200)))
    with pytest.raises(ConfigError, match="cannot listen"):
        open_unix("--uds", str(tmp_path / "no" / "folder"))


def self_signed(folder: Path, name: str) -> tuple[str, str, str]:
    """Write a certificate, its key, and the key once more encrypted."""
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(subject, subject, key.public_key(), 1)
    builder = builder.not_valid_before(now).not_valid_after(now + timedelta(days=1))
    certificate = builder.sign(key, hashes.SHA256())
    pem = serialization.Encoding.PEM
    texts = {"certificate": certificate.public_bytes(pem)}
    for kind, encryption in {
        "key": serialization.NoEncryption(),
        "encrypted": serialization.BestAvailableEncryption(b"secret"),
    }.items():
        texts[kind] = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, encryption)
    for kind, text in texts.items():
        (folder / f"{name}-{kind}").write_bytes(text)
    return tuple(str(folder / f"{name}-{kind}") for kind in texts)


def test_certificates_that_cannot_be_used(tmp_path: Path) -> None:
    certificate, key, encrypted = self_signed(tmp_path, "ours")
    _, foreign, _ = self_signed(tmp_path, "theirs")
    check_certificate(certificate, key)
    for pair in ((certificate, encrypted), (certificate, foreign), (key, certificate)):
        with pytest.raises(ConfigError, match="cannot be used"):
            check_certificate(*pair)
    with pytest.raises(ConfigError, match="cannot read --ssl-certfile nowhere"):
        check_certificate("nowhere", key)


def test_answers_over_tls(run_server, tmp_path: Path) -> None:
    certificate, key, _ = self_signed(tmp_path, "ours")
    admin = str(tmp_path / "admin")
    tls = ("--ssl-certfile", certificate, "--ssl-keyfile", key, "--admin-socket", admin)
    running = run_server("demo", "--platform", "null", *tls, ready=False)
    trust = ssl.create_default_context(cafile=certificate)
    trust.check_hostname = False
    with httpx.Client(
        base_url=running.url.replace("http:", "https:"), verify=trust, timeout=60
    ) as client:
        for _ in range(1200):
            with contextlib.suppress(httpx.TransportError):
                if client.get("/ready").status_code == 200:
                    break
            time.sleep(0.1)
        body = {"prompt": [65], "max_tokens": 400, "ignore_eos": True, "stream": True}
        text = client.post("/v1/completions", json=body).text
    assert text.count("data: ") > 1
    assert text.endswith("data: [DONE]\n\n")
    with httpx.Client(transport=httpx.HTTPTransport(uds=admin), timeout=60) as client:
        assert client.get("http://localhost/is_sleeping").json() == {"is_sleeping": False}
    assert running.stop() == 0
