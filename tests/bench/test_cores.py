"""Client and engine never share a core where there are two."""

from __future__ import annotations

import os

import pytest

from tanren_dsl.bench.cores import pinned, split_cores
from tanren_dsl.errors import TanrenError


@pytest.fixture
def four_cores(monkeypatch: pytest.MonkeyPatch) -> list[set[int]]:
    """A machine with cores 2, 3, 5 and 7; what was asked of it."""
    asked: list[set[int]] = [{2, 3, 5, 7}]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: asked[-1])
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cores: asked.append(set(cores)))
    return asked


@pytest.mark.usefixtures("four_cores")
def test_the_client_gets_the_first_core_and_the_engine_the_others() -> None:
    assert split_cores(None, None) == ("2", "3,5,7")
    assert split_cores("3,5", None) == ("3,5", "2,7")
    assert split_cores(None, "2,3") == ("5", "2,3")
    assert split_cores("7", "2") == ("7", "2")
    assert split_cores(None, "2,3,5,7") == (None, "2,3,5,7")


def test_one_core_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {4})
    assert split_cores(None, None) == (None, None)
    assert split_cores(None, "4") == (None, "4")


@pytest.mark.usefixtures("four_cores")
@pytest.mark.parametrize("cores", ["1", "2-3", "", "2,,3", "²"])
def test_cores_that_are_not_there_are_refused(cores: str) -> None:
    with pytest.raises(TanrenError, match="are not all there\n  hint: this process may use 2,3,5,7"):
        split_cores(cores, None)


def test_pinning_ends(four_cores: list[set[int]]) -> None:
    with pinned("3,7"):
        assert four_cores[-1] == {3, 7}
    assert four_cores[-1] == {2, 3, 5, 7}
    with pinned(None):
        assert four_cores[-1] == {2, 3, 5, 7}
