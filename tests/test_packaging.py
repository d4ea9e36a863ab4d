"""The wheel holds every sub-package and every data file, and the command starts fast."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import tomllib
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

PARTS = ("backends", "evolve", "examples", "grammar")


def source_root() -> Path:
    """The sources: where `TANREN_SOURCE` says, else the folder above the tests."""
    return Path(os.environ.get("TANREN_SOURCE", Path(__file__).parents[1]))


@pytest.fixture(scope="module")
def root() -> Path:
    if not (source_root() / "tanren_dsl").is_dir():
        pytest.skip("the sources are elsewhere: TANREN_SOURCE names them")
    return source_root()


@pytest.fixture(scope="module")
def wheel_names(root: Path, tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Names in a wheel built from a copy of the sources, without network."""
    if int(version("setuptools").split(".")[0]) < 77:
        pytest.skip("this environment's setuptools is older than pyproject.toml asks for")
    copy = tmp_path_factory.mktemp("source")
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for part in ("tanren_dsl", *PARTS):
        shutil.copytree(root / part, copy / part, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        if (root / name).exists():
            shutil.copy(root / name, copy / name)
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--no-deps", "--no-index"]
    result = subprocess.run(
        [*command, "--no-build-isolation", "--wheel-dir", str(copy / "dist"), str(copy)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    wheel = next((copy / "dist").glob("*.whl"))
    return set(zipfile.ZipFile(wheel).namelist())


def in_wheel(root: Path, suffixes: tuple[str, ...]) -> set[str]:
    """What lies in the sources, by its place in the wheel."""
    homes = {"tanren_dsl": root / "tanren_dsl"} | {f"tanren_dsl/{part}": root / part for part in PARTS}
    return {
        f"{place}/{path.relative_to(home).as_posix()}"
        for place, home in homes.items()
        for path in home.rglob("*")
        if path.suffix in suffixes and "__pycache__" not in path.parts
    }


def test_every_sub_package_is_named_in_pyproject(root: Path) -> None:
    setup = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]
    there = {
        str(Path(name).parent).replace("/", ".")
        for name in in_wheel(root, (".py",))
        if name.endswith("__init__.py")
    }
    assert there == set(setup["packages"])


def test_every_folder_with_code_is_a_package(root: Path) -> None:
    code = in_wheel(root, (".py",))
    assert {f"{Path(name).parent.as_posix()}/__init__.py" for name in code} <= code


def test_the_wheel_holds_all_code_and_data(root: Path, wheel_names: set[str]) -> None:
    expected = in_wheel(root, (".py", ".tpl", ".lark", ".toml", ".ebnf", ".gbnf", ".typed"))
    assert not expected - wheel_names
    assert {
        "tanren_dsl/py.typed",
        "tanren_dsl/conform/engine_driver.py",
        "tanren_dsl/backends/vllm_runtime.py",
        "tanren_dsl/grammar/tanren.lark",
        "tanren_dsl/examples/evict/lru.tpl",
    } <= wheel_names


def test_the_wheel_holds_licence_and_command(wheel_names: set[str]) -> None:
    assert any(name.endswith("entry_points.txt") for name in wheel_names)
    assert any(name.endswith("LICENSE") for name in wheel_names)


def test_the_wheel_holds_nothing_else(wheel_names: set[str]) -> None:
    assert {Path(name).parts[0].split("-")[0] for name in wheel_names} == {"tanren_dsl"}
    assert not [name for name in wheel_names if Path(name).name.startswith(("test_", "conftest"))]


def test_help_is_fast_and_loads_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from tanren_dsl.cli import main\n"
        "try:\n    main(['--help'])\n"
        "except SystemExit:\n"
        "    heavy = {'numba', 'numpy', 'llvmlite', 'lark', 'deap', 'scipy', 'matplotlib', 'rich'}\n"
        "    print('HEAVY', sorted(heavy & set(sys.modules)))\n"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "HEAVY []" in output


def test_the_module_is_the_command() -> None:
    times = []
    for _ in range(3):
        began = time.perf_counter()
        result = subprocess.run(
            [sys.executable, "-m", "tanren_dsl", "--help"], capture_output=True, text=True, check=True
        )
        times.append(time.perf_counter() - began)
    assert result.stdout.startswith("Usage: tanren-dsl ")
    assert min(times) < 0.5
