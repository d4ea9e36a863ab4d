"""How the servers of a comparison are started or reached, and what is known of them before."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx

from tanren_dsl.bench.cores import split_cores
from tanren_dsl.bench.cpu import BLOCK_SIZE, cpu_environment, cpu_spec
from tanren_dsl.bench.model import POSITIONS, VOCABULARY
from tanren_dsl.bench.process import ServeSpec
from tanren_dsl.bench.wish import Wish
from tanren_dsl.conform.vllm_env import check_env
from tanren_dsl.errors import TanrenError
from tanren_dsl.trace.blocks import END_TOKEN

_ASK_S = 30.0
_NO_LIMIT = 1 << 30
_BLOCK_SIZE = 16
_LAST_WORDS = ("--shutdown-timeout", "10")
"""Seconds the engine has to end; by default it is killed before a policy can say how often it failed."""


@dataclass(frozen=True)
class Serving:
    """What is the same for every arm.

    `version` of vLLM, None if not known; `vocabulary` and `max_model_len` in tokens; cores as lists
    such as `1,2`, None for no pinning. `asynchronous` is vLLM's choice as far as it is known.
    """

    wish: Wish
    version: str | None
    block_size: int
    vocabulary: int
    max_model_len: int
    asynchronous: bool
    client_cores: str | None
    engine_cores: str | None
    python: Path | None = None
    model: Path | None = None

    def spec(self, usable_blocks: int | None, policy_file: Path | None) -> ServeSpec:
        """How the server of an arm is started.

        Raises:
            TanrenError: texts of `max_model_len` do not fit the blocks.
        """
        assert self.python is not None
        assert self.model is not None
        wish = self.wish
        if wish.device == "cpu" and usable_blocks is not None:
            spec = cpu_spec(
                self.python, self.model, usable_blocks, cores=self.engine_cores, policy_file=policy_file,
                max_model_len=self.max_model_len, max_num_seqs=wish.max_num_seqs,
                max_num_batched_tokens=wish.max_num_batched_tokens,
            )  # fmt: skip
            return replace(spec, extra_args=(*spec.extra_args, *_LAST_WORDS))
        return ServeSpec(
            python=self.python,
            model=self.model,
            block_size=self.block_size,
            num_gpu_blocks=None if usable_blocks is None else usable_blocks + 1,
            max_model_len=self.max_model_len,
            max_num_seqs=wish.max_num_seqs,
            max_num_batched_tokens=wish.max_num_batched_tokens,
            cores=self.engine_cores,
            policy_file=policy_file,
            extra_args=(*_LAST_WORDS, *wish.serve_args),
        )


def serving_of(wish: Wish, model_folder: Path) -> Serving:
    """Find out about the servers; on the CPU, make the environment if it is missing.

    Args:
        wish: resolved.
        model_folder: where the CPU's model will be.

    Raises:
        TanrenError: no such environment, model or server.
    """
    client, engine = split_cores(wish.client_cores, wish.engine_cores)
    if wish.urls:
        limit, version = _ask(wish.urls[0])
        return Serving(
            wish=wish,
            version=version,
            block_size=wish.block_size or _BLOCK_SIZE,
            vocabulary=wish.vocabulary or END_TOKEN,
            max_model_len=wish.max_model_len or limit,
            asynchronous=True,
            client_cores=wish.client_cores,
            engine_cores=None,
        )
    if wish.device == "cpu":
        python = wish.python or cpu_environment(wish.vllm)
        version = check_env(python)
        if wish.block_size not in (None, BLOCK_SIZE):
            raise TanrenError(f"on the CPU a block has {BLOCK_SIZE} tokens, found {wish.block_size}")
        model = model_folder
        known: Mapping[str, Any] = {"vocab_size": VOCABULARY, "max_position_embeddings": POSITIONS}
        block_size = BLOCK_SIZE
    else:
        if wish.python is None or wish.model is None:
            raise TanrenError("expected the Python of an environment with vLLM", hint="--python PATH")
        python, model, block_size = wish.python, Path(wish.model), wish.block_size or _BLOCK_SIZE
        version, known = check_env(python), _config(model)
    smallest = min((blocks for blocks in wish.capacities if blocks is not None), default=_NO_LIMIT)
    longest = int(known.get("max_position_embeddings", POSITIONS))
    return Serving(
        wish=wish,
        version=version,
        block_size=block_size,
        vocabulary=wish.vocabulary or int(known.get("vocab_size", END_TOKEN)),
        max_model_len=wish.max_model_len or min(longest, smallest * block_size),
        asynchronous=wish.device != "cpu",
        client_cores=client,
        engine_cores=engine,
        python=python,
        model=model,
    )


def _config(model: Path) -> Mapping[str, Any]:
    """The configuration of a model in a folder; nothing is known of one that is named otherwise."""
    try:
        return dict(json.loads((model / "config.json").read_text(encoding="utf-8")))
    except OSError:
        return {}
    except (ValueError, TypeError) as error:
        raise TanrenError(f"{model / 'config.json'} is damaged: {error}") from None


def _ask(url: str) -> tuple[int, str | None]:
    """The longest text of a running server in tokens, and its version of vLLM if it says so."""
    try:
        with httpx.Client(base_url=url, timeout=_ASK_S, trust_env=False) as client:
            model = client.get("/v1/models").json()["data"][0]
            answer = client.get("/version")
        version = str(answer.json()["version"]).split("+")[0] if answer.status_code == 200 else None
        return int(model.get("max_model_len") or _NO_LIMIT), version
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, LookupError, TypeError) as error:
        raise TanrenError(f"{url} does not answer as a server of vLLM does: {error}") from None
