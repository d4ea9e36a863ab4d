from __future__ import annotations

import os
from pathlib import Path

import pytest

from tanren_dsl.trace.read import read_trace
from tanren_dsl.trace.table import RequestTable

_SHARED = Path(os.environ.get("TANREN_SHARED", Path(__file__).parents[3] / "shared"))


@pytest.fixture(scope="session")
def conversation() -> RequestTable:
    """The public Mooncake conversation trace."""
    path = _SHARED / "data" / "mooncake_conversation.jsonl"
    if not path.is_file():
        pytest.skip(f"the Mooncake conversation trace is not at {path} (set TANREN_SHARED)")
    return read_trace(path)


@pytest.fixture(scope="session")
def azure_conversation() -> RequestTable:
    """The public Azure conversation trace of 2023."""
    path = _SHARED / "data" / "azure_llm_2023_conv.csv"
    if not path.is_file():
        pytest.skip(f"the Azure conversation trace is not at {path} (set TANREN_SHARED)")
    return read_trace(path)
