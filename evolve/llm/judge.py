"""Whether a text is the policy that was asked for: the parser, the checker, and the ask itself.

This is the only way in for what a model writes. What passes is printed anew by us, so that the
text that goes on is canonical, without comments, with the knobs as the operator declared them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tanren_dsl.check import DEFAULT_PERCENT, check
from tanren_dsl.errors import Diagnostic, TanrenError
from tanren_dsl.evolve.llm.asking import Ask
from tanren_dsl.evolve.llm.reply import ANSWER
from tanren_dsl.parser import parse
from tanren_dsl.printer import print_number, print_policy
from tanren_dsl.signals import signals_of
from tanren_dsl.source import Source
from tanren_dsl.syntax import (
    Call,
    Candidates,
    Decl,
    Expr,
    IfElse,
    Infix,
    Knob,
    Let,
    Name,
    OrderBy,
    Param,
    PolicyText,
    PreemptBy,
    Prefix,
)
from tanren_dsl.units import parse_unit

_LONGEST_DOC = 300
"""Characters of a description; a longer one is left out."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The canonical text of a policy, or what is wrong with it as the checker says it."""

    text: str | None
    wrong: str | None


def judge(text: str, ask: Ask) -> Verdict:
    """Hold a text against the language and the ask; never raises."""
    source = Source(ANSWER, text)
    try:
        policy = parse(source)
        check(policy, source)
    except TanrenError as error:
        return Verdict(None, str(error))
    found = list(_wrong(policy, ask))
    if found:
        return Verdict(None, str(TanrenError.from_diagnostics(found)))
    declared = {knob.name: knob for knob in ask.knobs}
    decls = tuple(declared[decl.name] if isinstance(decl, Knob) else decl for decl in policy.decls)
    doc = policy.doc if policy.doc is not None and len(policy.doc) <= _LONGEST_DOC else None
    return Verdict(print_policy(replace(policy, doc=doc, decls=decls, comments=())), None)


def print_percent(percent: float | None) -> str:
    """A considered set as it is written.

    >>> print_percent(None), print_percent(10.0)
    ('all', '10%')
    """
    return "all" if percent is None else f"{print_number(percent)}%"


def _wrong(policy: PolicyText, ask: Ask) -> Iterator[Diagnostic]:
    """Where a good policy is not the one that was asked for."""
    if policy.kind != ask.kind:
        yield Diagnostic(
            policy.kind_span,
            f"expected a policy of kind `{ask.kind}`, found `{policy.kind}`",
            f"write `policy {policy.name} : {ask.kind}`",
        )
        return
    knobs = {knob.name: knob for knob in ask.knobs}
    for decl in policy.decls:
        if isinstance(decl, Knob):
            yield from _wrong_knob(decl, knobs)
        elif isinstance(decl, Let | Param) and decl.name in knobs:
            yield Diagnostic(
                decl.name_span,
                f"`{decl.name}` is a knob here, found another meaning of it",
                "choose a new name",
            )
    rows = signals_of(ask.kind)
    for name in _names(policy.decls):
        row = rows.get(name.id)
        if row is not None and ask.mode not in row.provided_by:
            yield Diagnostic(
                name.span,
                f"`{name.id}` is not provided in {ask.mode} mode",
                "use the signals of the table only",
            )
    if ask.kind == "evict":
        yield from _wrong_candidates(policy, ask)


def _wrong_knob(decl: Knob, knobs: dict[str, Knob]) -> Iterator[Diagnostic]:
    known = knobs.get(decl.name)
    if known is None:
        hint = (
            f"the knobs are {', '.join(knobs)}"
            if knobs
            else "there are none; use `param` for a plain constant"
        )
        yield Diagnostic(decl.span, f"`{decl.name}` is none of the knobs that were given", hint)
    elif parse_unit(decl.unit) != parse_unit(known.unit) or decl.value != known.value:
        yield Diagnostic(
            decl.span,
            f"knob `{decl.name}` is the operator's and was changed",
            f"write `knob {known.name} : {known.unit} = {print_number(known.value)}`",
        )


def _wrong_candidates(policy: PolicyText, ask: Ask) -> Iterator[Diagnostic]:
    hint = "write " + " or ".join(f"`candidates {print_percent(one)}`" for one in ask.candidates)
    found = [decl for decl in policy.decls if isinstance(decl, Candidates)]
    if found and found[0].percent not in ask.candidates:
        text = print_percent(found[0].percent)
        yield Diagnostic(found[0].span, f"`candidates {text}` is not among those allowed here", hint)
    elif not found and DEFAULT_PERCENT not in ask.candidates:
        yield Diagnostic(policy.span, "no `candidates` means 10%, which is not allowed here", hint)


def _names(decls: tuple[Decl, ...]) -> Iterator[Name]:
    """Every name in an expression, in the order of the text."""
    for decl in decls:
        match decl:
            case Let():
                yield from _names_in(decl.value)
            case OrderBy(keys) | PreemptBy(keys):
                for key in keys:
                    yield from _names_in(key)


def _names_in(expr: Expr) -> Iterator[Name]:
    waiting = [expr]  # chains may be longer than Python's stack is deep
    while waiting:
        match waiting.pop():
            case Name() as name:
                yield name
            case Prefix(_, operand):
                waiting.append(operand)
            case Infix(_, left, right):
                waiting += (right, left)
            case IfElse(then, test, orelse):
                waiting += (orelse, test, then)
            case Call(_, args):
                waiting += reversed(args)
