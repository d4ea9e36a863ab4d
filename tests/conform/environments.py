"""Where the real engines are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def engine_python(version: str) -> Path:
    """The Python of one vLLM environment, or a skipped test."""
    name = "TANREN_VLLM_" + version.replace(".", "_")
    root = Path(__file__).parents[2]
    python = Path(os.environ.get(name, root / f".venv-vllm-{version}" / "bin" / "python"))
    if not python.is_file():
        pytest.skip(f"no vLLM {version}: set {name} or run make vllm-env VLLM={version}")
    return python


def cache_of(python: Path) -> str:
    """A cache folder for each environment: versions overwrite each other's slow model notes."""
    return str(python.parent.parent / ".vllm-cache")
