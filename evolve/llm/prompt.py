"""The prompt, generated from the signal and operator tables and from what is asked.

It says what a policy can read and how it is written, shows parents with their scores and the
diagnosis, and nothing of budgets, paths or the machine. Its size is bounded: what is long is cut,
and parents are left out from the last on.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from tanren_dsl.errors import TanrenError
from tanren_dsl.evolve.llm.asking import Ask, Parent
from tanren_dsl.evolve.llm.dialects import Message
from tanren_dsl.evolve.llm.judge import print_percent
from tanren_dsl.ops import OPS, Op
from tanren_dsl.parser import parse
from tanren_dsl.printer import print_number, print_policy
from tanren_dsl.signals import Kind, Signal, signals_of
from tanren_dsl.source import Source

_OBJECTIVE, _DIAGNOSIS, _LABEL, _WRONG, _ANSWER = 1000, 6000, 80, 3000, 6000
_SCORES = 24
"""Most scores shown of one parent."""

_ROLE: dict[Kind, str] = {
    "evict": (
        "You improve the rule by which an LLM server decides which block of its KV cache to evict. The "
        "rule is a policy in a small language. For each free block that is considered it computes up to "
        "three keys, compared one after the other: the block with the LOWEST keys is evicted FIRST. So "
        "give low keys to blocks that will not be used again soon. Ties fall to the engine's own order, "
        "least recently used first."
    ),
    "schedule": (
        "You improve the rule by which an LLM server decides which waiting request to serve next. The "
        "rule is a policy in a small language. For each waiting request it computes up to three keys, "
        "compared one after the other: the request with the LOWEST keys is served FIRST. Ties fall to "
        "the engine's own order, first come first served. Requests must not starve: let waiting count."
    ),
}
_OBJECTS: dict[Kind, str] = {"evict": "the considered blocks", "schedule": "the waiting requests"}
_FORMS: dict[Kind, tuple[str, ...]] = {
    "evict": (
        "`candidates P%` or `candidates all` (at most once): how far into the engine's own order a victim is "
        "looked for. It is part of the policy.",
    ),
    "schedule": (
        "`preempt by expr (, expr)*` (at most once): who is pushed out when memory runs out, lowest first; "
        "there an aggregate ranges over the running requests.",
    ),
}
_EXAMPLES: dict[Kind, str] = {
    "evict": """\
policy example : evict
"Blocks that were used often stay longer than their age alone would say."

param heat = 0.5 in [0, 4]

let warm = log1p(uses) * heat

order by warm - age / mean(age)
""",
    "schedule": """\
policy example : schedule
"Short work first, and the longer a request waits the more that counts."

param lean = 1.5 in [0, 8]

let job = uncached_tokens / mean(uncached_tokens)

