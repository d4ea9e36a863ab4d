"""The problem file: what is searched, on which requests, at which cache sizes, with what budget.

A TOML file becomes one frozen value. Every error names the key; an unknown key is refused.
"""

from __future__ import annotations

import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path

from tanren_dsl.check import check
from tanren_dsl.errors import TanrenError
from tanren_dsl.evolve.operators import Limits, Rates
from tanren_dsl.evolve.reader import Reader
from tanren_dsl.evolve.windows import Capacities, Cut
from tanren_dsl.printer import print_policy
from tanren_dsl.sim.profiles import PROFILES
from tanren_dsl.source import Source
from tanren_dsl.syntax import Knob, Name, OrderBy, PolicyText


@dataclass(frozen=True)
class Search:
    """Budget and selection.

    Attributes:
        population: individuals made in each generation.
        survivors: best distinct ones, old or new, that may be parents of the next.
        generations: rounds, the first (classics and random trees) included.
        tournament: individuals compared to choose a parent.
        finalists: best on training that are judged on validation.
        seeds: whether the classics open the first generation.
        complexity: price of one unit of complexity, in points of hit rate.
    """

    population: int = 48
    survivors: int = 24
    generations: int = 12
    tournament: int = 3
    finalists: int = 8
    seeds: bool = True
    complexity: float = 0.01


@dataclass(frozen=True)
class Problem:
    """A whole problem file.

    Attributes:
        source: the file's name, for messages.
        trace: path or name of an embedded trace.
        candidates: considered sets to choose from, in percent (None: all).
    """

    source: str
    name: str
    trace: str
    engine: str
    block_tokens: int | None
    train: tuple[Cut, ...]
    validation: tuple[Cut, ...]
    capacities: Capacities
    candidates: tuple[float | None, ...]
    knobs: tuple[Knob, ...]
    search: Search
    limits: Limits
    rates: Rates


def load_problem(path: str | Path) -> Problem:
    """Read a problem file; a relative trace is looked for beside it, then in the current folder.

    Raises:
        TanrenError: names the file, the key, what was expected and what was found.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise TanrenError(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise TanrenError(f"{path}:{line}: not UTF-8: byte 0x{data[error.start]:02x}") from None
    return parse_problem(text, str(path), path.parent, path.stem)


def parse_problem(text: str, source: str, folder: Path = Path(), stem: str = "problem") -> Problem:
    """The problem of a text; `folder` is where relative traces are looked for first."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TanrenError(f"{source}: not TOML: {error}") from None
    except (ValueError, RecursionError):
        raise TanrenError(f"{source}: not TOML: a number or the nesting is too big") from None
    top = Reader(source, "", data)
    engine = top.text("engine", "vllm-0.19")
    if engine not in PROFILES:
        raise top.error("engine", f"one of {', '.join(PROFILES)}", engine)
    trace = top.text("trace")
    windows, capacities = top.table("windows", required=True), top.table("capacities", required=True)
    sizes = Capacities(
        tuple(capacities.each("blocks", lambda r, k: r.whole(k, least=1))),
        tuple(capacities.each("fractions", lambda r, k: r.number(k, low=0.0, high=1.0, above=True))),
    )
    if not sizes.blocks and not sizes.fractions:
        raise TanrenError(f"{source}: capacities: expected `blocks` or `fractions`, found neither")
    problem = Problem(
        source=source,
        name=top.text("name", stem),
        trace=_located(trace, folder),
        engine=engine,
        block_tokens=top.whole("block_tokens", least=1) if "block_tokens" in data else None,
        train=_cuts(windows, "train"),
        validation=_cuts(windows, "validation"),
        capacities=sizes,
        candidates=_candidates(top),
        knobs=_knobs(top),
        search=_search(top.table("search")),
        limits=_limits(top.table("limits")),
        rates=_rates(top.table("rates")),
    )
    for reader in (windows, capacities, top):
        reader.finish()
    return problem


def _located(trace: str, folder: Path) -> str:
    beside = folder / trace
    return str(beside) if not Path(trace).is_absolute() and beside.is_file() else trace


def _cuts(windows: Reader, role: str) -> tuple[Cut, ...]:
    cuts = tuple(windows.each(role, _cut))
    if not cuts:
        raise windows.error(role, "at least one [start, stop]", windows.data.get(role, "nothing"))
    return cuts


def _cut(reader: Reader, key: str) -> Cut:
    value = reader.take(key)
    wanted = "[start, stop], two request numbers or two shares such as [0.0, 0.5]"
    if not isinstance(value, list) or len(value) != 2 or any(isinstance(end, bool) for end in value):
        raise reader.error(key, wanted, value)
    start, stop = value
    if isinstance(start, int) and isinstance(stop, int):
        good = 0 <= start < stop
    else:
        good = isinstance(start, float) and isinstance(stop, float) and 0.0 <= start < stop <= 1.0
    if not good:
        raise reader.error(key, wanted, value)
    return Cut(start, stop)


def _candidates(top: Reader) -> tuple[float | None, ...]:
    def one(reader: Reader, key: str) -> float | None:
        if reader.data[key] == "all":
            reader.take(key)
            return None
        return reader.number(key, low=0.0, high=100.0, above=True, words='"all" or a percentage')

    found = tuple(top.each("candidates", one)) if "candidates" in top.data else (10.0, None)
    if not found:
        raise top.error("candidates", 'at least one of "all" or a percentage', [])
    return tuple(dict.fromkeys(found))


def _knobs(top: Reader) -> tuple[Knob, ...]:
    found = []
    knobs = top.table("knobs")
    for name in knobs.data:
        if not (name.isascii() and name.isidentifier()):
            raise TanrenError(f"{top.source}: knobs: expected names of letters, digits and _, found {name!r}")
        row = knobs.table(name)
        knob = Knob(name, row.text("unit"), row.number("value"))
        row.finish()
        probe = PolicyText("p", "evict", None, (knob, OrderBy((Name("last_use"),))))
        try:
            check(probe, Source(top.source, print_policy(probe)))
        except TanrenError as error:
            first = error.diagnostics[0]
            raise TanrenError(f"{top.source}: {row.path}: {first.message}", hint=first.hint) from None
        found.append(knob)
    return tuple(found)


def _search(reader: Reader) -> Search:
    known = Search()
    search = Search(
        population=reader.whole("population", known.population, least=2),
        survivors=reader.whole("survivors", known.survivors, least=1),
        generations=reader.whole("generations", known.generations, least=1),
        tournament=reader.whole("tournament", known.tournament, least=1),
        finalists=reader.whole("finalists", known.finalists, least=1),
        seeds=reader.truth("seeds", known.seeds),
        complexity=reader.number("complexity", known.complexity, low=0.0),
    )
    reader.finish()
    return search


def _limits(reader: Reader) -> Limits:
    known = Limits()
    limits = Limits(
        reader.whole("nodes", known.nodes, least=3, most=400),
        reader.whole("height", known.height, least=1, most=20),
    )
    reader.finish()
    return limits


def _rates(reader: Reader) -> Rates:
    found = {name: reader.number(name, value, low=0.0) for name, value in asdict(Rates()).items()}
    reader.finish()
    if not any(found.values()):
        raise TanrenError(f"{reader.source}: rates: expected one above 0, found only zeros")
    return Rates(**found)
