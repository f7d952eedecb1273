"""A server of buckets on the loopback, in a process of its own."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Final
from urllib.parse import quote, unquote_plus
from xml.etree import ElementTree

import pytest

_LACKS: Final = [name for name in ("s3fs", "moto", "flask") if importlib.util.find_spec(name) is None]
MISSING: Final = f"{', '.join(_LACKS)} not installed: `make venv` installs it" if _LACKS else ""
BUCKET: Final = "nights"
_ANYBODY: Final = "AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
_SERVER: Final = """
import sys, threading
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True, slots=True)
class Server:
    """A server of buckets, which believes whoever asks: what lies there is read and changed without what is tested."""

    port: int
    process: subprocess.Popen[str]

    def ask(self, method: str, key: str, body: bytes = b"") -> bytes:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request(method, f"/{BUCKET}{key}", body, {"Authorization": _ANYBODY})
        answer = connection.getresponse()
        found = answer.read()
        assert answer.status < 300, (method, key, found)
        connection.close()
        return found

    def put(self, name: str, body: bytes) -> None:
        self.ask("PUT", "/" + quote(name), body)

    def files(self) -> dict[str, bytes]:
        """All that lies in the bucket, by name."""
        root = ElementTree.fromstring(self.ask("GET", "?list-type=2&encoding-type=url"))
        names = [unquote_plus(str(each.text)) for each in root.iter() if each.tag.endswith("}Key")]
        return {name: self.ask("GET", "/" + quote(name)) for name in names}


@contextmanager
def served() -> Iterator[Server]:
    """A server with an empty bucket, which the command line finds by AWS's variables."""
    words = [sys.executable, "-c", _SERVER]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        server = Server(int(process.stdout.readline()), process)
        try:
            server.ask("PUT", "")
            with pytest.MonkeyPatch.context() as patch:
                for name, value in variables(server.port).items():
                    patch.setenv(name, value)
                yield server
        finally:
            process.kill()


def variables(port: int) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "nobody",
        "AWS_SECRET_ACCESS_KEY": "nothing",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