order by lean * job - wait / mean(wait), arrival
""",
}


def first_messages(ask: Ask, most_chars: int) -> list[Message]:
    """The prompt of an ask, of at most so many characters; the language and the task always stand there.

    What does not fit is left out: parents but the first, then of the diagnosis, then that parent.
    """
    system = _system(ask)
    shown = replace(ask, diagnosis=_clean(ask.diagnosis, _DIAGNOSIS))
    while (excess := len(system) + len(user := _user(shown)) - most_chars) > 0:
        if len(shown.parents) > 1 or (shown.parents and not shown.diagnosis):
            shown = replace(shown, parents=shown.parents[:-1])
        elif shown.diagnosis:
            left = len(shown.diagnosis) - excess
            shown = replace(shown, diagnosis=_cut(shown.diagnosis, left) if left > _LABEL else "")
        else:
            break
    return [_message("system", system), _message("user", user)]


def repair_messages(messages: Sequence[Message], answer: str, wrong: str) -> list[Message]:
    """The conversation with one more turn: what was answered, and what is wrong with it."""
    said = answer.strip() or "(nothing)"
    return [
        *messages,
        _message("assistant", _cut(said, _ANSWER)),
        _message(
            "user",
            f"This is not a policy that can be used:\n\n{_cut(wrong, _WRONG)}\n\n"
            "Answer with the whole corrected policy and nothing else.",
        ),
    ]


def example_of(ask: Ask) -> str:
    """A policy that would be accepted, to show the form."""
    text = _EXAMPLES[ask.kind]
    return f"{text}candidates {print_percent(ask.candidates[0])}\n" if _has_candidates(ask) else text


def _system(ask: Ask) -> str:
    kind = ask.kind
    parts = [
        _ROLE[kind],
        "A POLICY\n\n" + _list(_rules(kind)),
        "TYPES ARE UNITS\n\n" + _list(_TYPES),
        f"OPERATORS AND FUNCTIONS (aggregates range over {_OBJECTS[kind]})\n\n" + _list(_operators()),
        "SIGNALS (all that a policy can read)\n\n" + _signals(ask),
        f"AN EXAMPLE OF THE FORM\n\n{example_of(ask)}",
    ]
    return "\n\n".join(part.strip() for part in parts)


def _rules(kind: Kind) -> list[str]:
    return [
        f"First `policy NAME : {kind}`, then an optional one-line description in double quotes, then "
        "declarations. White space does not matter, `#` begins a comment, there is no other syntax.",
        "`let NAME = expr`: a named value, usable below its line. Its name is new: no signal, function or "
        "keyword.",
        "`param NAME = NUMBER in [LOW, HIGH]`: a plain constant that is tuned later; use it for every "
        "weight and threshold.",
        "`knob NAME : UNIT = NUMBER`: a setting of the operator. Only the knobs listed below exist; repeat "
        "the line unchanged if you use one, leave it out otherwise.",
        "`order by expr (, expr)*` (exactly once): one to three keys, ascending.",
        *_FORMS[kind],
        "Expressions are a subset of Python's: no loops, no assignment, no other functions than those below; "
        "comparisons are not chained; `a if c else b` chooses.",
    ]


_TYPES = (
    "A value is a number with a unit (time, tokens, requests and products such as tokens/time), an instant, "
    "or a truth value.",
    "`+ - min max clip`, `a if c else b` and comparisons need equal units; `*` and `/` combine them; "
    "`log1p`, `exp` and `floor` need a plain number.",
    "Number literals are plain: `age > 5` is an error, `age > 5 * mean(age)` is right. Divide a signal by "
    "its mean or by another signal of the same unit before you add it to something else.",
    "Only a literal `0` takes the unit of what it is added to or compared with.",
    "Instants may be subtracted (giving time), compared, passed to `min max if-else`, or be a bare key; "
    "nothing else.",
    "A key is a number or an instant, not a truth value: write `1 if c else 0`.",
    "Aggregates do not nest, not through a `let` either, and take a number for each object, not an instant.",
    "`x / 0` is 0. Nothing raises. A key that is not finite makes the whole policy invalid.",
)


def _operators() -> list[str]:
    return [f"`{_written(op)}`: {op.meaning}" for op in OPS]


def _written(op: Op) -> str:
    match op.form:
        case "infix":
            return f"a {op.text} b"
        case "prefix":
            return f"not {'a'}" if op.text == "not" else f"{op.text}a"
        case "power":
            return f"a {op.text}"
        case "choice":
            return op.text
        case "call" | "aggregate":
            args = {"clip": "x, low, high", "min": "a, b, ...", "max": "a, b, ..."}.get(op.text, "x")
            return f"{op.text}({args})"


def _signals(ask: Ask) -> str:
    rows = [row for row in signals_of(ask.kind).values() if ask.mode in row.provided_by]
    each, whole = "block" if ask.kind == "evict" else "request", "decision"
    parts = []
    for scope, title in (
        ("object", f"One value for each {each}:"),
        ("decision", f"One value for each {whole}:"),
    ):
        parts.append(title + "\n" + _list([_signal(row) for row in rows if row.scope == scope]))
    return "\n\n".join(parts)


def _signal(row: Signal) -> str:
    relative = f"; without unit: `{row.relative}`" if row.relative and row.relative != row.name else ""
    return f"`{row.name}` ({row.type}): {row.meaning}{relative}"


def _user(ask: Ask) -> str:
    parts = [f"THE SCORE\n\n{_clean(ask.objective, _OBJECTIVE)}"]
    if ask.knobs:
        lines = [f"knob {knob.name} : {knob.unit} = {print_number(knob.value)}" for knob in ask.knobs]
        parts.append("KNOBS\n\n" + "\n".join(lines))
    else:
        parts.append("There are no knobs.")
    if _has_candidates(ask):
        allowed = ", ".join(f"`candidates {print_percent(one)}`" for one in ask.candidates)
        parts.append(f"Allowed, and one of them must stand in the policy: {allowed}.")
    parts += [_parent(number, parent) for number, parent in enumerate(ask.parents, 1)]
    if ask.diagnosis.strip():
        parts.append(f"WHERE THE PARENTS FAIL\n\n{ask.diagnosis}")
    parts.append(_task(ask))
    return "\n\n".join(parts)


def _parent(number: int, parent: Parent) -> str:
    lines = [f"PARENT {number}, score {parent.score:.4f} (more is better)"]
    lines += [f"- {_clean(label, _LABEL)}: {score:.4f}" for label, score in parent.scores[:_SCORES]]
    if len(parent.scores) > _SCORES:
        lines.append(f"- and {len(parent.scores) - _SCORES} more")
    return "\n".join(lines) + f"\n\n{_plain(parent.text)}"


def _task(ask: Ask) -> str:
    if len(ask.parents) > 1:
        what = "Write one new policy that joins what is good in the parents and mends what is not."
    elif ask.parents:
        what = "Write one new policy that scores higher than the parent: change what the facts speak against."
    else:
        what = "Write one policy that scores high."
    return (
        f"{what} It must decide differently from those shown. Answer with the policy alone, no other words."
    )


def _plain(text: str) -> str:
    """A parent's text without comments, which may name places."""
    try:
        return print_policy(replace(parse(Source("parent", text)), comments=()))
    except TanrenError:
        return text


def _clean(text: str, most: int) -> str:
    """A caller's words without paths of this machine, cut at some length."""
    return _cut(_PATH.sub("(a file)", text.strip()), most)


_PATH = re.compile(r"(?<![\w:/.])(?:~|\.{1,2})?(?:/[\w.@+-]+){2,}/?|\b[A-Za-z]:\\[\w.\\-]+")


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 6]} [...]"


def _has_candidates(ask: Ask) -> bool:
    return ask.kind == "evict" and bool(ask.candidates)


def _list(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}
