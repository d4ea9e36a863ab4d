"""Pictures of a diagnosis: where the regret is, and what tells it from the right decisions.

Needs matplotlib, which the extra `plot` brings.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tanren_dsl.diagnosis.diagnosis import Diagnosis, strongest
from tanren_dsl.diagnosis.features import Doubles, in_units
from tanren_dsl.diagnosis.separation import Separation
from tanren_dsl.errors import TanrenError
from tanren_dsl.files import write_whole
from tanren_dsl.scoring.plots import require_matplotlib
from tanren_dsl.units import Number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# of Okabe and Ito's colours, told apart by most colour-blind people
_BAD, _GOOD = "#D55E00", "#0072B2"
_PANELS = 3
_BINS = 40


def write_plot(diagnosis: Diagnosis, folder: Path) -> Path:
    """Write the figure of this kind of policy into a folder, which is made where it is missing.

    Raises:
        TanrenError: matplotlib is missing, or the folder or the file cannot be written.
    """
    require_matplotlib()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TanrenError(f"cannot write figures to {folder}: {error.strerror or error}") from None
    draw = regretted_evictions if diagnosis.kind == "evict" else regretted_waits
    path = folder / f"{draw.__name__}.png"
    buffer = io.BytesIO()
    draw(diagnosis).savefig(buffer, format="png", dpi=130)
    write_whole(path, buffer.getvalue())
    return path


def regretted_evictions(diagnosis: Diagnosis) -> Figure:
    """Hits lost over the time of the eviction, and the features that separate best."""
    figure, axes = _figure(diagnosis, 1 + _PANELS)
    sample = diagnosis.sample
    end = max(float(sample.at_s.max(initial=0.0)), 1e-6)
    axes[0].hist(sample.at_s, bins=_BINS, range=(0.0, end), weights=np.maximum(sample.regret, 0), color=_BAD)
    axes[0].set_xlabel("time of the eviction in the trace (s)")
    axes[0].set_ylabel(f"hits lost that {diagnosis.against} has")
    axes[0].set_title("regret over time", fontsize=10)
    _distributions(diagnosis, axes[1:])
    return figure


def regretted_waits(diagnosis: Diagnosis) -> Figure:
    """TTFT under both by prompt length, what the worst waited for, and the features that separate best."""
    figure, axes = _figure(diagnosis, 4)
    series = diagnosis.sample.series
    own, base, tokens = series["ttft_s"], series["base_ttft_s"], series["prompt_tokens"]
    low, high = 0.8 * float(min(own.min(), base.min())), 1.25 * float(max(own.max(), base.max()))
    axes[0].plot([low, high], [low, high], color="0.4", linewidth=1)
    dots = axes[0].scatter(base, own, c=tokens, s=12, cmap="viridis", linewidth=0)
    figure.colorbar(dots, ax=axes[0], label="prompt tokens")
    axes[0].set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
    axes[0].set_xlabel(f"TTFT of {diagnosis.against} (s)")
    axes[0].set_ylabel(f"TTFT of {diagnosis.policy} (s)")
    axes[0].set_title("above the line is regret", fontsize=10)
    _worst_waits(diagnosis, axes[1])
    _distributions(diagnosis, axes[2:])
    return figure


def _worst_waits(diagnosis: Diagnosis, axes: Axes) -> None:
    """From arrival to admission, the worst on top, beside what FCFS would have had them wait."""
    facts = [case.facts for case in diagnosis.worst]
    places = np.arange(len(facts))
    waits = [float(one["wait_s"]) for one in facts]
    base = [float(one["base_wait_s"]) for one in facts]
    axes.barh(places - 0.2, waits, 0.4, color=_BAD, label=diagnosis.policy)
    axes.barh(places + 0.2, base, 0.4, color=_GOOD, label=diagnosis.against)
    labels = [f"{one['request']}: {one['overtakers']} passed" for one in facts]
    axes.set_yticks(places, labels, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("waited for admission (s)")
    axes.set_title("the worst requests, and how many passed them", fontsize=10)
    if facts:
        axes.legend(fontsize=8, frameon=False)
    else:
        axes.text(0.5, 0.5, "no regret", ha="center", transform=axes.transAxes)


def _distributions(diagnosis: Diagnosis, panels: list[Axes]) -> None:
    """A panel a feature: shares of both groups up to each value."""
    best = strongest(diagnosis.separations)
    families: dict[str, Separation] = {}
    for one in best:
        families.setdefault(one.feature.family, one)
    for axes, found in zip(panels, [*families.values(), *[None] * len(panels)], strict=False):
        if found is None:
            axes.set_axis_off()
            axes.text(0.5, 0.5, "nothing to compare", ha="center", transform=axes.transAxes)
            continue
        column = diagnosis.sample.features.column(found.feature.text)
        assert column is not None
        groups = (
            ("regretted", diagnosis.sample.regret > 0, _BAD),
            ("right", diagnosis.sample.right, _GOOD),
        )
        for label, mask, colour in groups:
            values = np.sort(_in_units(column[mask], found))
            values = values[np.linspace(0, len(values) - 1, min(len(values), 2000)).astype(int)]
            axes.step(values, np.linspace(0, 1, len(values)), color=colour, label=f"{label} ({mask.sum():,})")
        unit = found.feature.type
        plain = not isinstance(unit, Number) or unit.unit.is_plain
        scale = "" if plain else f" ({str(unit).replace('time', 's')})"
        axes.set_xlabel(f"{found.feature.text}{scale}")
        axes.set_ylabel("share of the decisions up to this")
        axes.set_title(f"AUC {found.auc:.2f}", fontsize=10)
        axes.legend(fontsize=8, frameon=False)
        axes.grid(color="0.9")


def _in_units(values: Doubles, found: Separation) -> Doubles:
    return values * in_units(1.0, found.feature.type)


def _figure(diagnosis: Diagnosis, panels: int) -> tuple[Figure, list[Axes]]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as NewFigure

    figure = NewFigure(figsize=(12.5, 9.0), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(
        f"{diagnosis.policy} against {diagnosis.against}: {diagnosis.trace}, {diagnosis.mode} mode, "
        f"{diagnosis.engine}",
        fontsize=11,
    )
    grid = figure.subplots(2, panels // 2, squeeze=False)
    return figure, [axes for row in grid for axes in row]
