"""The short text keeps to its limit, and figures are drawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from tanren_dsl.backends.numba import compile_ordering
from tanren_dsl.check import loads
from tanren_dsl.diagnosis import plots
from tanren_dsl.diagnosis.diagnosis import Diagnosis, as_text
from tanren_dsl.diagnosis.evictions import diagnose_evict
from tanren_dsl.diagnosis.waits import diagnose_schedule
from tanren_dsl.errors import TanrenError
from tanren_dsl.sim.serving import Server
from tanren_dsl.trace.read import read_trace
from tests.diagnosis.test_evictions import MRU
from tests.diagnosis.test_waits import FIRST, SJF, SMALL

LRU = loads("policy lru : evict order by last_use")


@pytest.fixture(scope="module")
def found() -> dict[str, Diagnosis]:
    """One of each kind, with regret and without."""
    trace = read_trace("chat:1:300")
    table, server = trace.head(150).with_rate(30.0), Server(30_000, max_num_seqs=8)
    capacity = 3 * trace.longest()
    return {
        "evict": diagnose_evict(trace, MRU, compile_ordering, capacity),
        "evict-none": diagnose_evict(trace, LRU, compile_ordering, capacity),
        "schedule": diagnose_schedule(table, SJF, compile_ordering, server, SMALL),
        "schedule-none": diagnose_schedule(table, FIRST, compile_ordering, server, SMALL),
    }


KINDS = ["evict", "evict-none", "schedule", "schedule-none"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_text_keeps_to_its_limit_and_says_the_verdict(found: dict[str, Diagnosis], kind: str) -> None:
    whole = as_text(found[kind], 100_000)
    assert found[kind].verdict in whole
    assert found[kind].trace not in whole
    for most in (0, 1, 50, 200, 500, 1000, 2000):
        text = as_text(found[kind], most)
        assert len(text) <= most
        assert whole.startswith(text)


@pytest.mark.parametrize("kind", KINDS)
def test_figures_are_written(found: dict[str, Diagnosis], kind: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (the extra `plot`)")
    path = plots.write_plot(found[kind], tmp_path / "a" / "b")
    names = {"evict": "regretted_evictions.png", "schedule": "regretted_waits.png"}
    assert path.name == names[kind.partition("-")[0]]
    assert path.read_bytes().startswith(b"\x89PNG")


def test_axes_say_what_they_show(found: dict[str, Diagnosis]) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (the extra `plot`)")
    evict, schedule = plots.regretted_evictions(found["evict"]), plots.regretted_waits(found["schedule"])
    assert evict.axes[0].get_ylabel() == "hits lost that lru has"
    assert schedule.axes[0].get_ylabel() == "TTFT of sjf (s)"
    assert all(axes.get_xlabel() for axes in evict.axes)


def test_a_folder_that_cannot_be_made_is_one_message(found: dict[str, Diagnosis], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (the extra `plot`)")
    (tmp_path / "file").touch()
    with pytest.raises(TanrenError, match="cannot write figures to"):
        plots.write_plot(found["evict"], tmp_path / "file")
