"""The tables of a problem file that steer a search, each one frozen value with its defaults."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from tanren_dsl.check import check
from tanren_dsl.errors import TanrenError
from tanren_dsl.evolve.operators import Limits, Rates
from tanren_dsl.evolve.reader import Reader
from tanren_dsl.evolve.replay_arena import Loss
from tanren_dsl.printer import print_policy
from tanren_dsl.signals import Kind
from tanren_dsl.source import Source
from tanren_dsl.syntax import Knob, Name, OrderBy, PolicyText


@dataclass(frozen=True, slots=True)
class Search:
    """Budget and selection.

    Attributes:
        population: individuals made in each generation.
        survivors: best distinct ones, old or new, that may be parents of the next.
        generations: rounds, the first (classics and random trees) included.
        tournament: individuals compared to choose a parent.
        finalists: best on training that are judged on validation.
        seeds: whether the classics open the first generation.
        complexity: price of one unit of complexity, in units of the mean score.
        proposals: individuals of a generation that come from the language model, if there is one.
    """

    population: int = 48
    survivors: int = 24
    generations: int = 12
    tournament: int = 3
    finalists: int = 8
    seeds: bool = True
    complexity: float = 0.01
    proposals: int = 4


@dataclass(frozen=True, slots=True)
class Racing:
    """Who is measured in full: a short stage first, where only the better part goes on.

    Attributes:
        share: of the requests of a training window that the short stage takes.
        keep: share of a generation's new candidates that go on.
    """

    on: bool = True
    share: float = 0.3
    keep: float = 0.5


@dataclass(frozen=True, slots=True)
class Tuning:
    """Constants of the best, moved together by CMA-ES between generations.

    Attributes:
        every: generations between two rounds; 0: never.
        best: candidates that are tuned in a round.
        steps: iterations of CMA-ES for each.
        population: candidates of an iteration.
        sigma: first step, in units of the logarithm of a constant.
    """

    every: int = 4
    best: int = 2
    steps: int = 4
    population: int = 6
    sigma: float = 0.4


@dataclass(frozen=True, slots=True)
class Gate:
    """What the champion must reach on validation; a run that misses it ends there.

    Attributes:
        score: its mean score must be above this.
        kept: and at least this share of its mean score on training: less is called over-tuned. 0: not asked.
        over_classic: and above the best single classic's by more than this; None: not asked.
        violations: configurations in which its tail may be beyond the limit.
        as_good_as: a policy's text whose gain it must equal; None: not asked. A search ends early when
            its score on training is equalled.
    """

    score: float = 0.0
    kept: float = 0.5
    over_classic: float | None = None
    violations: int = 0
    as_good_as: str | None = None


def read_search(reader: Reader, complexity: float) -> Search:
    """The table `[search]`, but for its key `start`; the price of complexity depends on the mode."""
    known = Search()
    return Search(
        population=reader.whole("population", known.population, least=2),
        survivors=reader.whole("survivors", known.survivors, least=1),
        generations=reader.whole("generations", known.generations, least=1),
        tournament=reader.whole("tournament", known.tournament, least=1),
        finalists=reader.whole("finalists", known.finalists, least=1),
        seeds=reader.truth("seeds", known.seeds),
        complexity=reader.number("complexity", complexity, low=0.0),
        proposals=reader.whole("proposals", known.proposals),
    )


def read_racing(reader: Reader) -> Racing:
    """The table `[racing]`."""
    known = Racing()
    racing = Racing(
        on=reader.truth("on", known.on),
        share=reader.number("share", known.share, low=0.0, high=1.0, above=True),
        keep=reader.number("keep", known.keep, low=0.0, high=1.0, above=True),
    )
    reader.finish()
    return racing


def read_tuning(reader: Reader) -> Tuning:
    """The table `[tuning]`."""
    known = Tuning()
    tuning = Tuning(
        every=reader.whole("every", known.every),
        best=reader.whole("best", known.best, least=1),
        steps=reader.whole("steps", known.steps, least=1),
        population=reader.whole("population", known.population, least=4),
        sigma=reader.number("sigma", known.sigma, low=0.0, high=10.0, above=True),
    )
    reader.finish()
    return tuning


def read_gate(reader: Reader, as_good_as: str | None) -> Gate:
    """The table `[gate]`; the text of `as_good_as` was read before."""
    known = Gate()
    over = reader.number("over_classic", 0.0) if "over_classic" in reader.data else None
    gate = Gate(
        score=reader.number("score", known.score),
        kept=reader.number("kept", known.kept, low=0.0, high=1.0),
        over_classic=over,
        violations=reader.whole("violations", known.violations),
        as_good_as=as_good_as,
    )
    reader.finish()
    return gate


def read_loss(reader: Reader) -> Loss:
    """The table `[score]` of replay mode, in percentage points of hit rate.

    Raises:
        TanrenError: the penalty would begin at the limit: a cliff.
    """
    known = Loss()
    loss = Loss(
        s=reader.number("s", known.s, low=0.0),
        k=reader.number("k", known.k, low=0.0),
        limit=reader.number("limit", known.limit, low=0.0),
    )
    reader.finish()
    if loss.s >= loss.limit:
        raise reader.error("s", f"less than the limit of {loss.limit:g}: the penalty starts before", loss.s)
    return loss


def read_limits(reader: Reader) -> Limits:
    """The table `[limits]`."""
    known = Limits()
    limits = Limits(
        reader.whole("nodes", known.nodes, least=3, most=400),
        reader.whole("height", known.height, least=1, most=20),
    )
    reader.finish()
    return limits


def read_rates(reader: Reader) -> Rates:
    """The table `[rates]`."""
    found = {name: reader.number(name, value, low=0.0) for name, value in asdict(Rates()).items()}
    reader.finish()
    if not any(found.values()):
        raise TanrenError(f"{reader.source}: rates: expected one above 0, found only zeros")
    return Rates(**found)


def read_candidates(top: Reader) -> tuple[float | None, ...]:
    """The key `candidates`: considered sets in percent, None for all."""

    def one(reader: Reader, key: str) -> float | None:
        if reader.data[key] == "all":
            reader.take(key)
            return None
        return reader.number(key, low=0.0, high=100.0, above=True, words='"all" or a percentage')

    found = tuple(top.each("candidates", one)) if "candidates" in top.data else (10.0, None)
    if not found:
        raise top.error("candidates", 'at least one of "all" or a percentage', [])
    return tuple(dict.fromkeys(found))


def read_knobs(top: Reader, kind: Kind) -> tuple[Knob, ...]:
    """The tables `[knobs.NAME]`: the operator's settings, which stay as they are."""
    found = []
    knobs = top.table("knobs")
    for name in knobs.data:
        if not (name.isascii() and name.isidentifier()):
            raise TanrenError(f"{top.source}: knobs: expected names of letters, digits and _, found {name!r}")
        row = knobs.table(name)
        knob = Knob(name, row.text("unit"), row.number("value"))
        row.finish()
        key = Name("last_use" if kind == "evict" else "arrival")
        probe = PolicyText("p", kind, None, (knob, OrderBy((key,))))
        try:
            check(probe, Source(top.source, print_policy(probe)))
        except TanrenError as error:
            first = error.diagnostics[0]
            raise TanrenError(f"{top.source}: {row.path}: {first.message}", hint=first.hint) from None
        found.append(knob)
    return tuple(found)
