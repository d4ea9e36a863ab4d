"""vLLM's scheduler and block pool in plain Python: the oracle of the engine tests.

Written from the engine's source, with no code in common with the simulator or with
vLLM. Scope: one full-attention group, no connector, LoRA, speculation or images; first
come first served, or a schedule policy as `oracle_line.py` orders; LRU, or an evict policy as
`oracle_policy.py` judges. `Rules` names the differences between versions.

The exact rules, in the order in which they bite (`bs` is the block size):

- **Lookup** (`hits`): only blocks `[0, (num_tokens - 1) // bs)` are looked up, so the
  last token is always computed; `num_tokens` counts prompt and delivered outputs.
  Of several blocks with one hash the one cached first is hit.
- **Full-sequence gate**: a waiting request needs room for all of `num_tokens`, hit
  blocks that rest in the free queue counted as needed, before its first chunk.
- **Allocation**: hit blocks are taken out of the free queue in chain order, then new
  blocks come from its head; a popped block that has a hash is an eviction.
- **Caching at schedule time**: blocks below `min(computed + new, num_tokens) // bs`
  get their hash when slots are allocated, before any token is computed. Placeholders
  are not in `num_tokens`, so an asynchronous decode block is cached with the update:
  `(computed - placeholders) // bs`, after the token is appended and before a finished
  request is freed. A request that is not running at that moment caches nothing.
- **Free**: last block first. 0.19 appends to the free queue whatever reaches zero
  references; 0.32 puts blocks without hash at the head (the last block foremost) and
  appends the others.
- **Running part**: in list order while there is budget. `n = num_tokens +
  placeholders - computed`, cut to the budget and to `max_model_len - 1 - computed`. No
  room: the last of `running` is preempted, until there is room or it was the request
  itself, which ends this part. A request with `placeholders > 0` and `computed + 2 -
  placeholders >= prompt + max_tokens` is skipped: its last token is in flight.
- **Waiting part**: only if nothing was preempted in this step; head of line only.
- **Preemption**: frees, `computed = 0`, back to the head of `waiting`. Hashes stay, so
  it may hit its own blocks later. Output in flight is still delivered: the token
  counts, may finish the request (it then leaves `waiting`), and caches nothing.
  0.32 zeroes the placeholders at once and marks that output stale; 0.19 keeps them
  until it is delivered. At depth 2 the late output always arrives before the next
  `schedule()`, and a step with a preemption admits nobody: both come to the same.
- **After schedule**: `computed += n` at once; `chunk = computed < num_tokens +
  placeholders`; if not a chunk, the batch samples a token and (asynchronous)
  `placeholders += 1`.
- **Finish**: in batch order inside the update; `running` is filtered after it.
- **Abort**: before a step, after its arrivals. The blocks are freed at once, the request
  leaves its queue, and its token in flight is thrown away. One that is not there any
  more is left alone.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Any

from tanren_dsl.check import loads
from tanren_dsl.conform.harness import EngineRun, EngineSpec, TokenTable
from tanren_dsl.ir import Policy
from tests.conform.oracle_line import Line
from tests.conform.oracle_policy import Judge
from tests.conform.oracle_time import takes_us

Event = dict[str, Any]
Hash = tuple[int, tuple[int, ...]]


@dataclass(frozen=True)
class Rules:
    """What differs between engine versions."""

    unhashed_first: bool  # a freed block without hash goes to the head of the free queue
    refill: bool  # schedule again after an empty batch while the batch queue has room
    alone_exempt: bool  # the only request may prefill as much as the budget allows


RULES = {"0.19.1": Rules(False, False, False), "0.32.0": Rules(True, True, True)}
LRU = loads("policy lru : evict order by last_use")


@dataclass(eq=False)
class Request:
    name: str
    prompt: list[int]
    output: list[int]
    arrival_us: int
    priority: int = 0
    tokens: list[int] = field(default_factory=list)  # known: prompt and delivered outputs
    hashes: list[int] = field(default_factory=list)  # of the full blocks of `tokens`
    blocks: list[int] = field(default_factory=list)
    cached: int = 0  # leading blocks that have their hash
    computed: int = 0
    placeholders: int = 0
    running: bool = False
    gone: bool = False  # aborted

    @property
    def delivered(self) -> int:
        return len(self.tokens) - len(self.prompt)


class Pool:
    """The block pool: references, hashes and the free queue. Block 0 is never used."""

    def __init__(self, usable: int, rules: Rules, judge: Judge | None) -> None:
        self.rules, self.judge = rules, judge
        self.refs = [0] * (usable + 1)
        self.hash_of: list[int | None] = [None] * (usable + 1)
        self.free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, usable + 1))
        self.cached: dict[int, dict[int, None]] = {}
        self.evicted: list[int] = []

    def touch(self, blocks: list[int]) -> None:
        for block in blocks:
            if self.refs[block] == 0:
                del self.free[block]
            self.refs[block] += 1

    def take(self, count: int) -> list[int]:
        free = list(self.free)
        taken = free[:count] if self.judge is None or not count else self.judge.choose(free, count)
        for block in taken:
            del self.free[block]
            digest = self.hash_of[block]
            if digest is not None:
                self.evicted.append(block)
                if self.judge is not None:
                    self.judge.evicted(block)
                del self.cached[digest][block]
                if not self.cached[digest]:
                    del self.cached[digest]
                self.hash_of[block] = None
            self.refs[block] = 1
        return taken

    def put_hash(self, block: int, digest: int) -> None:
        self.hash_of[block] = digest
        self.cached.setdefault(digest, {})[block] = None

    def release(self, blocks: list[int]) -> None:
        first: list[int] = []
        last: list[int] = []
        for block in reversed(blocks):
            self.refs[block] -= 1
            if self.refs[block] == 0:
                unhashed = self.rules.unhashed_first and self.hash_of[block] is None
                (first if unhashed else last).append(block)
                if self.judge is not None:
                    self.judge.released(block)
        for block in last:
            self.free[block] = None
        for block in reversed(first):
            self.free[block] = None
            self.free.move_to_end(block, last=False)


class Engine:
    """Scheduler, cache manager and batch queue."""

    def __init__(
        self, spec: EngineSpec, version: str, policy: Policy | None = None, line: Line | None = None
    ) -> None:
        self.spec = spec
        self.rules = RULES[version]
        unscored = self.rules.unhashed_first
        judged = policy or (None if line is None else LRU)  # which knows the signals of the step
        self.judge = None if judged is None else Judge(judged, spec, unhashed_unscored=unscored)
        self.line = line
        self.pool = Pool(spec.usable_blocks, self.rules, self.judge)
        self.digests: dict[Hash, int] = {}
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.unflushed = False  # ids of finished requests that the next schedule() clears
        self.late_finishes = 0  # preempted requests that output in flight finished

    def add(self, request: Request, now: int = 0) -> None:
        self.append(request, request.prompt)
        self.waiting.append(request)
        if self.line is not None:
            self.line.joined(request, float(now))

    def append(self, request: Request, tokens: list[int]) -> None:
        size = self.spec.block_size
        request.tokens += tokens
        while (len(request.hashes) + 1) * size <= len(request.tokens):
            start = len(request.hashes) * size
            parent = request.hashes[-1] if request.hashes else -1
            key = (parent, tuple(request.tokens[start : start + size]))
            request.hashes.append(self.digests.setdefault(key, len(self.digests)))

    def has_requests(self) -> bool:
        return bool(self.waiting or self.running or self.unflushed)

    def hits(self, request: Request) -> list[int]:
        found: list[int] = []
        if not self.spec.enable_prefix_caching:
            return found
        for digest in request.hashes[: (len(request.tokens) - 1) // self.spec.block_size]:
            if digest not in self.pool.cached:
                break
            found.append(next(iter(self.pool.cached[digest])))
        return found

    def fits(self, request: Request, tokens: int, hits: list[int]) -> int | None:
        """New blocks needed to hold `tokens`, or None if the pool has too few."""
        need = max(-(-tokens // self.spec.block_size) - len(request.blocks) - len(hits), 0)
        resting = sum(self.pool.refs[block] == 0 for block in hits)
        return need if need + resting <= len(self.pool.free) else None

    def allocate(self, request: Request, computed: int, new: int, hits: list[int]) -> bool:
        need = self.fits(request, computed + new, hits)
        if need is None:
            return False
        self.pool.touch(hits)
        if self.judge is not None:
            for block in hits:
                self.judge.used(block, len(request.prompt))
        request.blocks += hits
        request.cached += len(hits)
        request.blocks += self.pool.take(need)
        self.cache(request, min(computed + new, len(request.tokens)))
        return True

    def cache(self, request: Request, tokens: int) -> None:
        full = tokens // self.spec.block_size if self.spec.enable_prefix_caching else 0
        for index in range(request.cached, full):
            self.pool.put_hash(request.blocks[index], request.hashes[index])
            if self.judge is not None:
                parent = request.hashes[index - 1] if index else None
                block, digest = request.blocks[index], request.hashes[index]
                self.judge.written(block, digest, parent, index, len(request.prompt))
            request.cached = index + 1

    def abort(self, name: str) -> bool:
        """Whether there was such a request."""
        for request in [*self.running, *self.waiting]:
            if request.name == name:
                self.release(request)
                (self.running if request.running else self.waiting).remove(request)
                request.running, request.gone = False, True
                self.unflushed = True
                return True
        return False

    def release(self, request: Request) -> None:
        self.pool.release(request.blocks)
        request.blocks, request.cached = [], 0

    def schedule(self, now: int = 0) -> tuple[dict[Request, int], list[Event], list[str]]:
        """Tokens per request in batch order, the admitted with their hits, the preempted."""
        if self.judge is not None:
            self.judge.begin(float(now), len(self.pool.free), len(self.running), self.waiting)
        if self.line is not None and self.judge is not None:
            size = self.spec.block_size
            self.line.order(
                self.judge.step, self.waiting, self.running, lambda one: len(self.hits(one)) * size
            )
        spec, budget = self.spec, self.spec.max_num_batched_tokens
        chunk = spec.long_prefill_token_threshold or spec.max_model_len
        if self.rules.alone_exempt and len(self.waiting) + len(self.running) == 1:
            chunk = spec.max_model_len
        batch: dict[Request, int] = {}
        admitted: list[Any] = []
        preempted: list[str] = []
        index = 0
        while index < len(self.running) and budget > 0:
            request = self.running[index]
            last = len(request.prompt) + len(request.output)
            if request.placeholders > 0 and request.computed + 2 - request.placeholders >= last:
                index += 1
                continue
            new = len(request.tokens) + request.placeholders - request.computed
            new = min(new, chunk, budget, spec.max_model_len - 1 - request.computed)
            if new == 0:
                index += 1
                continue
            while request.running and not self.allocate(request, request.computed, new, []):
                preempted.append(self.preempt(now))
            if not request.running:
                break
            batch[request] = new
            budget -= new
            index += 1
        while not preempted and self.waiting and budget > 0 and len(self.running) < spec.max_num_seqs:
            request = self.waiting[0]
            hits = self.hits(request)
            hit_tokens = len(hits) * spec.block_size
            new = min(len(request.tokens) - hit_tokens, chunk, budget)
            if self.fits(request, len(request.tokens), hits) is None:
                break
            if not self.allocate(request, hit_tokens, new, hits):
                break
            self.waiting.popleft()
            self.running.append(request)
            request.running, request.computed = True, hit_tokens
            if self.line is not None:
                self.line.admitted(request, float(now))
            admitted.append([request.name, hit_tokens])
            looked_up = (len(request.tokens) - 1) // spec.block_size
            if self.judge is not None and looked_up:
                self.judge.hit_rate.add(len(hits) / looked_up)
            batch[request] = new
            budget -= new
        self.unflushed = False
        if self.judge is not None:
            self.judge.tokens += sum(batch.values())
        return batch, admitted, preempted

    def preempt(self, now: int) -> str:
        victim = self.running.pop()
        self.release(victim)
        victim.running, victim.computed = False, 0
        self.waiting.appendleft(victim)
        if self.line is not None:
            self.line.pushed_out(victim, float(now))
        return victim.name

    def advance(self, batch: dict[Request, int]) -> set[Request]:
        """Count the batch as computed; the requests it samples a token for."""
        sampled = set()
        if self.line is not None:
            self.line.computed(batch)
        for request, new in batch.items():
            request.computed += new
            if request.computed >= len(request.tokens) + request.placeholders:
                sampled.add(request)
                request.placeholders += self.spec.asynchronous
        return sampled

    def update(self, batch: dict[Request, int], sampled: set[Request]) -> list[str]:
        """Deliver the batch's tokens; the finished requests in batch order."""
        finished: list[Request] = []
        for request in batch:
            if request not in sampled or request.gone:
                continue
            self.append(request, [request.output[request.delivered]])
            if self.spec.asynchronous:
                request.placeholders -= 1
                if request.running:
                    self.cache(request, request.computed - request.placeholders)
            if request.delivered == len(request.output):
                self.release(request)
                finished.append(request)
        for request in finished:
            (self.running if request.running else self.waiting).remove(request)
            self.late_finishes += not request.running
        self.unflushed |= bool(finished)
        return [request.name for request in finished]


