"""pytest plugin: writes the outcome of every test to the file that TANREN_RECORD names.

It runs inside the vLLM environment and imports nothing of this package.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

OUTCOMES: dict[str, dict[str, str]] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """The call's outcome stands for the test, unless setup or teardown went wrong."""
    outcome = report.outcome
    if report.when == "call":
        if hasattr(report, "wasxfail"):
            outcome = "xfailed" if report.skipped else "xpassed"
    elif outcome == "passed":
        return
    elif outcome == "failed":
        outcome = f"error in {report.when}"
    OUTCOMES[report.nodeid] = {"outcome": outcome, **_crash(report)}


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """A file that cannot be collected counts as one test."""
    if report.outcome != "passed":
        OUTCOMES[report.nodeid] = {"outcome": f"{report.outcome} in collection", **_crash(report)}


def pytest_sessionfinish() -> None:
    Path(os.environ["TANREN_RECORD"]).write_text(json.dumps(OUTCOMES), encoding="utf-8")


def _crash(report: pytest.TestReport | pytest.CollectReport) -> dict[str, str]:
    """Where a failure was raised, and the first line of what it says."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is None:
        return {"where": "", "message": str(report.longrepr or "").strip().split("\n")[-1][:200]}
    return {"where": f"{crash.path}:{crash.lineno}", "message": crash.message.split("\n")[0][:200]}
