"""Pictures of a scoreboard: every configuration against FCFS, and the gain by load.

Needs matplotlib, which the extra `plot` brings; nothing else of the package does.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from tanren_dsl.errors import TanrenError
from tanren_dsl.files import write_whole
from tanren_dsl.scoring.results import Board, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Format: TypeAlias = Literal["png", "svg"]

# Okabe and Ito's colours, told apart by most colour-blind people, then greys; black is the oracle's
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C564B", "#7F7F7F")
_MARKERS = "osD^vPX*<>"
_VIOLATION = "#C00000"


@dataclass(frozen=True)
class _Series:
    """A row, or several with the same times everywhere, and how it is drawn."""

    label: str
    row: Row
    colour: str
    marker: str


def require_matplotlib() -> None:
    """Refuse to draw without matplotlib.

    Raises:
        TanrenError: it is not installed; names the extra.
    """
    if find_spec("matplotlib") is None:
        raise TanrenError(
            "figures need matplotlib, which is not installed", hint="pip install 'tanren-dsl[plot]'"
        )


def write_plots(board: Board, folder: Path, kind: Format = "png") -> list[Path]:
    """Write both figures into a folder, which is made where it is missing. Returns their paths.

    Raises:
        TanrenError: matplotlib is missing, or the folder or a file cannot be written.
    """
    require_matplotlib()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TanrenError(f"cannot write figures to {folder}: {error.strerror or error}") from None
    series = _series(board.rows)
    heading = _heading(board)
    written = []
    for name, figure in (
        ("ttft_against_fcfs", against_fcfs(series, heading)),
        ("gain_by_load", gain_by_load(series, heading)),
    ):
        written.append(folder / f"{name}.{kind}")
        write_whole(written[-1], _bytes(figure, kind))
    return written


def against_fcfs(series: Sequence[_Series], heading: str) -> Figure:
    """Mean and p99 of every configuration over FCFS's, on logarithmic axes with the diagonal."""
    figure, (left, right) = _figure(heading, 2)
    for axes, name in ((left, "mean"), (right, "p99")):
        xs = [getattr(point, f"fcfs_{name}_s") for one in series for point in one.row.configs]
        ys = [getattr(point, f"{name}_s") for one in series for point in one.row.configs]
        low, high = 0.8 * min(*xs, *ys), 1.25 * max(*xs, *ys)
        axes.fill_between([low, high], [low, low], [low, high], color="0.5", alpha=0.1, linewidth=0)
        axes.plot([low, high], [low, high], color="0.4", linewidth=1)
        for one in series:
            x = np.array([getattr(point, f"fcfs_{name}_s") for point in one.row.configs])
            y = np.array([getattr(point, f"{name}_s") for point in one.row.configs])
            axes.scatter(x, y, s=34, color=one.colour, marker=one.marker, alpha=0.75, linewidth=0)
            bad = np.array([point.violated for point in one.row.configs])
            if name == "p99":
                axes.scatter(x[bad], y[bad], s=100, facecolors="none", edgecolors=_VIOLATION, linewidth=1.2)
        axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high), aspect="equal")
        axes.set_xlabel(f"{name} TTFT of FCFS (s)")
        axes.set_ylabel(f"{name} TTFT of the policy (s)")
        axes.set_title(f"{name}: below the line is shorter", fontsize=10)
        _plain_ticks(axes)
    _legend(figure, series, [_mark("p99 beyond 1.05 of FCFS's", "o", "none", _VIOLATION)])
    return figure


