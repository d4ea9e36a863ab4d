"""The untyped tree of a policy text, with spans.

Spans do not take part in equality, so that printing and parsing again gives an
equal tree. The checker turns it into the typed form of `ir.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from tanren_dsl.signals import Kind
from tanren_dsl.source import Source, Span

_NOWHERE = Span(Source("<none>", ""), 0, 0)


def _span() -> Span:
    return _NOWHERE


@dataclass(frozen=True, slots=True)
class Num:
    """A literal; never negative (a sign is a `Prefix`)."""

    value: float
    span: Span = field(default_factory=_span, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Name:
    """A signal, let, param or knob."""

    id: str
    span: Span = field(default_factory=_span, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Prefix:
    """`-x` or `not x`; `op` is as written."""

    op: str
    operand: Expr
    span: Span = field(default_factory=_span, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Infix:
    """`a op b`; `op` is as written, `**` takes a literal 2 or 3 on the right."""

    op: str
    left: Expr
    right: Expr
    span: Span = field(default_factory=_span, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class IfElse:
    """`then if test else orelse`."""

    then: Expr
    test: Expr
    orelse: Expr
    span: Span = field(default_factory=_span, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Call:
    """`func(args)`; functions and aggregates alike."""

    func: str
    args: tuple[Expr, ...]
    span: Span = field(default_factory=_span, compare=False, repr=False)
    func_span: Span = field(default_factory=_span, compare=False, repr=False)


Expr: TypeAlias = Num | Name | Prefix | Infix | IfElse | Call


@dataclass(frozen=True, slots=True)
class Let:
    """`let NAME = expr`."""

    name: str
    value: Expr
    span: Span = field(default_factory=_span, compare=False, repr=False)
    name_span: Span = field(default_factory=_span, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Param:
    """`param NAME = NUMBER in [LO, HI]`, optionally `log`."""

    name: str
    value: float
    low: float
    high: float
    log: bool = False
    span: Span = field(default_factory=_span, compare=False, repr=False)
    name_span: Span = field(default_factory=_span, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Knob:
    """`knob NAME : UNIT = NUMBER`; the number is in seconds where time is meant."""

    name: str
    unit: str
    value: float
    span: Span = field(default_factory=_span, compare=False, repr=False)
    name_span: Span = field(default_factory=_span, compare=False, repr=False)
    unit_span: Span = field(default_factory=_span, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class OrderBy:
    """`order by expr (, expr)*`."""

    keys: tuple[Expr, ...]
    span: Span = field(default_factory=_span, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class PreemptBy:
    """`preempt by expr (, expr)*`."""

    keys: tuple[Expr, ...]
    span: Span = field(default_factory=_span, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Candidates:
    """`candidates P%`, or `candidates all` (percent is None)."""

    percent: float | None
    span: Span = field(default_factory=_span, compare=False, repr=False)


Decl: TypeAlias = Let | Param | Knob | OrderBy | PreemptBy | Candidates


@dataclass(frozen=True, slots=True)
class Comment:
    """A comment with its `#`; `own_line` if nothing stands before it on its line."""

    text: str
    own_line: bool
    span: Span = field(default_factory=_span, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class PolicyText:
    """A whole policy: header, declarations in order, and the comments for the printer."""

    name: str
    kind: Kind
    doc: str | None
    decls: tuple[Decl, ...]
    comments: tuple[Comment, ...] = field(default=(), compare=False, repr=False)
    span: Span = field(default_factory=_span, compare=False, repr=False)
    name_span: Span = field(default_factory=_span, compare=False, repr=False)
    kind_span: Span = field(default_factory=_span, compare=False, repr=False)
