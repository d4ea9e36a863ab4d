"""Drive the real vLLM scheduler without a model, in virtual time.

A script on its own (standard library, NumPy, the vLLM beside it and the sibling
`engine_setup.py`; nothing of this package), run inside a vLLM environment as
`PYTHON engine_driver.py SPEC.json OUT.jsonl`, or as `PYTHON engine_driver.py --serve`
for many runs: a line `["SPEC.json", "OUT.jsonl"]` on standard input is a run, and its
exit status is a line on standard output. The scheduler, the KV cache manager and the
block pool are the engine's; the model runner is a table of the tokens it would sample.

The loop is `EngineCore.step` (depth 1, synchronous) and
`EngineCore.step_with_batch_queue` (depth 2, asynchronous) with a virtual clock:

    t = 0; next = 0; step = 0; pending = deque()      # depth = 2 if async else 1
    loop:
        add every request with arrival_us <= t, in file order
        abort every request with abort_us <= t, by (abort_us, file order), one call each
        if has_requests():                # waiting, running, or finished ids to flush
            batch = schedule() at t; step += 1; pending.appendleft(batch)
            if len(pending) < depth and (batch has tokens or (refill and has_requests())):
                continue                  # same t: arrivals were read already
        elif no pending:
            if next == number of requests: stop
            t = max(t, arrival of the next request); continue
        batch = pending.pop(); t += what the batch takes; update_from_output(batch) at t

Subtle cases, all kept as the engine has them:

- The step that finishes the last request leaves finished ids behind, so one more
  (empty) `schedule()` follows before the engine goes idle; it counts as a step. An
  abort leaves such an id as well. One of a request that is finished is ignored.
- An aborted request may be in a pending batch: its token is thrown away.
- Every batch, an empty one too, takes its time when it is popped: that of the latency
  profile in `"latency"`, six numbers of microseconds (see `sim/latency.py`, whose
  arithmetic is repeated here bit for bit).
- Asynchronous: a request whose last token is in flight is skipped, so a batch may
  be empty while another is pending; it is queued like any other and popped later.
- `refill`: newer engines (0.32 does, 0.19 does not) schedule again after an empty
  batch while the queue has room.
- A batch gives a request a token if, right after `schedule()`, the request is no
  prefill chunk: `num_computed_tokens >= num_tokens + num_output_placeholders`, the
  placeholders counted before the scheduler adds the one for this batch. The token
  arrives with the update, also when the request was preempted meanwhile.

Output: one JSON object a line. `{"step", "phase": "schedule", "t_us", "evicted",
"admitted", "preempted"}` for a step in which any of the three happened or before which
a request was aborted (then `"aborted"` too), and `{"step", "phase": "update", "t_us",
"finished"}` for a batch whose output finished requests. Last a summary `{"end": true,
...}`, or `{"error": ...}` and a nonzero exit: 2 for a wrong specification or an
exception, 3 when requests remain that are never scheduled: nothing is to come, and
several steps in a row were empty. With `"profile"` the summary has the seconds inside
`schedule()` and `update_from_output()`; without `"log"` besides, nothing in the engine
is watched.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import time
import traceback
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from tanren_dsl.conform.engine_setup import DriverError, load_policy, make_scheduler, refills_after_empty
else:  # a script beside its sibling
    from engine_setup import DriverError, load_policy, make_scheduler, refills_after_empty

Table = Mapping[str, npt.NDArray[Any]]

_STUCK_STEPS = 8  # empty steps in a row, with nothing to come, before giving up


@dataclass(slots=True)
class Counts:
    """Totals of a run, and the events of the step in progress."""

    evicted: list[int] = field(default_factory=list)
    preempted: list[str] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    steps: int = 0
    evictions: int = 0
    hit_tokens: int = 0
    scheduled_tokens: int = 0
    allocated: int = 0
    preemptions: int = 0
    requests: int = 0  # finished
    aborts: int = 0
    schedule_s: float = 0.0
    update_s: float = 0.0


class Run:
    """One run: the scheduler, the clock, the requests and the log."""

    def __init__(self, spec: dict[str, Any], table: Table, log: TextIO | None) -> None:
        self.spec = spec
        self.table = table
        self.log = log
        self.now_us = 0
        self.latency = [float(number) for number in spec["latency"]]
        self.counts = Counts()
        self.outputs: dict[str, list[int]] = {}
        self.module = load_policy(spec.get("policy_file"))
        if self.module is not None and hasattr(self.module, "CLOCK"):
            setattr(self.module, "CLOCK", lambda: self.now_us)  # noqa: B010
        self.scheduler, self.hasher = make_scheduler(spec, self.module)
        self.bare = bool(spec.get("profile")) and log is None
        if not self.bare:
            _instrument(self.scheduler, self.counts)

    def loop(self) -> None:
        """Serve every request; the loop of the module's docstring."""
        scheduler, depth = self.scheduler, 2 if self.spec["async"] else 1
        refill = refills_after_empty()
        arrivals, aborts = self.table["arrival_us"].tolist(), self._aborts()
        total, upcoming, stuck = len(arrivals), 0, 0
        pending: deque[tuple[int, Any, set[str], int]] = deque()
        while True:
            while upcoming < total and arrivals[upcoming] <= self.now_us:
                self._add(upcoming)
                upcoming += 1
            while aborts and aborts[0][0] <= self.now_us:
                self._abort(aborts.popleft()[1])
            if scheduler.has_requests():
                batch = self._schedule()
                pending.appendleft(batch)
                tokens = batch[1].total_num_scheduled_tokens
                waits = scheduler.has_requests()
                stuck = stuck + 1 if waits and not tokens and upcoming == total and not aborts else 0
                if stuck > _STUCK_STEPS:
                    first = next(iter(self.outputs), "none")
                    left = f"{len(self.outputs)} requests left, the first is {first}"
                    raise DriverError(f"no progress after step {self.counts.steps}: {left}", code=3)
                if len(pending) < depth and (tokens or (refill and waits)):
                    continue
            elif not pending:
                if upcoming == total:
                    return
                self.now_us = max(self.now_us, arrivals[upcoming])
                continue
            number, batch, sampled, takes_us = pending.pop()
            self.now_us += takes_us
            self._update(number, batch, sampled)

    def summary(self, wall_s: float) -> dict[str, Any]:
        """The last line of the output."""
        import vllm

        counts = self.counts
        status = getattr(self.module, "status", None)
        line = {
            "end": True,
            "version": vllm.__version__,
            **{name: value for name, value in asdict(counts).items() if isinstance(value, int)},
            "t_us": self.now_us,
            "policy": status() if callable(status) else None,
            "seconds": wall_s,
        }
        if self.spec.get("profile"):
            line.update(schedule_seconds=counts.schedule_s, update_seconds=counts.update_s)
        if self.bare:
            line.update(evictions=None, allocated=None, preemptions=None)
        return line

    def _add(self, index: int) -> None:
        from vllm import SamplingParams
        from vllm.v1.request import Request

        output = _tokens(self.table, "output", index)
        request_id = f"r{index:06d}"
        self.outputs[request_id] = output
        self.scheduler.add_request(
            Request(
                request_id=request_id,
                prompt_token_ids=_tokens(self.table, "prompt", index),
                sampling_params=SamplingParams(max_tokens=len(output), ignore_eos=True, temperature=0.0),
                pooling_params=None,
                priority=int(self.table["priority"][index]),
                arrival_time=int(self.table["arrival_us"][index]) / 1e6,
                block_hasher=self.hasher,
            )
        )

    def _aborts(self) -> deque[tuple[int, int]]:
        """When which request is aborted, in order."""
        times = self.table["abort_us"].tolist()
        return deque(sorted((time_us, index) for index, time_us in enumerate(times) if time_us >= 0))

    def _abort(self, index: int) -> None:
        from vllm.v1.request import RequestStatus

        request_id = f"r{index:06d}"
        if self.scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED):
            self.counts.aborts += 1
            self.counts.aborted.append(request_id)
            del self.outputs[request_id]

    def _schedule(self) -> tuple[int, Any, set[str], int]:
        """One `schedule()`: its number, its batch, the requests it samples a token for, what it takes."""
        scheduler, counts = self.scheduler, self.counts
        counts.evicted, counts.preempted = [], []
        before = {request.request_id for request in scheduler.running}
        started = time.perf_counter()
        batch = scheduler.schedule()
        counts.schedule_s += time.perf_counter() - started
        step, counts.steps = counts.steps, counts.steps + 1
        sampled, admitted = set(), []
        prefill = pairs = decodes = context = 0
        for request_id, tokens in batch.num_scheduled_tokens.items():
            request = scheduler.requests[request_id]
            held = request.num_computed_tokens - tokens
            if tokens == 1 and held >= request.num_prompt_tokens:
                decodes, context = decodes + 1, context + held + 1
            else:
                prefill, pairs = prefill + tokens, pairs + tokens * held + tokens * (tokens + 1) // 2
            if request_id not in before:
                admitted.append([request_id, held])
            if not request.is_prefill_chunk:
                sampled.add(request_id)
        counts.evictions += len(counts.evicted)
        counts.preemptions += len(counts.preempted)
        counts.hit_tokens += sum(hit for _, hit in admitted)
        counts.scheduled_tokens += batch.total_num_scheduled_tokens
        aborted, counts.aborted = counts.aborted, []
        if counts.evicted or admitted or counts.preempted or aborted:
            happened: dict[str, list[Any]] = {"evicted": counts.evicted, "admitted": admitted}
            happened["preempted"] = counts.preempted
            if aborted:
                happened["aborted"] = aborted
            self._write(step, "schedule", **happened)
        takes_us = _step_time(
            self.latency, batch.total_num_scheduled_tokens, prefill, pairs, decodes, context
        )
        return step, batch, sampled, takes_us

    def _update(self, step: int, batch: Any, sampled: set[str]) -> None:
        from vllm.v1.outputs import ModelRunnerOutput

        ids = list(batch.num_scheduled_tokens)
        tokens = [self._next_token(name) if name in sampled else [] for name in ids]
        output = ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={name: place for place, name in enumerate(ids)},
            sampled_token_ids=tokens,
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )
        started = time.perf_counter()
        results = self.scheduler.update_from_output(batch, output)
        self.counts.update_s += time.perf_counter() - started
        items = (item for group in results.values() for item in group.outputs)
        finished = [item.request_id for item in items if item.finish_reason is not None]
        for name in finished:
            del self.outputs[name]
        self.counts.requests += len(finished)
        if finished:
            self._write(step, "update", finished=finished)

    def _next_token(self, name: str) -> list[int]:
        request = self.scheduler.requests.get(name)
        return [] if request is None else [self.outputs[name][request.num_output_tokens]]

    def _write(self, step: int, phase: str, **happened: list[Any]) -> None:
        if self.log is not None:
            line = {"step": step, "phase": phase, "t_us": self.now_us, **happened}
            self.log.write(json.dumps(line) + "\n")


