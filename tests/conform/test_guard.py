"""A policy that goes wrong inside real vLLM: no request fails, vLLM's order holds, one line says so."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tanren_dsl.backends.vllm import emit
from tanren_dsl.check import loads
from tanren_dsl.conform.harness import DRIVER
from tanren_dsl.signals import Kind
from tests.conform.environments import cache_of, engine_python

SCRIPT = """
import importlib, json, os, random, sys

sys.path[:0] = [sys.argv[1], sys.argv[2]]
import engine_driver, vllm.logger
from vllm import SamplingParams
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

if hasattr(vllm.logger, "configure_logging"):  # the engine's process does, as older ones do on import
    from vllm.config.logging import LoggingConfig
    vllm.logger.configure_logging(LoggingConfig())
SPEC = {"block_size": 16, "max_model_len": 512, "usable_blocks": 60, "max_num_seqs": 8,
        "max_num_batched_tokens": 128, "async": False}


def served(module):
    scheduler, hasher = engine_driver.make_scheduler(SPEC, module)
    rng, done, happened, added = random.Random(3), 0, [], 0
    pool = scheduler.kv_cache_manager.block_pool
    taken = pool._maybe_evict_cached_block
    pool._maybe_evict_cached_block = lambda block: taken(block) and (happened.append(block.block_id) or True)
    while done < 120:
        while added < 120 and len(scheduler.requests) < 12:
            added += 1
            scheduler.add_request(Request(
                request_id=f"r{added}", prompt_token_ids=rng.choices(range(99), k=rng.randrange(1, 300)),
                pooling_params=None, arrival_time=added, block_hasher=hasher,
                sampling_params=SamplingParams(max_tokens=rng.randrange(1, 40), ignore_eos=True)))
        batch = scheduler.schedule()
        happened.append(list(batch.num_scheduled_tokens.items()))
        ids = list(batch.num_scheduled_tokens)
        sampled = [[] if scheduler.requests[i].is_prefill_chunk else [7] for i in ids]
        results = scheduler.update_from_output(batch, ModelRunnerOutput(
            req_ids=ids, req_id_to_index={name: i for i, name in enumerate(ids)}, sampled_token_ids=sampled,
            logprobs=None, prompt_logprobs_dict={}, pooler_output=[]))
        done += sum(item.finish_reason is not None for group in results.values() for item in group.outputs)
    return happened


own = served(None)
for module, variables in json.loads(sys.argv[3]).items():
    os.environ.pop("TANREN_NO_NUMBA", None)
    os.environ.update(variables)
    policy = importlib.import_module(module)
    same = own == served(policy)
    status = policy.status()
    print("RESULT" + json.dumps([module, same, len(own), status.get("schedule", status)["mode"]]))
"""

BREAKS = {
    "raises": ("if n > 3: raise ValueError('broken')", {}, "off: ValueError: broken", "is off"),
    "divides": ("1 / (n < 3)", {"TANREN_NO_NUMBA": "1"}, "off: ZeroDivisionError", "is off"),
    "gives_nan": ("keys[:] = math.nan; return", {}, "active", "not finite"),
    "sleeps": ("time.sleep(0.05)", {"TANREN_NO_NUMBA": "1"}, "off: 3 {noun} over 20 ms", "is off"),
    "fails_to_compile": ("nothing_of_the_kind()", {}, "TypingError", "stands aside"),
}
"""What goes wrong, the variables it needs, the status that follows, and the words of the one line."""

OWN = {"evict": "order by last_use", "schedule": "order by arrival preempt by wait"}
"""Policies that order as vLLM does, so that the few decisions before one is off change nothing."""
HEADS = {
    "evict": "def order(decision, rows, ids, n, keys, scratch):\n",
    "schedule": "def rank(decision, rows, ids, n, keys, scratch):\n",
}
NOUNS = {"evict": "decisions", "schedule": "steps"}


@pytest.mark.parametrize("version", ["0.19.1", "0.32.0"])
@pytest.mark.parametrize("kind", list(OWN))
def test_no_request_fails_and_one_line_says_so(version: str, kind: Kind, tmp_path: Path) -> None:
    python, head = engine_python(version), HEADS[kind]
    for name, (sabotage, *_) in BREAKS.items():
        policy = loads(f"policy {name} : {kind} {OWN[kind]}")
        text = emit(policy) if kind == "evict" else emit(None, policy)
        assert text.count(head) == 1
        (tmp_path / f"{name}.py").write_text(text.replace(head, f"{head}    {sabotage}\n"))
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    variables = {name: given for name, (_, given, *_) in BREAKS.items()}
    done = subprocess.run(
        [python, script, tmp_path, DRIVER.parent, json.dumps(variables)],
        capture_output=True, text=True, timeout=400, check=False,
        env={"HF_HUB_OFFLINE": "1", "VLLM_CACHE_ROOT": cache_of(python), "TANREN_NO_IDENTITY": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    lines = (done.stdout + done.stderr).splitlines()
    results = [json.loads(line.removeprefix("RESULT")) for line in lines if line.startswith("RESULT")]
    assert [name for name, *_ in results] == list(BREAKS)
    for name, same, happened, mode in results:
        assert same, name
        assert happened > 500
        assert mode.startswith(BREAKS[name][2].format(noun=NOUNS[kind])), name
        told = [line for line in lines if f"tanren: policy {name} " in line]
        told = [line for line in told if " decides " not in line and " ends" not in line]
        assert [BREAKS[name][3] in line for line in told] == [True], told
