"""The command that serves the page and reads the server's metrics for it, on 127.0.0.1."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated

import httpx
import typer
from rich.table import Table

from sm120.integration.common.console import make_console
from sm120.integration.common.refusal import Refusal
from sm120.integration.serve.metrics.prometheus import Samples, parse, view

PAGE = Path(__file__).with_name("page.html")
console = make_console()


class Source:
    """The metrics of one server; remembers the sample before, for rates."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._before: tuple[float, Samples] | None = None
        self._lock = threading.Lock()

    def sample(self) -> dict[str, float | str | None]:
        """What the page shows now. Raises ValueError when the server has no metrics."""
        try:
            answer = httpx.get(f"{self.url}/metrics", timeout=10, trust_env=False, follow_redirects=True)
            answer.raise_for_status()
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ValueError(f"{self.url}/metrics: {error}; was it started with --enable-metrics?") from None
        now, samples = time.monotonic(), parse(answer.text)
        with self._lock:
            then, before = self._before or (now, None)
            self._before = (now, samples)
        return {"source": self.url, **view(samples, before, now - then)}


def make_server(url: str, port: int = 0) -> ThreadingHTTPServer:
    """A server of the page and of `/sample`, bound to 127.0.0.1; `port` 0 takes a free one."""
    source = Source(url)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/":
                self._answer(200, "text/html; charset=utf-8", PAGE.read_bytes())
            elif path == "/sample":
                try:
                    code, body = 200, source.sample()
                except ValueError as error:
                    code, body = 502, {"error": str(error)}
                self._answer(code, "application/json", json.dumps(body).encode())
            else:
                self._answer(404, "text/plain", b"not here\n")

        def _answer(self, code: int, kind: str, body: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            """Quiet: a page that polls would fill the terminal."""

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


def metrics_command(
    url: Annotated[str, typer.Option(help="the server, started with --enable-metrics")] = "http://127.0.0.1:30000",
    port: Annotated[int, typer.Option(min=0, max=65535, help="port of the page; 0 takes a free one")] = 0,
    once: Annotated[bool, typer.Option("--once", help="print where prompt tokens came from so far; no page")] = False,
) -> None:
    """Serve a live page of acceptance, drafts, restored and recomputed tokens."""
    if once:
        _show_sources(url)
        return
    try:
        server = make_server(url, port)
    except OSError as error:
        raise Refusal(
            "metrics-port", f"port {port}: {error.strerror}", fix="another --port; 0 takes a free one"
        ) from None
    console.print(f"http://127.0.0.1:{server.server_address[1]}/  (Ctrl-C ends it)")
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()


# Where a prompt's tokens come from, in the page's names.
SOURCES = {"device_tokens": "GPU", "restored_host": "host", "restored_storage": "storage", "recomputed": "computed"}


def _show_sources(url: str) -> None:
    try:
        shown = Source(url).sample()
    except ValueError as error:
        raise Refusal("metrics-source", str(error), fix="--enable-metrics at the start") from None
    counts = {name: shown[key] for key, name in SOURCES.items()}
    known = {name: value for name, value in counts.items() if isinstance(value, float)}
    total = sum(known.values())
    table = Table("prompt tokens from", "tokens", "share")
    for name in counts:
        said = known.get(name)
        share = "" if said is None or not total else f"{said / total:.1%}"
        table.add_row(name, "not reported" if said is None else f"{said:,.0f}", share)
    console.print(table)
