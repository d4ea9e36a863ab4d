"""Running arms on configurations; what was run once is not run again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tanren_dsl.ir import Policy
from tanren_dsl.kernels.abi import CompileOrdering
from tanren_dsl.scoring.arms import Arm, base_arm
from tanren_dsl.scoring.settings import Settings
from tanren_dsl.scoring.windows import Configuration, at_load, part, saturation, servable
from tanren_dsl.sim.latency import Latency, read_latency
from tanren_dsl.sim.rule import Victims, victims_of
from tanren_dsl.sim.serving import WAITING, serve
from tanren_dsl.trace.table import RequestTable


@dataclass(frozen=True, slots=True)
class Measured:
    """What one arm did on one configuration.

    Attributes:
        mean_s, p99_s: of the TTFT.
        worst_wait_s: longest time from arrival to first admission.
        mean_queue: requests waiting behind a step, mean over the steps.
        preemptions: requests pushed out, each time.
        rescued: admissions by the guard ahead of the policy's order.
        faults: decisions that fell back on the engine's own order, of blocks and of requests.
    """

    mean_s: float
    p99_s: float
    worst_wait_s: float
    mean_queue: float
    preemptions: int
    rescued: int
    faults: int


class Runs:
    """A server, a trace and settings; measures arms, and remembers what it measured.

    Attributes:
        base: first come, first served.
        trace: the requests that can be served.
        notes: what was left out of the trace or changed in it, one sentence each.

    Raises:
        TanrenError: no request can be served, or an evict policy cannot run in engine mode.
    """

    def __init__(
        self,
        trace: RequestTable,
        settings: Settings,
        *,
        latency: Latency | None = None,
        evict: Policy | None = None,
        compile_ordering: CompileOrdering | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.settings, self.say, self.base = settings, say, base_arm()
        self.latency = latency or read_latency(settings.profile)
        self.trace = servable(trace, settings)
        self.notes = self.trace.notes[len(trace.notes) :]
        self.victims: Victims | None = None
        if evict is not None:
            assert compile_ordering is not None
            self.victims = victims_of(evict, compile_ordering, settings.capacity, "engine")
        self._saturations: dict[int, float] = {}
        self._measured: dict[tuple[Arm, int, float], Measured] = {}

    def configuration(self, window: int, start: int, load: float, repeat: int) -> Configuration:
        """A window of the trace at a load; finds its saturation first."""
        begin, table = part(self.trace, start, repeat, self.settings)
        if begin not in self._saturations:
            self._saturations[begin] = saturation(table, self.settings.server, self.latency)
        saturated = self._saturations[begin]
        at = at_load(table, load, saturated)
        return Configuration(window, start, begin, load, repeat, saturated, at)

    def measure(self, arm: Arm, configuration: Configuration) -> Measured:
        """What the arm does there."""
        key = (arm, configuration.begin, configuration.load)
        if key not in self._measured:
            self._measured[key] = self._run(arm, configuration.table)
        return self._measured[key]

    def _run(self, arm: Arm, table: RequestTable) -> Measured:
        served = serve(
            table,
            self.settings.server,
            self.latency,
            victims=self.victims,
            service=arm.service,
            priority=arm.priority(table),
            keep_steps=True,
        )
        return Measured(
            mean_s=float(served.ttft_s.mean()),
            p99_s=float(np.percentile(served.ttft_s, 99)),  # as in `stats.py`
            worst_wait_s=float(served.wait_s.max()),
            mean_queue=float(served.steps[:, WAITING].mean()),
            preemptions=served.totals.preemptions,
            rescued=served.totals.rescued,
            faults=served.totals.faults + served.totals.order_faults,
        )
