"""Time the steps of a real engine over a plan of batches; a script that runs inside a vLLM environment.

    python calibrate_driver.py SPEC.json

Only the standard library, NumPy and vLLM are imported, nothing of this package. The engine's
core (scheduler, block pool, model runner) is made in this process and stepped synchronously: a
measured step is one `EngineCore.step()`, that is `schedule()`, the model, `update_from_output()`
and the Python around them. Tokenizing, HTTP and the queues between processes are not in it.

SPEC.json has the engine's settings (`model` is a folder; `dtype`, `block_size`, `num_gpu_blocks`,
`max_model_len`, `max_num_seqs`, `max_num_batched_tokens`, `seed`), `repeats`, and the `plan`, a list
of scenes. A scene begins and ends with an idle engine and is a list of waves `{"requests", "tokens",
"budgets", "decodes"}`: so many requests with prompts of so many random tokens arrive at once; until
all are prefilled, step after step may compute the next of `budgets` in tokens, round and round;
then follow `decodes` more steps. So a later wave's prefill is mixed with the decodes of the waves
before it. Aborting what is left then gives one empty step. Requests never finish by themselves.

Output, JSON lines on standard output: `{"progress": TEXT}`; for each measured step `{"repeat",
"scene", "step", "tokens", "prefill_tokens", "pairs", "decodes", "context", "step_us"}` (meanings:
`tanren_dsl/sim/latency.py`), the same step of a scene being the same batch in every repeat; last
`{"end": true, "version"}`, or `{"error": TEXT}` and exit status 2.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np

_VARIABLES = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # else the executor is `mp`, another process
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
_WORDS = 4000  # prompts are drawn from so many token ids; above 0, which ends a text
_LONGEST_OUTPUT = 1 << 20


class Bench:
    """The engine, its clock and the batches it was given."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self.core = _engine_core(spec)
        self.scheduler = self.core.scheduler
        self.largest = int(spec["max_num_batched_tokens"])
        self.longest = int(spec["max_model_len"])
        self.random = np.random.default_rng(int(spec["seed"]))
        self.names = itertools.count()
        self.alive: list[str] = []
        self.batch: dict[str, int] = {}
        self._watch()

    def scene(self, waves: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, int | float]]:
        """Play one scene; a measured step after the other."""
        for wave in waves:
            budgets = itertools.cycle(wave["budgets"])
            if min(wave["budgets"]) <= len(self.alive):
                raise ValueError(
                    f"budgets {wave['budgets']} leave no prefill beside {len(self.alive)} decodes"
                )
            arrived = [self._add(int(wave["tokens"])) for _ in range(int(wave["requests"]))]
            while any(self._is_prefilling(name) for name in arrived):
                yield self._step(min(self.largest, int(next(budgets))))
            for _ in range(int(wave["decodes"])):
                yield self._step(self.largest)
        self.core.abort_requests(self.alive)
        self.alive.clear()
        while self.scheduler.has_requests():
            yield self._step(self.largest)

    def _add(self, tokens: int) -> str:
        from vllm import SamplingParams
        from vllm.v1.request import Request

        name = f"r{next(self.names):06d}"
        # random tokens: no prompt begins like another one, so nothing hits the prefix cache
        request = Request(
            request_id=name,
            prompt_token_ids=self.random.integers(1, _WORDS, tokens).tolist(),
            sampling_params=SamplingParams(max_tokens=_LONGEST_OUTPUT, ignore_eos=True, temperature=0.0),
            pooling_params=None,
            arrival_time=float(len(self.alive)),
            block_hasher=self.core.request_block_hasher,
        )
        self.core.add_request(request)
        self.alive.append(name)
        return name

    def _is_prefilling(self, name: str) -> bool:
        request = self.scheduler.requests[name]
        return bool(request.num_computed_tokens < request.num_prompt_tokens)

    def _step(self, budget: int) -> dict[str, int | float]:
        self.scheduler.max_num_scheduled_tokens = budget
        started = time.perf_counter()
        self.core.step()
        seconds = time.perf_counter() - started
        return {**self.batch, "step_us": seconds * 1e6}

    def _watch(self) -> None:
        """Note what every batch holds, through an instance attribute; change nothing."""
        schedule = self.scheduler.schedule

        def watched(*args: Any, **kwargs: Any) -> Any:
            output = schedule(*args, **kwargs)
            self.batch = self._contents(output.num_scheduled_tokens)
            return output

        self.scheduler.schedule = watched

    def _contents(self, scheduled: Mapping[str, int]) -> dict[str, int]:
        prefill = pairs = decodes = context = 0
        for name, new in scheduled.items():
            request = self.scheduler.requests[name]
            before = request.num_computed_tokens - new  # schedule() has counted them already
            if new == 1 and before >= request.num_prompt_tokens:
                decodes += 1
                context += before + 1
            else:
                prefill += new
                pairs += new * before + new * (new + 1) // 2
        return {
            "tokens": prefill + decodes,
            "prefill_tokens": prefill,
            "pairs": pairs,
            "decodes": decodes,
            "context": context,
        }


