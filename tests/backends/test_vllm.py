"""The emitted vLLM file: stable text, honest refusals, the same victims as the interpreter."""

from __future__ import annotations

import ast
import importlib.util
import logging
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tanren_dsl import interp
from tanren_dsl.backends.vllm import emit
from tanren_dsl.check import load, loads
from tanren_dsl.kernels.free_ring import UNSCORED
from tanren_dsl.signals import STORED, column_of, columns_for, decision_index, signals_of
from tanren_dsl.units import BOOL
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


def test_every_evict_signal_is_there() -> None:
    for name in STORED["evict"]:
        row = signals_of("evict")[name]
        value = f"1 if {name} else 0" if row.type == BOOL else f"{name}, last_use"
        assert f"{name!r}" in emit(loads(f"policy p : evict order by {value}"))


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

    if emitted.HEAP:  # all blocks are considered, and the unscored ones stand in front
        queue.sort(key=lambda b: b not in unscored)
        extra = blocks
    state, table = emitted.new_state(blocks), np.zeros((2 * blocks, 5), np.int64)
    kept = [name for name in columns_for("evict", emitted.READS) if name not in ("children", "waiting_refs")]
    books = emitted.view(state, emitted._ROWS, float).reshape(-1, emitted.ROW_WIDTH)
    for place, name in enumerate(kept):
        books[:, place] = rows[:, column_of("evict", name)]
    for b in range(blocks):
        table[b, emitted._OWN] = blocks + b
        for name, column in (("children", emitted._CHILD_COUNT), ("waiting_refs", emitted._WAITING_COUNT)):
            rows[b, column_of("evict", name)] = table[blocks + b, column] = rng.integers(4)
    emitted.view(state, emitted._DECISION, float)[:] = decision
    ring, pos, ends = emitted.queue_of(state)
    for b in queue:
        emitted.ring_push_back(ring, pos, ends, b, UNSCORED if b in unscored else 0)
    emitted.settle_rows(state, np.array(queue, np.uint32))
    answer = emitted.pick(state, table, n, len(queue), extra)
    out = emitted.view(state, emitted._OUT, np.uint32)[:n].tolist()

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
    assert out == expected
    assert (answer == emitted._FAULT) == expected_fault
    assert answer != emitted._IN_ORDER or out == queue[:n]
    assert ends[2] == len(queue) - n
    assert all(pos[b] == -1 for b in expected)


@pytest.mark.parametrize("candidates", ["all", "10%"])
def test_a_queue_of_another_length_is_noticed(tmp_path: Path, candidates: str) -> None:
    text = emit(loads(f"policy p : evict order by uses, depth candidates {candidates}"))
    emitted = module_of(_plain(text), tmp_path)
    assert emitted.pick(emitted.new_state(4), np.zeros((1, 1), np.int64), 1, 2, 4) == emitted._OUT_OF_STEP


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


class FreeKVCacheBlockQueue:
    """As much of vLLM's queue as the file touches, kept as a list."""

    def __init__(self, blocks: list[Any]) -> None:
        self.list = list(blocks)

    @property
    def num_free_blocks(self) -> int:
        return len(self.list)

    def get_all_free_blocks(self) -> list[Any]:
        return list(self.list)

    def popleft_n(self, n: int) -> list[Any]:
        taken, self.list = self.list[:n], self.list[n:]
        return taken

    def append_n(self, blocks: list[Any]) -> None:
        self.list += blocks


class Pool:
    hash_block_size = 4

    def __init__(self) -> None:
        hashed = {"block_hash": b"x", "ref_cnt": 0, "next_free_block": 1, "is_null": False}
        self.blocks = [SimpleNamespace(block_id=b, **hashed) for b in range(9)]
        self.free_block_queue = FreeKVCacheBlockQueue(self.blocks[1:])

    def touch(self, blocks: Any) -> None:
        for block in blocks:
            if block in self.free_block_queue.list:
                self.free_block_queue.list.remove(block)

    def cache_full_blocks(self, *_args: Any, **_more: Any) -> None: ...
    def evict_blocks(self, block_ids: Any) -> None: ...
    def reset_prefix_cache(self) -> None: ...


