"""Figures: written, legible by a reader of files, and refused with one message."""

from __future__ import annotations

from pathlib import Path

import pytest

from tanren_dsl.errors import TanrenError
from tanren_dsl.scoring import plots
from tanren_dsl.scoring.plots import Format, write_plots
from tanren_dsl.scoring.results import Board

pytest.importorskip("matplotlib", reason="matplotlib is not installed (the extra `plot`)")


@pytest.mark.parametrize(("kind", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_both_figures_are_written(small: Board, tmp_path: Path, kind: Format, magic: bytes) -> None:
    written = write_plots(small, tmp_path / "a" / "b", kind)
    assert [path.name for path in written] == [f"ttft_against_fcfs.{kind}", f"gain_by_load.{kind}"]
    assert sorted(written) == sorted((tmp_path / "a" / "b").iterdir())
    for path in written:
        assert path.read_bytes().startswith(magic)


def test_the_same_board_is_the_same_file(small: Board, tmp_path: Path) -> None:
    first, second = (write_plots(small, tmp_path / name, "svg") for name in ("one", "two"))
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()


def test_axes_have_labels_with_units_and_every_policy_is_named(small: Board) -> None:
    series = plots._series(small.rows)
    assert [one.label for one in series] == ["fcfs (2)", "sjf", "aged_sjf", "shortest_work_oracle"]
    scatter, gain = plots.against_fcfs(series, "head"), plots.gain_by_load(series, "head")
    assert [axes.get_xlabel() for axes in scatter.axes] == ["mean TTFT of FCFS (s)", "p99 TTFT of FCFS (s)"]
    assert gain.axes[0].get_ylabel().endswith("(%)")
    assert [text.get_text() for text in gain.axes[0].get_xticklabels()] == ["0.1", "0.95", "1.15"]
    for figure in (scatter, gain):
        (legend,) = figure.legends
        assert {one.label for one in series} <= {text.get_text() for text in legend.get_texts()}


def test_policies_with_the_same_times_are_one_series(small: Board) -> None:
    sjf = next(row for row in small.rows if row.policy == "sjf")
    labels = [one.label for one in plots._series([*small.rows, sjf])]
    assert "sjf\n= sjf" in labels


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "find_spec", lambda _: None)
    with pytest.raises(TanrenError, match="matplotlib, which is not installed") as caught:
        plots.require_matplotlib()
    assert "tanren-dsl[plot]" in str(caught.value)


def test_a_folder_that_cannot_be_made_is_one_message(small: Board, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(TanrenError, match="cannot write figures to"):
        write_plots(small, tmp_path / "file")
