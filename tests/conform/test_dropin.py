"""The emitted file in real vLLM under what no trace shows: aborts, resets, a clock set back, two engines."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tanren_dsl.backends.vllm import emit
from tanren_dsl.check import loads
from tanren_dsl.conform.harness import DRIVER
from tests.conform.environments import cache_of, engine_python
from tests.sim.test_engine import POLICIES

SCRIPT = """
import random, sys
from types import SimpleNamespace

sys.path[:0] = [sys.argv[1], sys.argv[2]]
import engine_driver, tanren_policy as policy, vllm.logger
from vllm import SamplingParams
from vllm.config import KVEventsConfig
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

if hasattr(vllm.logger, "configure_logging"):  # the engine's process does, as older ones do on import
    from vllm.config.logging import LoggingConfig
    vllm.logger.configure_logging(LoggingConfig())
NOW = [0]
policy.CLOCK = lambda: NOW[0]
SPEC = {"block_size": 16, "max_model_len": 512, "usable_blocks": 60, "max_num_seqs": 8,
        "max_num_batched_tokens": 128, "async": False}


def made(name, **changes):
    def Scheduler(**kwargs):
        kwargs["vllm_config"].kv_events_config = KVEventsConfig(
            enable_kv_cache_events=True, publisher="zmq", endpoint="inproc://" + name)
        return policy.Scheduler(**kwargs)

    return engine_driver.make_scheduler(SPEC | changes, SimpleNamespace(Scheduler=Scheduler))


class Engine:
    def __init__(self, name, seed):
        self.scheduler, self.hasher = made(name)
        self.pool = self.scheduler.kv_cache_manager.block_pool
        self.random, self.added = random.Random(seed), 0
        self.base = random.Random(0).choices(range(9999), k=300)
        self.evictor = self.scheduler.tanren
        self.check()

    def add(self):
        shared = self.base[: self.random.randrange(200)]
        tokens = shared + self.random.choices(range(9999), k=self.random.randrange(1, 120))
        self.added += 1
        self.scheduler.add_request(Request(
            request_id=f"r{self.added}", prompt_token_ids=tokens, pooling_params=None,
            sampling_params=SamplingParams(max_tokens=self.random.randrange(1, 60), ignore_eos=True),
            arrival_time=NOW[0] / 1e6, block_hasher=self.hasher))

    def step(self):
        batch = self.scheduler.schedule()
        self.check()
        ids = list(batch.num_scheduled_tokens)
        sampled = [[] if self.scheduler.requests[i].is_prefill_chunk else [7] for i in ids]
        self.scheduler.update_from_output(batch, ModelRunnerOutput(
            req_ids=ids, req_id_to_index={name: i for i, name in enumerate(ids)}, sampled_token_ids=sampled,
            logprobs=None, prompt_logprobs_dict={}, pooler_output=[]))
        self.check()

    def disturb(self):
        names = list(self.scheduler.requests)
        match self.random.randrange(40):
            case 0 | 1 | 2 if names:
                self.scheduler.finish_requests(self.random.choice(names), RequestStatus.FINISHED_ABORTED)
            case 3 | 4:
                self.scheduler.kv_cache_manager.evict_blocks(set(self.random.sample(range(1, 61), 5)))
            case 5:
                assert self.scheduler.reset_prefix_cache(reset_running_requests=True)
            case 6:
                self.scheduler.reset_prefix_cache()
            case 7:
                NOW[0] -= 3_600_000_000
        self.scheduler.kv_cache_manager.take_events()
        self.check()

    def check(self):
        evictor, pool = self.evictor, self.pool
        assert evictor.on, policy.status()
        if evictor.pending:
            evictor.flush()
        policy.catch_up(evictor.state)
        ring, pos, ends = policy.queue_of(evictor.state)
        mirror = [int(ring[at & len(ring) - 1]) for at in range(*ends[:2].tolist())]
        mirror = [entry for entry in mirror if entry != policy.EMPTY]
        queue = pool.free_block_queue.get_all_free_blocks()
        assert [entry & int(policy.LOW) for entry in mirror] == [block.block_id for block in queue]
        if evictor.unhashed_unscored:
            marked = [entry >= policy.UNSCORED for entry in mirror]
            assert marked == [block.block_hash is None for block in queue]
        hashed = policy.view(evictor.state, policy._HASHED, "uint8").tolist()
        assert not policy.WRITES or hashed == [block.block_hash is not None for block in pool.blocks]
        if policy.NUMBERED:
            self.check_hashes(evictor.hashes)
        if policy.HEAP:
            self.check_heap(evictor.state, mirror)

    def check_hashes(self, hashes):
        held = [0] * len(hashes.table)
        children = [0] * len(hashes.table)
        for block in self.pool.blocks:
            own, parent = hashes.table[block.block_id][:2].tolist()
            assert (own >= 0) == (block.block_hash is not None)
            if own >= 0:
                assert hashes.key[own - hashes.blocks] == bytes(block.block_hash[:-4])
                held[own] += 1
            if parent >= 0:
                held[parent] += 1
                children[parent] += 1
        waits = [0] * len(hashes.table)
        for numbers in hashes.waiting.values():
            for number in numbers.tolist():
                waits[number] += 1
        for number in hashes.line[hashes.line >= 0].tolist():
            held[number] += 1
        for number, (holders, child, _, _, waiting) in enumerate(hashes.table.tolist()):
            if number >= hashes.blocks and hashes.key[number - hashes.blocks] is not None:
                assert (holders, child, waiting) == (
                    held[number] + waits[number], children[number], waits[number])
        assert len(hashes.number) + len(hashes.spare) == len(hashes.key)

    def check_heap(self, state, mirror):
        ends = policy.view(state, policy._ENDS, "int64")
        if ends[policy._STRAYS] > 0:
            return
        pos, stamp = policy.view(state, policy._POS, "int64"), policy.view(state, policy._STAMP, "int64")
        front = [pos[entry & int(policy.LOW)] < ends[policy._FRONTIER] for entry in mirror]
        assert front == sorted(front, reverse=True) and sum(front) == ends[policy._FRONT]
        scored = {entry for entry, known in zip(mirror, front) if known and entry < policy.UNSCORED}
        size = int(policy.view(state, policy._HEAP, "int64")[policy.HEAP_SIZE])
        blocks = policy.view(state, policy._ENTRY_BLOCK, "uint32")
        stamps = policy.view(state, policy._ENTRY_STAMP, "int64")
        live = {int(b) for b, s in zip(blocks[:size], stamps[:size]) if stamp[b] == s}
        assert live == scored


