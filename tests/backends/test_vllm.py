"""The emitted vLLM file: stable text, honest refusals, the same victims as the interpreter."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tanren_dsl import interp
from tanren_dsl.backends.vllm import emit
from tanren_dsl.check import load, loads
from tanren_dsl.errors import UnsupportedError
from tanren_dsl.kernels.free_ring import UNSCORED
from tanren_dsl.signals import STORED, column_of, decision_index
from tests.strategies import policies

GOLDEN = Path(__file__).parents[1] / "golden" / "vllm"
T_LRU = """\
policy t_lru : evict
"Text with \\\\ and ''' in it."
knob budget : tokens = 2048
order by 0 if depth >= max(0, chain - budget) else 1, last_use
"""


def module_of(text: str, folder: Path) -> ModuleType:
    path = folder / "emitted.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("emitted", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_file_is_as_before(update_golden: bool) -> None:
    path = GOLDEN / "t_lru.py"
    text = emit(loads(T_LRU))
    if update_golden:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert path.read_text() == text


@pytest.mark.parametrize("doc", ["''' \\\\ \\", "a {b} %s", "é ü 漢"])
def test_any_docstring_survives_in_the_header(doc: str) -> None:
    text = emit(loads(f'policy p : evict\n"{doc}"\norder by uses'))
    assert doc in (ast.get_docstring(ast.parse(text)) or "")


def test_a_signal_that_vllm_lacks_is_refused_by_name() -> None:
    policy = loads("policy p : evict order by waiting_refs / max_running, last_use")
    with pytest.raises(UnsupportedError, match="`waiting_refs`"):
        emit(policy)


def test_a_schedule_policy_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="schedule"):
        emit(loads("policy p : schedule order by wait / mean(wait)"))


@given(
    policies("evict", provided_by="vllm"),
    st.integers(0, 2**32 - 1),
    st.integers(1, 8),
    st.integers(0, 12),
)
@settings(max_examples=60)
def test_the_file_takes_the_victims_of_the_interpreter(
    tmp_path_factory: pytest.TempPathFactory, example, seed: int, n: int, extra: int
) -> None:
    emitted = module_of(_plain(emit(example.policy)), tmp_path_factory.mktemp("emitted"))
    rng = np.random.default_rng(seed)
    blocks = 24
    queue = rng.permutation(blocks)[: int(rng.integers(n, blocks + 1))].tolist()
    unscored = {b for b in queue if rng.random() < 0.2}
    rows = rng.choice([0.0, 0.0, 1.0, 3.0, 7.5, 1e6, 1e308, -1e308], (blocks, 16))
    decision = rng.choice([1.0, 2.0, 1e6, 1e308], emitted.DECISION_WIDTH + len(example.policy.knobs))
    decision[emitted.DECISION_WIDTH :] = [knob.default for knob in example.policy.knobs]

    ring, pos, ends = emitted.new_ring(blocks)
    for b in queue:
        emitted.ring_push_back(ring, pos, ends, b, UNSCORED if b in unscored else 0)
    plain, scored, lows, out = (np.zeros(blocks, np.uint32) for _ in range(4))
    keys, scratch = np.zeros((blocks, emitted.KEY_COUNT)), np.zeros(blocks)
    plains, rated = emitted.ring_consider(ring, pos, ends, n, extra, plain, scored)
    if plains < n:
        emitted.order(decision, rows, scored, rated, keys, scratch)
    flat = keys.reshape(-1)
    fault = emitted.ring_take(
        ring, pos, ends, n, plain, plains, scored, rated, keys, flat, lows, scratch, out
    )

    considered = queue[: n + extra]
    first = [b for b in considered if b in unscored]
    rest = [b for b in considered if b not in unscored]
    expected, expected_fault = first[:n], False
    if len(first) < n:
        columns = {name: rows[rest, column_of("evict", name)] for name in STORED["evict"]}
        names = [name for name in emitted.READS if name not in STORED["evict"]]
        values = {"now": decision[0], **{x: decision[_at(x)] for x in names if _at(x) is not None}}
        found = interp.evaluate(example.policy, example.policy.order, values, columns, len(rest))
        order, expected_fault = interp.order(found)
        expected = considered[:n] if expected_fault else (first + [rest[i] for i in order])[:n]
    assert out[:n].tolist() == expected
    assert bool(fault) == expected_fault
    assert ends[2] == len(queue) - n
    assert all(pos[b] == -1 for b in expected)


def _at(name: str) -> int | None:
    try:
        return decision_index(name)
    except ValueError:
        return None


def _plain(text: str) -> str:
    """The file with Numba switched off: the same functions as plain Python."""
    return text.replace("HAVE_NUMBA = numba is not None and", "HAVE_NUMBA = False and")


def test_the_examples_compile_for_vllm() -> None:
    from importlib.resources import files

    for path in sorted(Path(str(files("tanren_dsl.examples"))).glob("evict/*.tpl")):
        assert "def order(" in emit(load(path))
