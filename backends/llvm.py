"""An ordering as LLVM assembly text: one function `score` by the contract of `kernels/abi.py`.

Everything is straight-line code inside plain loops (choices are `select`s). A loop
with dear expressions takes `LANES` objects at a time; past the end it repeats the last
object, which changes nothing. No fast-math flag is ever written: the bits are those of the
interpreter. Vectors are written here, because LLVM's own vectorizer takes longer
than all the rest.
"""

from __future__ import annotations

from collections.abc import Mapping

from tanren_dsl.backends.base import knob_index, unsupported
from tanren_dsl.backends.llvm_ops import APPLY
from tanren_dsl.backends.llvm_text import DECLARATIONS, LANES, Assembly, Value, double
from tanren_dsl.backends.plan import Loop, Plan, plan
from tanren_dsl.ir import Apply, Const, Fold, KnobRef, Ordering, ParamRef, Policy, SignalRef
from tanren_dsl.signals import ROW_WIDTH, column_of, decision_index, signals_of

TARGET = "numba"

_WEIGHT = {"exp": 16, "log1p": 16, "div": 4, "sqrt": 4}
_DEAR = 8
"""A loop whose operators weigh (1 each unless listed) at least this much takes several objects at a time."""


def emit(policy: Policy, ordering: Ordering, addresses: Mapping[str, int]) -> str:
    """The module text, which calls the functions of `llvm_runtime` by address.

    Raises:
        UnsupportedError: an operator that this backend lacks.
    """
    return _Emitter(policy, ordering, addresses).module()


