"""An ordering as one readable Python function, which Numba compiles unchanged.

The function obeys `kernels/abi.py` with arrays for pointers and calls the helpers
of `kernels/meaning.py` by name. Signals keep their names; a value that is used
twice gets a name `t1`, `t2`; the rest stands inline.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tanren_dsl.backends.base import knob_index, pack, unsupported
from tanren_dsl.backends.plan import Loop, Plan, plan
from tanren_dsl.backends.python_helpers import bare, describe, helpers_source, is_plain_divisor
from tanren_dsl.ir import Apply, Const, Fold, KnobRef, Ordering, ParamRef, Policy, SignalRef, arguments
from tanren_dsl.signals import PYTHON, column_of, decision_index, signals_of

NAME = "python"
_WIDEST = 72
"""A value whose text is longer gets a name, even when it is used once."""

Texts: TypeAlias = tuple["Text", ...]
Rule: TypeAlias = Callable[[Texts], "Text"]


class Text:
    """An expression: its text, and whether it is a truth value."""

    __slots__ = ("constant", "is_bit", "text")

    def __init__(self, text: str, is_bit: bool = False, constant: float | None = None) -> None:
        self.text = text
        self.is_bit = is_bit
        self.constant = constant

    @property
    def number(self) -> str:
        """The expression as a number."""
        return f"(1.0 if {self.text} else 0.0)" if self.is_bit else self.text

    @property
    def bit(self) -> str:
        """The expression as a truth value."""
        return self.text if self.is_bit else f"({self.text} != 0.0)"


class PythonScorer:
    """Executes the emitted text on inputs by name."""

    def __init__(self, policy: Policy, ordering: Ordering) -> None:
        self.policy = policy
        self.ordering = ordering
        space: dict[str, object] = {}
        text = f"import math\n\n{helpers_source(ordering)}\n\n{emit_function(policy, ordering)}"
        exec(compile(text, f"<{policy.name}>", "exec"), space)
        self._order = space["order"]

    def score(
        self,
        decision: Mapping[str, float],
        columns: Mapping[str, NDArray[np.float64]],
        n: int,
        knobs: Mapping[str, float] | None = None,
    ) -> NDArray[np.float64]:
        """Keys of n objects, shape `(n, keys)`; arguments as in `interp.evaluate`."""
        packed = pack(self.policy, self.ordering, decision, columns, n, knobs)
        assert callable(self._order)
        self._order(packed.decision, packed.rows, packed.ids, n, packed.keys, packed.scratch)
        return packed.keys


class PythonBackend:
    """The backend as a value."""

    name = NAME

    def scorer(self, policy: Policy, ordering: Ordering) -> PythonScorer:
        """The emitted function of the ordering, callable by name."""
        return PythonScorer(policy, ordering)


def emit_function(
    policy: Policy, ordering: Ordering, name: str = "order", columns: Sequence[str] | None = None
) -> str:
    """Text of `def NAME(decision, rows, ids, n, keys, scratch)`, ending in a newline.

    It needs `math` and the names of `helpers_source(ordering)`, and works as plain
    Python on NumPy arrays and under `numba.njit`.

    Args:
        policy: whose knobs and kind count.
        ordering: of the policy.
        name: of the function.
        columns: what a row of `rows` holds, by name; default the full object row.

    Raises:
        UnsupportedError: an operator or a signal that this target lacks.
    """
    return _Emitter(policy, ordering, columns).function(name)


class _Emitter:
    """Writes one function. Values of the decision live in `outer`, those of one loop in `inner`."""

    def __init__(self, policy: Policy, ordering: Ordering, columns: Sequence[str] | None) -> None:
        self.policy = policy
        self.ordering = ordering
        self.columns = columns
        self.lines: list[str] = []
        self.indent = "    "
        self.outer: dict[int, Text] = {}
        self.inner: dict[int, Text] = {}
        self.temporaries = 0

    def function(self, name: str) -> str:
        """The whole text."""
        steps = plan(self.ordering)
        self._prologue()
        self._fixed(steps.before)
        for wave in steps.waves:
            for loop in wave.loops:
                self._fold_loop(loop)
            self._fixed(wave.after)
        self._key_loop(steps)
        return "\n".join([f"def {name}(decision, rows, ids, n, keys, scratch):", *self.lines]) + "\n"

    # ---- the parts of the function

    def _prologue(self) -> None:
        table = signals_of(self.policy.kind)
        signals = [name for name in self.ordering.signals() if not self._is_column(name)]
        for signal in signals:
            if PYTHON not in table[signal].provided_by:
                unsupported(f"the signal {signal!r}", NAME)
        for node in self.ordering.nodes:
            if isinstance(node, Apply) and node.op not in APPLY:
                unsupported(f"the operator {node.op!r}", NAME)
        for k, index in enumerate(self.ordering.keys):
            self._put(f"# key {k + 1}: {describe(self.ordering, index)}")
        self._put("if n == 0:")
        self._put("    return")
        if any(table[signal].since is not None or signal == "now" for signal in signals):
            self._put(f"now = float(decision[{decision_index('now')}])")

    def _fixed(self, indices: Sequence[int]) -> None:
        for index in indices:
            self.outer[index] = self._named(index, self._compute(index), self._uses(index, indices, ()))

    def _fold_loop(self, loop: Loop) -> None:
        names = {fold: self._fold_name(fold) for fold in (*loop.folds, *loop.ranks)}
        for fold in loop.folds:
            self._put(f"{names[fold]} = 0.0")
        roots = [_arg(self.ordering, fold) for fold in loop.folds]
        roots += [
            _arg(self.ordering, fold) for fold in loop.folds if self._op(fold) != "mean"
        ]  # written twice
        if loop.spill is not None:
            roots.append(loop.spill)
        self._open(loop.nodes, roots)
        for fold in loop.folds:
            self._put(f"{names[fold]} = {self._step(fold, names[fold])}")
        if loop.spill is not None:
            self._put(f"scratch[j] = {self._value(loop.spill).number}")
        self._close()
        for fold in loop.folds:
            if self._op(fold) == "mean":
                self._put(f"{names[fold]} = {names[fold]} / float(n)")
        for fold in loop.ranks:
            rank = "(n - 1) // 2" if self._op(fold) == "median" else "(9 * n + 9) // 10 - 1"
            self._put(f"{names[fold]} = float(select_rank(scratch, n, {rank}))")
        for fold, name in names.items():
            self.outer[fold] = Text(name)

    def _key_loop(self, steps: Plan) -> None:
        self._open(steps.last, self.ordering.keys)
        for k, index in enumerate(self.ordering.keys):
            self._put(f"keys[j, {k}] = {bare(self._value(index).number)}")
        self._close()

    def _open(self, nodes: Sequence[int], roots: Sequence[int]) -> None:
        self._put("for j in range(n):")
        self.indent = "        "
        self.inner = {}
        if any(isinstance(self.ordering.nodes[index], SignalRef) for index in nodes):
            self._put("i = ids[j]")
        for index in nodes:
            self.inner[index] = self._named(index, self._compute(index), self._uses(index, nodes, roots))

    def _close(self) -> None:
        self.indent = "    "
        self.inner = {}

    def _step(self, fold: int, held: str) -> str:
        value = self._value(_arg(self.ordering, fold)).number
        match self._op(fold):
            case "mean":
                return f"{held} + {value}"
            case "lowest":
                return f"{value} if j == 0 else minimum({held}, {value})"
            case "highest":
                return f"{value} if j == 0 else maximum({held}, {value})"
            case op:
                return unsupported(f"the aggregate {op!r}", NAME)

    # ---- nodes

    def _compute(self, index: int) -> Text:
        node = self.ordering.nodes[index]
        match node:
            case Const(value=value):
                return Text(literal(value), constant=value)
            case ParamRef(name=name, value=value):
                self._put(f"param_{name} = {literal(value)}")
                return Text(f"param_{name}")
            case KnobRef(name=name):
                self._put(f"knob_{name} = float(decision[{knob_index(self.policy, name)}])")
                return Text(f"knob_{name}")
            case SignalRef(name=name):
                return self._signal(name)
            case Apply(op, args):
                return APPLY[op](tuple(self._value(arg) for arg in args))
            case Fold():
                raise AssertionError("aggregates are computed by their loops")

    def _signal(self, name: str) -> Text:
        if self._is_column(name):
            self._put(f"{name} = float(rows[i, {self._column(name)}])")
            return Text(name)
        row = signals_of(self.policy.kind)[name]
        if name == "now":
            return Text("now")
        if row.scope == "decision":
            self._put(f"{name} = float(decision[{decision_index(name)}])")
        elif row.since is None:
            self._put(f"{name} = float(rows[i, {self._column(name)}])")
        else:
            self._put(f"{name} = now - float(rows[i, {self._column(row.since)}])")
        return Text(name)

    def _is_column(self, name: str) -> bool:
        return self.columns is not None and name in self.columns

    def _column(self, name: str) -> int:
        return column_of(self.policy.kind, name) if self.columns is None else self.columns.index(name)

    def _named(self, index: int, text: Text, uses: int) -> Text:
        """The value under a name of its own, unless it is short and used once."""
        if not isinstance(self.ordering.nodes[index], Apply):
            return text
        if uses == 1 and len(text.text) <= _WIDEST:
            return text
        self.temporaries += 1
        self._put(f"t{self.temporaries} = {bare(text.text)}")
        return Text(f"t{self.temporaries}", text.is_bit)

    def _uses(self, index: int, region: Sequence[int], roots: Sequence[int]) -> int:
        """How often the text of a value would stand in its region; 2 if it is needed outside."""
        here = sum(_weight(self.ordering, user, index) for user in region) + list(roots).count(index)
        if index in self.inner or self.indent != "    ":
            return here
        nodes = self.ordering.nodes
        others = (user for user in range(len(nodes)) if user not in region)
        outside = index in self.ordering.keys or any(index in arguments(nodes[user]) for user in others)
        return 2 if outside else here

    def _fold_name(self, fold: int) -> str:
        arg = self.ordering.nodes[_arg(self.ordering, fold)]
        return f"{self._op(fold)}_of_{arg.name}" if isinstance(arg, SignalRef) else f"{self._op(fold)}_{fold}"

    def _op(self, fold: int) -> str:
        node = self.ordering.nodes[fold]
        assert isinstance(node, Fold)
        return node.op

    def _value(self, index: int) -> Text:
        return self.inner[index] if index in self.inner else self.outer[index]

    def _put(self, line: str) -> None:
        self.lines.append(self.indent + line)


def literal(value: float) -> str:
    """A double as Python text; negative ones in parentheses."""
    if math.isnan(value):
        return "math.nan"
    text = "math.inf" if math.isinf(value) else repr(abs(value))
    return f"(-{text})" if math.copysign(1.0, value) < 0.0 else text


def _arg(ordering: Ordering, fold: int) -> int:
    node = ordering.nodes[fold]
    assert isinstance(node, Fold)
    return node.arg


def _weight(ordering: Ordering, user: int, index: int) -> int:
    """How often a node writes the text of an argument."""
    node = ordering.nodes[user]
    times = arguments(node).count(index)
    return times * (3 if isinstance(node, Apply) and node.op in ("pow2", "pow3") else 1)


def _infix(sign: str) -> Rule:
    return lambda args: Text(f"({args[0].number} {sign} {args[1].number})")


def _compare(sign: str) -> Rule:
    return lambda args: Text(f"({args[0].number} {sign} {args[1].number})", is_bit=True)


def _logic(word: str) -> Rule:
    return lambda args: Text(f"({args[0].bit} {word} {args[1].bit})", is_bit=True)


def _call(name: str) -> Rule:
    return lambda args: Text(f"{name}({', '.join(bare(arg.number) for arg in args)})")


def _div(args: Texts) -> Text:
    x, y = args
    if y.constant is not None and is_plain_divisor(y.constant):
        return Text(f"({x.number} / {y.text})")
    return Text(f"div({bare(x.number)}, {bare(y.number)})")


def _choose(args: Texts) -> Text:
    test, then, other = args
    if then.is_bit and other.is_bit:
        return Text(f"({then.text} if {test.bit} else {other.text})", is_bit=True)
    return Text(f"({then.number} if {test.bit} else {other.number})")


def _power(times: int) -> Rule:
    def rule(args: Texts) -> Text:
        x = args[0].number
        return Text(f"({x} * {x})" if times == 2 else f"(({x} * {x}) * {x})")

    return rule


APPLY: dict[str, Rule] = {
    "add": _infix("+"),
    "sub": _infix("-"),
    "mul": _infix("*"),
    "div": _div,
    "neg": lambda args: Text(f"(-{args[0].number})"),
    "pow2": _power(2),
    "pow3": _power(3),
    "lt": _compare("<"),
    "le": _compare("<="),
    "gt": _compare(">"),
    "ge": _compare(">="),
    "eq": _compare("=="),
    "ne": _compare("!="),
    "and": _logic("and"),
    "or": _logic("or"),
    "not": lambda args: Text(f"(not {args[0].bit})", is_bit=True),
    "choose": _choose,
    "min": _call("minimum"),
    "max": _call("maximum"),
    "abs": _call("abs"),
    "sqrt": _call("root"),
    "log1p": _call("log1p"),
    "exp": _call("exp"),
    "clip": _call("clip"),
    "floor": _call("floor"),
}
"""One entry an operator that is not an aggregate."""