class Manager:
    enable_caching, num_kv_cache_groups = True, 1

    def __init__(self) -> None:
        self.block_pool = Pool()

    def get_computed_blocks(self, _request: Any) -> tuple[Any, int]:
        return SimpleNamespace(blocks=(self.block_pool.blocks[1:2],)), 4


class Base:
    """A scheduler; `made` counts them."""

    made: int
    block_size, max_num_running_reqs, max_num_scheduled_tokens = 4, 8, 64

    def __init__(self, **_config: Any) -> None:
        Base.made += 1
        self.kv_cache_manager = Manager()


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The emitted file of T_LRU beside a small stand-in for vLLM."""
    emitted = module_of(_plain(emit(loads(T_LRU))), tmp_path)
    names = {
        "scheduler": ["Scheduler"],
        "async_scheduler": ["AsyncScheduler"],
        "diffusion_scheduler": ["DiffusionScheduler", "DiffusionAsyncScheduler"],
    }
    for module, classes in names.items():
        made = {name: type(name, (Base,), {}) for name in classes}
        monkeypatch.setitem(sys.modules, f"vllm.v1.core.sched.{module}", SimpleNamespace(**made))
    for package in ("vllm.v1", "vllm.v1.core", "vllm.v1.core.sched"):
        monkeypatch.setitem(sys.modules, package, SimpleNamespace())
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__version__="0.32.0"))
    monkeypatch.setattr(Base, "made", 0, raising=False)
    return emitted


def started(engine: Any, *, asynchronous: bool = False, **config: Any) -> Any:
    settings = SimpleNamespace(async_scheduling=asynchronous)
    return engine.Scheduler(vllm_config=SimpleNamespace(scheduler_config=settings, **config))


@pytest.mark.parametrize(
    ("name", "value"),
    [("KNOB_BUDGET", "much"), ("KNOB_BUDGET", ""), ("KNOB_BUDGET", "nan"), ("BUDGET_MS", "20ms")],
)
def test_a_wrong_setting_is_one_line_and_vllm_as_it_is(
    engine: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str, value: str
) -> None:
    monkeypatch.setenv(f"TANREN_{name}", value)
    scheduler = started(engine)
    assert_untouched(scheduler)
    assert [f"TANREN_{name}={value!r} is not a number" in line for line in caplog.messages] == [True]


def test_a_setting_reaches_the_policy(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert started(engine).tanren.decision[-1] == 2048
    monkeypatch.setenv("TANREN_KNOB_BUDGET", "512")
    monkeypatch.setenv("TANREN_BUDGET_MS", "5")
    evictor = started(engine).tanren
    assert (evictor.decision[-1], evictor.budget_s) == (512, 0.005)


def broken(*_args: Any) -> None:
    raise SystemError("no compiler\nand much more")


@pytest.mark.parametrize(
    ("owner", "name", "value", "reason"),
    [
        (Manager, "enable_caching", False, "prefix caching is off"),
        (Manager, "num_kv_cache_groups", 2, "2 KV cache groups"),
        (Manager, "get_computed_blocks", None, "AttributeError"),
        (Pool, "reset_prefix_cache", None, "AttributeError"),
        (None, "order", broken, "SystemError: no compiler"),
    ],
)
def test_what_cannot_attach_leaves_nothing_behind(
    engine: Any, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, value: Any, reason: str
) -> None:
    if value is None:
        monkeypatch.delattr(owner, name)
    else:
        monkeypatch.setattr(owner or engine, name, value)
    assert_untouched(started(engine))
    assert engine.status()["mode"].startswith(reason)
    assert "\n" not in engine.status()["mode"]


def assert_untouched(scheduler: Any) -> None:
    manager = scheduler.kv_cache_manager
    assert Base.made == 1
    assert scheduler.tanren is None
    assert type(manager.block_pool.free_block_queue) is FreeKVCacheBlockQueue
    assert set(vars(manager)) == {"block_pool"}
    assert set(vars(manager.block_pool)) == {"blocks", "free_block_queue"}


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("diffusion", [None, object()])
@pytest.mark.parametrize("disable", ["0", "1"])
def test_the_scheduler_is_the_one_that_vllm_would_take(
    engine: Any, monkeypatch: pytest.MonkeyPatch, asynchronous: bool, diffusion: Any, disable: str
) -> None:
    monkeypatch.setenv("TANREN_DISABLE", disable)
    scheduler = started(engine, asynchronous=asynchronous, diffusion_config=diffusion)
    expected = "Diffusion" * (diffusion is not None) + "Async" * asynchronous + "Scheduler"
    assert expected in [base.__name__ for base in type(scheduler).__mro__]


def test_a_numba_that_breaks_on_import_is_done_without(tmp_path: Path) -> None:
    text = emit(loads(T_LRU)).replace("    import numba\n", "    raise SystemError('numpy')\n")
    assert not module_of(text, tmp_path).HAVE_NUMBA


def test_a_clock_that_is_set_back_goes_on(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter((5_000, 6_000, 6_500, 5_200, 5_260, 7_000))
    monkeypatch.setattr(engine, "CLOCK", lambda: next(clock))
    evictor = started(engine).tanren
    seen = []
    for _ in range(5):
        evictor.freeze_now()
        seen.append(evictor.now)
    assert seen == [1_000, 1_500, 1_500, 1_560, 3_300]


def test_only_hits_of_an_admission_are_uses(engine: Any) -> None:
    manager = started(engine).kv_cache_manager
    queue = manager.block_pool.free_block_queue
    evictor, hit = queue.tanren, manager.block_pool.blocks[1:2]
    used = lambda: evictor.tally[1]  # noqa: E731 - counts uses
    manager.block_pool.touch(hit)
    assert used() == 0
    request = SimpleNamespace(status=SimpleNamespace(name="WAITING"), num_prompt_tokens=8, num_tokens=8)
    manager.get_computed_blocks(request)
    manager.block_pool.touch(manager.block_pool.blocks[2:3])
    assert used() == 0
    manager.block_pool.touch(hit)
    assert used() == 1
    manager.block_pool.touch(hit)
    assert used() == 1


@pytest.mark.parametrize(("quick", "on"), [(1000, True), (1, False)])
def test_rare_slow_decisions_are_forgiven(
    engine: Any, monkeypatch: pytest.MonkeyPatch, quick: int, on: bool
) -> None:
    evictor = started(engine).tanren
    monkeypatch.setattr(engine, "pick", lambda *_: engine._IN_ORDER)
    for _ in range(10):
        for seconds in (1.0, *[0.0] * quick):
            times = iter((0.0, seconds))
            monkeypatch.setattr(engine, "time", SimpleNamespace(perf_counter=lambda times=times: next(times)))
            evictor.choose(1)
    assert evictor.on == on
    assert ("over 20 ms" in engine.status()["mode"]) != on


def test_keys_that_are_not_finite_are_said_once(
    engine: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pool = started(engine).kv_cache_manager.block_pool
    blocks = list(pool.free_block_queue.list)
    pool.touch(blocks)
    pool.free_block_queue.append_n(blocks)
    monkeypatch.setattr(engine, "order", lambda *given: given[4].fill(np.nan))
    queue = pool.free_block_queue
    with caplog.at_level(logging.WARNING):
        assert [block.block_id for block in queue.popleft_n(2) + queue.popleft_n(1)] == [1, 2, 3]
    assert engine.status()["faults"] == 2
    assert ["not finite" in line for line in caplog.messages] == [True]


def test_switching_off_leaves_the_wrappers_of_others(engine: Any) -> None:
    scheduler, other = started(engine), started(engine)
    pool = scheduler.kv_cache_manager.block_pool
    theirs = pool.touch = lambda blocks, inner=pool.touch: inner(blocks)
    scheduler.tanren.off("enough")
    assert pool.touch is theirs
    assert pool.reset_prefix_cache == Pool.reset_prefix_cache.__get__(pool)
    assert type(pool.free_block_queue) is FreeKVCacheBlockQueue
    pool.touch(pool.blocks[1:2])
    assert other.tanren.on
    assert engine.status()["mode"] == "active"
