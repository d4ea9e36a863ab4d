"""How kernels are compiled: Numba, cached on disk, without fast-math.

Numba's cache watches only the file of the function it compiled, not the files of
the functions that one calls. So the cache lives in a folder named after the
content of all kernel sources, and a change anywhere compiles everything anew.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, cast

import numba

_F = TypeVar("_F", bound=Callable[..., object])


def _sources_digest() -> str:
    package = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256(numba.__version__.encode())
    for folder in ("kernels", "sim", "trace"):
        for path in sorted((package / folder).glob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _cache_home() -> Path:
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "tanren-dsl"


if "NUMBA_CACHE_DIR" not in os.environ:
    numba.config.CACHE_DIR = str(_cache_home() / f"kernels-{_sources_digest()}")


def jit(function: _F) -> _F:
    """Compile on first call; the machine code is cached on disk."""
    return cast(_F, numba.njit(cache=True, error_model="numpy", nogil=True, _nrt=False)(function))


def inlined(function: _F) -> _F:
    """The same for a small part of a kernel, always inlined into it."""
    return cast(
        _F, numba.njit(cache=True, error_model="numpy", nogil=True, _nrt=False, forceinline=True)(function)
    )
