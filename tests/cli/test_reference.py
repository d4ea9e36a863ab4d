"""The reference pages name everything."""

from __future__ import annotations

from tanren_dsl.cli.reference import signals_page
from tanren_dsl.passes.rewrites import REWRITES
from tanren_dsl.signals import SIGNALS


def test_the_page_has_every_signal_and_every_rewrite() -> None:
    page = signals_page()
    assert not [row.name for row in SIGNALS if f"| `{row.name}` |" not in page]
    assert not [row.name for row in REWRITES if f"| {row.name} |" not in page]