def main(arguments: list[str]) -> int:
    """Run `SPEC.json`, write `OUT.jsonl`, or serve runs; the exit status."""
    if len(arguments) != 2 and arguments != ["--serve"]:
        sys.stderr.write("usage: engine_driver.py SPEC.json OUT.jsonl | engine_driver.py --serve\n")
        return 2
    os.environ.update(HF_HUB_OFFLINE="1", VLLM_LOGGING_LEVEL="ERROR", VLLM_NO_USAGE_STATS="1")
    # Without one folder an environment, two versions overwrite each other's model notes (6 s a run).
    os.environ.setdefault("VLLM_CACHE_ROOT", str(Path(sys.prefix, ".vllm-cache")))
    if len(arguments) == 2:
        return run(*arguments)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever else is printed is no answer
    for line in sys.stdin:
        answers.write(f"{run(*json.loads(line))}\n")
        answers.flush()
    return 0


def run(spec_file: str, out_file: str) -> int:
    """One run; its exit status."""
    with Path(out_file).open("w", encoding="utf-8") as log, contextlib.redirect_stdout(sys.stderr):
        try:
            spec = json.loads(Path(spec_file).read_text(encoding="utf-8"))
            with np.load(spec["tokens"]) as table, _variables(spec.get("environment", {})):
                served = Run(spec, dict(table), log if spec.get("log", True) else None)
                started = time.perf_counter()
                served.loop()
                log.write(json.dumps(served.summary(time.perf_counter() - started), default=str) + "\n")
        except DriverError as error:
            log.write(json.dumps({"error": str(error)}) + "\n")
            return error.code
        except Exception as error:
            log.write(json.dumps({"error": f"{type(error).__name__}: {error}"}) + "\n")
            traceback.print_exc()
            return 2
    return 0


