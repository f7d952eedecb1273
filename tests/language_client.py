"""A client of the Language Server Protocol: starts a server, speaks JSON-RPC over its streams, keeps all messages.

Only the form of messages is here (LSP 3.17, "Base Protocol"), so that the server's library is not its own witness.
"""

from __future__ import annotations

import json
import queue
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Message = dict[str, Any]


class LanguageClient:
    """A running server, and the messages that came from it."""

    def __init__(self, command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        self.server = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
            env=dict(environment),
        )
        self.notices: list[Message] = []
        """Notifications and requests of the server, in order."""
        self.broken: list[bytes] = []
        """Lines that are no message of the protocol."""
        self._answers: queue.Queue[Message] = queue.Queue()
        self._number = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.server.stdout is not None
        while header := self.server.stdout.readline():
            if not header.startswith(b"Content-"):
                self.broken.append(header)
                continue
            length = int(header.split(b":")[1]) if header.startswith(b"Content-Length") else 0
            while (line := self.server.stdout.readline()) not in (b"\r\n", b""):
                length = int(line.split(b":")[1]) if line.startswith(b"Content-Length") else length
            message = json.loads(self.server.stdout.read(length))
            if "method" not in message:
                self._answers.put(message)
                continue
            self.notices.append(message)
            if "id" in message:  # a request: registrations and refreshes are accepted
                self._send({"id": message["id"], "result": None})

    def _send(self, message: Message) -> None:
        assert self.server.stdin is not None
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self.server.stdin.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        self.server.stdin.flush()

    def notify(self, method: str, parameters: object) -> None:
        self._send({"method": method, "params": parameters})

    def ask(self, method: str, parameters: object, seconds: float = 60) -> Any:  # noqa: ANN401 - any JSON
        """The result of a request; an error of the server fails."""
        self._number += 1
        self._send({"id": self._number, "method": method, "params": parameters})
        answer = self._answers.get(timeout=seconds)
        assert answer["id"] == self._number
        assert "error" not in answer, answer
        return answer["result"]

    def start(self, folder: Path, capabilities: object) -> Message:
        """Initialize the server for a folder; returns its capabilities."""
        folders = [{"uri": folder.as_uri(), "name": folder.name}]
        parameters = {"processId": None, "rootUri": folder.as_uri(), "workspaceFolders": folders}
        answer = self.ask("initialize", {**parameters, "capabilities": capabilities})
        self.notify("initialized", {})
        found: Message = answer["capabilities"]
        return found

    def open(self, uri: str, text: str) -> None:
        document = {"uri": uri, "languageId": "plaintext", "version": 1, "text": text}
        self.notify("textDocument/didOpen", {"textDocument": document})

    def change(self, uri: str, version: int, text: str) -> None:
        """Replace the whole text."""
        document = {"uri": uri, "version": version}
        self.notify("textDocument/didChange", {"textDocument": document, "contentChanges": [{"text": text}]})

    def lenses(self, uri: str) -> dict[int, list[str]]:
        """The titles of the lenses by line, from 1."""
        lines: dict[int, list[str]] = {}
        for lens in self.ask("textDocument/codeLens", {"textDocument": {"uri": uri}}):
            lines.setdefault(lens["range"]["start"]["line"] + 1, []).append(lens["command"]["title"])
        return lines

    def hover(self, uri: str, line: int) -> str:
        """The text of a hover over a line, from 1; empty if there is none."""
        where = {"textDocument": {"uri": uri}, "position": {"line": line - 1, "character": 3}}
        answer = self.ask("textDocument/hover", where)
        return "" if answer is None else str(answer["contents"]["value"])

    def wait_for(self, method: str, after: int = 0, seconds: float = 30) -> Message:
        """A message of this method among those after the first `after` ones."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for message in self.notices[after:]:
                if message["method"] == method:
                    return message
            time.sleep(0.02)
        raise AssertionError(f"no {method} in {seconds} s")

    def stop(self) -> int:
        """Shut the server down; its exit status."""
        self.ask("shutdown", None)
        self.notify("exit", None)
        return self.server.wait(timeout=30)

    def close(self) -> None:
        """End the server, if a test failed."""
        if self.server.poll() is None:
            self.server.kill()
        self.server.wait()
        for stream in (self.server.stdin, self.server.stdout, self.server.stderr):
            if stream is not None:
                stream.close()
