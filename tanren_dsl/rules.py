"""Typing rules: one expression of the untyped tree becomes nodes of the typed form.

Report and continue: a rule that fails reports once and gives None, and whatever
depends on a None stays silent. Names are resolved by the caller's function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tanren_dsl.errors import Diagnostic
from tanren_dsl.ir import Apply, Const, Fold, OrderingBuilder, Stage
from tanren_dsl.ops import CALLS, INFIX, Op
from tanren_dsl.signals import Kind
from tanren_dsl.source import Span
from tanren_dsl.syntax import Call, Expr, IfElse, Infix, Name, Num, Prefix
from tanren_dsl.units import BOOL, MAX_EXPONENT, PLAIN, PLAIN_UNIT, TIME, Bool, Instant, Number, Type, Unit
from tanren_dsl.values import Value, elapsed_hint, instant_in, quoted, relative, relative_hint

_INSTANT_USES = "subtracted, compared, passed to min, max or if-else, or stand as a bare key"


class Typer:
    """Types expressions into a builder; findings go to `diagnostics`."""

    def __init__(
        self,
        kind: Kind,
        builder: OrderingBuilder,
        resolve: Callable[[Name], Value | Diagnostic | None],
        unknown_function: Callable[[Call], Diagnostic],
    ) -> None:
        self.diagnostics: list[Diagnostic] = []
        self._kind: Kind = kind
        self._builder = builder
        self._resolve = resolve
        self._unknown_function = unknown_function

    def infer(self, expr: Expr) -> Value | None:
        """The typed value of an expression, or None when it or a part of it is wrong."""
        match expr:
            case Num(value):
                index = self._builder.add(Const(value, PLAIN))
                return Value(expr, index, PLAIN, Stage.CONST, is_zero=value == 0.0)
            case Name():
                found = self._resolve(expr)
                if isinstance(found, Diagnostic):
                    self.diagnostics.append(found)
                    return None
                return None if found is None else found.renamed(expr)
            case Prefix(op, operand):
                return self._prefix(expr, op, self.infer(operand))
            case IfElse(then, test, orelse):
                return self._choose(expr, self.infer(then), self.infer(test), self.infer(orelse))
            case Call(func, args):
                if func not in CALLS:
                    self.diagnostics.append(self._unknown_function(expr))
                    return None
                return self._call(expr, CALLS[func], [self.infer(arg) for arg in args])
            case Infix():
                return self._chain(expr)

    def _chain(self, expr: Infix) -> Value | None:
        """Left operands in a loop, since chains may be long."""
        spine: list[Infix] = []
        left: Expr = expr
        while isinstance(left, Infix):
            spine.append(left)
            left = left.left
        value = self.infer(left)
        for node in reversed(spine):
            value = self._infix(node, value, self.infer(node.right))
        return value

    def _infix(self, node: Infix, left: Value | None, right: Value | None) -> Value | None:
        if left is None or right is None:
            return None
        if node.op == "**":
            return self._power(node, left, right)
        op = INFIX[node.op]
        match op.rule:
            case "logic":
                if not self._all_truths(node.op, [left, right]):
                    return None
                return self._apply(node, op.name, [left, right], BOOL)
            case "multiply" | "divide":
                return self._product(node, op, left, right)
            case "compare":
                joined = self._joined(node, [left, right], "compares {0} with {1}", allow_instants=True)
                return None if joined is None else self._apply(node, op.name, joined, BOOL)
            case "subtract":
                if isinstance(left.type, Instant) and isinstance(right.type, Instant):
                    return self._apply(node, op.name, [left, right], TIME)
                return self._same(node, op.name, [left, right], "subtracts {1} from {0}")
            case _:
                return self._same(node, op.name, [left, right], "adds {0} and {1}")

    def _same(self, node: Expr, op: str, values: Sequence[Value], verb: str) -> Value | None:
        joined = self._joined(node, values, verb, allow_instants=False)
        return None if joined is None else self._apply(node, op, joined, joined[0].type)

    def _product(self, node: Infix, op: Op, left: Value, right: Value) -> Value | None:
        verb = "multiplies {0} by {1}" if op.rule == "multiply" else "divides {0} by {1}"
        units = self._units(node, [left, right], verb)
        if units is None:
            return None
        unit = units[0] * units[1] if op.rule == "multiply" else units[0] / units[1]
        return self._bounded(node, op.name, [left, right], unit)

    def _power(self, node: Infix, left: Value, right: Value) -> Value | None:
        power = node.right.value if isinstance(node.right, Num) else 0.0
        if power not in (2.0, 3.0):
            return self._failed(right.expr.span, f"expected the exponent 2 or 3, found {quoted(right.expr)}")
        units = self._units(node, [left], "takes a power of {0}")
        if units is None:
            return None
        return self._bounded(node, f"pow{power:.0f}", [left], units[0] ** int(power))

    def _bounded(self, node: Expr, op: str, values: Sequence[Value], unit: Unit) -> Value | None:
        if unit.is_in_bounds:
            return self._apply(node, op, values, Number(unit))
        forms = [relative(value, self._kind) for value in values]
        written = [value.expr for value in values]
        hint = next((quoted(form) for form in forms if form is not None and form not in written), None)
        return self._failed(
            node.span,
            f"{quoted(node)} has the unit {unit}; exponents go up to {MAX_EXPONENT}",
            None if hint is None else f"write a part of it relative: {hint}",
        )

    def _prefix(self, node: Prefix, op: str, value: Value | None) -> Value | None:
        if value is None:
            return None
        if op == "not":
            if not self._all_truths("not", [value]):
                return None
            return self._apply(node, "not", [value], BOOL)
        if self._units(node, [value], "takes the negative of {0}") is None:
            return None
        return self._apply(node, "neg", [value], value.type)

    def _choose(
        self, node: IfElse, then: Value | None, test: Value | None, orelse: Value | None
    ) -> Value | None:
        is_test_fine = test is not None and self._all_truths("if", [test])
        if then is None or orelse is None or test is None:
            return None
        if isinstance(then.type, Bool) and isinstance(orelse.type, Bool):
            branches: list[Value] | None = [then, orelse]
        else:
            branches = self._joined(node, [then, orelse], "gives {0} or {1}", allow_instants=True)
        if branches is None or not is_test_fine:
            return None
        return self._apply(node, "choose", [test, *branches], branches[0].type)

    def _call(self, node: Call, op: Op, args: Sequence[Value | None]) -> Value | None:
        if not self._takes(node, op, len(args)):
            return None
        values = [arg for arg in args if arg is not None]
        if len(values) < len(args):
            return None
        match op.rule:
            case "aggregate":
                return self._aggregate(node, op, values[0])
            case "instant-same":
                joined = self._joined(node, values, f"gives {op.text} {{0}} and {{1}}", allow_instants=True)
                return None if joined is None else self._folded(node, op, joined)
            case "same":
                return self._same(node, op.name, values, f"gives {op.text} {{0}} and {{1}}")
            case "root":
                return self._root(node, op, values[0])
            case "plain":
                return self._plain(node, op, values[0])
            case _:
                if self._units(node, values, f"gives {op.text} {{0}}") is None:
                    return None
                return self._apply(node, op.name, values, values[0].type)

    def _folded(self, node: Call, op: Op, values: Sequence[Value]) -> Value:
        """`min` and `max` of many fold from the left."""
        result = values[0]
        for value in values[1:]:
            result = self._apply(node, op.name, [result, value], result.type)
        return result

    def _takes(self, node: Call, op: Op, count: int) -> bool:
        if op.min_args <= count and (op.max_args is None or count <= op.max_args):
            return True
        least = "at least " if op.max_args is None else ""
        noun = "argument" if op.min_args == 1 else "arguments"
        if op.max_args is None:
            over = "lowest" if op.text == "min" else "highest"
            arg = quoted(Call(over, node.args))
            hint = f"over all objects it is {arg}"
        elif op.form == "aggregate":
            hint = f"`{op.text}` ranges over the objects being ordered and takes one expression"
        elif op.text == "clip":
            hint = "write clip(x, low, high)"
        else:
            hint = f"write {op.text}(x)"
        message = f"`{op.text}` takes {least}{op.min_args} {noun}, found {count}"
        self._fail(node.span, message, hint)
        return False

    def _root(self, node: Call, op: Op, value: Value) -> Value | None:
        units = self._units(node, [value], "gives sqrt {0}")
        if units is None:
            return None
        half = units[0].halved()
        if half is not None:
            return self._apply(node, op.name, [value], Number(half))
        return self._failed(
            node.span,
            f"{quoted(node)} takes the root of {value.type}: exponents must be even",
            relative_hint(node, [value], self._kind),
        )

    def _plain(self, node: Call, op: Op, value: Value) -> Value | None:
        units = self._units(node, [value], f"gives {op.text} {{0}}")
        if units is None:
            return None
        if units[0] == PLAIN_UNIT:
            return self._apply(node, op.name, [value], PLAIN)
        return self._failed(
            node.span,
            f"`{op.text}` takes a plain number, found {value.type}: {quoted(value.expr)}",
            relative_hint(node, [value], self._kind),
        )

    def _aggregate(self, node: Call, op: Op, value: Value) -> Value | None:
        things = "block" if self._kind == "evict" else "request"
        if self._units(node, [value], f"gives {op.text} {{0}}") is None:
            return None
        if value.folds:
            return self._failed(
                node.span,
                f"aggregates do not nest: {quoted(value.expr)} already holds one",
                f"the value of an aggregate is the same for every {things}: use it without `{op.text}`",
            )
        if value.stage < Stage.OBJECT:
            return self._failed(
                node.span,
                f"`{op.text}` takes a value per {things}, found one that all share: {quoted(value.expr)}",
                f"use it without `{op.text}`",
            )
        index = self._builder.add(Fold(op.name, value.index, value.type))
        return Value(node, index, value.type, Stage.DECISION, folds=True)

    def _joined(
        self, node: Expr, values: Sequence[Value], verb: str, *, allow_instants: bool
    ) -> list[Value] | None:
        """The values with one type, literal zeros given it; None after a report."""
        if any(isinstance(value.type, Bool) for value in values):
            self._refuse_truth(node, values)
            return None
        told = [value for value in values if not value.is_zero] or list(values[:1])
        type_ = told[0].type
        odd = next((value for value in told if value.type != type_), None)
        if odd is None and (not isinstance(type_, Instant) or (allow_instants and len(told) == len(values))):
            return [self._adopted(value, type_) for value in values]
        if odd is None:  # an instant with an instant or a literal 0
            odd = next(value for value in values if value is not told[0])
        pair = sorted([told[0], odd], key=lambda value: next(i for i, v in enumerate(values) if v is value))
        words = verb.format(*(str(value.type) for value in pair))
        message = f"{quoted(node)} {words}"
        if any(isinstance(value.type, Instant) for value in values):
            hint = elapsed_hint(instant_in(values).expr, self._kind)
            self._fail(node.span, f"{message}: instants can only be {_INSTANT_USES}", hint)
        else:
            self._fail(node.span, message, relative_hint(node, values, self._kind))
        return None

    def _adopted(self, value: Value, type_: Type) -> Value:
        if not value.is_zero or value.type == type_:
            return value
        return Value(value.expr, self._builder.add(Const(0.0, type_)), type_, Stage.CONST, is_zero=True)

    def _units(self, node: Expr, values: Sequence[Value], verb: str) -> list[Unit] | None:
        """Units of numbers; None after reporting an instant or a truth value."""
        if any(isinstance(value.type, Bool) for value in values):
            self._refuse_truth(node, values)
            return None
        if any(isinstance(value.type, Instant) for value in values):
            words = verb.format(*(str(value.type) for value in values))
            hint = elapsed_hint(instant_in(values).expr, self._kind)
            message = f"{quoted(node)} {words}: instants can only be {_INSTANT_USES}"
            self._fail(node.span, message, hint)
            return None
        return [value.type.unit for value in values if isinstance(value.type, Number)]

    def _refuse_truth(self, node: Expr, values: Sequence[Value]) -> None:
        truth = next(value for value in values if isinstance(value.type, Bool))
        word = node.op if isinstance(node, Infix | Prefix) else node.func if isinstance(node, Call) else "if"
        if word == "if":
            message = f"the branches differ: {values[0].type} and {values[1].type}"
        else:
            message = f"`{word}` takes numbers, found a truth value: {quoted(truth.expr)}"
        one = quoted(IfElse(Num(1.0), truth.expr, Num(0.0)))
        self._fail(truth.expr.span, message, f"make it a number: {one}")

    def _all_truths(self, word: str, values: Sequence[Value]) -> bool:
        for value in values:
            if isinstance(value.type, Bool):
                continue
            if isinstance(value.type, Instant):
                hint = elapsed_hint(value.expr, self._kind) + ", and compare it"
            else:
                hint = f"compare it: {quoted(Infix('>', value.expr, Num(0.0)))}"
            message = f"`{word}` takes a truth value, found {value.type}: {quoted(value.expr)}"
            self._fail(value.expr.span, message, hint)
            return False
        return True

    def _apply(self, node: Expr, op: str, values: Sequence[Value], type_: Type) -> Value:
        stage = max(value.stage for value in values)
        index = self._builder.add(Apply(op, tuple(value.index for value in values), type_, stage))
        return Value(node, index, type_, stage, folds=any(value.folds for value in values))

    def _fail(self, span: Span, message: str, hint: str | None = None) -> None:
        self.diagnostics.append(Diagnostic(span, message, hint))

    def _failed(self, span: Span, message: str, hint: str | None = None) -> Value | None:
        self._fail(span, message, hint)
        return None
