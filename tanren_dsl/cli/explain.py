"""`tanren-dsl explain`: what a policy does, in words, from its normal form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tanren_dsl.cli.options import Loaded, json_option, knob_option, load_policy
from tanren_dsl.cli.output import print_json
from tanren_dsl.signals import GUARD_TIMES

if TYPE_CHECKING:
    from tanren_dsl.ir import Policy


@click.command()
@click.argument("policy")
@knob_option
@json_option
def explain(policy: str, knobs: tuple[tuple[str, float], ...], as_json: bool) -> None:
    """Say in words what a policy does: its keys, whom it considers, what it reads and who provides it.

    The keys are shown in their normal form, which is what every backend computes.

    \b
    Example:
      tanren-dsl explain t_lru --knob budget=4096
    """
    facts = facts_of(load_policy(policy, knobs, warns=False))
    if as_json:
        print_json(facts)
    else:
        click.echo("\n".join(_text(facts)))


def facts_of(loaded: Loaded) -> dict[str, Any]:
    """Everything that the command says, as data."""
    from tanren_dsl.check import warnings
    from tanren_dsl.printer import print_ordering
    from tanren_dsl.signals import signals_of

    policy, rows = loaded.policy, signals_of(loaded.policy.kind)
    return {
        "policy": policy.name,
        "kind": policy.kind,
        "file": loaded.source.name,
        "doc": policy.doc,
        "order_by": print_ordering(policy.order),
        "preempt_by": None if policy.preempt is None else print_ordering(policy.preempt),
        "considered": _considered(loaded),
        "analysis": _analysis(policy),
        "signals": [
            {
                "name": name,
                "unit": str(rows[name].type),
                "scope": rows[name].scope,
                "meaning": rows[name].meaning,
                "provided_by": sorted(rows[name].provided_by),
            }
            for name in policy.signals()
        ],
        "knobs": [{"name": k.name, "unit": k.unit_text, "value": k.written} for k in policy.knobs],
        "params": [
            {"name": p.name, "value": p.value, "low": p.low, "high": p.high, "log": p.log}
            for p in policy.params
        ],
        "warnings": [
            {"line": None if w.span is None else w.span.source.line_col(w.span.start)[0],
             "message": w.message, "hint": w.hint}
            for w in warnings(loaded.text)
        ],
    }  # fmt: skip


def _considered(loaded: Loaded) -> dict[str, Any] | None:
    from tanren_dsl.passes.order import analyze
    from tanren_dsl.printer import print_number
    from tanren_dsl.syntax import Candidates

    policy = loaded.policy
    if policy.kind == "schedule":
        return None
    is_default = not any(isinstance(decl, Candidates) for decl in loaded.text.decls)
    if policy.percent is None:
        words = "every free block"
    else:
        words = (
            f"for n blocks, the first n + {print_number(policy.percent)} % of the usable blocks "
            "in the engine's own order (longest unused first)"
        )
    return {
        "percent": policy.percent,
        "is_default": is_default,
        "words": words,
        "cuts_short": is_default and analyze(policy).shape != "identity",
    }


def _analysis(policy: Policy) -> dict[str, str] | None:
    from tanren_dsl.passes.order import analyze

    if policy.kind == "schedule":
        return None
    found = analyze(policy)
    if found.shape == "identity":
        served = "by the engine's own queue: nothing is computed"
    elif found.shape == "static" and policy.percent is None:
        served = "by a heap, O(log n) a block"
    elif found.shape == "static":
        served = "by scoring the considered blocks, in an emitted file by a heap that follows them"
    else:
        served = "by scoring the considered blocks, once for each ranking, O(considered)"
    return {"shape": found.shape, "reason": found.reason, "served": served}


_SERVICE = (
    "Ordered once a step: all waiting requests, O(n log n); and all running ones where there is `preempt by`",
    f"  the starvation guard serves first what waits {GUARD_TIMES} times the mean wait (off by --no-guard)",
)
_NOUN = {"evict": ("blocks", "evicted"), "schedule": ("requests", "served")}


def _text(facts: dict[str, Any]) -> list[str]:
    from tanren_dsl.printer import print_number as number

    noun, verb = _NOUN[facts["kind"]]
    lines = [f"policy {facts['policy']} : {facts['kind']}   ({facts['file']})"]
    if facts["doc"]:
        lines.append(f"  {facts['doc']}")
    lines += ["", f"Order of {noun}: the lowest is {verb} first (normal form)"]
    lines += [f"  {place}. {key}" for place, key in enumerate(facts["order_by"], 1)]
    lines.append(f"  {len(facts['order_by']) + 1}. ties: the engine's own order")
    if facts["preempt_by"]:
        lines += ["", "Preempted when memory runs out: the lowest of the running requests first"]
        lines += [f"  {place}. {key}" for place, key in enumerate(facts["preempt_by"], 1)]
    if facts["kind"] == "schedule":
        lines += ["", *_SERVICE]
    lines += [*_considered_lines(facts["considered"], facts["analysis"]), *_signal_lines(facts)]
    if facts["knobs"]:
        lines += ["", "Knobs (the operator's, set with --knob NAME=VALUE)"]
        lines += [f"  {k['name']} = {number(k['value'])}   {k['unit']}" for k in facts["knobs"]]
    if facts["params"]:
        lines += ["", "Params (tunable, without unit)"]
        for p in facts["params"]:
            log = ", searched by its logarithm" if p["log"] else ""
            low, high = number(p["low"]), number(p["high"])
            lines.append(f"  {p['name']} = {number(p['value'])}   in [{low}, {high}]{log}")
    if facts["warnings"]:
        lines += ["", "Warnings"]
        for w in facts["warnings"]:
            where = "" if w["line"] is None else f"line {w['line']}: "
            lines.append(f"  {where}{w['message']}" + (f" ({w['hint']})" if w["hint"] else ""))
    return lines


def _considered_lines(considered: dict[str, Any] | None, analysis: dict[str, str] | None) -> list[str]:
    if considered is None or analysis is None:
        return []
    lines = ["", "Considered", f"  {considered['words']}"]
    if considered["cuts_short"]:
        lines += [
            "  the default `candidates 10%` cuts this definition short: a block outside that set stays,",
            "  however low its key; `candidates all` ranks every block",
        ]
    return [
        *lines,
        "",
        f"Order analysis: {analysis['shape']}",
        f"  {analysis['reason']}",
        f"  served {analysis['served']}",
    ]


def _signal_lines(facts: dict[str, Any]) -> list[str]:
    if not facts["signals"]:
        return ["", "Reads no signal"]
    lines = ["", "Reads"]
    for row in facts["signals"]:
        who = {"object": f"per {_NOUN[facts['kind']][0][:-1]}", "decision": "per decision"}[row["scope"]]
        lines.append(f"  {row['name']}   {row['unit']}, {who}; provided by {', '.join(row['provided_by'])}")
        lines.append(f"      {row['meaning']}")
    return lines
