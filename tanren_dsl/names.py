"""The names of a policy: what each stands for, and what to say when it stands for nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from functools import cache

from tanren_dsl.errors import Diagnostic
from tanren_dsl.grammar import grammar_text
from tanren_dsl.ir import OrderingBuilder, SignalRef, Stage
from tanren_dsl.ops import CALLS
from tanren_dsl.signals import Kind, Signal, signals_of
from tanren_dsl.syntax import Call, Knob, Let, Name, Param
from tanren_dsl.values import Value

Named = Let | Param | Knob

_KINDS: tuple[Kind, Kind] = ("evict", "schedule")

_COUNTERPARTS = {
    "arrival": "created",
    "wait": "age",
    "prompt_tokens": "chain",
    "age": "wait",
    "lifetime": "wait",
    "last_use": "arrival",
    "created": "arrival",
    "depth": "cached_tokens",
    "chain": "prompt_tokens",
}
"""For a signal of the other kind of policy, the one that plays its part in this kind."""

_OTHER_WORDS = {
    "avg": "mean(x)",
    "average": "mean(x)",
    "sum": "mean(x)",
    "maximum": "highest(x)",
    "minimum": "lowest(x)",
    "percentile": "p90(x)",
    "quantile": "p90(x)",
    "log": "log1p(x)",
    "log2": "log1p(x)",
    "ln": "log1p(x)",
    "pow": "x ** 2",
    "power": "x ** 2",
    "round": "floor(x + 0.5)",
    "int": "floor(x)",
    "ceil": "-floor(-x)",
    "where": "a if c else b",
    "ifelse": "a if c else b",
    "relu": "max(x, 0)",
    "sigmoid": "1 / (1 + exp(-x))",
}
"""Functions of other languages and how to write them here."""


@cache
def keywords() -> frozenset[str]:
    """The reserved words of the grammar."""
    return frozenset(re.findall(r'^[A-Z]+: "([a-z]+)"$', grammar_text(), flags=re.MULTILINE))


class Scope:
    """The names that a policy declares, usable below their line."""

    def __init__(self, kind: Kind, declarations: Sequence[Named], builder: OrderingBuilder) -> None:
        self._kind: Kind = kind
        self._builder = builder
        self._declared = {decl.name: decl for decl in reversed(declarations)}  # the first one counts
        self._bound: dict[str, Value | None] = {}
        self._current: str | None = None

    def enter(self, name: str | None) -> None:
        """Say which declaration is being checked."""
        self._current = name

    def bind(self, decl: Named, value: Value | None) -> Diagnostic | None:
        """Give a declared name its value (None: its declaration is wrong); refuses a taken name."""
        problem = self._taken(decl)
        if problem is None or decl.name not in self._bound:
            self._bound.setdefault(decl.name, value)
        return problem

    def resolve(self, name: Name) -> Value | Diagnostic | None:
        """What a name stands for; None when that is wrong and already reported."""
        row = signals_of(self._kind).get(name.id)
        if row is not None:
            return self._signal(name, row)
        if name.id in self._bound:
            return self._bound[name.id]
        return self._missing(name)

    def unknown_function(self, call: Call) -> Diagnostic:
        """What to say about a call of something that is no function."""
        name = call.func
        if name in signals_of(self._kind):
            return Diagnostic(
                call.func_span, f"`{name}` is a signal, not a function", f"write `{name}` without parentheses"
            )
        if name in self._declared:
            hint = f"write `{name}` without parentheses, or `{name} * (...)` for a product"
            return Diagnostic(call.func_span, f"`{name}` is a value, not a function", hint)
        return Diagnostic(call.func_span, f"unknown function `{name}`", self._function_hint(name))

    def _signal(self, name: Name, row: Signal) -> Value:
        stage = Stage.OBJECT if row.scope == "object" else Stage.DECISION
        index = self._builder.add(SignalRef(row.name, row.type, stage))
        return Value(name, index, row.type, stage)

    def _taken(self, decl: Named) -> Diagnostic | None:
        name, span = decl.name, decl.name_span
        what = None
        for kind in _KINDS:
            if name in signals_of(kind):
                what = "a signal" if kind == self._kind else f"a signal of {kind} policies"
                break
        if name in CALLS:
            what = "a function"
        if name in keywords():
            what = "a keyword"
        if what is not None:
            return Diagnostic(span, f"`{name}` is {what} and cannot be declared", "choose another name")
        if name in self._bound:
            line, _ = span.source.line_col(self._declared[name].name_span.start)
            message = f"`{name}` is declared twice, first on line {line}"
            return Diagnostic(span, message, "choose another name")
        return None

    def _missing(self, name: Name) -> Diagnostic:
        word, span = name.id, name.span
        if word == self._current:
            return Diagnostic(
                span, f"`{word}` is used in its own definition", "give the new value another name"
            )
        if word in self._declared:
            line, _ = span.source.line_col(self._declared[word].name_span.start)
            message = f"`{word}` is defined below, on line {line}"
            return Diagnostic(span, message, "move its line above this one")
        if word in CALLS:
            return Diagnostic(
                span, f"`{word}` is a function and stands for no value", f"give it arguments: {word}(...)"
            )
        other: Kind = "schedule" if self._kind == "evict" else "evict"
        if word in signals_of(other):
            near = _COUNTERPARTS.get(word) or _closest(word, signals_of(self._kind))
            hint = f"did you mean `{near}`?" if near else self._listing()
            message = f"`{word}` belongs to {other} policies, this is an {self._kind} policy"
            return Diagnostic(span, message.replace("an schedule", "a schedule"), hint)
        near = _closest(word, [*signals_of(self._kind), *self._bound, *CALLS])
        if near is None and word in _OTHER_WORDS:
            return Diagnostic(span, f"unknown name `{word}`", f"write {_OTHER_WORDS[word]}")
        hint = f"did you mean `{near}`?" if near else self._listing()
        return Diagnostic(span, f"unknown name `{word}`", hint)

    def _function_hint(self, word: str) -> str:
        if word in _OTHER_WORDS:
            return f"write {_OTHER_WORDS[word]}"
        near = _closest(word, list(CALLS))
        return f"did you mean `{near}`?" if near else f"the functions are {', '.join(CALLS)}"

    def _listing(self) -> str:
        rows = signals_of(self._kind).values()
        per_object = ", ".join(row.name for row in rows if row.scope == "object")
        return f"per object there are {per_object}"


def _closest(word: str, words: Sequence[str] | dict[str, Signal]) -> str | None:
    close = get_close_matches(word, list(words), n=1, cutoff=0.6)
    return close[0] if close else None
