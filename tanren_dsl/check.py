"""From the untyped tree to the typed, normal form of a policy; every error in one report.

Declarations are checked here, expressions in `rules.py`, names in `names.py`. The
normal form (`passes/normal.py`) is part of checking: it is what the policy means.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import assert_never

from tanren_dsl.errors import Diagnostic, TanrenError
from tanren_dsl.ir import KnobDecl, KnobRef, Ordering, OrderingBuilder, ParamDecl, ParamRef, Policy, Stage
from tanren_dsl.names import Scope
from tanren_dsl.parser import parse, read_source
from tanren_dsl.passes.normal import normalize
from tanren_dsl.printer import print_number
from tanren_dsl.rules import Typer
from tanren_dsl.source import Source, Span
from tanren_dsl.syntax import (
    Candidates,
    Expr,
    IfElse,
    Knob,
    Let,
    Name,
    Num,
    OrderBy,
    Param,
    PolicyText,
    PreemptBy,
)
from tanren_dsl.units import MAX_EXPONENT, MICROSECONDS_PER_SECOND, PLAIN, Bool, Number, parse_unit
from tanren_dsl.values import Value, quoted
from tanren_dsl.warn import warnings

__all__ = ["check", "load", "loads", "warnings"]

MAX_KEYS = 3
"""Most keys of an ordering."""
DEFAULT_PERCENT = 10.0
"""The considered set of an evict policy that declares none."""


def load(path: str | Path, knobs: Mapping[str, float] | None = None) -> Policy:
    """The checked policy of a file; `knobs` as for `check`."""
    source = read_source(path)
    return check(parse(source), source, knobs)


def loads(text: str, name: str = "<text>", knobs: Mapping[str, float] | None = None) -> Policy:
    """The checked policy of a text; `knobs` as for `check`.

    >>> loads("policy lru : evict order by last_use").order.signals()
    ('last_use',)
    """
    source = Source(name, text.removeprefix("\ufeff"))
    return check(parse(source), source, knobs)


def check(text: PolicyText, source: Source, knobs: Mapping[str, float] | None = None) -> Policy:
    """The typed policy in its normal form.

    `knobs` replaces defaults of knobs, in the written scale (seconds where time is meant).
    Raises one TanrenError that carries every finding, in the order of the text.
    """
    return _Checker(text, source, dict(knobs or {})).policy()


class _Checker:
    def __init__(self, text: PolicyText, source: Source, overrides: dict[str, float]) -> None:
        self._text = text
        self._source = source
        self._overrides = overrides
        self._builder = OrderingBuilder()
        named = [decl for decl in text.decls if isinstance(decl, Let | Param | Knob)]
        self._scope = Scope(text.kind, named, self._builder)
        self._typer = Typer(text.kind, self._builder, self._scope.resolve, self._scope.unknown_function)
        self._params: list[ParamDecl] = []
        self._knobs: list[KnobDecl] = []
        self._order: list[int] = []
        self._preempt: list[int] = []
        self._percent: float | None = DEFAULT_PERCENT if text.kind == "evict" else None

    def policy(self) -> Policy:
        """Check everything, then report or build."""
        self._check_overrides()
        self._check_counts()
        for decl in self._text.decls:
            match decl:
                case Let():
                    self._let(decl)
                case Param():
                    self._param(decl)
                case Knob():
                    self._knob(decl)
                case OrderBy(keys, span):
                    self._order = self._keys("order by", keys, span)
                case PreemptBy(keys, span):
                    self._preempt = self._keys("preempt by", keys, span)
                case Candidates():
                    self._candidates(decl)
                case _:
                    assert_never(decl)
        found = self._typer.diagnostics
        if found:
            found.sort(key=lambda diagnostic: -1 if diagnostic.span is None else diagnostic.span.start)
            raise TanrenError.from_diagnostics(found)
        text = self._text
        return Policy(
            name=text.name,
            kind=text.kind,
            doc=text.doc,
            params=tuple(self._params),
            knobs=tuple(self._knobs),
            order=self._ordering(self._order),
            preempt=self._ordering(self._preempt) if self._preempt else None,
            percent=self._percent,
            text=self._source.text,
        )

    def _ordering(self, keys: Sequence[int]) -> Ordering:
        return normalize(self._builder.build(keys), self._params)

    def _report(self, span: Span | None, message: str, hint: str | None = None) -> None:
        self._typer.diagnostics.append(Diagnostic(span, message, hint))

    def _check_overrides(self) -> None:
        names = [decl.name for decl in self._text.decls if isinstance(decl, Knob)]
        for name, value in self._overrides.items():
            if name not in names:
                close = get_close_matches(name, names, n=1)
                hint = f"its knobs are {', '.join(names)}" if names else "it has no knobs"
                if close:
                    hint = f"did you mean `{close[0]}`?"
                self._report(None, f"policy `{self._text.name}` has no knob `{name}`", hint)
            elif not math.isfinite(value):
                self._report(None, f"knob `{name}` takes a finite number, found {value!r}")

    def _check_counts(self) -> None:
        text = self._text
        rules = ((OrderBy, "order by"), (PreemptBy, "preempt by"), (Candidates, "candidates"))
        for form, words in rules:
            for extra in [decl for decl in text.decls if isinstance(decl, form)][1:]:
                self._report(extra.span, f"`{words}` stands twice", "keep one of them")
        if not any(isinstance(decl, OrderBy) for decl in text.decls):
            self._report(text.span, "this policy has no `order by`", "add one, as in `order by last_use`")

    def _let(self, decl: Let) -> None:
        self._scope.enter(decl.name)
        value = self._typer.infer(decl.value)
        self._scope.enter(None)
        self._bind(decl, value)

    def _param(self, decl: Param) -> None:
        value, low, high = (print_number(number) for number in (decl.value, decl.low, decl.high))
        if not decl.low < decl.high:
            hint = "the lower end comes first, and the ends differ"
            self._report(decl.span, f"the range [{low}, {high}] of `{decl.name}` is empty", hint)
        elif not decl.low <= decl.value <= decl.high:
            hint = "widen the range or move the value"
            self._report(decl.span, f"`{decl.name}` = {value} is outside its range [{low}, {high}]", hint)
        elif decl.log and decl.low <= 0.0:
            hint = "a logarithmic range begins above 0"
            self._report(decl.span, f"the range of `{decl.name}` is `log` and begins at {low}", hint)
        self._params.append(ParamDecl(decl.name, decl.value, decl.low, decl.high, decl.log))
        index = self._builder.add(ParamRef(decl.name, decl.value, PLAIN))
        self._bind(decl, Value(Name(decl.name), index, PLAIN, Stage.CONST))

    def _knob(self, decl: Knob) -> None:
        unit = parse_unit(decl.unit)
        if unit is None:
            hint = "units are made of time (seconds), tokens and requests: tokens/time, 1/time, 1"
            self._report(decl.unit_span, f"`{decl.unit}` is not a unit", hint)
            self._bind(decl, None)
            return
        if not unit.is_in_bounds:
            self._report(decl.unit_span, f"the unit {unit} is too high; exponents go up to {MAX_EXPONENT}")
            self._bind(decl, None)
            return
        written = float(self._overrides.get(decl.name, decl.value))
        default = written * MICROSECONDS_PER_SECOND**unit.time
        if math.isfinite(written) and not math.isfinite(default):
            self._report(
                decl.span, f"`{decl.name}` = {print_number(written)} is too large when held in microseconds"
            )
        self._knobs.append(KnobDecl(decl.name, Number(unit), decl.unit, default, written))
        index = self._builder.add(KnobRef(decl.name, Number(unit)))
        self._bind(decl, Value(Name(decl.name), index, Number(unit), Stage.DECISION))

    def _bind(self, decl: Let | Param | Knob, value: Value | None) -> None:
        problem = self._scope.bind(decl, value)
        if problem is not None:
            self._typer.diagnostics.append(problem)

    def _keys(self, words: str, keys: Sequence[Expr], span: Span) -> list[int]:
        if words == "preempt by" and self._text.kind == "evict":
            self._report(span, "`preempt by` belongs to schedule policies, this is an evict policy")
        if len(keys) > MAX_KEYS:
            self._report(
                keys[MAX_KEYS].span,
                f"`{words}` takes 1 to {MAX_KEYS} keys, found {len(keys)}",
                "join keys into one expression",
            )
        return [index for key in keys if (index := self._key(key)) is not None]

    def _key(self, key: Expr) -> int | None:
        value = self._typer.infer(key)
        if value is not None and isinstance(value.type, Bool):
            one = quoted(IfElse(Num(1.0), key, Num(0.0)))
            message = f"a key is a number or an instant, found a truth value: {quoted(key)}"
            self._report(key.span, message, f"make it a number: {one}")
            return None
        return None if value is None else value.index

    def _candidates(self, decl: Candidates) -> None:
        if self._text.kind == "schedule":
            self._report(decl.span, "`candidates` belongs to evict policies, this is a schedule policy")
            return
        if decl.percent is not None and not 0.0 < decl.percent <= 100.0:
            share = print_number(decl.percent)
            hint = "write `candidates 10%` or `candidates all`"
            self._report(decl.span, f"expected a share above 0% and up to 100%, found {share}%", hint)
        self._percent = decl.percent
