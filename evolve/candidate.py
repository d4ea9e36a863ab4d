"""A candidate: a policy text with its identity, its complexity and where it came from."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from importlib.resources import files

from deap import base

from tanren_dsl.check import check, loads
from tanren_dsl.errors import TanrenError
from tanren_dsl.evolve.fitness import cost_of
from tanren_dsl.evolve.generator import Tree
from tanren_dsl.evolve.operators import slots_of
from tanren_dsl.evolve.primitives import Key, Node, Primitives
from tanren_dsl.evolve.translate import from_policy, to_syntax
from tanren_dsl.ir import Apply, Fold, Policy
from tanren_dsl.parser import parse
from tanren_dsl.printer import print_ordering, print_policy
from tanren_dsl.signals import signals_of
from tanren_dsl.source import Source
from tanren_dsl.syntax import Candidates, Decl, Knob, PolicyText

CLASSIC = "classic:"
"""Operator of a candidate that is a classic; its name follows."""


class Score(base.Fitness):  # type: ignore[misc]
    """DEAP's fitness of one number; more is better."""

    weights = (1.0,)


@dataclass(frozen=True, eq=False)
class Candidate:
    """A policy to measure.

    Attributes:
        key: identity of the normal form; two texts with one key are the same policy.
        syntax: the policy under its own name.
        cost: complexity of the normal form.
        tree: None for a classic that the primitive set cannot express.
    """

    key: str
    syntax: PolicyText
    cost: float
    operator: str
    parents: tuple[str, ...]
    generation: int
    tree: Tree | None

    @property
    def text(self) -> str:
        """The canonical text."""
        return print_policy(self.syntax)

    @property
    def classic(self) -> str | None:
        """The classic that this is, if it is one."""
        return self.operator.removeprefix(CLASSIC) if self.operator.startswith(CLASSIC) else None


def from_tree(
    tree: Tree, primitives: Primitives, seed: int, operator: str, parents: tuple[str, ...], generation: int
) -> Candidate:
    """The candidate of a tree; its text is checked like any other text."""
    syntax = to_syntax(tree, primitives, "p")
    policy = loads(print_policy(syntax))
    key = key_of(policy)
    tree.key = key
    named = replace(syntax, name=f"evolved_{seed}_{key[:8]}")
    return Candidate(key, named, cost_of(policy), operator, parents, generation, tree)


def classics(primitives: Primitives) -> list[Candidate]:
    """The packaged evict policies in order of name, at the problem's settings of their knobs."""
    found = []
    folder = files("tanren_dsl.examples") / "evict"
    for file in sorted(folder.iterdir(), key=lambda item: item.name):
        if file.name.endswith(".tpl"):
            found.append(_classic(file.read_text(encoding="utf-8"), file.name, primitives))
    return found


def champion_text(candidate: Candidate, name: str, doc: str) -> str:
    """The text of a candidate for people: its normal form where that is shorter."""
    plain = replace(candidate.syntax, name=name, doc=doc, comments=())
    text = print_policy(plain)
    policy = loads(text)
    keys = print_ordering(policy.order)
    settings = [decl for decl in plain.decls if isinstance(decl, Knob)]
    considered = [decl for decl in plain.decls if isinstance(decl, Candidates)]
    shell = print_policy(replace(plain, decls=(*settings, *_parsed(keys), *considered)))
    return shell if len(shell) < len(text) and key_of(loads(shell)) == key_of(policy) else text


def key_of(policy: Policy) -> str:
    """Hash of what a policy does: its normal form without the order in which nodes were found.

    >>> a, b = loads("policy a : evict order by -age + 0"), loads("policy b : evict order by last_use")
    >>> key_of(a) == key_of(b)
    True
    """
    done: list[str] = []
    for node in policy.order.nodes:
        match node:
            case Apply(op, args):
                text = f"{op}({','.join(done[arg] for arg in args)})"
            case Fold(op, arg):
                text = f"{op}[{done[arg]}]"
            case _:
                text = repr(node)
        done.append(_hash(text))
    knobs = sorted((knob.name, knob.unit_text, knob.default) for knob in policy.knobs)
    return _hash(repr(([done[key] for key in policy.order.keys], policy.percent, knobs)))


def _parsed(keys: list[str]) -> tuple[Decl, ...]:
    """The `order by` of these texts."""
    try:
        return parse(Source("<keys>", f"policy p : evict order by {', '.join(keys)}")).decls
    except TanrenError:
        return ()


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _classic(text: str, name: str, primitives: Primitives) -> Candidate:
    source = Source(name, text)
    own = parse(source)
    decls = tuple(
        replace(decl, value=known.value)
        if isinstance(decl, Knob)
        and (known := primitives.knobs.get(decl.name)) is not None
        and known.unit == decl.unit
        else decl
        for decl in own.decls
    )
    syntax = replace(own, decls=decls, comments=())
    policy = check(syntax, source)
    tree = from_policy(syntax, primitives)
    key = key_of(policy)
    if tree is not None:
        tree = _as_durations(tree, primitives)
        tree.key = key
    return Candidate(key, syntax, cost_of(policy), f"{CLASSIC}{own.name}", (), 0, tree)


def _as_durations(tree: Tree, primitives: Primitives) -> Tree:
    """The same policy with `-age` for a key `last_use`, and so on: durations can be scaled and weighed."""
    since = {row.since: row for row in signals_of("evict").values() if row.since is not None}
    nodes: list[Node] = []
    for node, slot in zip(tree, slots_of(tree), strict=True):
        if slot is Key and node.arity == 0 and node.name in since:
            elapsed: Node = primitives.terminal(since[node.name].name)
            nodes += [primitives.writer("neg", [elapsed.ret]), elapsed]
        else:
            nodes.append(node)
    return Tree(nodes)
