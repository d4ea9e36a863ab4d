"""Options of the commands that measure running servers, and how they become what is asked."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from tanren_dsl.bench.wish import Wish

_F = TypeVar("_F", bound=Callable[..., Any])

RATE = click.FloatRange(min=0, min_open=True, max=1e6)
COUNT = click.IntRange(1, 2**31 - 1)


def serving_options(function: _F) -> _F:
    """What both commands need to know: the server, the trace, the sizes."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def wish_of(options: dict[str, Any], **more: Any) -> Wish:
    """The wish that the options of `serving_options` and others make."""
    from tanren_dsl.bench.wish import Wish

    given = {**options, **more}
    return Wish(**{**given, "serve_args": tuple(shlex.split(given["serve_args"] or ""))})


_OPTIONS: list[Callable[[Any], Any]] = [
    click.option(
        "--device", type=click.Choice(["cpu"]), help="Serve a small random model here, on the processor."
    ),
    click.option("--serve", "model", metavar="MODEL", help="Serve this model, a folder or a cached name."),
    click.option(
        "--python", type=click.Path(path_type=Path), metavar="PYTHON",
        help="Interpreter of an environment with vLLM; with --device cpu, made if not given.",
    ),
    click.option(
        "--vllm", default="0.32.0", show_default=True, metavar="VERSION", help="vLLM of --device cpu."
    ),
    click.option("--serve-args", metavar="TEXT", help="More arguments of vLLM's, with --serve."),
    click.option("--trace", "trace_name", default="chat", show_default=True, help="File, or chat."),
    click.option("--requests", type=COUNT, help="Only the first so many.  [default: 200]"),
    click.option(
        "--outputs", type=COUNT,
        help="Cap on output tokens.  [default: as in the trace; --device cpu 32]",
    ),
    click.option(
        "--tokens-per-id", type=COUNT,
        help="Tokens for a full block of the trace.  [default: as in the trace; --device cpu a quarter]",
    ),
    click.option("--cap-prompt", is_flag=True, help="Cut prompts that are too long, instead of refusing."),
    click.option(
        "--arrivals", type=click.Choice(["trace", "even", "poisson"]), default="trace", show_default=True,
        help="At --rate: stretch the trace's gaps, space evenly, or draw the gaps.",
    ),
    click.option("--warm-up", type=COUNT, help="Requests before each round.  [default: 4]"),
    click.option(
        "--timeout-s", type=RATE, default=120.0, show_default=True, help="Seconds a request may take."
    ),
    click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of draws."),
    click.option("--client-cores", metavar="A,B", help="Cores of the client.  [default: the first]"),
    click.option("--engine-cores", metavar="A,B", help="Cores of the server.  [default: the others]"),
    click.option("--block-size", type=COUNT, help="Tokens of a block.  [default: 16; --device cpu 32]"),
    click.option("--max-model-len", type=COUNT, help="Longest text in tokens.  [default: what fits]"),
    click.option("--max-num-seqs", type=COUNT, default=16, show_default=True, help="Requests in a batch."),
    click.option(
        "--max-num-batched-tokens", type=COUNT, default=2048, show_default=True, help="Tokens in a step."
    ),
    click.option("--vocabulary", type=COUNT, help="Token ids stay below this.  [default: the model's]"),
]  # fmt: skip
