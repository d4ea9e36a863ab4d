"""Target `python`: one self-contained file for a policy, to read and to try by hand."""

from __future__ import annotations

import hashlib

from tanren_dsl.backends.python import emit_function
from tanren_dsl.backends.python_helpers import helpers_source
from tanren_dsl.interp import reads
from tanren_dsl.ir import Ordering, Policy
from tanren_dsl.kernels.abi import DECISION_WIDTH
from tanren_dsl.signals import ROW_WIDTH, column_of, decision_index

_ENTRY = '''\
def {entry}(decision, objects, knobs=None):
    """Keys of objects given as dicts of signals, in the engine's own order; the lowest goes first.

    `decision` holds the values of the decision by name; times are in microseconds.
    """
    return _keys({function}, {count}, decision, objects, knobs or {{}})
'''

_RUN = """\
def _keys(function, count, decision, objects, knobs):
    n = len(objects)
    vector = np.zeros({width} + len(KNOBS))
    for name, place in DECISION.items():
        vector[place] = decision[name]
    for place, (name, default) in enumerate(KNOBS.items()):
        vector[{width} + place] = knobs.get(name, default)
    rows = np.zeros((n, {row}))
    for j, signals in enumerate(objects):
        for name, column in COLUMNS.items():
            rows[j, column] = signals[name]
    out = np.zeros((n, count))
    function(vector, rows, np.arange(n, dtype=np.int32), n, out, np.zeros(n))
    return [tuple(float(key) for key in row) for row in out]
"""


def emit_module(policy: Policy) -> str:
    """Text of a Python file with `order`, `keys` and, for `preempt by`, `preempt` and `preempt_keys`.

    Raises:
        UnsupportedError: an operator or a signal that this target lacks.
    """
    orderings = [policy.order] if policy.preempt is None else [policy.order, policy.preempt]
    names = ["order", "preempt"][: len(orderings)]
    parts = [f"{_header(policy)}\nimport math\n\nimport numpy as np\n\n{_tables(policy, orderings)}"]
    helpers = helpers_source(*orderings)
    if helpers:
        parts.append(helpers + "\n")
    for name, ordering in zip(names, orderings, strict=True):
        parts.append(emit_function(policy, ordering, name))
    for name, ordering in zip(names, orderings, strict=True):
        entry = "keys" if name == "order" else f"{name}_keys"
        parts.append(_ENTRY.format(entry=entry, function=name, count=len(ordering.keys)))
    parts.append(_RUN.format(width=DECISION_WIDTH, row=ROW_WIDTH))
    return "\n\n".join(parts)


def _header(policy: Policy) -> str:
    digest = hashlib.sha256(policy.text.encode()).hexdigest()
    text = policy.text.rstrip("\n").replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    objects = "blocks to evict" if policy.kind == "evict" else "requests to serve"
    return (
        f'"""Policy {policy.name}: the order of {objects}, lowest key first.\n\n'
        "Generated: edit the policy instead.\n\n"
        f'sha256 of the text below: {digest}\n\n{text}\n"""\n'
    )


def _tables(policy: Policy, orderings: list[Ordering]) -> str:
    decision: dict[str, int] = {}
    columns: dict[str, int] = {}
    for ordering in orderings:
        wanted_decision, wanted_columns = reads(policy, ordering)
        decision.update({name: decision_index(name) for name in wanted_decision})
        columns.update({name: column_of(policy.kind, name) for name in wanted_columns})
    knobs = {decl.name: decl.default for decl in policy.knobs}
    return (
        f"DECISION = {_dict(decision)}  # signals of the decision and their places\n"
        f"COLUMNS = {_dict(columns)}  # signals of an object and their columns\n"
        f"KNOBS = {_dict(knobs)}  # the operator's settings; times in microseconds\n"
    )


def _dict(table: dict[str, int] | dict[str, float]) -> str:
    return "{" + ", ".join(f'"{name}": {value!r}' for name, value in table.items()) + "}"
