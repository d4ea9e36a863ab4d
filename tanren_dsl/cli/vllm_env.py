"""`tanren-dsl vllm-env`: an environment with a real vLLM for CPU machines."""

from __future__ import annotations

from pathlib import Path

import click

from tanren_dsl.errors import TanrenError


@click.command("vllm-env")
@click.argument("version")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.option("--torch", metavar="VERSION", help="Version of torch, for a version of vLLM that is not known.")
def vllm_env(version: str, directory: Path, torch: str | None) -> None:
    """Make an environment with a real vLLM, for CPU machines; `conform` and the tests use it.

    Prints the path of its Python. A finished environment is left as it is.

    \b
    Example:
      tanren-dsl vllm-env 0.19.1 .venv-vllm-0.19.1
    """
    from tanren_dsl.conform.vllm_env import make_env

    try:
        click.echo(str(make_env(version, directory, torch)))
    except BrokenPipeError:
        raise
    except OSError as error:
        raise TanrenError(f"cannot make {directory}: {error.strerror or error}") from None
