"""Seeds are fixed: Hypothesis runs the same examples every time."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "fixed", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("fixed")


def pytest_addoption(parser: pytest.Parser) -> None:
    """The flag that rewrites golden files."""
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite tests/golden from what is emitted now"
    )


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be rewritten."""
    return bool(request.config.getoption("--update-golden"))
