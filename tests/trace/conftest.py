from __future__ import annotations

import pytest

from tanren_dsl.trace.table import RequestTable
from tests.public import AZURE, MOONCAKE, public_trace


@pytest.fixture(scope="session")
def conversation() -> RequestTable:
    """The public Mooncake conversation trace."""
    return public_trace(MOONCAKE)


@pytest.fixture(scope="session")
def azure_conversation() -> RequestTable:
    """The public Azure conversation trace of 2023."""
    return public_trace(AZURE)
