"""What the emitted file remembers by hash: children, ghosts, and prompts that wait.

Only policies that read such signals carry it. Hashes get small numbers, rows of one
table, so that compiled functions can count by hash; a number is given back when
nothing holds it any more.

Copied, below the marker line, behind `vllm_kernels.py`; above it stand stand-ins.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tanren_dsl.backends.vllm_kernels import _jit
from tanren_dsl.backends.vllm_state import (
    _CHILD_COUNT,
    _EVICTED_AT,
    _EVICTED_USES,
    _HOLDERS,
    _OWN,
    _PARENT,
    _ROWS,
    _WAITING_COUNT,
    ROW_WIDTH,
    _table,
)
from tanren_dsl.kernels.block_rows import GHOST_USES, USES

# ======== runtime ========

_LONG_AGO = -(1 << 60)


@_jit
def _let_go(table, dead, number):
    table[number, _HOLDERS] -= 1
    if table[number, _HOLDERS] == 0:
        dead[0] += 1
        dead[dead[0]] = number


@_jit
def _drop(table, dead, block):
    own, parent = table[block, _OWN], table[block, _PARENT]
    if parent >= 0:
        table[parent, _CHILD_COUNT] -= 1
        _let_go(table, dead, parent)
    _let_go(table, dead, own)
    table[block, _OWN] = table[block, _PARENT] = -1


@_jit
def hashes_written(state, table, dead, ids, numbers, evictions, remembered):
    """Blocks got the hashes numbers[1:]; before each in its chain stands the one before it there."""
    rows = _table(state, _ROWS, ROW_WIDTH)
    for i in range(ids.shape[0]):
        block, parent, own = ids[i], numbers[i], numbers[i + 1]
        table[own, _HOLDERS] += 1
        if block == 0:
            _let_go(table, dead, own)
            continue
        if table[block, _OWN] >= 0:
            _drop(table, dead, block)
        table[block, _OWN] = own
        table[block, _PARENT] = parent
        if parent >= 0:
            table[parent, _HOLDERS] += 1
            table[parent, _CHILD_COUNT] += 1
        if GHOST_USES >= 0 and evictions - table[own, _EVICTED_AT] < remembered:
            rows[block, GHOST_USES] = float(table[own, _EVICTED_USES])


@_jit
def hashes_evicted(state, table, dead, ids, n, line, evictions):
    """The first n of these blocks lose their hashes, if they have one. Returns the evictions so far."""
    rows = _table(state, _ROWS, ROW_WIDTH)
    for i in range(n):
        block = ids[i]
        own = table[block, _OWN]
        if own < 0:
            continue
        evictions += 1
        if GHOST_USES >= 0:
            table[own, _EVICTED_AT] = evictions
            table[own, _EVICTED_USES] = int(rows[block, USES] + rows[block, GHOST_USES])
            table[own, _HOLDERS] += 1
            slot = evictions % line.shape[0]
            if line[slot] >= 0:
                _let_go(table, dead, line[slot])
            line[slot] = own
        _drop(table, dead, block)
    return evictions


@_jit
def hashes_forgotten(table, dead, blocks, line):
    """All hashes are gone, and with them what was remembered of evicted ones."""
    for block in range(blocks):
        if table[block, _OWN] >= 0:
            _drop(table, dead, block)
    for slot in range(line.shape[0]):
        if line[slot] >= 0:
            table[line[slot], _EVICTED_AT] = _LONG_AGO
            _let_go(table, dead, line[slot])
            line[slot] = -1


@_jit
def hashes_waited_for(table, dead, numbers, change):
    """One more, or one less, waiting request whose prompt has these hashes."""
    for i in range(numbers.shape[0]):
        table[numbers[i], _WAITING_COUNT] += change
        table[numbers[i], _HOLDERS] += 1
        if change < 0:
            _let_go(table, dead, numbers[i])
            _let_go(table, dead, numbers[i])


class Hashes:
    """Numbers for the hashes in use, and the table that counts by them."""

    def __init__(self, blocks: int, remembered: int) -> None:
        self.blocks = blocks
        self.remembered = remembered
        self.number: dict[Any, int] = {}
        self.key: list[Any] = []
        self.spare: list[int] = []
        self.table = np.full((blocks, 5), -1, np.int64)
        self.dead = np.zeros(1, np.int64)
        self.line = np.full(remembered, -1, np.int64)
        self.evictions = 0
        self.waiting: dict[str, Any] = {}
        self._grow(2 * blocks)

    def written(self, state: Any, ids: Any, request: Any, first: int) -> None:
        """Blocks number `first` and on of the request's chain got their hash."""
        keys = request.block_hashes
        chain = keys[first - 1 if first else 0 : first + len(ids)]
        numbers = self._numbers(chain) if first else [-1, *self._numbers(chain)]
        given = np.array(numbers, np.int64)
        hashes_written(state, self.table, self.dead, ids, given, self.evictions, self.remembered)
        self._bury()

    def evicted(self, state: Any, ids: Any, n: int) -> None:
        """The first n of these blocks lost their hash, if they had one."""
        self.evictions = hashes_evicted(state, self.table, self.dead, ids, n, self.line, self.evictions)
        self._bury()

    def forget(self) -> None:
        """All hashes are gone."""
        hashes_forgotten(self.table, self.dead, self.blocks, self.line)
        self._bury()

    def wait(self, requests: Any, block_size: int) -> None:
        """These requests wait now."""
        waiting = {request.request_id: request for request in requests}
        for name in self.waiting.keys() - waiting.keys():
            hashes_waited_for(self.table, self.dead, self.waiting.pop(name), -1)
        for name in waiting.keys() - self.waiting.keys():
            request = waiting[name]
            keys = request.block_hashes[: request.num_prompt_tokens // block_size]
            self.waiting[name] = np.array(self._numbers(keys), np.int64)
            hashes_waited_for(self.table, self.dead, self.waiting[name], 1)
        self._bury()

    def _numbers(self, keys: Any) -> list[int]:
        return [self.number[key] if key in self.number else self._new(key) for key in keys]

    def _new(self, key: Any) -> int:
        if not self.spare:
            self._grow(len(self.key))
        number = self.spare.pop()
        self.number[key] = number
        self.key[number - self.blocks] = key
        self.table[number] = (0, 0, _LONG_AGO, 0, 0)
        return number

    def _grow(self, more: int) -> None:
        size = len(self.table)
        self.table = np.concatenate((self.table, np.zeros((more, 5), np.int64)))
        self.dead = np.zeros(2 * len(self.table) + 1, np.int64)
        self.key += [None] * more
        self.spare += range(size + more - 1, size - 1, -1)

    def _bury(self) -> None:
        count = int(self.dead[0])
        if count:
            self.dead[0] = 0
            for number in self.dead[1 : count + 1].tolist():
                key = self.key[number - self.blocks]
                if key is not None and self.table[number, _HOLDERS] == 0:
                    del self.number[key]
                    self.key[number - self.blocks] = None
                    self.spare.append(number)
