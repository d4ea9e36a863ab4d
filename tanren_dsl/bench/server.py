"""A vLLM server to be measured: one started here (`serve`), or one that runs elsewhere (`connect`).

Both give the same `Server`. This is not the client that sends the load: it only starts, resets,
reads the counters and stops.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from tanren_dsl.bench import process
from tanren_dsl.bench.metrics import Metrics, parse_metrics
from tanren_dsl.bench.process import ServeSpec
from tanren_dsl.errors import TanrenError

__all__ = ["Metrics", "ServeSpec", "Server", "connect", "serve"]

_REQUEST_S = 30.0
_RESET_S = 30.0
_POLL_S = 0.2
_OURS = "tanren: "
_RESET_FAILED = "Failed to reset prefix cache"


class Server:
    """A running server. `url` has no slash at its end; `model` is the name that requests must give."""

    def __init__(
        self, url: str, log: Path | None = None, child: subprocess.Popen[bytes] | None = None
    ) -> None:
        """Address a server; `log` and `child` are those of one that was started here."""
        self.url = url.rstrip("/")
        self.log = log
        self._child = child
        # no connection is kept, so an owner that never calls close() leaves none open
        limits = httpx.Limits(max_keepalive_connections=0)
        self._client = httpx.Client(base_url=self.url, timeout=_REQUEST_S, limits=limits)
        self._model: str | None = None

    @property
    def model(self) -> str:
        """Name of the first model that is served.

        Raises:
            TanrenError: the server does not answer as an OpenAI-compatible one does.
        """
        if self._model is None:
            try:
                self._model = str(self._request("GET", "/v1/models").json()["data"][0]["id"])
            except (ValueError, LookupError, TypeError):
                raise TanrenError(f"{self.url}/v1/models names no model") from None
        return self._model

    @property
    def pid(self) -> int | None:
        """Process id of a server started here."""
        return None if self._child is None else self._child.pid

    def is_healthy(self) -> bool:
        """Whether the server answers and its engine lives."""
        try:
            return self._client.get("/health").status_code == 200
        except httpx.TransportError:
            return False

    def exit_status(self) -> int | None:
        """Exit status of a server started here, a signal as a negative number; None while it runs."""
        return None if self._child is None else self._child.poll()

    def metrics(self) -> Metrics:
        """What the server counted until now.

        Raises:
            TanrenError: no answer, or one without vLLM's metrics.
        """
        return parse_metrics(self._request("GET", "/metrics").text)

    def reset_prefix_cache(self) -> None:
        """Forget every cached block. Requests that are still held are waited for, up to 30 seconds.

        0.32.0 says whether it succeeded. 0.19.1 does not: for a server started here its log
        does, and for one elsewhere no request may be running.

        Raises:
            TanrenError: the server offers no reset, or blocks were held all that time.
        """
        deadline = time.monotonic() + _RESET_S
        while not self._try_reset():
            if time.monotonic() > deadline:
                raise TanrenError(
                    f"{self.url}: the prefix cache could not be reset in {_RESET_S:g} s",
                    hint="requests still hold blocks: let them finish, or abort them",
                )
            time.sleep(_POLL_S)

    def policy_lines(self) -> list[str]:
        """What the policy's file logged, from `tanren:` on; nothing for a server elsewhere or stock vLLM."""
        return [line[line.index(_OURS) :] for line in self._log_text().splitlines() if _OURS in line]

    def close(self) -> None:
        """Close the connections. Does not stop the server."""
        self._client.close()

    def _try_reset(self) -> bool:
        idle = self.log is not None or self._is_idle()
        said_before = len(self._log_text())
        response = self._request("POST", "/reset_prefix_cache", missing_hint="VLLM_SERVER_DEV_MODE=1")
        if response.content:
            return response.json().get("success") is True
        return idle and _RESET_FAILED not in self._log_text()[said_before:]

    def _is_idle(self) -> bool:
        metrics = self.metrics()
        return metrics.running == metrics.waiting == 0

    def _log_text(self) -> str:
        return "" if self.log is None else self.log.read_text(encoding="utf-8", errors="replace")

    def _request(self, method: str, path: str, missing_hint: str | None = None) -> httpx.Response:
        try:
            response = self._client.request(method, path)
        except httpx.InvalidURL as error:
            raise TanrenError(
                f"{self.url!r} is no address: {error}", hint="such as http://host:8000"
            ) from None
        except httpx.HTTPError as error:
            raise TanrenError(f"{self.url} does not answer: {error or type(error).__name__}") from None
        if response.status_code == 404 and missing_hint is not None:
            raise TanrenError(
                f"{self.url} offers no {path}",
                hint=f"start that server with {missing_hint} in its environment",
            )
        if response.status_code != 200:
            raise TanrenError(f"{self.url}{path} answers with status {response.status_code}")
        return response


def connect(url: str) -> Server:
    """A server that was not started here; its log is not read and it is never stopped.

    Raises:
        TanrenError: nothing answers at `url`, or it serves no model.
    """
    server = Server(url)
    try:
        _ = server.model
    except TanrenError:
        server.close()
        raise
    return server


@contextlib.contextmanager
def serve(spec: ServeSpec, log: Path, limit_s: float = 300.0) -> Iterator[Server]:
    """Start a server, wait until it is ready, stop it at the end.

    Args:
        spec: how it is started.
        log: file for all it says; replaced, and kept.
        limit_s: seconds it may take to be ready.

    Raises:
        TanrenError: it cannot be started, ended, or took too long; with the cause and the log's tail.
    """
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tanren-serve-")))
        port = _free_port()
        child = process.start(spec, port, log, folder)
        stack.callback(process.stop, child)
        server = Server(f"http://127.0.0.1:{port}", log, child)
        stack.callback(server.close)
        _wait_until_ready(server, log, limit_s)
        yield server


def _wait_until_ready(server: Server, log: Path, limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while not server.is_healthy():
        status = server.exit_status()
        if status is not None:
            raise process.failure(f"the server ended with status {status} before it was ready", log)
        if time.monotonic() > deadline:
            raise process.failure(f"the server was not ready after {limit_s:g} s", log)
        time.sleep(_POLL_S)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
