from importlib.resources import files
from pathlib import Path

import pytest

from tanren_dsl.check import load, loads
from tanren_dsl.passes.order import analyze, reads

EXAMPLES = Path(str(files("tanren_dsl.examples"))) / "evict"


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("lru", "identity"),
        ("fifo", "static"),
        ("lfu", "static"),
        ("slru", "static"),
        ("never_hit_first", "static"),
        ("frequency_cost", "static"),
        ("t_lru", "static"),
    ],
)
def test_shapes_of_the_examples(name: str, shape: str) -> None:
    assert analyze(load(EXAMPLES / f"{name}.tpl")).shape == shape


@pytest.mark.parametrize(
    ("key", "shape", "reason"),
    [
        ("last_use", "identity", "the engine's own order"),
        ("-age * 3", "identity", "the engine's own order"),
        ("7", "identity", "every block has the same key"),
        ("last_use, uses", "static", "no key changes while a block rests"),
        ("uses * depth / capacity", "static", "no key changes"),
        ("age", "dynamic", "`age` changes while a block rests"),
        ("children", "dynamic", "`children` changes while a block rests"),
        ("age / mean(age)", "dynamic", "`mean(age)` changes with every decision"),
        ("uses * hit_rate", "dynamic", "`hit_rate` changes with every decision"),
        ("min(now, created)", "dynamic", "`now` changes with every decision"),
    ],
)
def test_shapes_and_their_reasons(key: str, shape: str, reason: str) -> None:
    found = analyze(loads(f"policy p : evict order by {key}"))
    assert found.shape == shape
    assert reason in found.reason


def test_reads_names_every_signal() -> None:
    policy = loads("policy p : schedule order by wait / mean(wait) preempt by arrival")
    assert reads(policy) == {"wait", "arrival"}
