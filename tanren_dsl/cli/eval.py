"""`tanren-dsl eval`: a policy's keys for objects given by hand."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tanren_dsl.cli.options import json_option, knob_option, load_policy
from tanren_dsl.cli.output import print_json, print_table, say
from tanren_dsl.errors import TanrenError

if TYPE_CHECKING:
    from tanren_dsl.backends.base import Backend
    from tanren_dsl.ir import Ordering, Policy


@click.command("eval")
@click.argument("policy")
@click.argument("input_file", metavar="INPUT.json", required=False)
@click.option(
    "--backend",
    type=click.Choice(["interp", "python", "numba"]),
    default="interp",
    show_default=True,
    help="Who computes; all give the same bits.",
)
@click.option("--preempt", is_flag=True, help="Take the keys of `preempt by`.")
@click.option("--example", is_flag=True, help="Print an INPUT for this policy to fill in, and stop.")
@knob_option
@json_option
def evaluate(
    policy: str, input_file: str | None, backend: str, preempt: bool, example: bool,
    knobs: tuple[tuple[str, float], ...], as_json: bool,
) -> None:  # fmt: skip
    """Compute the keys and the order of objects given by hand.

    INPUT.json (or `-`) is {"decision": {...}, "objects": [{...}, ...]}: signals by name in their
    own units, times in microseconds. The objects stand in the engine's own order and are the
    considered set.

    \b
    Example:
      tanren-dsl eval my.tpl --example > input.json
      tanren-dsl eval my.tpl input.json
    """
    if policy == input_file == "-":
        raise click.UsageError("POLICY and INPUT.json both want standard input.")
    checked = load_policy(policy, knobs).policy
    if preempt and checked.preempt is None:
        raise TanrenError(f"policy `{checked.name}` has no `preempt by`")
    ordering = checked.preempt if preempt and checked.preempt is not None else checked.order
    if example:
        print_json(_example(checked, ordering))
        return
    if input_file is None:
        raise click.UsageError("Missing argument 'INPUT.json' (--example prints one to fill in).")
    decision, columns, n = _read(input_file, checked, ordering)
    from tanren_dsl import interp

    if backend == "interp":
        keys = interp.evaluate(checked, ordering, decision, columns, n)
    else:
        keys = _backend(backend).scorer(checked, ordering).score(decision, columns, n)
    order, fault = interp.order(keys)
    if as_json:
        print_json(
            {
                "policy": checked.name,
                "backend": backend,
                "keys": keys.tolist(),
                "order": order,
                "fault": fault,
            }
        )
        return
    from tanren_dsl.printer import print_ordering

    place = {position: rank for rank, position in enumerate(order, 1)}
    print_table(
        f"{checked.name}, keys by {backend}: the lowest goes first",
        ["object", *(_short(text) for text in print_ordering(ordering)), "place"],
        [[str(j), *(f"{key!r}" for key in keys[j].tolist()), str(place[j])] for j in range(n)],
    )
    click.echo(f"order: {', '.join(map(str, order)) or 'no objects'}")
    if fault:
        click.echo("fault: a key is not finite, so the engine's own order stands")


def _backend(name: str) -> Backend:
    if name == "python":
        from tanren_dsl.backends.python import PythonBackend

        return PythonBackend()
    from tanren_dsl.backends.numba import NumbaBackend

    return NumbaBackend()


def _read(name: str, policy: Policy, ordering: Ordering) -> tuple[dict[str, float], Mapping[str, Any], int]:
    """Values of the decision, columns of the objects, and how many objects there are."""
    import numpy as np

    from tanren_dsl.interp import reads

    given = _json(name)
    if not isinstance(given, dict) or not isinstance(given.get("objects"), list):
        raise TanrenError(f'{name}: expected {{"decision": {{...}}, "objects": [{{...}}, ...]}}')
    objects, of_decision = given["objects"], given.get("decision", {})
    for place, one in [("decision", of_decision), *((f"object {j}", one) for j, one in enumerate(objects))]:
        if not isinstance(one, dict):
            raise TanrenError(f"{name}: {place}: expected signals by name, found {type(one).__name__}")
    wanted, stored = reads(policy, ordering)
    decision = {signal: _value(name, "decision", of_decision, signal, policy) for signal in wanted}
    columns = {
        signal: np.array(
            [_value(name, f"object {j}", one, signal, policy) for j, one in enumerate(objects)], np.float64
        )
        for signal in stored
    }
    _warn_unknown(name, policy, [of_decision, *objects])
    return decision, columns, len(objects)


def _json(name: str) -> Any:
    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        return json.loads(data.decode("utf-8-sig"))
    except OSError as error:
        raise TanrenError(f"cannot read {name}: {error.strerror or error}") from None
    except json.JSONDecodeError as error:
        raise TanrenError(f"{name}:{error.lineno}:{error.colno}: expected JSON: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise TanrenError(f"{name}: expected JSON in UTF-8: {error}") from None


def _value(name: str, place: str, given: dict[str, Any], signal: str, policy: Policy) -> float:
    if signal not in given:
        from tanren_dsl.signals import signals_of

        rows = signals_of(policy.kind)
        via = [row.name for row in rows.values() if row.name in policy.signals()]
        via = [one for one in via if rows[one].since is not None and signal in ("now", rows[one].since)]
        why = f" (for {', '.join(f'`{one}`' for one in via)})" if via else ""
        raise TanrenError(
            f"{name}: {place}: signal `{signal}` is missing, and {policy.name} reads it{why}",
            hint=f"{rows[signal].type}: {rows[signal].meaning}",
        )
    value = given[signal]
    try:
        number = float(value) if isinstance(value, bool | int | float) else math.nan
    except OverflowError:  # a whole number beyond the largest double
        number = math.inf
    if not math.isfinite(number):
        raise TanrenError(
            f"{name}: {place}: `{signal}`: expected a finite number, found {_short(repr(value))}"
        )
    return number


def _warn_unknown(name: str, policy: Policy, given: list[dict[str, Any]]) -> None:
    from tanren_dsl.signals import signals_of, suggest

    for word in dict.fromkeys(word for one in given for word in one):
        if word not in signals_of(policy.kind):
            near = suggest(policy.kind, word)
            say(f"warning: {name}: `{word}` is no signal" + (f", did you mean `{near}`?" if near else ""))


def _example(policy: Policy, ordering: Ordering) -> dict[str, Any]:
    """Plausible values of every signal that the ordering reads: three objects."""
    from tanren_dsl.interp import reads
    from tanren_dsl.signals import signals_of
    from tanren_dsl.units import Bool, Instant

    rows = signals_of(policy.kind)

    def value(name: str, j: int) -> bool | int | float:
        match rows[name].type:
            case Bool():
                return j == 1
            case Instant():
                return 1_000_000 * (j + 1) if j >= 0 else 60_000_000
            case type_ if name in ("kv_free", "hit_rate"):
                return 0.25
            case _ if name == "chain":
                return 4096
            case type_:
                scale = {"time": 2_000_000, "tokens": 1024}.get(str(type_), 1)
                return scale * (8 if j < 0 else j + 1)

    wanted, stored = reads(policy, ordering)
    return {
        "decision": {name: value(name, -1) for name in wanted},
        "objects": [{name: value(name, j) for name in stored} for j in range(3)],
    }


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."
