"""A policy that goes wrong inside real vLLM: no request fails, vLLM's order holds, one line says so."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tanren_dsl.backends.vllm import emit
from tanren_dsl.check import loads
from tanren_dsl.conform.harness import DRIVER
from tests.conform.environments import engine_python

SCRIPT = """
import json, random, sys

sys.path[:0] = [sys.argv[1], sys.argv[2]]
import engine_driver, tanren_policy as policy, vllm.logger
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
    rng, done, evicted, added = random.Random(3), 0, [], 0
    pool = scheduler.kv_cache_manager.block_pool
    taken = pool._maybe_evict_cached_block
    pool._maybe_evict_cached_block = lambda block: taken(block) and (evicted.append(block.block_id) or True)
    while done < 120:
        while added < 120 and len(scheduler.requests) < 12:
            added += 1
            scheduler.add_request(Request(
                request_id=f"r{added}", prompt_token_ids=rng.choices(range(99), k=rng.randrange(1, 300)),
                pooling_params=None, arrival_time=added, block_hasher=hasher,
                sampling_params=SamplingParams(max_tokens=rng.randrange(1, 40), ignore_eos=True)))
        batch = scheduler.schedule()
        ids = list(batch.num_scheduled_tokens)
        sampled = [[] if scheduler.requests[i].is_prefill_chunk else [7] for i in ids]
        results = scheduler.update_from_output(batch, ModelRunnerOutput(
            req_ids=ids, req_id_to_index={name: i for i, name in enumerate(ids)}, sampled_token_ids=sampled,
            logprobs=None, prompt_logprobs_dict={}, pooler_output=[]))
        done += sum(item.finish_reason is not None for group in results.values() for item in group.outputs)
    return evicted


own = served(None)
print(json.dumps([own == served(policy), len(own), policy.status()]))
"""

BREAKS = {
    "raises": ("if n > 4: raise ValueError('broken')", {}, "off: ValueError: broken", "is off"),
    "raises as plain Python": ("1 / (n < 4)", {"TANREN_NO_NUMBA": "1"}, "off: ZeroDivisionError", "is off"),
    "gives nan": ("keys[:] = math.nan; return", {}, "active", "not finite"),
    "sleeps": ("time.sleep(0.05)", {"TANREN_NO_NUMBA": "1"}, "off: 3 decisions over 20 ms", "is off"),
    "does not compile": ("nothing_of_the_kind()", {}, "TypingError", "stands aside"),
}


@pytest.mark.parametrize("version", ["0.19.1", "0.32.0"])
@pytest.mark.parametrize("name", list(BREAKS))
def test_no_request_fails_and_one_line_says_so(version: str, name: str, tmp_path: Path) -> None:
    sabotage, environment, mode, line = BREAKS[name]
    # As vLLM orders, so that the few decisions before the policy is off change nothing.
    text = emit(loads("policy p : evict order by last_use"))
    head = "def order(decision, rows, ids, n, keys, scratch):\n"
    assert text.count(head) == 1
    (tmp_path / "tanren_policy.py").write_text(text.replace(head, f"{head}    {sabotage}\n"))
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [engine_python(version), script, tmp_path, DRIVER.parent],
        capture_output=True, text=True, timeout=300, check=False,
        env={"HF_HUB_OFFLINE": "1", "VLLM_CACHE_ROOT": str(tmp_path), "PYTHONHASHSEED": "0",
             "TANREN_NO_IDENTITY": "1", **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    same, evictions, status = json.loads(
        next(text for text in done.stdout.splitlines() if text.startswith("["))
    )
    assert same
    assert evictions > 500
    assert status["mode"].startswith(mode)
    log = [text for text in (done.stdout + done.stderr).splitlines() if "tanren: policy" in text]
    assert [text for text in log if line in text] == [text for text in log if "decides evictions" not in text
                                                     and "ends" not in text]  # fmt: skip
    assert sum(line in text for text in log) == 1