engines = [Engine("a", 1), Engine("b", 2)]
compiled = {name: len(f.signatures) for name, f in vars(policy).items() if hasattr(f, "signatures")}
assert bool(compiled) == policy.HAVE_NUMBA
for _ in range(300):
    for engine in engines:
        NOW[0] += 10_000
        if len(engine.scheduler.requests) < 12:
            engine.add()
        engine.disturb()
        engine.step()
for engine in engines:
    counts = engine.evictor.counts()
    assert counts["decisions"] > 50 and counts["faults"] == counts["errors"] == 0, counts
later = {name: len(f.signatures) for name, f in vars(policy).items() if hasattr(f, "signatures")}
assert later == compiled, "compiled on the request path"

scheduler, _ = made("c", enable_prefix_caching=False)
assert scheduler.tanren is None and "prefix caching is off" in policy.status()["mode"]
engines[0].evictor.off("enough")
for _ in range(50):
    engines[1].add(), engines[1].step(), engines[0].add(), engines[0].scheduler.schedule()
assert type(engines[0].pool.free_block_queue).__name__ == "FreeKVCacheBlockQueue"
names, queue = list(engines[1].scheduler.requests), engines[1].pool.free_block_queue
engines[1].scheduler.finish_requests(names, RequestStatus.FINISHED_ABORTED)
queue.remove(queue.get_all_free_blocks()[0])  # by somebody else
assert len(engines[1].pool.get_new_blocks(9)) == 9
assert engines[1].evictor.counts()["errors"] == 1, engines[1].evictor.counts()
for engine in engines:
    engine.scheduler.shutdown(), engine.scheduler.shutdown()
print("well")
"""


MIRRORED = {
    "every signal": (POLICIES["every signal"], "numba"),
    "heap": ("order by uses, depth candidates all", "numba"),
    "heap over a window": ("order by uses, depth candidates 20%", "plain"),
    "list": ("order by uses - age / mean(age) candidates 30%", "plain"),
    "none kept": ("order by last_use candidates all", "plain"),
    "heap of ghosts": ("order by ghost_uses + uses, created candidates all", "plain"),
    "children": ("order by children, last_use", "plain"),
}
"""Policies, and whether the file is compiled or runs as plain Python, which is sooner ready."""


@pytest.mark.parametrize("version", ["0.19.1", "0.32.0"])
@pytest.mark.parametrize("policy", list(MIRRORED))
def test_the_mirror_of_the_queue_stays_in_step(version: str, policy: str, tmp_path: Path) -> None:
    python = engine_python(version)
    (tmp_path / "tanren_policy.py").write_text(emit(loads(f"policy p : evict {MIRRORED[policy][0]}")))
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [python, script, tmp_path, DRIVER.parent], capture_output=True, text=True, timeout=300, check=False,
        env={"HF_HUB_OFFLINE": "1", "TANREN_NO_IDENTITY": "1", "VLLM_LOGGING_LEVEL": "INFO",
             "TANREN_NO_NUMBA": str(int(MIRRORED[policy][1] == "plain")),
             "VLLM_CACHE_ROOT": cache_of(python)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.endswith("well\n")
    log = [line for line in (done.stdout + done.stderr).splitlines() if "tanren:" in line]
    said = ["decides evictions", "decides evictions", "stands aside", "is off", "in the mirror", "ends (off)"]
    said.append("ends (off)")
    assert [word for line, word in zip(log, said, strict=True) if word in line] == said
