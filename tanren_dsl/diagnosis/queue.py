"""The waiting queue of a simulated server at chosen steps: who waited, and what was known of them.

Serves the requests once more, stops before and after each chosen step, and copies what the schedule
policy could read there. No decision is changed by it: what is looked up in addition is only written
down.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tanren_dsl.signals import ENGINE, STORED, column_of, decision_index, signals_of
from tanren_dsl.sim.engine import EngineLimits, EngineRun
from tanren_dsl.sim.engine_state import LINED, STEP
from tanren_dsl.sim.latency import Latency
from tanren_dsl.sim.rule import stock
from tanren_dsl.sim.service import Service
from tanren_dsl.sim.serving import DECLARED_TOKENS, Server
from tanren_dsl.trace.blocks import engine_blocks
from tanren_dsl.trace.table import RequestTable

Doubles = NDArray[np.float64]
Ints = NDArray[np.int64]

_ROWS = signals_of("schedule")
STORED_REQUEST = STORED["schedule"]
"""Stored request signals: what `View.rows` holds, in this order."""
REQUEST_SIGNALS = tuple(name for name, row in _ROWS.items() if row.scope == "object")
"""All request signals; `wait` is computed."""
DECISION = tuple(name for name, row in _ROWS.items() if row.scope == "decision" and ENGINE in row.provided_by)
"""Per-decision signals of engine mode."""


@dataclass(frozen=True, eq=False)
class View:
    """The top of a step: n requests wait.

    Attributes:
        step: its number.
        decision: per-decision signals by name, times in microseconds.
        requests: [n] who waits, in the engine's own order.
        rows: [n, S] their stored signals, in the order of `STORED_REQUEST`.
    """

    step: int
    decision: Mapping[str, float]
    requests: Ints
    rows: Doubles

    def columns(self) -> dict[str, Doubles]:
        """[n] stored signals by name, as the interpreter takes them."""
        return {name: self.rows[:, k].copy() for k, name in enumerate(STORED_REQUEST)}

    def signals(self) -> dict[str, Doubles]:
        """[n] every request signal by name."""
        columns, now = self.columns(), self.decision["now"]
        since = {name: _ROWS[name].since for name in REQUEST_SIGNALS}
        return {name: columns[name] if at is None else now - columns[at] for name, at in since.items()}

    def place(self, request: int) -> int:
        """Where a request stands in `requests`."""
        found = np.flatnonzero(self.requests == request)
        assert len(found) == 1, "the request does not wait at this step"
        return int(found[0])


def views(
    table: RequestTable, server: Server, latency: Latency, service: Service, steps: Mapping[int, int]
) -> dict[int, View]:
    """The queue at the top of chosen steps, by step.

    Args:
        table: R requests.
        server: sizes.
        latency: what a step takes.
        service: a schedule policy's.
        steps: numbers of the chosen steps, each with the moment at which it begins, in microseconds.
    """
    run = _run(table, server, latency, service)
    found = {}
    for step in sorted(steps):
        ahead = step - int(run.engine.state[STEP])
        if ahead > 0:
            run.run(ahead, keep_events=False)
        run.run(1, keep_events=False)
        found[step] = _view(run, step, steps[step])
    return found


def _view(run: EngineRun, step: int, now_us: int) -> View:
    """The queue as the step that was just made found it.

    Who joined the line after the step's order was made is still marked as fresh.
    """
    engine = run.engine
    line = engine.line[: engine.state[LINED]].astype(np.int64)
    waited = line[engine.fresh[line] == 0]
    columns = np.array([column_of("schedule", name) for name in STORED_REQUEST])
    decision = {name: float(run.pool.decision[decision_index(name)]) for name in DECISION}
    decision["now"] = float(now_us)  # the end of the step has moved it on
    return View(step, decision, waited, engine.rows[waited][:, columns])


def _run(table: RequestTable, server: Server, latency: Latency, service: Service) -> EngineRun:
    """The run that `serving.serve` makes, with every signal kept."""
    limits = EngineLimits(
        usable_blocks=server.usable_blocks,
        max_num_seqs=server.max_num_seqs,
        max_num_batched_tokens=server.max_num_batched_tokens,
        max_model_len=server.max_model_len or int((table.prompt_tokens + table.output_tokens).max()) + 1,
        step_us=1,
        asynchronous=server.asynchronous,
        long_prefill_token_threshold=server.long_prefill_token_threshold,
        enable_prefix_caching=server.caching,
    )
    curious = replace(service, line=service.line._replace(refreshes=1), reads=service.reads | {"oldest_wait"})
    return EngineRun(
        engine_blocks(table, server.block_size), table.arrival_us, limits, stock(), server.engine,
        service=curious, latency=latency, declared=np.full(len(table), DECLARED_TOKENS),
    )  # fmt: skip
