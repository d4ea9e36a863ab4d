"""A server that answers by a script, on a real socket, and keeps what it was sent."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Step = dict[str, Any]


@dataclass
class Script:
    """What is answered in turn, the last step for ever; and what came."""

    url: str = ""
    steps: list[Step] = field(default_factory=list)
    owned_by: str = "somebody"
    list_status: int = 200
    bodies: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    lists: int = 0

    def step(self) -> Step:
        return self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]


def chat(
    text: str | None, finish: str = "stop", usage: tuple[int, int] | None = (100, 20), **more: Any
) -> Step:
    """An answer of the chat API."""
    message = {"role": "assistant", "content": text, **more}
    body: dict[str, Any] = {"choices": [{"index": 0, "finish_reason": finish, "message": message}]}
    if usage is not None:
        body["usage"] = {"prompt_tokens": usage[0], "completion_tokens": usage[1]}
    return {"status": 200, "body": body}


def tool(text: str) -> Step:
    """An answer of the chat API by a custom tool."""
    call = {"id": "c1", "type": "custom", "custom": {"name": "emit", "input": text}}
    return chat(None, "tool_calls", tool_calls=[call])


def responses(*items: dict[str, Any], cut: bool = False) -> Step:
    """An answer of the responses API."""
    body = {
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": list(items),
        "usage": {"input_tokens": 100, "output_tokens": 20},
    }
    return {"status": 200, "body": body}


def refusal(status: int, message: str, **more: Any) -> Step:
    """An error of a status, with headers as given."""
    return {"status": status, "body": {"error": {"message": message, "param": None}}, "headers": more}


@contextmanager
def scripted(script: Script | None = None) -> Iterator[Script]:
    """The running server."""
    script = script or Script()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            script.lists += 1
            self._send(
                {"status": script.list_status, "body": {"data": [{"id": "m", "owned_by": script.owned_by}]}}
            )

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            script.bodies.append(body)
            script.paths.append(self.path)
            script.headers.append({name.lower(): value for name, value in self.headers.items()})
            self._send(script.step())

        def _send(self, step: Step) -> None:
            time.sleep(step.get("delay", 0.0))
            text = step["body"] if isinstance(step["body"], str) else json.dumps(step["body"])
            data = text.encode()
            try:
                self.send_response(step["status"])
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data) + step.get("missing", 0)))
                for name, value in step.get("headers", {}).items():
                    self.send_header(name.replace("_", "-"), str(value))
                self.end_headers()
                for start in range(0, len(data), step.get("piece", len(data) or 1)):
                    self.wfile.write(data[start : start + step.get("piece", len(data))])
                    self.wfile.flush()
                    time.sleep(step.get("pause", 0.0))
            except OSError:  # the client has given up
                pass

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    script.url = f"http://127.0.0.1:{server.server_port}/v1"
    try:
        yield script
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