def simulate(
    spec: EngineSpec, table: TokenTable, version: str, policy: Policy | None = None, line: Line | None = None
) -> EngineRun:
    """A whole run: the event lines that the engine driver writes, and some of its totals."""
    engine, events = Engine(spec, version, policy, line), list[Event]()
    depth, now, step, upcoming = (2 if spec.asynchronous else 1), 0, 0, 0
    pending: deque[tuple[int, dict[Request, int], set[Request], int]] = deque()
    aborts = deque(sorted((int(time), r) for r, time in enumerate(table.aborts) if time >= 0))
    stuck = 0
    while True:
        while upcoming < len(table) and table.arrival_us[upcoming] <= now:
            prompt, output = table.prompt(upcoming), table.output(upcoming)
            arrival = int(table.arrival_us[upcoming])
            urgent = 0 if table.priority is None else int(table.priority[upcoming])
            engine.add(Request(f"r{upcoming:06d}", prompt.tolist(), output.tolist(), arrival, urgent), now)
            upcoming += 1
        aborted = []
        while aborts and aborts[0][0] <= now:
            name = f"r{aborts.popleft()[1]:06d}"
            aborted += [name] if engine.abort(name) else []
        if engine.has_requests():
            evicted: list[int] = []
            engine.pool.evicted = evicted
            batch, admitted, preempted = engine.schedule(now)
            takes = takes_us(spec, batch)
            pending.appendleft((step, batch, engine.advance(batch), takes))
            if evicted or admitted or preempted or aborted:
                happened = {"evicted": evicted, "admitted": admitted, "preempted": preempted}
                happened |= {"aborted": aborted} if aborted else {}
                events.append({"step": step, "phase": "schedule", "t_us": now, **happened})
            step += 1
            over = bool(batch or aborts or upcoming < len(table) or not engine.has_requests())
            stuck = 0 if over else stuck + 1
            if stuck > 8:
                return EngineRun(events, {"stuck": True})
            if len(pending) < depth and (batch or (engine.rules.refill and engine.has_requests())):
                continue
        elif not pending:
            if upcoming == len(table):
                return EngineRun(events, {"steps": step, "t_us": now, "late_finishes": engine.late_finishes})
            now = max(now, int(table.arrival_us[upcoming]))
            continue
        done, batch, sampled, takes = pending.pop()
        now += takes
        if engine.judge is not None:
            engine.judge.now = float(now)
        finished = engine.update(batch, sampled)
        if finished:
            events.append({"step": done, "phase": "update", "t_us": now, "finished": finished})
