"""The end of a search: the champion among the finalists, the gate, and what is said about it."""

from __future__ import annotations

from collections.abc import Sequence

from tanren_dsl.check import loads
from tanren_dsl.errors import TanrenError
from tanren_dsl.evolve.candidate import Candidate, champion_text, key_of
from tanren_dsl.evolve.gate import Standing, judge
from tanren_dsl.evolve.outcome import Outcome, Row, Simple, hindsight_total, rows_of, total, verdict_of
from tanren_dsl.evolve.population import Population
from tanren_dsl.evolve.resolved import one_line
from tanren_dsl.evolve.setup import Ground
from tanren_dsl.evolve.store import Store
from tanren_dsl.evolve.windows import SEARCHED


def crown(
    ground: Ground,
    seed: int,
    population: Population,
    finalists: Sequence[Candidate],
    references: Sequence[Candidate],
    goal: float | None,
    store: Store,
    model: str | None,
) -> Outcome:
    """Choose the champion, hold it against the gate, write its file.

    Args:
        ground: of the run.
        seed: of the run.
        population: with everything measured on train and validation.
        finalists: best distinct on train.
        references: the classics.
        goal: mean gain of the policy that the champion must equal, where the gate names one.
        store: takes the file and the facts.
        model: what a language model did, in words.

    Raises:
        TanrenError: not one candidate was measured on validation without a fault.
    """
    problem, arena = ground.problem, population.judge.arena
    chosen = {one.key for one in finalists}
    judged = population.ranked("validation")
    # without a finalist that stands, the best of the classics that does
    standing = [one for one in judged if one.key in chosen] or judged
    if not standing:
        raise TanrenError(f"{problem.source}: no policy could be measured on validation")
    champion = standing[0]
    name = f"evolved_{seed}_{champion.key[:8]}"
    train, validation = (population.points(champion, role) for role in SEARCHED)
    rivals = {
        str(one.classic): population.points(one, "validation")
        for one in references
        if population.is_good(one, "validation")
    }
    checks = judge(
        problem.gate,
        Standing(
            train=train,
            validation=validation,
            gain=population.gain(champion, "validation"),
            violations=population.judge.violations(population.measures(champion, "validation")),
            best_classic=max(rivals.values(), default=0.0),
            goal=goal,
        ),
    )
    measured, stopped, rejected, failed = population.counts()
    selection = (
        f"best score on validation among the {len(finalists)} best on train (of those that decide alike "
        f"one), of {measured} policies measured in full and {stopped} stopped early (seed {seed}); the score "
        f"is the mean over configurations, against {arena.base_name}, less {problem.search.complexity:g} a "
        "unit of complexity; since validation chose, its figure leans to the good side"
    )
    origin = f"The classic {champion.classic}" if champion.classic else _ORIGINS.get(champion.operator, _BRED)
    doc = (
        f"{origin}: on {one_line(ground.trace.name)}, seed {seed}, best of {len(finalists)} finalists on "
        f"validation, {measured + stopped} policies tried; {validation:+.4g} {arena.unit} over "
        f"{arena.base_name} there, {train:+.4g} on train, simulated."
    ).replace('"', "'")
    text = champion_text(champion, name, doc)
    twin = next((str(one.classic) for one in references if _alike(population, one, champion)), None)
    verdict = verdict_of(
        name, champion.classic or twin, checks, {"train": train, "validation": validation}, rivals,
        arena.base_name, arena.unit,
    )  # fmt: skip
    rows = _rows(name, champion, references, population)
    path = store.champion(name, text)
    reached = all(check.passed for check in checks)
    store.note(
        champion=name, champion_key=key_of(loads(text)), selection=selection, verdict=verdict,
        train=train, validation=validation,
    )  # fmt: skip
    return Outcome(
        name=name,
        text=text,
        path=path,
        folder=store.folder,
        unit=arena.unit,
        classic=champion.classic,
        reached=reached,
        checks=checks,
        train=train,
        validation=validation,
        totals={role: total(rows, role, name) for role in SEARCHED},
        hindsight={role: hindsight_total(rows, role) for role in SEARCHED},
        selection=selection,
        verdict=verdict,
        rows=tuple(rows),
        measured=measured,
        stopped=stopped,
        rejected=rejected,
        failed=failed,
        front=tuple(
            Simple(one.cost, population.points(one, "train"), champion_text(one, "p", ""))
            for one in population.front()
        ),
        model=model,
        notes=ground.trace.notes,
    )


_BRED = "Found by genetic programming"
_ORIGINS = {"model": "Written by a language model"}


def _alike(population: Population, one: Candidate, other: Candidate) -> bool:
    return all(population.behaviour(one, role) == population.behaviour(other, role) for role in SEARCHED)


def _rows(
    name: str, champion: Candidate, references: Sequence[Candidate], population: Population
) -> list[Row]:
    judge, arena = population.judge, population.judge.arena
    rows: list[Row] = []
    for role in SEARCHED:
        base = [judge.base(place) for place in arena.places(role, "full")]
        rows += rows_of(f"stock ({arena.base_name})", "engine", base, judge)
        for one in references:
            if population.is_good(one, role):
                rows += rows_of(str(one.classic), "classic", population.measures(one, role), judge)
        rows += rows_of(name, "champion", population.measures(champion, role), judge)
        for bound, measures in arena.bounds(role).items():
            rows += rows_of(bound, "bound", measures, judge)
    return rows
