"""From a problem to what is measured: the trace, the windows of each role, the arena."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tanren_dsl.backends.numba import compile_ordering
from tanren_dsl.check import loads
from tanren_dsl.errors import TanrenError
from tanren_dsl.evolve.candidate import classics
from tanren_dsl.evolve.measures import Judge
from tanren_dsl.evolve.primitives import Primitives, build_primitives
from tanren_dsl.evolve.problem import Problem
from tanren_dsl.evolve.replay_arena import ReplayArena, replay_arena
from tanren_dsl.evolve.serving_arena import ServingArena, serving_arena
from tanren_dsl.evolve.windows import Ranges, Role, repeats_of, settle
from tanren_dsl.scoring.windows import servable
from tanren_dsl.signals import ENGINE, REPLAY
from tanren_dsl.trace.read import read_trace
from tanren_dsl.trace.table import RequestTable


@dataclass(frozen=True, eq=False)
class Ground:
    """What a problem is about, with everything settled.

    Attributes:
        trace: the requests that count; in serving mode those that the server can serve.
        ranges: request numbers of every window, by role.
    """

    problem: Problem
    trace: RequestTable
    ranges: Ranges
    primitives: Primitives

    def arena(self, roles: Sequence[Role], *, short: bool = False) -> ReplayArena | ServingArena:
        """The arena of some roles; nothing of the others is in it."""
        racing = self.problem.racing
        return _arena(self.problem, self.trace, self.ranges, roles, racing.share if short else None)

    def digest(self, role: Role) -> str:
        """A hash of the requests of a role: what a ledger can be held against."""
        return digest_of([self.trace.slice(start, stop) for start, stop in self.ranges.get(role, ())])


def prepare(problem: Problem, say: Callable[[str], None] = lambda _: None) -> Ground:
    """Read the trace and settle the windows; those that are picked by the classics take a while.

    Raises:
        TanrenError: the trace or a window is wrong; names the problem file.
    """
    trace = read_trace(problem.trace, block_tokens=problem.block_tokens)
    if problem.settings is not None:
        trace = servable(trace, problem.settings)
    primitives = build_primitives(
        problem.knobs, problem.candidates, kind=problem.kind,
        mode=REPLAY if problem.mode == "replay" else ENGINE, still=still_signals(problem, trace),
    )  # fmt: skip
    try:
        survey = _surveyor(problem, trace, primitives, say)
        ranges = settle(problem.windows, len(trace), trace.name, survey, problem.warm)
        _check_fit(problem, trace, ranges)
    except TanrenError as error:
        first = error.diagnostics[0]
        raise TanrenError(f"{problem.source}: {first.message}", hint=first.hint) from None
    return Ground(problem, trace, ranges, primitives)


def still_signals(problem: Problem, trace: RequestTable) -> set[str]:
    """Signals of an object that are the same for nearly all of them in the simulation of a trace.

    No trace has priorities or caps, what waits has computed nothing, and where no request shares a
    block nothing is cached or used again.
    """
    shares = trace.distinct_blocks < trace.lookups
    if problem.kind == "evict":
        return set() if shares else {"uses", "spaced_uses", "ghost_uses", "gap"}
    still = {"user_priority", "max_tokens", "computed_tokens", "output_tokens", "preemptions", "resumed"}
    caches = problem.settings is None or problem.settings.server.caching
    return still if shares and caches else still | {"cached_tokens"}


def digest_of(tables: Sequence[RequestTable]) -> str:
    """A hash of requests: times, lengths and blocks."""
    digest = hashlib.sha256()
    for table in tables:
        for column in (table.arrival_us, table.prompt_tokens, table.output_tokens, table.offsets, table.ids):
            digest.update(column.tobytes())
    return digest.hexdigest()


def _check_fit(problem: Problem, trace: RequestTable, ranges: Ranges) -> None:
    """Refuse early what would not fit a window of any role; nothing is simulated."""
    if problem.settings is None:
        _arena(problem, trace, ranges, tuple(ranges), None)
    for windows in ranges.values():
        for start, stop in windows:
            repeats_of(start, stop, problem.repeats)


def _arena(
    problem: Problem, trace: RequestTable, ranges: Ranges, roles: Sequence[Role], short: float | None
) -> ReplayArena | ServingArena:
    if problem.settings is None:
        return replay_arena(
            trace, ranges, roles, problem.capacities, engine=problem.engine,
            compile_ordering=compile_ordering, loss=problem.loss, repeats=problem.repeats,
            warm=problem.warm, short=short,
        )  # fmt: skip
    return serving_arena(
        trace, ranges, roles, problem.settings, kind=problem.kind, metric=problem.objective,
        compile_ordering=compile_ordering, short=short,
    )  # fmt: skip


def _surveyor(
    problem: Problem, trace: RequestTable, primitives: Primitives, say: Callable[[str], None]
) -> Callable[[int, int], Mapping[str, float]]:
    policies = {str(one.classic): loads(one.text) for one in classics(primitives)}
    plain = replace(problem, repeats=1)
    if problem.settings is not None:
        plain = replace(plain, settings=problem.settings.changed(repeats=1))

    def survey(start: int, stop: int) -> Mapping[str, float]:
        arena = _arena(plain, trace, {"train": ((start, stop),)}, ("train",), None)
        judge = Judge(arena, [("train", "full")])
        scores = {
            name: judge.score(arena.measure(policy, "train", "full")) for name, policy in policies.items()
        }
        best = max(scores, key=lambda name: scores[name])
        say(f"  requests {start:,} to {stop - 1:,}: {best} wins ({scores[best]:+.4g} {arena.unit})")
        return scores

    return survey
