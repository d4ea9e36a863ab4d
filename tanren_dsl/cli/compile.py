"""`tanren-dsl compile`: policies as one file for an engine."""

from __future__ import annotations

import keyword
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from tanren_dsl.cli.options import Loaded, json_option, knob_option, load_policies, single
from tanren_dsl.cli.output import print_json, say
from tanren_dsl.errors import TanrenError, UnsupportedError
from tanren_dsl.files import write_whole

TARGETS = ("python", "vllm", "sglang", "lmcache")
"""Every target by name; the last two are refused."""

_TAKEN = frozenset({"numba", "numpy", "torch", "transformers", "vllm"})
"""Modules, beside Python's own, that a file on `PYTHONPATH` must not hide from vLLM."""


@click.command("compile")
@click.argument("policies", nargs=-1, required=True, metavar="POLICY...")
@click.option("--target", type=click.Choice(TARGETS), required=True, help="For whom the file is.")
@click.option("-o", "--output", required=True, metavar="FILE", help="Where to write; - for standard output.")
@click.option(
    "--no-guard",
    is_flag=True,
    help="Without the guard by which a schedule policy serves first what waits 20 times the mean wait.",
)
@knob_option
@json_option
def compile_(
    policies: tuple[str, ...], target: str, output: str, no_guard: bool,
    knobs: tuple[tuple[str, float], ...], as_json: bool,
) -> None:  # fmt: skip
    """Turn policies into one self-contained file for an engine.

    For vllm, an evict and a schedule policy may share a file.

    For vllm, standard output gets the one flag that switches the policy on; dropping the
    flag switches it off. Knobs become the file's defaults.

    \b
    Example:
      tanren-dsl compile my.tpl --target vllm -o tanren_policy.py
    """
    if output == "-" and as_json:
        raise click.UsageError("--json and -o - both want standard output.")
    loaded = load_policies(policies, knobs)
    if output != "-":
        _check_place(Path(output), loaded, target)
    if no_guard and (target != "vllm" or all(one.policy.kind != "schedule" for one in loaded)):
        raise click.UsageError("--no-guard is for schedule policies in vLLM.")
    text = emitted(loaded, target, guard=not no_guard)
    if output == "-":
        click.echo(text, nl=False)
        return
    write_whole(Path(output), text)
    say(f"{output}: {', '.join(one.policy.name for one in loaded)} for {target}")
    flag = f"--scheduler-cls {Path(output).stem}.Scheduler" if target == "vllm" else None
    if flag is not None:
        folder = shlex.quote(str(Path(output).resolve().parent))
        say(f"on:  PYTHONPATH={folder} vllm serve MODEL {flag}")
        say("off: drop the flag, or set TANREN_DISABLE=1")
    if as_json:
        names = [one.policy.name for one in loaded]
        print_json({"target": target, "file": output, "policies": names, "flag": flag})
    elif flag is not None:
        click.echo(flag)


def emitted(loaded: Sequence[Loaded], target: str, *, guard: bool = True) -> str:
    """The text of the file.

    Raises:
        UnsupportedError: the target is not there yet, or cannot express a policy.
        TanrenError: more policies than one file holds.
    """
    if target == "python":
        from tanren_dsl.backends.python_module import emit_module

        if len(loaded) > 1:
            raise TanrenError(f"target python takes one policy a file, found {len(loaded)}")
        return emit_module(loaded[0].policy)
    if target != "vllm":
        raise UnsupportedError(f"target {target} is not supported yet", hint="supported: python, vllm")
    from tanren_dsl.backends.vllm import emit

    return emit(single(loaded, "evict"), single(loaded, "schedule"), guard=guard)


def _check_place(path: Path, loaded: Sequence[Loaded], target: str) -> None:
    """Refuse to write over a policy, and names by which vLLM cannot import the file."""
    if any(
        Path(one.source.name).exists() and path.exists() and path.samefile(one.source.name) for one in loaded
    ):
        raise TanrenError(f"{path} is the policy itself", hint="choose another name with -o")
    if target != "vllm":
        return
    stem = path.stem
    if path.suffix != ".py" or not stem.isidentifier() or keyword.iskeyword(stem):
        raise TanrenError(
            f"vLLM imports the file by its name, and {path.name!r} is no module name",
            hint="a name such as tanren_policy.py",
        )
    if stem in sys.stdlib_module_names or stem in _TAKEN:
        raise TanrenError(
            f"the file would hide the module {stem} of Python or of vLLM",
            hint="a name such as tanren_policy.py",
        )