def main(arguments: list[str]) -> int:
    """Measure what `SPEC.json` asks for; the exit status."""
    if len(arguments) != 1:
        sys.stderr.write("usage: calibrate_driver.py SPEC.json\n")
        return 2
    os.environ.update(_VARIABLES)
    os.environ.setdefault("VLLM_CACHE_ROOT", str(Path(sys.prefix, ".vllm-cache")))
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever else is printed is no line of ours
    try:
        measure(json.loads(Path(arguments[0]).read_text(encoding="utf-8")), lines)
    except Exception as error:
        _write(lines, {"error": f"{type(error).__name__}: {error}"})
        traceback.print_exc()
        return 2
    return 0


def measure(spec: Mapping[str, Any], lines: TextIO) -> None:
    """Play the plan `repeats` times, after its first scene once for nothing; write what was measured."""
    import vllm

    _write(lines, {"progress": f"vLLM {vllm.__version__.split('+')[0]} starts"})
    bench = Bench(spec)
    plan, repeats = spec["plan"], int(spec["repeats"])
    for _ in bench.scene(plan[0]):
        pass  # threads, buffers and kernels are made with the first steps
    for repeat in range(repeats):
        for number, waves in enumerate(plan):
            for step, point in enumerate(bench.scene(waves)):
                _write(lines, {"repeat": repeat, "scene": number, "step": step, **point})
            _write(lines, {"progress": f"round {repeat + 1} of {repeats}, scene {number + 1} of {len(plan)}"})
    bench.core.shutdown()
    _write(lines, {"end": True, "version": vllm.__version__.split("+")[0]})


def _engine_core(spec: Mapping[str, Any]) -> Any:
    """The engine core with its model, as a server makes it, but in this process and synchronous."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.executor import Executor

    arguments = EngineArgs(
        model=str(spec["model"]),
        skip_tokenizer_init=True,
        load_format="dummy",
        dtype=spec["dtype"],
        enforce_eager=True,
        block_size=int(spec["block_size"]),
        num_gpu_blocks_override=int(spec["num_gpu_blocks"]),
        max_model_len=int(spec["max_model_len"]),
        max_num_seqs=int(spec["max_num_seqs"]),
        max_num_batched_tokens=int(spec["max_num_batched_tokens"]),
        enable_prefix_caching=True,  # as served: the scheduler's work for it is part of a step
        async_scheduling=False,
        distributed_executor_backend="uni",
        disable_log_stats=True,
        seed=0,
    )
    config = arguments.create_engine_config()
    return EngineCore(config, Executor.get_class(config), log_stats=False)


def _write(lines: TextIO, line: Mapping[str, Any]) -> None:
    lines.write(json.dumps(line) + "\n")
    lines.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
