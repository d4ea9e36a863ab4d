"""What a scoreboard holds: rows of arms, their points on configurations, and what follows from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tanren_dsl.scoring.formula import ratio, total
from tanren_dsl.scoring.runs import Runs
from tanren_dsl.sim.serving import MODE
from tanren_dsl.stats import clustered_sign_flip, sign_test

IDLE_SHARE = 0.01
"""How far, as a share, a policy may move the mean TTFT of an idle server."""


@dataclass(frozen=True, slots=True)
class Point:
    """One arm on one configuration, beside FCFS and the classic that is best there in hindsight.

    Attributes:
        load: share of the saturation.
        rate: requests per second at that load.
        mean_s, p99_s: of the TTFT.
        violated: the p99 is beyond the limit.
        mean_queue: requests waiting behind a step, mean over the steps.
        hindsight, hindsight_score: the classic with the best score on this configuration.
    """

    label: str
    window: int
    start: int
    load: float
    repeat: int
    rate: float
    mean_s: float
    p99_s: float
    fcfs_mean_s: float
    fcfs_p99_s: float
    score: float
    violated: bool
    mean_queue: float
    worst_wait_s: float
    hindsight: str
    hindsight_score: float

    @property
    def mean_gain(self) -> float:
        """By what share the mean is shorter than FCFS's."""
        return 1.0 - ratio(self.mean_s, self.fcfs_mean_s)

    @property
    def p99_gain(self) -> float:
        """By what share the p99 is shorter than FCFS's."""
        return 1.0 - ratio(self.p99_s, self.fcfs_p99_s)


@dataclass(frozen=True, slots=True)
class Idle:
    """One arm on one window at the idle load: `difference` is a share of FCFS's mean, above 0 is slower."""

    window: int
    load: float
    mean_s: float
    fcfs_mean_s: float
    difference: float


@dataclass(frozen=True)
class Row:
    """One arm on all configurations.

    Attributes:
        oracle: no policy that a server could have: it knows the outputs.
        configs, idle: by configuration; every window at the idle load.
        preemptions, rescued, faults: over all configurations, see `runs.Measured`.
    """

    policy: str
    oracle: bool
    configs: tuple[Point, ...]
    idle: tuple[Idle, ...]
    preemptions: int
    rescued: int
    faults: int

    @property
    def total(self) -> float:
        """The sum of the scores."""
        return total(point.score for point in self.configs)

    @property
    def idle_difference(self) -> float:
        """The difference of the window that differs most at the idle load."""
        return max((one.difference for one in self.idle), key=abs, default=0.0)

    @property
    def idle_holds(self) -> bool:
        """Whether the mean of an idle server is left alone."""
        return abs(self.idle_difference) <= IDLE_SHARE

    def as_json(self) -> dict[str, Any]:
        """The row with its tests: wins are configurations in which FCFS is beaten, ties drop out."""
        means = [point.mean_gain for point in self.configs]
        tails = [point.p99_gain for point in self.configs]
        windows = [point.window for point in self.configs]
        ahead = [point.score - point.hindsight_score for point in self.configs]
        return {
            "policy": self.policy,
            "oracle": self.oracle,
            "total": self.total,
            "violations": sum(point.violated for point in self.configs),
            "mean_gain": sum(means) / len(means),
            "worst_p99_ratio": max(1.0 - gain for gain in tails),
            "mean_wins": _wins(means),
            "mean_losses": _losses(means),
            "p99_wins": _wins(tails),
            "p99_losses": _losses(tails),
            "p_mean": sign_test(_wins(means), _losses(means)),
            "p_p99": sign_test(_wins(tails), _losses(tails)),
            "clustered_p_mean": clustered_sign_flip(means, windows),
            "clustered_p_p99": clustered_sign_flip(tails, windows),
            "worst_wait_s": max(point.worst_wait_s for point in self.configs),
            "mean_queue": sum(point.mean_queue for point in self.configs) / len(self.configs),
            "hindsight": {
                "wins": _wins(ahead),
                "ties": len(ahead) - _wins(ahead) - _losses(ahead),
                "losses": _losses(ahead),
            },
            "preemptions": self.preemptions,
            "rescued": self.rescued,
            "faults": self.faults,
            "idle_difference": self.idle_difference,
            "idle_holds": self.idle_holds,
            "idle": [asdict(one) for one in self.idle],
            "configs": [asdict(point) for point in self.configs],
        }


@dataclass(frozen=True)
class Board:
    """Rows of all arms: FCFS first, then the policies, the oracle last.

    Attributes:
        runs: trace, server and settings.
        starts: first request of each window, counted in `runs.trace`.
    """

    runs: Runs
    starts: tuple[int, ...]
    rows: tuple[Row, ...]

    @property
    def configurations(self) -> int:
        """Windows times loads times repeats."""
        return len(self.rows[0].configs)

    @property
    def hindsight_total(self) -> float:
        """The total of the best classic of each configuration, chosen afterwards: nothing to deploy."""
        return total(point.hindsight_score for point in self.rows[0].configs)

    def as_json(self) -> dict[str, Any]:
        """The whole board."""
        latency = self.runs.latency
        return {
            "mode": MODE,
            "engine": self.runs.settings.engine,
            "trace": self.runs.trace.name,
            "requests": len(self.runs.trace),
            "notes": list(self.runs.trace.notes),
            "profile": {"name": latency.name, "basis": latency.basis, "residual": latency.residual},
            "settings": self.runs.settings.as_json(),
            "evict": None if self.runs.victims is None else self.runs.victims.label,
            "starts": list(self.starts),
            "hindsight_total": self.hindsight_total,
            "results": [row.as_json() for row in self.rows],
        }


def _wins(differences: Sequence[float]) -> int:
    return sum(one > 0 for one in differences)


def _losses(differences: Sequence[float]) -> int:
    return sum(one < 0 for one in differences)