@contextlib.contextmanager
def _variables(wanted: Mapping[str, str]) -> Iterator[None]:
    """Environment variables for the time of one run."""
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _step_time(
    numbers: list[float], tokens: int, prefill: int, pairs: int, decodes: int, context: int
) -> int:
    base, per_prefill, per_pairs, per_decode, per_context, empty = numbers
    if tokens == 0:
        return math.floor(empty + 0.5)
    value = base + per_prefill * prefill
    value = value + per_pairs * (pairs / 1e6)
    value = value + per_decode * decodes
    value = value + per_context * (context / 1e3)
    return max(1, math.floor(value + 0.5))


def _tokens(table: Table, kind: str, index: int) -> list[int]:
    start, end = table[f"{kind}_offsets"][index : index + 2]
    part: list[int] = table[f"{kind}_tokens"][start:end].tolist()
    return part


def _instrument(scheduler: Any, counts: Counts) -> None:
    """Watch evictions, allocations and preemptions through instance attributes; change nothing."""
    pool = scheduler.kv_cache_manager.block_pool
    evict, allocate, preempt = pool._maybe_evict_cached_block, pool.get_new_blocks, scheduler._preempt_request

    def watched_evict(block: Any, *args: Any, **kwargs: Any) -> Any:
        done = evict(block, *args, **kwargs)
        if done:
            counts.evicted.append(block.block_id)
        return done

    def watched_allocate(num_blocks: int, *args: Any, **kwargs: Any) -> Any:
        counts.allocated += num_blocks
        return allocate(num_blocks, *args, **kwargs)

    def watched_preempt(request: Any, *args: Any, **kwargs: Any) -> Any:
        counts.preempted.append(request.request_id)
        return preempt(request, *args, **kwargs)

    pool._maybe_evict_cached_block = watched_evict
    pool.get_new_blocks = watched_allocate
    scheduler._preempt_request = watched_preempt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
