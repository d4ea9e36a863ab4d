"""What is allowed and looks like a mistake: backward keys, names without use.

`warnings` of a text knows its lines; of a checked policy only what its normal form shows.
"""

from __future__ import annotations

from collections.abc import Sequence

from tanren_dsl.errors import Diagnostic
from tanren_dsl.ir import KnobRef, Ordering, ParamRef, Policy, SignalRef
from tanren_dsl.syntax import Expr, Infix, Knob, Let, Name, OrderBy, Param, PolicyText, PreemptBy
from tanren_dsl.values import names_in

_BACKWARD = {
    "age": ("the most recently used block is evicted first", "last_use"),
    "wait": ("the newest request is served first", "arrival"),
    "cached_tokens": ("the request with the shortest cached prefix is served first", "-cached_tokens"),
}
_ELAPSED = {"last_use": "age", "arrival": "wait"}


def warnings(policy: PolicyText | Policy) -> list[Diagnostic]:
    """Findings that do not stop a policy.

    >>> from tanren_dsl.check import loads
    >>> [finding.hint for finding in warnings(loads("policy p : evict order by age"))]
    ['for the other way round write `order by last_use`']
    """
    return _of_policy(policy) if isinstance(policy, Policy) else _of_text(policy)


def _of_policy(policy: Policy) -> list[Diagnostic]:
    found: list[Diagnostic] = []
    key = policy.order.nodes[policy.order.keys[0]]
    if len(policy.order.keys) == 1 and isinstance(key, SignalRef) and key.name in _BACKWARD:
        found.append(_backward(key.name, None))
    orderings: Sequence[Ordering] = [o for o in (policy.order, policy.preempt) if o is not None]
    used = {node.name for o in orderings for node in o.nodes if isinstance(node, ParamRef | KnobRef)}
    names = [*(param.name for param in policy.params), *(knob.name for knob in policy.knobs)]
    idle = [name for name in names if name not in used]
    return found + [Diagnostic(None, f"`{name}` has no effect on the order") for name in idle]


def _of_text(text: PolicyText) -> list[Diagnostic]:
    lets = {decl.name: decl.value for decl in text.decls if isinstance(decl, Let)}
    found: list[Diagnostic] = []
    reached: list[Expr] = []
    for decl in text.decls:
        if isinstance(decl, OrderBy | PreemptBy):
            reached.extend(decl.keys)
        if isinstance(decl, OrderBy) and len(decl.keys) == 1:
            signal = _read_straight(decl.keys[0], lets)
            if signal in _BACKWARD:
                found.append(_backward(signal, decl))
    used: set[str] = set()
    while reached:
        for name in names_in(reached.pop()):
            if name.id not in used:
                used.add(name.id)
                reached.extend([lets[name.id]] if name.id in lets else [])
    for decl in text.decls:
        if isinstance(decl, Let | Param | Knob) and decl.name not in used:
            found.append(Diagnostic(decl.name_span, f"`{decl.name}` is never used", "drop its line"))
    return sorted(found, key=lambda finding: finding.span.start if finding.span else -1)


def _backward(name: str, decl: OrderBy | None) -> Diagnostic:
    what, instead = _BACKWARD[name]
    span = None if decl is None else decl.keys[0].span
    return Diagnostic(
        span,
        f"lowest comes first, so with the sole key `{name}` {what}",
        f"for the other way round write `order by {instead}`",
    )


def _read_straight(key: Expr, lets: dict[str, Expr]) -> str:
    """The signal that a key is, through names and `now - ...`; empty when it is more than that."""
    seen: set[str] = set()
    while isinstance(key, Name) and key.id in lets and key.id not in seen:
        seen.add(key.id)
        key = lets[key.id]
    match key:
        case Name(name):
            return name
        case Infix("-", Name("now"), Name(since)):
            return _ELAPSED.get(since, "")
        case _:
            return ""
