"""The emitted schedule policy in real vLLM under what no trace shows: aborts, resets, a moved queue."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tanren_dsl.backends.vllm import emit
from tanren_dsl.check import loads
from tanren_dsl.conform.harness import DRIVER
from tests.conform.environments import cache_of, engine_python

SCRIPT = """
import random, sys

sys.path[:0] = [sys.argv[1], sys.argv[2]]
import engine_driver, tanren_policy as policy, vllm.logger
from vllm import SamplingParams
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

if hasattr(vllm.logger, "configure_logging"):  # the engine's process does, as older ones do on import
    from vllm.config.logging import LoggingConfig
    vllm.logger.configure_logging(LoggingConfig())
NOW = [0]
policy.CLOCK = lambda: NOW[0]
policy._ROOM = 16  # the table of requests is made anew all the time
SPEC = {"block_size": 16, "max_model_len": 512, "usable_blocks": 60, "max_num_seqs": 6,
        "max_num_batched_tokens": 128, "async": False}


class Engine:
    def __init__(self, seed, **changes):
        self.scheduler, self.hasher = engine_driver.make_scheduler(SPEC | changes, policy)
        self.random, self.added, self.live = random.Random(seed), 0, {}
        self.base = random.Random(0).choices(range(9999), k=300)
        self.dispatcher = self.scheduler.tanren_line

    def add(self):
        shared = self.base[: self.random.randrange(200)]
        tokens = shared + self.random.choices(range(9999), k=self.random.randrange(1, 120))
        self.added += 1
        name = self.random.choice([f"r{i}" for i in range(24) if f"r{i}" not in self.live])  # ids come again
        self.live[name] = request = Request(
            request_id=name, prompt_token_ids=tokens, pooling_params=None,
            sampling_params=SamplingParams(max_tokens=self.random.randrange(1, 60), ignore_eos=True),
            arrival_time=(NOW[0] + self.random.choice([-9, 0, 9]) * 1_000_000) / 1e6,  # by another clock
            block_hasher=self.hasher, priority=self.random.randrange(3))
        request.added = self.added
        self.scheduler.add_request(request)

    def step(self):
        batch = self.scheduler.schedule()
        self.check()
        ids = list(batch.num_scheduled_tokens)
        sampled = [[] if self.scheduler.requests[i].is_prefill_chunk else [7] for i in ids]
        results = self.scheduler.update_from_output(batch, ModelRunnerOutput(
            req_ids=ids, req_id_to_index={name: i for i, name in enumerate(ids)}, sampled_token_ids=sampled,
            logprobs=None, prompt_logprobs_dict={}, pooler_output=[]))
        for group in results.values():
            for item in group.outputs:
                if item.finish_reason is not None:
                    del self.live[item.request_id]
        self.check()

    def rests(self):
        # the last of the queue was admitted: vLLM's own method is called, without a detour
        for name in list(self.live):
            self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
            del self.live[name]
        self.step()
        assert ("schedule" in vars(self.scheduler)) == policy._ALWAYS
        self.add()
        assert self.scheduler.schedule == self.dispatcher.ours
        self.step()
        assert ("schedule" in vars(self.scheduler)) == policy._ALWAYS

    def disturb(self):
        names, waiting = sorted(self.live), self.scheduler.waiting
        match self.random.randrange(30):
            case 0 | 1 | 2 if names:
                name = self.random.choice(names)
                self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
                del self.live[name]
            case 3:
                assert self.scheduler.reset_prefix_cache(reset_running_requests=True)
            case 4:
                self.scheduler.reset_prefix_cache()
            case 5:
                NOW[0] -= 3_600_000_000
            case 6 | 7 if waiting:  # by somebody else
                waiting.add_request(waiting.pop_request())
            case 8 if waiting:
                waiting.prepend_requests([waiting.pop_request()])
        self.check()

    def check(self):
        dispatcher = self.dispatcher
        assert dispatcher.on, policy.status()
        there = [*self.scheduler.waiting, *self.scheduler.running]
        assert len(there) == len(self.live)
        assert set(there) == set(self.live.values())
        if self.scheduler.waiting or policy._ALWAYS:
            assert self.scheduler.schedule == dispatcher.ours
        for name, number in dispatcher.number.items():
            assert dispatcher.requests[number].request_id == name
        assert (dispatcher.since <= dispatcher.now).all() and dispatcher.mean_wait[0] >= 0
        line = dispatcher.line[: dispatcher.lined].tolist()
        assert line == sorted(set(line))


engines = [Engine(1), Engine(2, enable_prefix_caching=False)]
compiled = {name: len(f.signatures) for name, f in vars(policy).items() if hasattr(f, "signatures")}
assert bool(compiled) == policy.HAVE_NUMBA
for _ in range(600):
    for engine in engines:
        NOW[0] += 10_000
        while len(engine.live) < (2 if NOW[0] // 1_000_000 % 3 == 0 else 14):  # now and then nobody waits
            engine.add()
        engine.disturb()
        engine.step()
for engine in engines:
    counts = engine.dispatcher.counts()
    assert counts["orderings"] > 200 and counts["faults"] == counts["errors"] == 0, counts
    assert len(engine.dispatcher.requests) < 100 < engine.added
later = {name: len(f.signatures) for name, f in vars(policy).items() if hasattr(f, "signatures")}
assert later == compiled, "compiled on the request path"

engines[1].rests()
while len(engines[0].live) < 20:
    engines[0].add()
engines[0].step()
engines[0].dispatcher.off("enough")
assert "schedule" not in vars(engines[0].scheduler)
waiting = engines[0].scheduler.waiting
assert type(waiting).__name__ == "FCFSRequestQueue"
numbers = [request.added for request in waiting]
assert len(numbers) > 4 and numbers == sorted(numbers)
for _ in range(50):
    engines[0].scheduler.schedule()
stock, _ = engine_driver.make_scheduler(SPEC | {"scheduling_policy": "priority"}, policy)
assert stock.tanren_line is None
for engine in engines:
    engine.scheduler.shutdown(), engine.scheduler.shutdown()
print("well")
"""

POLICY = """\
policy p : schedule
order by (uncached_tokens - cached_tokens) / mean(prompt_tokens) - wait / mean(wait) + 0.1 * user_priority,
  attained_tokens / token_budget - preemptions + (1 if resumed else 0) + hit_rate, output_tokens
preempt by computed_tokens / mean(computed_tokens) - preemptions, arrival
"""


@pytest.mark.parametrize("version", ["0.19.1", "0.32.0"])
@pytest.mark.parametrize("plain", [False, True], ids=["numba", "plain"])
def test_no_request_is_lost_or_served_twice(version: str, plain: bool, tmp_path: Path) -> None:
    """As plain Python the policy has no `preempt by`, and steps aside while nobody waits."""
    python = engine_python(version)
    policy = POLICY.split("preempt by")[0] if plain else POLICY
    (tmp_path / "tanren_policy.py").write_text(emit(None, loads(policy)))
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [python, script, tmp_path, DRIVER.parent], capture_output=True, text=True, timeout=300, check=False,
        env={"HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "INFO", "TANREN_NO_NUMBA": str(int(plain)),
             "VLLM_CACHE_ROOT": cache_of(python)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.endswith("well\n")
    log = [line for line in (done.stdout + done.stderr).splitlines() if "tanren:" in line]
    said = ["decides scheduling", "decides scheduling", "is off", "stands aside", "ends (off)", " ends: "]
    assert [word for line, word in zip(log, said, strict=True) if word in line] == said, log
