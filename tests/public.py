"""Public traces that tests and measurements read where they are present, and never copy."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tanren_dsl.trace.read import read_trace
from tanren_dsl.trace.table import RequestTable

SHARED = Path(os.environ.get("TANREN_SHARED", Path(__file__).parents[2] / "shared"))
MOONCAKE = SHARED / "data" / "mooncake_conversation.jsonl"
AZURE = SHARED / "data" / "azure_llm_2023_conv.csv"


def public_trace(path: Path) -> RequestTable:
    """The trace; skips, with the reason, where it is not."""
    if not path.is_file():
        pytest.skip(f"a public trace is not at {path} (set TANREN_SHARED)")
    return read_trace(path)
