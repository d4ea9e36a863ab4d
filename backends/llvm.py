"""An ordering as LLVM assembly text: one function `score` by the contract of `kernels/abi.py`.

Everything is straight-line code inside plain loops (choices are `select`s), so the
published sequences of `exp` and `log1p` stand inline and loops may be vectorized.
No fast-math flag is ever written: the bits are those of the interpreter.
"""

from __future__ import annotations

from tanren_dsl.backends.base import knob_index, unsupported
from tanren_dsl.backends.llvm_ops import APPLY, Value, double, least, most
from tanren_dsl.backends.plan import Loop, Plan, plan
from tanren_dsl.ir import Apply, Const, Fold, KnobRef, Ordering, ParamRef, Policy, SignalRef
from tanren_dsl.signals import ROW_WIDTH, column_of, decision_index, signals_of

TARGET = "numba"

_DECLARATIONS = """\
declare double @llvm.sqrt.f64(double)
declare double @llvm.fabs.f64(double)
declare double @llvm.floor.f64(double)
"""


def emit(policy: Policy, ordering: Ordering, select_address: int) -> str:
    """The module text; `select_address` is that of a C function `double (double *, int64_t, int64_t)`.

    Raises:
        UnsupportedError: an operator that this backend lacks.
    """
    return _Emitter(policy, ordering, select_address).module()