def gain_by_load(series: Sequence[_Series], heading: str) -> Figure:
    """By how much the mean is shorter than FCFS's, at every load: each configuration, and their mean."""
    figure, (axes,) = _figure(heading, 1)
    loads = sorted({point.load for one in series for point in one.row.configs})
    idle = sorted({one.load for single in series for one in single.row.idle})
    places = {load: place for place, load in enumerate([*idle, *loads])}
    for number, one in enumerate(series):
        shift = 0.6 * ((number + 0.5) / len(series) - 0.5)  # side by side, not one over the other
        found = [(places[quiet.load], -100 * quiet.difference, False) for quiet in one.row.idle]
        found += [(places[p.load], 100 * p.mean_gain, p.violated) for p in one.row.configs]
        x = np.array([place for place, _, _ in found], float) + shift
        y = np.array([gain for _, gain, _ in found])
        bad = np.array([violated for _, _, violated in found])
        axes.scatter(x, y, s=22, color=one.colour, marker=one.marker, alpha=0.6, linewidth=0)
        axes.scatter(x[bad], y[bad], s=70, facecolors="none", edgecolors=_VIOLATION, linewidth=1.0)
        for place in places.values():
            here = y[np.isclose(x, place + shift)]
            if len(here):
                half = 0.25 / len(series)
                ends = (place + shift - half, place + shift + half)
                axes.plot(ends, [here.mean()] * 2, color=one.colour, linewidth=2.5)
    axes.axhline(0, color="0.4", linewidth=1)
    for place in range(1, len(places)):
        axes.axvline(place - 0.5, color="0.85", linewidth=1)
    axes.set_xticks(list(places.values()), [f"{load:g}" for load in places])
    axes.set_xlim(-0.5, len(places) - 0.5)
    axes.set_xlabel("load, as a share of FCFS's saturated throughput")
    axes.set_ylabel("mean TTFT shorter than FCFS's by (%)")
    axes.grid(axis="y", color="0.9")
    axes.set_axisbelow(True)
    marks = [
        _mark("p99 beyond 1.05 of FCFS's", "o", "none", _VIOLATION),
        _mark("mean of the configurations", "_", "0.3", "0.3"),
    ]
    _legend(figure, series, marks)
    return figure


def _series(rows: Sequence[Row]) -> list[_Series]:
    """The rows but FCFS's; those with the same times everywhere are one, under all their names."""
    groups: dict[tuple[float, ...], list[Row]] = {}
    for row in rows[1:]:
        times = tuple(time for point in row.configs for time in (point.mean_s, point.p99_s))
        groups.setdefault(times, []).append(row)
    found = []
    for number, group in enumerate(groups.values()):
        colour = "black" if group[0].oracle else _COLOURS[number % len(_COLOURS)]
        label = "\n= ".join(row.policy for row in group)
        found.append(_Series(label, group[0], colour, _MARKERS[number % len(_MARKERS)]))
    return found


def _heading(board: Board) -> str:
    settings = board.runs.settings
    guard = "with guard" if settings.guard else "no guard"
    return (
        f"{board.runs.trace.name}, simulated {settings.engine}, {board.runs.latency.name}, {guard}: "
        f"{board.configurations} configurations"
    )


def _figure(heading: str, panels: int) -> tuple[Figure, list[Axes]]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as NewFigure

    figure = NewFigure(figsize=(12.5, 5.6) if panels == 2 else (11.0, 5.6), layout="constrained")
    FigureCanvasAgg(figure)
    engine = figure.get_layout_engine()
    assert engine is not None
    engine.set(w_pad=0.12, h_pad=0.06)  # type: ignore[call-arg]
    figure.suptitle(heading, fontsize=11)
    return figure, list(figure.subplots(1, panels, squeeze=False)[0])


def _legend(figure: Figure, series: Sequence[_Series], marks: Sequence[Any]) -> None:
    handles = [_mark(one.label, one.marker, one.colour, one.colour) for one in series]
    figure.legend(handles=[*handles, *marks], loc="outside right center", fontsize=9, frameon=False)


def _mark(label: str, marker: str, face: str, edge: str) -> Any:
    from matplotlib.lines import Line2D

    return Line2D(
        [], [], linestyle="none", marker=marker, markerfacecolor=face, markeredgecolor=edge,
        markersize=7 if face != "none" else 9, label=label,
    )  # fmt: skip


def _plain_ticks(axes: Axes) -> None:
    """Seconds as people write them, not as powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
    axes.grid(color="0.9")
    axes.set_axisbelow(True)


def _bytes(figure: Figure, kind: Format) -> bytes:
    """The figure as a file, the same bytes for the same figure."""
    import matplotlib

    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "tanren-dsl"}):
        figure.savefig(buffer, format=kind, dpi=130, metadata={"Date": None} if kind == "svg" else None)
    return buffer.getvalue()
