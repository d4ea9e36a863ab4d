"""What the documentation says is so: doctests run, and the README names what there is."""

from __future__ import annotations

import doctest
import importlib
import os
import pkgutil
import re
from pathlib import Path

import pytest

import tanren_dsl
from tanren_dsl.check import loads, warnings
from tanren_dsl.cli import main
from tanren_dsl.cli.options import examples
from tanren_dsl.cli.reference import pages

SOURCE = Path(os.environ.get("TANREN_SOURCE", Path(__file__).parents[1]))
README = (SOURCE / "README.md").read_text(encoding="utf-8")
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(tanren_dsl.__path__, "tanren_dsl.")
    if not module.name.endswith(("__main__", "engine_driver"))
)


@pytest.mark.parametrize("name", MODULES)
def test_doctests_hold(name: str) -> None:
    found = doctest.testmod(importlib.import_module(name), optionflags=doctest.IGNORE_EXCEPTION_DETAIL)
    assert found.failed == 0


def test_there_are_doctests() -> None:
    finder = doctest.DocTestFinder(exclude_empty=True)
    tests = [test for name in MODULES for test in finder.find(importlib.import_module(name)) if test.examples]
    assert len(tests) > 10


def test_the_policy_of_the_readme_checks_without_warnings() -> None:
    blocks = re.findall(r"```\n(policy .*?)```", README, re.DOTALL)
    assert blocks
    for block in blocks:
        assert warnings(loads(block)) == []


def test_the_readme_names_commands_and_examples_that_exist() -> None:
    commands = set(re.findall(r"tanren-dsl ([a-z-]+) ", README)) | set(
        re.findall(r"`([a-z]+) POLICY", README)
    )
    context = main.make_context("tanren-dsl", [], resilient_parsing=True)
    assert commands
    assert commands <= set(main.list_commands(context))
    packaged = re.findall(r"`((?:lru|fcfs)[a-z_ ]+)`", README)
    assert {name for text in packaged for name in text.split()} == set(examples())


def test_the_signal_page_is_the_table() -> None:
    """The page of the commands is not held to the letter: its layout is click's."""
    assert (SOURCE / "docs" / "signals.md").read_text(encoding="utf-8") == pages()["signals.md"], (
        "run make docs"
    )
