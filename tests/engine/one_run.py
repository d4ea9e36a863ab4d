"""One run of vLLM's own tests, in vLLM's environment, plain or with an emitted file active."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tanren_dsl.errors import TanrenError
from tests.engine.vllm_tests import PACKAGES

CORE = "tests/v1/core"
"""Where vLLM's tests of the scheduler and its cache lie."""


@dataclass
class Ran:
    """One run of the test files: how each test ended, and what the plugin saw."""

    name: str
    outcomes: dict[str, dict[str, str]]
    seconds: float
    attached: dict[str, Any] = field(default_factory=dict)


def run(
    folder: Path,
    python: Path,
    files: Sequence[str],
    name: str,
    text: str | None,
    work: Path,
    environment: Mapping[str, str],
) -> Ran:
    """Run test files in vLLM's environment, with the emitted file active if there is one.

    Args:
        folder: as `prepare` made it.
        python: of the vLLM environment.
        files: test files, below `folder`.
        name: of this run.
        text: the emitted file, or None for vLLM as it is.
        work: a folder for what the run needs and writes.
        environment: further variables.

    Raises:
        TanrenError: pytest itself failed, with the last lines of what it said.
    """
    here = work / name.replace(" ", "_")
    here.mkdir()
    plugins = ["tanren_record"] if text is None else ["tanren_record", "tanren_attach"]
    for plugin in plugins:
        shutil.copy(Path(__file__).parent / f"{plugin}.py", here)
    if text is not None:
        (here / "tanren_policy.py").write_text(text, encoding="utf-8")
    record, attached = here / "record.json", here / "attached.json"
    command = [str(python), "-m", "pytest", "-q", "-c", "pytest.ini", "--rootdir", ".", "--confcutdir", CORE]
    command += ["-p", "no:cacheprovider", "--disable-warnings", "--tb=short", f"--basetemp={here / 'tmp'}"]
    command += [word for plugin in plugins for word in ("-p", plugin)]
    ours = {
        "PYTHONPATH": f"{here}:{folder / PACKAGES}", "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(here / "hub"), "VLLM_CACHE_ROOT": str(folder / "cache"), "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "1", "TANREN_RECORD": str(record),
        "TANREN_ATTACHED": str(attached), "TANREN_NO_IDENTITY": "1",
        "TANREN_BUDGET_MS": "60000",  # what a busy machine is late with decides nothing here
    }  # fmt: skip
    theirs = {key: value for key, value in os.environ.items() if not key.startswith(("TANREN_", "PYTEST_"))}
    began = time.monotonic()
    done = subprocess.run(
        [*command, *files], cwd=folder, env=theirs | ours | dict(environment), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False,
    )  # fmt: skip
    if done.returncode not in (0, 1) or not record.is_file():
        tail = "\n".join(f"  {line[:300]}" for line in done.stdout.splitlines()[-25:])
        raise TanrenError(f"pytest ended with {done.returncode} ({name}):\n{tail}")
    seen = json.loads(attached.read_text(encoding="utf-8")) if text is not None else {}
    return Ran(name, json.loads(record.read_text(encoding="utf-8")), time.monotonic() - began, seen)
