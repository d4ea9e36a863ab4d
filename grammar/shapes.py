"""Rules turned into others that allow the same texts: no left recursion, no common beginnings, no loops.

Only `levelled` allows less: it makes a language finite.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tanren_dsl.grammar.notation import Alt, Many, Node, Ref, Seq


def without_left_recursion(name: str, body: Node) -> Node:
    """`a: b | a c` as `a: b c*`."""
    if not isinstance(body, Alt):
        return body
    base, tails = list[Node](), list[Node]()
    for item in body.items:
        if isinstance(item, Seq) and item.items[0] == Ref(name):
            tails.append(Seq(item.items[1:]))
        else:
            base.append(item)
    return Seq((_one_of(base), Many(_one_of(tails), 0, None))) if tails else body


def factored(body: Node) -> Node:
    """`a | a b` as `a b?`: readers that follow every way at once would double them at each bracket."""
    if not isinstance(body, Alt):
        return body
    groups: dict[Node, list[Node]] = {}
    for item in body.items:
        items = item.items if isinstance(item, Seq) else (item,)
        groups.setdefault(items[0], []).append(Seq(items[1:]))
    ways: list[Node] = []
    for first, rests in groups.items():
        more = [rest for rest in rests if rest != Seq(())]
        if len(rests) == 1:
            ways.append(Seq((first, *more[0].items)) if more and isinstance(more[0], Seq) else first)
        elif len(more) < len(rests):
            ways.append(Seq((first, Many(_one_of(more), 0, 1))))
        else:
            ways.append(Seq((first, _one_of(more))))
    return _one_of(ways)


def levelled(rules: Mapping[str, Node], depth: int) -> dict[str, Node]:
    """Rules that lead back to themselves, once for each level; the way back goes one level down."""
    order = {name: place for place, name in enumerate(rules)}
    loops = {name for name in rules if name in _reached(rules, name)}
    found: dict[str, Node] = {}
    for name, body in rules.items():
        if name not in loops:
            found[name] = _renamed(body, {loop: f"{loop}_{depth}" for loop in loops})
            continue
        for level in range(depth, -1, -1):
            back = {loop for loop in loops if order[loop] <= order[name]}
            names = {loop: f"{loop}_{level - 1 if loop in back else level}" for loop in loops}
            kept = body if level else _without(body, back)
            if kept is None:
                raise ValueError(f"`{name}` cannot end")
            found[f"{name}_{level}"] = _renamed(kept, names)
    return found


def edge_refs(node: Node, last: bool) -> list[str]:
    """Rules and tokens that a body may begin or end with, by name."""
    match node:
        case Ref(name):
            return [name]
        case Many(item):
            return edge_refs(item, last)
        case Alt(items):
            return [name for item in items for name in edge_refs(item, last)]
        case Seq(items):
            found = []
            for item in reversed(items) if last else items:
                found += edge_refs(item, last)
                if not isinstance(item, Many):
                    break
            return found


def _reached(rules: Mapping[str, Node], name: str) -> set[str]:
    """Rules that a rule leads to, in one step or more."""
    seen, waiting = set[str](), [name]
    while waiting:
        new = {ref for ref in _refs(rules[waiting.pop()]) if ref in rules} - seen
        seen |= new
        waiting += new
    return seen


def _refs(node: Node) -> set[str]:
    match node:
        case Ref(name):
            return {name}
        case Many(item):
            return _refs(item)
        case Alt(items) | Seq(items):
            return set().union(*(_refs(item) for item in items))


def _without(node: Node, names: set[str]) -> Node | None:
    """What is left of a body without the ways over some rules; None if nothing is."""
    match node:
        case Ref(name):
            return None if name in names else node
        case Many(item):
            return node if _without(item, names) == item else Seq(())
        case Alt(items):
            ways = [way for item in items if (way := _without(item, names)) is not None]
            return _one_of(ways) if ways else None
        case Seq(items):
            parts = [_without(item, names) for item in items]
            kept = [part for part in parts if part is not None and part != Seq(())]
            return _one_of_parts(kept) if len(kept) == len(parts) - parts.count(Seq(())) else None


def _renamed(node: Node, names: Mapping[str, str]) -> Node:
    match node:
        case Ref(name):
            return Ref(names.get(name, name))
        case Many(item, least, most):
            return Many(_renamed(item, names), least, most)
        case Alt(items):
            return Alt(tuple(_renamed(item, names) for item in items))
        case Seq(items):
            return Seq(tuple(_renamed(item, names) for item in items))


def _one_of_parts(parts: Sequence[Node]) -> Node:
    return parts[0] if len(parts) == 1 else Seq(tuple(parts))


def _one_of(items: Sequence[Node]) -> Node:
    return items[0] if len(items) == 1 else Alt(tuple(items))
