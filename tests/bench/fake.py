"""A server that looks like vLLM to a client: it streams, counts blocks it has seen, and fails on order.

As a program it takes the arguments of vLLM, and serves until it is ended.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

BLOCK = 32
MAX_MODEL_LEN = 4096


class FakeServer(ThreadingHTTPServer):
    """What it was asked stands in `seen`; `faults` says by the first token of a prompt what goes wrong."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int = 0, delay_s: float = 0.0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.delay_s = delay_s
        self.seen: list[dict[str, Any]] = []
        self.faults: dict[int, str] = {}
        self.resets = 0
        self.in_flight = 0
        self.most_in_flight = 0
        self.counters = {"queries": 0, "hits": 0}
        self.blocks: set[tuple[int, ...]] = set()
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that hang up are part of the tests."""

    def admit(self, prompt: list[int]) -> None:
        """Count leading full blocks that were seen before; remember them all."""
        chains = [tuple(prompt[: end + BLOCK]) for end in range(0, len(prompt) - BLOCK + 1, BLOCK)]
        usable = chains[: (len(prompt) - 1) // BLOCK]
        hits = next((i for i, chain in enumerate(usable) if chain not in self.blocks), len(usable))
        self.counters["queries"] += len(prompt)
        self.counters["hits"] += hits * BLOCK
        self.blocks.update(chains)

    def metrics(self) -> str:
        values = {
            "prefix_cache_queries_total": self.counters["queries"],
            "prefix_cache_hits_total": self.counters["hits"],
            "num_preemptions_total": 0,
            "num_requests_running": self.in_flight,
            "num_requests_waiting": 0,
            "prompt_tokens_total": 0,
            "generation_tokens_total": 0,
        }
        return "".join(f'vllm:{name}{{engine="0"}} {float(value)}\n' for name, value in values.items())


class Handler(BaseHTTPRequestHandler):
    server: FakeServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/metrics":
            self.answer(200, self.server.metrics().encode())
        elif self.path == "/v1/models":
            self.answer(200, json.dumps({"data": [{"id": "m", "max_model_len": MAX_MODEL_LEN}]}).encode())
        else:
            self.answer(200 if self.path == "/health" else 404, b"")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/reset_prefix_cache":
            self.server.resets += 1
            self.server.blocks.clear()
            self.answer(200, b'{"success": true}')
        else:
            self.complete(json.loads(body))

    def complete(self, asked: dict[str, Any]) -> None:
        server = self.server
        fault = server.faults.get(asked["prompt"][0], "")
        with server.lock:
            server.seen.append(asked)
            server.admit(asked["prompt"])
            server.in_flight += 1
            server.most_in_flight = max(server.most_in_flight, server.in_flight)
        try:
            if fault == "refuse":
                self.answer(400, b'{"error": {"message": "too long", "code": 400}}')
            elif fault == "hang":
                time.sleep(2)
                self.close_connection = True
            else:
                self.stream(asked, fault)
        finally:
            with server.lock:
                server.in_flight -= 1

    def stream(self, asked: dict[str, Any], fault: str) -> None:
        count = asked["max_tokens"] - (fault == "short")
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number in range(count):
            if number == 2 and fault == "die":
                self.connection.close()
                self.close_connection = True
                return
            if number == 2 and fault == "complain":
                self.event({"error": {"message": "the engine is dead"}})
                break
            time.sleep(self.server.delay_s)
            self.event({"choices": [{"index": 0, "text": f" t{number}"}]})
        else:
            usage = {"prompt_tokens": len(asked["prompt"]) + (fault == "other"), "completion_tokens": count}
            if fault != "plain":
                self.event({"choices": [], "usage": usage})
        self.chunk(b"data: [DONE]\n\n")
        self.chunk(b"")

    def event(self, value: dict[str, Any]) -> None:
        self.chunk(b"data: " + json.dumps(value).encode() + b"\n\n")

    def chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@contextmanager
def running(delay_s: float = 0.0) -> Iterator[FakeServer]:
    with FakeServer(delay_s=delay_s) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def main(arguments: list[str]) -> None:
    """As vLLM's entry point; `FAKE_COUNT` names a file that gets a line for each start."""
    port = int(arguments[arguments.index("--port") + 1])
    with open(os.environ["FAKE_COUNT"], "a", encoding="utf-8") as file:
        file.write(f"{'policy' if '--scheduler-cls' in arguments else 'stock'}\n")
    if "--scheduler-cls" in arguments:
        sys.stderr.write("INFO tanren: policy p (abc, tanren-dsl 0, vLLM 9) decides evictions: here\n")
        sys.stderr.write("INFO tanren: policy p ends: decisions 12, faults 3, errors 0\n")
        sys.stderr.flush()
    FakeServer(port).serve_forever()


if __name__ == "__main__":
    main(sys.argv[1:])