class _Emitter:
    """Writes one module. Values of the decision live in `outer`, those of one loop in `inner`."""

    def __init__(self, policy: Policy, ordering: Ordering, select_address: int) -> None:
        self.policy = policy
        self.ordering = ordering
        self.select_address = select_address
        self.lines: list[str] = []
        self.outer: dict[int, Value] = {}
        self.inner: dict[int, Value] | None = None
        self.converted: dict[tuple[str, bool], str] = {}
        self.now = ""
        self.count = 0
        self.block = "entry"

    def module(self) -> str:
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
            f"{_DECLARATIONS}\n"
            "define void @score(ptr noalias readonly %decision, ptr noalias readonly %rows, "
            "ptr noalias readonly %ids, i64 %n, ptr noalias %keys, ptr noalias %scratch) nounwind {\n"
            f"entry:\n{body}\nexit:\n  ret void\n}}\n"
        )

    # ---- the parts of the function

    def _prologue(self) -> None:
        self._put("%count = sitofp i64 %n to double")
        table = signals_of(self.policy.kind)
        if any(table[name].since is not None or name == "now" for name in self.ordering.signals()):
            self.now = self._decision_load(decision_index("now"))
        some = self.new("icmp sgt i64 %n, 0")
        self._put(f"br i1 {some}, label %some, label %exit")
        self._label("some")

    def _fixed(self, indices: tuple[int, ...]) -> None:
        for index in indices:
            self.outer[index] = self._compute(index)

    def _fold_loop(self, loop: Loop, name: str) -> None:
        before = self.block
        carried = {fold: f"%{name}.{fold}" for fold in loop.folds}
        self._label(name, branch=True)
        start = len(self.lines)
        self._open(name, before)
        j = f"%{name}.j"
        first = self.new(f"icmp eq i64 {j}, 0")
        self._objects(loop.nodes, j)
        following = {fold: self._step(fold, carried[fold], first) for fold in loop.folds}
        phis = [
            f"  {carried[fold]} = phi double [ 0.0, %{before} ], [ {following[fold]}, %{name} ]"
            for fold in loop.folds
        ]
        self.lines[start:start] = phis
        if loop.spill is not None:
            place = self.new(f"getelementptr inbounds double, ptr %scratch, i64 {j}")
            self._put(f"store double {self.number(loop.spill)}, ptr {place}")
        self._close(name)
        for fold in loop.folds:
            self.outer[fold] = Value(self._folded(fold, following[fold]))
        for fold in loop.ranks:
            self.outer[fold] = Value(self._rank(fold))

    def _key_loop(self, steps: Plan) -> None:
        before = self.block
        self._label("keys.loop", branch=True)
        self._open("keys.loop", before)
        j = "%keys.loop.j"
        self._objects(steps.last, j)
        base = self.new(f"mul nuw nsw i64 {j}, {len(self.ordering.keys)}")
        for k, index in enumerate(self.ordering.keys):
            at = self.new(f"add nuw nsw i64 {base}, {k}")
            place = self.new(f"getelementptr inbounds double, ptr %keys, i64 {at}")
            self._put(f"store double {self.number(index)}, ptr {place}")
        self._close("keys.loop")
        self._put("br label %exit")

    def _open(self, name: str, before: str) -> None:
        self.inner = {}
        self.converted = {}
        self._put(f"%{name}.j = phi i64 [ 0, %{before} ], [ %{name}.next, %{name} ]")

    def _close(self, name: str) -> None:
        self._put(f"%{name}.next = add nuw nsw i64 %{name}.j, 1")
        self._put(f"%{name}.more = icmp slt i64 %{name}.next, %n")
        self._put(f"br i1 %{name}.more, label %{name}, label %{name}.end")
        self.inner = None
        self.converted = {}
        self._label(f"{name}.end")

    def _objects(self, indices: tuple[int, ...], j: str) -> None:
        assert self.inner is not None
        place = self.new(f"getelementptr inbounds i32, ptr %ids, i64 {j}")
        narrow = self.new(f"load i32, ptr {place}")
        wide = self.new(f"sext i32 {narrow} to i64")
        offset = self.new(f"mul nsw i64 {wide}, {ROW_WIDTH}")
        self.row = self.new(f"getelementptr inbounds double, ptr %rows, i64 {offset}")
        for index in indices:
            self.inner[index] = self._compute(index)

    # ---- aggregates

    def _step(self, index: int, held: str, first: str) -> str:
        node = self.ordering.nodes[index]
        assert isinstance(node, Fold)
        value = self.number(node.arg)
        match node.op:
            case "mean":
                return self.new(f"fadd double {held}, {value}")
            case "lowest" | "highest":
                best = least(self, held, value) if node.op == "lowest" else most(self, held, value)
                return self.new(f"select i1 {first}, double {value}, double {best}")
            case _:
                unsupported(f"the aggregate {node.op!r}", TARGET)

    def _folded(self, index: int, last: str) -> str:
        node = self.ordering.nodes[index]
        assert isinstance(node, Fold)
        return self.new(f"fdiv double {last}, %count") if node.op == "mean" else last

    def _rank(self, index: int) -> str:
        node = self.ordering.nodes[index]
        assert isinstance(node, Fold)
        if node.op == "median":
            less = self.new("sub nsw i64 %n, 1")
            k = self.new(f"udiv i64 {less}, 2")
        else:
            nine = self.new("mul nsw i64 %n, 9")
            up = self.new(f"add nsw i64 {nine}, 9")
            tenth = self.new(f"udiv i64 {up}, 10")
            k = self.new(f"sub nsw i64 {tenth}, 1")
        pointer = self.new(f"inttoptr i64 {self.select_address} to ptr")
        return self.new(f"call double {pointer}(ptr %scratch, i64 %n, i64 {k})")

    # ---- nodes

    def _compute(self, index: int) -> Value:
        node = self.ordering.nodes[index]
        match node:
            case Const(value=value) | ParamRef(value=value):
                return Value(double(value))
            case KnobRef(name=name):
                return Value(self._decision_load(knob_index(self.policy, name)))
            case SignalRef(name=name):
                return Value(self._signal(name))
            case Apply(op, args):
                if op not in APPLY:
                    unsupported(f"the operator {op!r}", TARGET)
                return APPLY[op](self, args)
            case Fold():
                raise AssertionError("aggregates are computed by their loops")

    def _signal(self, name: str) -> str:
        row = signals_of(self.policy.kind)[name]
        if name == "now":
            return self.now
        if row.scope == "decision":
            return self._decision_load(decision_index(name))
        stored = self._row_load(column_of(self.policy.kind, row.since or name))
        return stored if row.since is None else self.new(f"fsub double {self.now}, {stored}")

    def _decision_load(self, index: int) -> str:
        place = self.new(f"getelementptr inbounds double, ptr %decision, i64 {index}")
        return self.new(f"load double, ptr {place}")

    def _row_load(self, column: int) -> str:
        place = self.new(f"getelementptr inbounds double, ptr {self.row}, i64 {column}")
        return self.new(f"load double, ptr {place}")

    # ---- operands

    def value(self, index: int) -> Value:
        """The operand of a node, in this loop or of the decision."""
        if self.inner is not None and index in self.inner:
            return self.inner[index]
        return self.outer[index]

    def number(self, index: int) -> str:
        """The node as a double."""
        value = self.value(index)
        return self._convert(value, f"uitofp i1 {value.text} to double") if value.is_bit else value.text

    def bit(self, index: int) -> str:
        """The node as a truth value."""
        value = self.value(index)
        return value.text if value.is_bit else self._convert(value, f"fcmp une double {value.text}, 0.0")

    def new(self, instruction: str) -> str:
        """Append an instruction; its fresh name."""
        self.count += 1
        name = f"%v{self.count}"
        self.lines.append(f"  {name} = {instruction}")
        return name

    def _convert(self, value: Value, instruction: str) -> str:
        key = (value.text, value.is_bit)
        if key not in self.converted:
            self.converted[key] = self.new(instruction)
        return self.converted[key]

    def _put(self, line: str) -> None:
        self.lines.append(f"  {line}")

    def _label(self, name: str, branch: bool = False) -> None:
        if branch:
            self._put(f"br label %{name}")
        self.lines.append(f"{name}:")
        self.block = name
