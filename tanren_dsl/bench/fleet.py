"""Where the servers of the arms come from: started and stopped here, or given by their addresses.

A fleet hands out the server of an arm and keeps what it said about its policy. One server at a time
is the rule, since even an idle one takes some time from the others; `keep_up` leaves all up.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from tanren_dsl.bench.server import Server, ServeSpec, connect, serve
from tanren_dsl.bench.store import Report, Store
from tanren_dsl.errors import TanrenError

_COUNT = {
    "faults": re.compile(r"\bfaults (\d+)"),
    "decisions": re.compile(r"\b(?:decisions|orderings) (\d+)"),  # of an evict and of a schedule policy
}


class Fleet(Protocol):
    """Servers by capacity in usable blocks (None: as they are) and number of the arm."""

    def use(self, capacity: int | None, arm: int) -> tuple[Server, str | None]:
        """A running server, and the name of its report, if it will have one."""

    def close(self) -> None:
        """Stop what was started."""


class StartedFleet:
    """Servers that are started when they are wanted.

    Args:
        arms: their names.
        spec_of: how the server of a capacity and an arm is started.
        store: keeps logs and reports.
        say: takes a line of progress.
        keep_up: leave servers of the same capacity up when another is wanted.
        limit_s: seconds a server may take to be ready.
    """

    def __init__(
        self, arms: Sequence[str], spec_of: Callable[[int | None, int], ServeSpec], store: Store,
        say: Callable[[str], None], *, keep_up: bool = False, limit_s: float = 600.0,
    ) -> None:  # fmt: skip
        self._arms, self._spec_of, self._store, self._say = arms, spec_of, store, say
        self._keep_up, self._limit_s = keep_up, limit_s
        self._up: dict[tuple[int | None, int], _Running] = {}

    def use(self, capacity: int | None, arm: int) -> tuple[Server, str | None]:
        """The server, started if it is not up; others are stopped before, unless they are kept up.

        Raises:
            TanrenError: it does not start.
        """
        for key, running in list(self._up.items()):
            keeps = self._keep_up and key[0] == capacity
            if running.server.exit_status() is not None or not (key == (capacity, arm) or keeps):
                self._stop(key)
        if (capacity, arm) not in self._up:
            wanted = range(len(self._arms)) if self._keep_up else (arm,)
            for one in wanted:
                if (capacity, one) not in self._up:
                    self._start(capacity, one)
        running = self._up[capacity, arm]
        return running.server, running.name

    def close(self) -> None:
        """Stop all servers and keep their reports."""
        for key in list(self._up):
            self._stop(key)

    def _start(self, capacity: int | None, arm: int) -> None:
        name = self._store.new_server(self._arms[arm])
        self._say(f"starting a server: {self._arms[arm]}{_at(capacity)}")
        running = _Running(name, self._spec_of(capacity, arm), self._store.server_log(name), self._limit_s)
        self._up[capacity, arm] = running
        for line in running.server.policy_lines():
            self._say(f"  {line}")

    def _stop(self, key: tuple[int | None, int]) -> None:
        running = self._up.pop(key)
        running.stack.close()
        report = report_of(self._arms[key[1]], running.spec, running.server)
        self._store.write_report(running.name, report)


class GivenFleet:
    """Servers that run elsewhere, one address for each arm."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._servers = [connect(url) for url in urls]

    def use(self, capacity: int | None, arm: int) -> tuple[Server, str | None]:  # noqa: ARG002
        """The server of an arm; its capacity is what it is."""
        return self._servers[arm], None

    def close(self) -> None:
        """Close the connections."""
        for server in self._servers:
            server.close()


class _Running:
    def __init__(self, name: str, spec: ServeSpec, log: Path, limit_s: float) -> None:
        self.name, self.spec = name, spec
        self.stack = ExitStack()
        self.server = self.stack.enter_context(serve(spec, log, limit_s))


def report_of(arm: str, spec: ServeSpec, server: Server) -> Report:
    """What a stopped server said; one without a policy has nothing to decide and so no faults."""
    lines = tuple(server.policy_lines())
    if spec.policy_file is None:
        return Report(arm, 0, 0, server.exit_status(), lines)
    return Report(arm, _last(lines, "faults"), _last(lines, "decisions"), server.exit_status(), lines)


def _last(lines: Sequence[str], name: str) -> int | None:
    found = [match.group(1) for line in lines if (match := _COUNT[name].search(line))]
    if found:
        return int(found[-1])
    return 0 if any("stands aside" in line for line in lines) else None


def check_urls(urls: Sequence[str], arms: int) -> list[str]:
    """An address for each arm.

    Raises:
        TanrenError: there are not as many as arms.
    """
    if len(urls) != arms:
        raise TanrenError(
            f"expected an address for each of {arms} arms, found {len(urls)}",
            hint="--url for the default first, then one for each policy in their order",
        )
    return list(urls)


def _at(capacity: int | None) -> str:
    return "" if capacity is None else f", {capacity:,} blocks"