class _Emitter(Assembly):
    """Writes one module. Values of the decision live in `outer`, those of one loop in `inner`."""

    def __init__(self, policy: Policy, ordering: Ordering, addresses: Mapping[str, int]) -> None:
        super().__init__(addresses)
        self.policy = policy
        self.ordering = ordering
        self.ahead: list[str] = []
        self.outer: dict[int, Value] = {}
        self.inner: dict[int, Value] = {}
        self.rows: list[str] = []
        self.now = ""
        self.block = "some"

    def module(self) -> str:
        """The whole text."""
        steps = plan(self.ordering)
        self._prologue()
        self._fixed(steps.before)
        for w, wave in enumerate(steps.waves):
            for i, loop in enumerate(wave.loops):
                self._fold_loop(loop, f"wave{w}.{i}")
            self._fixed(wave.after)
        self._key_loop(steps)
        body = "\n".join(self.lines)
        return (
            f"{DECLARATIONS}\n"
            "define void @score(ptr noalias readonly %decision, ptr noalias readonly %rows, "
            "ptr noalias readonly %ids, i64 %n, ptr noalias %keys, ptr noalias %scratch) nounwind {\n"
            "entry:\n  %some.given = icmp sgt i64 %n, 0\n  br i1 %some.given, label %some, label %exit\n"
            f"some:\n{body}\n  br label %exit\nexit:\n  ret void\n}}\n"
        )

    # ---- the parts of the function

    def _prologue(self) -> None:
        self.put("%count = sitofp i64 %n to double")
        self.put("%last = sub nsw i64 %n, 1")
        table = signals_of(self.policy.kind)
        if any(table[name].since is not None or name == "now" for name in self.ordering.signals()):
            self.now = self._load("%decision", decision_index("now"))

    def _fixed(self, indices: tuple[int, ...]) -> None:
        for index in indices:
            self.outer[index] = self._compute(index)

    def _fold_loop(self, loop: Loop, name: str) -> None:
        before, outside = self._open(loop.nodes, name)
        places = self._objects(loop.nodes, name)
        phis = []
        results = {}
        for fold in loop.folds:
            held = f"%{name}.fold{fold}"
            results[fold] = self._steps(fold, held, places)
            phis.append(f"  {held} = phi double [ 0.0, %{before} ], [ {results[fold]}, %{name} ]")
        if loop.spill is not None:
            values = self._lanes(self._number(loop.spill))
            for place, value in zip(places, values, strict=True):
                at = self.new(f"getelementptr inbounds double, ptr %scratch, i64 {place}")
                self.put(f"store double {value}, ptr {at}")
        self._close(name, before, outside, phis)
        for fold, result in results.items():
            self.outer[fold] = Value(self._folded(fold, result))
        for fold in loop.ranks:
            self.outer[fold] = Value(self._rank(fold))

    def _key_loop(self, steps: Plan) -> None:
        name = "keys.loop"
        before, outside = self._open(steps.last, name)
        places = self._objects(steps.last, name)
        width = len(self.ordering.keys)
        values = [self._lanes(self._number(index)) for index in self.ordering.keys]
        for lane, place in enumerate(places):
            for k in range(width):
                at = self.new(f"getelementptr inbounds [{width} x double], ptr %keys, i64 {place}, i64 {k}")
                self.put(f"store double {values[k][lane]}, ptr {at}")
        self._close(name, before, outside, [])

    def _open(self, nodes: tuple[int, ...], name: str) -> tuple[str, list[str]]:
        applied = [node.op for node in (self.ordering.nodes[i] for i in nodes) if isinstance(node, Apply)]
        self.set_lanes(LANES if sum(_WEIGHT.get(op, 1) for op in applied) >= _DEAR else 1)
        outside, self.lines, self.ahead = self.lines, [], []
        self.inner, self.made = {}, {}
        before, self.block = self.block, name
        return before, outside

    def _close(self, name: str, before: str, outside: list[str], phis: list[str]) -> None:
        body = self.lines
        index = f"  %{name}.j = phi i64 [ 0, %{before} ], [ %{name}.next, %{name} ]"
        self.lines = [*outside, *self.ahead, f"  br label %{name}", f"{name}:", index, *phis, *body]
        self.put(f"%{name}.next = add nuw nsw i64 %{name}.j, {self.lanes}")
        self.put(f"%{name}.more = icmp slt i64 %{name}.next, %n")
        self.put(f"br i1 %{name}.more, label %{name}, label %{name}.end")
        self.lines.append(f"{name}.end:")
        self.block = f"{name}.end"
        self.inner, self.made = {}, {}
        self.set_lanes(1)

    def _objects(self, indices: tuple[int, ...], name: str) -> list[str]:
        """Compute the loop's nodes; the positions of its objects, the last one repeated past the end."""
        places = [f"%{name}.j"]
        for lane in range(1, self.lanes):
            next_ = self.new(f"add nuw nsw i64 %{name}.j, {lane}")
            places.append(self.new(f"call i64 @llvm.smin.i64(i64 {next_}, i64 %last)"))
        self.rows = [self._row(place) for place in places] if indices else []
        for index in indices:
            self.inner[index] = self._compute(index)
        return places

    def _row(self, place: str) -> str:
        at = self.new(f"getelementptr inbounds i32, ptr %ids, i64 {place}")
        narrow = self.new(f"load i32, ptr {at}")
        return self.new(f"getelementptr inbounds [{ROW_WIDTH} x double], ptr %rows, i32 {narrow}")

    # ---- aggregates

    def _steps(self, index: int, held: str, places: list[str]) -> str:
        """Fold the loop's objects in order; a repeated one adds -0.0 or is compared with itself."""
        node = self.ordering.nodes[index]
        assert isinstance(node, Fold)
        values = self._lanes(self._number(node.arg))
        outer_width = self.lanes
        self.set_lanes(1)
        for lane, value in enumerate(values):
            match node.op:
                case "mean":
                    held = self.new(f"fadd double {held}, {self._once(value, lane, places)}")
                case "lowest" | "highest":
                    best = self.least(held, value) if node.op == "lowest" else self.most(held, value)
                    held = best if lane else self._first(value, best, places)
                case _:
                    unsupported(f"the aggregate {node.op!r}", TARGET)
        self.set_lanes(outer_width)
        return held

    def _once(self, value: str, lane: int, places: list[str]) -> str:
        if lane == 0:
            return value
        fresh = self.new(f"icmp ne i64 {places[lane]}, {places[lane - 1]}")
        return self.new(f"select i1 {fresh}, double {value}, double -0.0")

    def _first(self, value: str, best: str, places: list[str]) -> str:
        first = self.new(f"icmp eq i64 {places[0]}, 0")
        return self.new(f"select i1 {first}, double {value}, double {best}")

    def _folded(self, index: int, last: str) -> str:
        node = self.ordering.nodes[index]
        assert isinstance(node, Fold)
        return self.new(f"fdiv double {last}, %count") if node.op == "mean" else last

    def _rank(self, index: int) -> str:
        node = self.ordering.nodes[index]
        assert isinstance(node, Fold)
        if node.op == "median":
            k = self.new("udiv i64 %last, 2")
        else:
            nine = self.new("mul nsw i64 %n, 9")
            up = self.new(f"add nsw i64 {nine}, 9")
            tenth = self.new(f"udiv i64 {up}, 10")
            k = self.new(f"sub nsw i64 {tenth}, 1")
        return self.new(f"call double {self.outside('select_rank')}(ptr %scratch, i64 %n, i64 {k})")

    # ---- nodes

    def _compute(self, index: int) -> Value:
        node = self.ordering.nodes[index]
        match node:
            case Const(value=value) | ParamRef(value=value):
                return Value(double(value), constant=value)
            case KnobRef(name=name):
                return Value(self._load("%decision", knob_index(self.policy, name)))
            case SignalRef(name=name):
                return Value(self._signal(name))
            case Apply(op, args):
                if op not in APPLY:
                    unsupported(f"the operator {op!r}", TARGET)
                return APPLY[op](self, [self._value(arg) for arg in args])
            case Fold():
                raise AssertionError("aggregates are computed by their loops")

    def _signal(self, name: str) -> str:
        row = signals_of(self.policy.kind)[name]
        if name == "now":
            return self.now
        if row.scope == "decision":
            return self._load("%decision", decision_index(name))
        column = column_of(self.policy.kind, row.since or name)
        stored = self._vector([self._load(place, column) for place in self.rows])
        if row.since is None:
            return stored
        return self.new(f"fsub {self.f} {self._spread(self.now)}, {stored}")

    def _load(self, array: str, index: int) -> str:
        at = self.new(f"getelementptr inbounds double, ptr {array}, i64 {index}")
        return self.new(f"load double, ptr {at}")

    # ---- operands

    def _value(self, index: int) -> Value:
        """The operand of a node, of this loop or of the decision, in every lane."""
        if index in self.inner:
            return self.inner[index]
        value = self.outer[index]
        if self.lanes == 1 or value.constant is not None:
            return value
        return Value(self._spread(value.text, "i1" if value.is_bit else "double"), value.is_bit)

    def _number(self, index: int) -> str:
        return self.number(self._value(index))

    def _spread(self, text: str, scalar: str = "double") -> str:
        """A scalar of the decision in every lane, computed ahead of the loop."""
        if self.lanes == 1:
            return text
        key = f"spread {text}"
        if key not in self.made:
            inside, self.lines = self.lines, self.ahead
            self.made[key] = self._vector([text] * self.lanes, scalar)
            self.lines = inside
        return self.made[key]

    def _vector(self, scalars: list[str], scalar: str = "double") -> str:
        if self.lanes == 1:
            return scalars[0]
        held = "poison"
        for lane, text in enumerate(scalars):
            held = self.new(f"insertelement <{self.lanes} x {scalar}> {held}, {scalar} {text}, i64 {lane}")
        return held

    def _lanes(self, vector: str) -> list[str]:
        if self.lanes == 1:
            return [vector]
        return [self.new(f"extractelement {self.f} {vector}, i64 {lane}") for lane in range(self.lanes)]
