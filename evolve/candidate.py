"""A candidate: a policy text with its identity, its complexity and where it came from."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from importlib.resources import files

from deap import base

from tanren_dsl.check import check, loads
from tanren_dsl.errors import TanrenError
from tanren_dsl.evolve.generator import Tree
from tanren_dsl.evolve.operators import slots_of
from tanren_dsl.evolve.primitives import Key, Node, Primitives
from tanren_dsl.evolve.translate import from_policy, to_syntax
from tanren_dsl.ir import Apply, Const, Fold, Ordering, Policy, Stage
from tanren_dsl.ops import OP_BY_NAME, SIGNAL_COST
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
        shape: a hash of the normal form without its constants; equal for two that differ in those only.
        signals: that it reads.
        orders: whether its first key tells objects apart at all; else it is the engine's own order.
    """

    key: str
    syntax: PolicyText
    cost: float
    operator: str
    parents: tuple[str, ...]
    generation: int
    tree: Tree | None
    shape: str
    signals: frozenset[str]
    orders: bool

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
    return _candidate(policy, key, named, operator, parents, generation, tree)


def classics(primitives: Primitives) -> list[Candidate]:
    """The packaged policies of the set's kind that its mode can run, in order of name.

    Their knobs stand at the problem's settings.
    """
    found = []
    folder = files("tanren_dsl.examples") / primitives.kind
    for file in sorted(folder.iterdir(), key=lambda item: item.name):
        if file.name.endswith(".tpl"):
            one = from_text(file.read_text(encoding="utf-8"), primitives, CLASSIC, name=file.name)
            if runs_in(loads(one.text), primitives.mode):
                found.append(one)
    return found


def runs_in(policy: Policy, mode: str) -> bool:
    """Whether a mode provides every signal that a policy reads."""
    rows = signals_of(policy.kind)
    return all(mode in rows[name].provided_by for name in policy.signals())


def champion_text(candidate: Candidate, name: str, doc: str) -> str:
    """The text of a candidate for people: its normal form where that is shorter."""
    plain = replace(candidate.syntax, name=name, doc=doc, comments=())
    text = print_policy(plain)
    policy = loads(text)
    settings = [decl for decl in plain.decls if isinstance(decl, Knob)]
    considered = [decl for decl in plain.decls if isinstance(decl, Candidates)]
    shell = print_policy(replace(plain, decls=(*settings, *_parsed(policy), *considered)))
    return shell if len(shell) < len(text) and key_of(loads(shell)) == key_of(policy) else text


def key_of(policy: Policy) -> str:
    """Hash of what a policy does: its normal form without the order in which nodes were found.

    >>> a, b = loads("policy a : evict order by -age + 0"), loads("policy b : evict order by last_use")
    >>> key_of(a) == key_of(b)
    True
    """
    knobs = sorted((knob.name, knob.unit_text, knob.default) for knob in policy.knobs)
    return _hash(repr((*map(_keys_of, _orders(policy)), policy.percent, knobs)))


def shape_of(policy: Policy) -> str:
    """Hash of the normal form with every constant taken for the same.

    >>> a, b = (loads(f"policy p : evict order by uses + {number} * spaced_uses") for number in (2, 3))
    >>> shape_of(a) == shape_of(b), key_of(a) == key_of(b)
    (True, False)
    """
    return _hash(repr([_keys_of(ordering, constants=False) for ordering in _orders(policy)]))


def cost_of(policy: Policy) -> float:
    """Complexity of the normal form by the weights of the operator table.

    >>> cost_of(loads("policy p : evict order by uses / mean(uses), last_use"))
    5.5
    """
    return sum(
        OP_BY_NAME[node.op].cost if isinstance(node, Apply | Fold) else SIGNAL_COST
        for ordering in _orders(policy)
        for node in ordering.nodes
    )


def _orders(policy: Policy) -> list[Ordering]:
    return [policy.order] if policy.preempt is None else [policy.order, policy.preempt]


def _candidate(
    policy: Policy, key: str, syntax: PolicyText, operator: str, parents: tuple[str, ...], generation: int,
    tree: Tree | None,
) -> Candidate:  # fmt: skip
    return Candidate(
        key, syntax, cost_of(policy), operator, parents, generation, tree, shape_of(policy),
        frozenset(policy.signals()), policy.order.nodes[policy.order.keys[0]].stage == Stage.OBJECT,
    )  # fmt: skip


def _keys_of(ordering: Ordering, *, constants: bool = True) -> list[str]:
    """A hash of each key."""
    done: list[str] = []
    for node in ordering.nodes:
        match node:
            case Apply(op, args):
                text = f"{op}({','.join(done[arg] for arg in args)})"
            case Fold(op, arg):
                text = f"{op}[{done[arg]}]"
            case Const() if not constants:
                text = "constant"
            case _:
                text = repr(node)
        done.append(_hash(text))
    return [done[key] for key in ordering.keys]


def _parsed(policy: Policy) -> tuple[Decl, ...]:
    """The `order by`, and the `preempt by`, of a policy's normal form."""
    text = f"policy p : {policy.kind} order by {', '.join(print_ordering(policy.order))}"
    if policy.preempt is not None:
        text += f" preempt by {', '.join(print_ordering(policy.preempt))}"
    try:
        return parse(Source("<keys>", text)).decls
    except TanrenError:
        return ()


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def from_text(
    text: str, primitives: Primitives, operator: str, parents: tuple[str, ...] = (), generation: int = 0, *,
    name: str = "<policy>",
) -> Candidate:  # fmt: skip
    """The candidate of a text, at the problem's settings of its knobs; it has a tree if the set can say it.

    Args:
        text: of a policy.
        primitives: the problem's set.
        operator: how it came about; `CLASSIC` is followed by the policy's name.
        parents: keys of the candidates that it was made from.
        generation: in which it was born.
        name: of the file, for messages.

    Raises:
        TanrenError: the text is no policy of the set's kind.
    """
    source = Source(name, text)
    own = parse(source)
    if own.kind != primitives.kind:
        raise TanrenError(f"{name}: expected a policy of kind {primitives.kind}, found {own.kind}")
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
    made = f"{operator}{own.name}" if operator.endswith(":") else operator
    return _candidate(policy, key, syntax, made, parents, generation, tree)


def _as_durations(tree: Tree, primitives: Primitives) -> Tree:
    """The same policy with `-age` for a key `last_use`, and so on: durations can be scaled and weighed."""
    since = {row.since: row for row in signals_of(primitives.kind).values() if row.since is not None}
    nodes: list[Node] = []
    for node, slot in zip(tree, slots_of(tree), strict=True):
        if slot is Key and node.arity == 0 and node.name in since:
            elapsed: Node = primitives.terminal(since[node.name].name)
            nodes += [primitives.writer("neg", [elapsed.ret]), elapsed]
        else:
            nodes.append(node)
    return Tree(nodes)
