"""The command `tanren-dsl`: finds commands lazily and turns every outcome into an exit status.

0 is success, 1 a wrong policy or wrong data, 2 wrong usage, 130 an interrupt, 141 a
reader of our output that went away. Nothing heavy is imported before a command runs.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from importlib import import_module
from typing import Any

import click

from tanren_dsl import __version__
from tanren_dsl.errors import TanrenError

COMMANDS: dict[str, tuple[str, str]] = {
    "check": ("tanren_dsl.cli.check:check", "Check policies: syntax, units, what looks like a mistake."),
    "fmt": ("tanren_dsl.cli.fmt:fmt", "Write policies in their canonical form."),
    "explain": ("tanren_dsl.cli.explain:explain", "Say in words what a policy does and what it needs."),
    "eval": ("tanren_dsl.cli.eval:evaluate", "Compute keys and order for objects given by hand."),
    "simulate": ("tanren_dsl.cli.simulate:simulate", "Replay a trace under eviction policies."),
    "headroom": ("tanren_dsl.cli.headroom:headroom", "Bound what any eviction policy can gain on a trace."),
    "score": ("tanren_dsl.cli.score:score", "Score schedule policies on a trace, simulated."),
    "windows": ("tanren_dsl.cli.windows:windows", "Show which classic wins which window of a trace."),
    "diagnose": ("tanren_dsl.cli.diagnose:diagnose", "Find a policy's worst decisions, and why."),
    "compile": ("tanren_dsl.cli.compile:compile_", "Turn policies into one file for an engine."),
    "conform": ("tanren_dsl.cli.conform:conform", "Hold the simulator against a real engine, step by step."),
    "bench": ("tanren_dsl.cli.bench:bench", "Measure policies against the default on running servers."),
    "knee": ("tanren_dsl.cli.knee:knee", "Find the cache size at which a server begins to suffer."),
    "calibrate": ("tanren_dsl.cli.calibrate:calibrate", "Fit a latency profile to a real engine."),
    "evolve": ("tanren_dsl.cli.evolve:evolve", "Search for a better policy on a trace."),
    "adjudicate": ("tanren_dsl.cli.adjudicate:adjudicate", "Judge a run's champion on its sealed hold-out."),
    "trace": ("tanren_dsl.cli.trace:trace", "Look at a trace, or make one."),
    "vllm-env": ("tanren_dsl.cli.vllm_env:vllm_env", "Make an environment with a real vLLM for `conform`."),
    "demo": ("tanren_dsl.cli.demo:demo", "See the whole path once, on an embedded trace."),
}
"""Every command: where it is, and its line in the help."""

BROKEN_PIPE = 141
INTERRUPTED = 130


class LazyGroup(click.Group):
    """A group that imports a command's module when the command is called, not before."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """The command of a name, or None."""
        if cmd_name not in COMMANDS:
            return None
        module, attribute = COMMANDS[cmd_name][0].split(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """The list of commands, from the table alone."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; user errors become one message, our own a line that says so."""
        try:
            result = super().invoke(ctx)
            if sys.stdout is not None:  # a shell's `>&-` closes it
                sys.stdout.flush()
            return result
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except TanrenError as error:
            click.echo(str(error), err=True)
            status = 1
        except MemoryError as error:
            click.echo(f"error: not enough memory: {error or 'of this machine'}", err=True)
            status = 1
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            status = INTERRUPTED
        except BrokenPipeError:
            _drop_output()
            status = BROKEN_PIPE
        except OSError as error:  # a full disk, most likely: a file that is named is refused elsewhere
            click.echo(f"error: {error}", err=True)
            _drop_output()
            status = 1
        except Exception as error:
            _say_bug(error, bool(ctx.params.get("debug")))
            status = 1
        return ctx.exit(status)


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tanren-dsl")
@click.option("--debug", is_flag=True, envvar="TANREN_DEBUG", help="Show a traceback of our own failures.")
def main(debug: bool) -> None:
    """Write, check, simulate and ship the rule by which an LLM server forgets KV blocks.

    \b
    Example:
      tanren-dsl simulate lru lfu --trace chat --capacity 2000
    """


def _drop_output() -> None:
    """What is still buffered has no reader: let the interpreter's last flush go nowhere."""
    with contextlib.suppress(OSError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say_bug(error: Exception, debug: bool) -> None:
    what = f"{type(error).__name__}: {error}".splitlines()[0]
    advice = "" if debug else " (--debug shows where)"
    click.echo(f"internal error: a bug in tanren-dsl, not in your input: {what}{advice}", err=True)
    if debug:
        click.echo("".join(traceback.format_exception(error)), err=True)
