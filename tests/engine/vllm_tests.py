"""vLLM's own tests, from its source distribution, laid out so that they run without a network.

The installed wheel does not carry them. pip fetches the source distribution of the same
version and checks its hash; only `tests/` is kept, in the user's cache folder. Beside it
lie folders with nothing but a `config.json`, under the names of the hub models that the
tests ask for: no weights are read by the tests of the scheduler and its cache. pytest
comes into a folder of its own; the environment of vLLM is not written to.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from tanren_dsl.conform.vllm_env import tail_of
from tanren_dsl.errors import TanrenError

SHA256 = {
    "0.19.1": "9fb88ce6b50991eba41d183584f65f51d7f6015d86a42cdabf79c1c8bd5d66fa",
    "0.32.0": "d2c957d5eee3d0985012151315ddc62cbe0cd368fc96a5fc3510438d9dddf2ad",
}
"""Known versions, and the hash of their source distribution."""

PACKAGES = "packages"
"""The folder with pytest in it, for PYTHONPATH."""

_DONE = "tanren-tests.json"
_PYTEST = ("pytest>=8,<10", "tblib>=3")
_BUILD = ("setuptools_scm>=8", "setuptools_rust>=1.9")
"""What vLLM's setup.py imports, besides torch; pip asks it for the name and the version."""

_LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2,
    "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 32064,
    "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "torch_dtype": "float16",
}  # fmt: skip
_OPT = {
    "architectures": ["OPTForCausalLM"], "model_type": "opt", "hidden_size": 768, "num_hidden_layers": 12,
    "ffn_dim": 3072, "num_attention_heads": 12, "vocab_size": 50272, "word_embed_proj_dim": 768,
    "max_position_embeddings": 2048, "torch_dtype": "float16",
}  # fmt: skip
_QWEN = _LLAMA | {"max_position_embeddings": 32768, "vocab_size": 151936}
MODELS: dict[str, dict[str, Any]] = {
    "facebook/opt-125m": _OPT,
    "facebook/opt-350m": _OPT,
    "Qwen/Qwen1.5-7B": _QWEN | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"},
    "Qwen/Qwen3-0.6B": _QWEN | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 16},
}  # fmt: skip
"""Hub names the tests use, and a configuration of that family, small where nothing depends on it.

Tests of multimodal schedulers ask for models that vLLM inspects with torchvision, which the
environment lacks; they fail in their first line, in every run alike.
"""


def prepare(version: str, python: Path) -> Path:
    """The folder that holds vLLM's `tests/`, its `packages/` and the models; made if it is not there.

    Args:
        version: of vLLM, such as `0.19.1`.
        python: of the vLLM environment; its pip fetches, its torch lets vLLM's setup.py answer.

    Raises:
        TanrenError: the version is not known, or pip cannot fetch; with what pip said last.
    """
    if version not in SHA256:
        raise TanrenError(f"the tests of vLLM {version} are not known; known are {', '.join(SHA256)}")
    folder = cache() / version
    folder.mkdir(parents=True, exist_ok=True)
    made_from = {"sha256": SHA256[version], "pytest": list(_PYTEST), "models": MODELS}
    wanted = json.dumps(made_from | {"python": _python_version(python)})
    done = folder / _DONE
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two test runs may share the cache
        if not done.is_file() or done.read_text(encoding="utf-8") != wanted:
            _make(version, python, folder)
            done.write_text(wanted, encoding="utf-8")
    return folder


def cache() -> Path:
    """Where the tests of all versions are kept between runs."""
    named = os.environ.get("TANREN_VLLM_CACHE")
    user = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(named).absolute() / "vllm-tests" if named else Path(user) / "tanren-dsl" / "vllm-tests"


def _make(version: str, python: Path, folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="half-", dir=folder) as half:
        archive = _download(version, python, Path(half))
        with tarfile.open(archive) as tar:
            tar.extractall(half, members=_only_tests(tar, f"vllm-{version}/tests/"), filter="data")
        _pip(python, ["install", "--quiet", "--target", f"{half}/{PACKAGES}", *_PYTEST])
        _replace(Path(half, PACKAGES), folder / PACKAGES)
        _replace(Path(half, f"vllm-{version}", "tests"), folder / "tests")
    for name, config in MODELS.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")


def _download(version: str, python: Path, folder: Path) -> Path:
    """The source distribution, whose hash pip has checked against `SHA256`."""
    sys.stderr.write(f"fetching the source distribution of vLLM {version}\n")
    build = folder / "build"
    _pip(python, ["install", "--quiet", "--target", str(build), *_BUILD])
    requirement = folder / "requirement.txt"
    requirement.write_text(f"vllm=={version} --hash=sha256:{SHA256[version]}\n", encoding="utf-8")
    command = ["download", "--no-deps", "--no-binary", "vllm", "--no-build-isolation", "--require-hashes"]
    command += ["--dest", str(folder), "--requirement", str(requirement)]
    settings = {"PYTHONPATH": str(build), "VLLM_TARGET_DEVICE": "empty", "VLLM_VERSION_OVERRIDE": version}
    _pip(python, command, settings)
    return folder / f"vllm-{version}.tar.gz"


def _only_tests(tar: tarfile.TarFile, prefix: str) -> list[tarfile.TarInfo]:
    return [member for member in tar if member.isfile() and member.name.startswith(prefix)]


def _replace(new: Path, place: Path) -> None:
    if place.exists():
        place.rename(new.with_name(f"old-{place.name}"))  # goes with the temporary folder
    new.rename(place)


def _python_version(python: Path) -> str:
    command = [str(python), "-c", "import sys; print(*sys.version_info[:2], sep='.')"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _pip(python: Path, arguments: list[str], environment: dict[str, str] | None = None) -> None:
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]
    result = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True,
        env=os.environ | (environment or {}), check=False,
    )  # fmt: skip
    if result.returncode != 0:
        raise TanrenError(f"pip {arguments[0]} failed:\n{tail_of(result.stdout)}")
