"""The emitted vLLM file with a schedule policy: stable text, nothing never called, honest refusals."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tanren_dsl.backends.vllm import emit
from tanren_dsl.check import load, loads
from tanren_dsl.cli.options import examples
from tanren_dsl.errors import TanrenError, UnsupportedError
from tanren_dsl.signals import signals_of
from tanren_dsl.units import BOOL

GOLDEN = Path(__file__).parents[1] / "golden" / "vllm" / "lean.py"
LRU = loads("policy lru : evict order by last_use")
LEAN = """\
policy lean : schedule
knob patience : time = 2
param lean = 1.5 in [0, 4]
let crowd = min(1, waiting / max_running)
order by 0 if resumed else 1, crowd * lean * uncached_tokens / mean(uncached_tokens) - wait / patience
preempt by wait
"""


def test_the_file_is_as_before(update_golden: bool) -> None:
    text = emit(None, loads(LEAN))
    if update_golden:
        GOLDEN.write_text(text)
    assert GOLDEN.read_text() == text


@pytest.mark.parametrize(("evicts", "schedules"), [(True, False), (False, True), (True, True)])
def test_no_function_stands_there_that_is_never_called(evicts: bool, schedules: bool) -> None:
    tree = ast.parse(emit(load(examples()["slru"]) if evicts else None, loads(LEAN) if schedules else None))
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert defined - used <= {"Scheduler", "status"}  # which vLLM and people call


def test_every_schedule_signal_is_there_but_one() -> None:
    for name, row in signals_of("schedule").items():
        if name == "now" or row.positive:  # which the normal form does not keep alone
            continue
        value = f"1 if {name} else 0" if row.type == BOOL else f"{name}, arrival"
        value = f"0 if {name} > 0 else wait" if row.scope == "decision" else value
        policy = loads(f"policy p : schedule order by {value}")
        if name == "mean_gap":
            with pytest.raises(UnsupportedError, match="does not provide `mean_gap`"):
                emit(None, policy)
        else:
            assert f"{name!r}" in emit(None, policy)


def test_a_policy_in_the_place_of_the_other_kind_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="a schedule policy stands where the evict policy belongs"):
        emit(loads("policy p : schedule order by wait / mean(wait)"))
    with pytest.raises(UnsupportedError, match="an evict policy stands where"):
        emit(None, LRU)
    with pytest.raises(TanrenError, match="found neither"):
        emit()
