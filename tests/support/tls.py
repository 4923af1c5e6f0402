"""TLS in front of servers that cannot speak it themselves, with a certificate of our own."""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit


def make_certificate(directory: Path) -> tuple[Path, Path]:
    """Return a self-signed certificate for 127.0.0.1 and its key."""
    certificate, key = directory / "node.crt", directory / "node.key"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-nodes", "-days", "2"),
            # Made at once, while a key for RSA is looked for.
            *("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    return certificate, key


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def terminate_tls(port: int, certificate: Path, key: Path) -> Iterator[int]:
    """Listen with TLS on a port of the kernel's choice, and pass everything on in the clear."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    listener = socket.create_server(("127.0.0.1", 0))
    ends: list[socket.socket] = []
    pumps: list[threading.Thread] = []

    def serve() -> None:
        while True:
            try:
                plain, _ = listener.accept()
            except OSError:
                return
            try:
                outer = context.wrap_socket(plain, server_side=True)
                inner = socket.create_connection(("127.0.0.1", port))
            except OSError:
                plain.close()
                continue
            ends.extend([outer, inner])
            for source, target in ((outer, inner), (inner, outer)):
                pumps.append(threading.Thread(target=_pump, args=(source, target)))
                pumps[-1].start()

    server = threading.Thread(target=serve)
    server.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        server.join()
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for pump in pumps:
            pump.join()
        for end in ends:
            end.close()
        listener.close()


@contextlib.contextmanager
def with_tls(urls: Sequence[str], directory: Path) -> Iterator[list[str]]:
    """Let nodes speak TLS as well; yield their URLs, which trust our certificate."""
    certificate, key = make_certificate(directory)
    with contextlib.ExitStack() as stack:
        plain = [urlsplit(url).port or 0 for url in urls]
        ports = [stack.enter_context(terminate_tls(port, certificate, key)) for port in plain]
        yield [f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={certificate}" for port in ports]
