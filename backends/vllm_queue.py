"""How the emitted file watches vLLM's block pool, and its free queue with another choice of victims.

Copied, below the marker line, behind `vllm_runtime.py` where the file has an evict policy; above
it stand stand-ins.
"""

from __future__ import annotations

from typing import Any

from tanren_dsl.backends.vllm_runtime import say_farewell

AS_OF_STEP = USES_MATTER = True

# ======== runtime ========


def make_evicting_class(base: Any) -> Any:
    """The scheduler of vLLM with the two moments marked at which time is frozen."""

    class TanrenScheduler(base):  # type: ignore[misc]
        """vLLM's scheduler; freezes the moment at the top of a step, nothing else."""

        tanren: Any = None

        def schedule(self, *args: Any, **kwargs: Any) -> Any:
            evictor = self.tanren
            if evictor is None or not evictor.on:
                return super().schedule(*args, **kwargs)
            try:
                evictor.step_begins()
            except Exception as error:
                evictor.failed(error)
            output = super().schedule(*args, **kwargs)
            if AS_OF_STEP or USES_MATTER:
                try:
                    evictor.step_ends(output)
                except Exception as error:
                    evictor.failed(error)
            return output

        def update_from_output(self, *args: Any, **kwargs: Any) -> Any:
            evictor = self.tanren
            if evictor is not None and evictor.on:
                try:
                    evictor.freeze_now()
                except Exception as error:
                    evictor.failed(error)
            return super().update_from_output(*args, **kwargs)

        def shutdown(self, *args: Any, **kwargs: Any) -> Any:
            if self.tanren is not None:
                say_farewell(self.tanren)
            return super().shutdown(*args, **kwargs)

    return TanrenScheduler


def told_before(evictor: Any, owner: Any, name: str, tell: Any) -> tuple[Any, str, Any, Any]:
    """A method, and one in its place that first tells the evictor its arguments."""
    original = getattr(owner, name)

    def ours(*args: Any, **kwargs: Any) -> Any:
        if evictor.on:
            try:
                tell(*args, **kwargs)
            except Exception as error:
                evictor.failed(error)
        return original(*args, **kwargs)

    return owner, name, original, ours


def told_after(evictor: Any, owner: Any, name: str, tell: Any) -> tuple[Any, str, Any, Any]:
    """A method, and one in its place that then tells the evictor its answer and its arguments."""
    original = getattr(owner, name)

    def ours(*args: Any, **kwargs: Any) -> Any:
        answer = original(*args, **kwargs)
        if evictor.on:
            try:
                tell(answer, *args, **kwargs)
            except Exception as error:
                evictor.failed(error)
        return answer

    return owner, name, original, ours


def noted_after(evictor: Any, owner: Any, name: str) -> tuple[Any, str, Any, Any]:
    """A method, and one in its place that then notes the moment and its arguments, for later."""
    original = getattr(owner, name)

    def ours(*args: Any, **kwargs: Any) -> Any:
        answer = original(*args, **kwargs)
        if evictor.on:
            evictor.pending.append((evictor.now, args, kwargs))
        return answer

    return owner, name, original, ours


def make_queue_class(base: Any) -> Any:
    """The free queue of vLLM with another choice of victims."""

    class TanrenQueue(base):  # type: ignore[misc]
        """vLLM's free queue, which stays the storage; only the choice of victims differs.

        Calls go to `base` by name: the policy may switch itself off, and the queue's class
        back to vLLM's, in the middle of one.
        """

        tanren: Any

        def popleft(self) -> Any:
            return self.popleft_n(1)[0]

        def popleft_n(self, n: int) -> Any:
            evictor, victims = self.tanren, None
            if n > 0 and evictor.on:
                try:
                    victims = evictor.choose(n)
                except Exception as error:
                    evictor.failed(error)
            if victims is None:
                return base.popleft_n(self, n)
            before: Any = None  # what stands on either side of those taken last
            after: Any = None
            for block in victims:
                if block is after:
                    after = block.next_free_block
                else:
                    if after is not None:
                        before.next_free_block, after.prev_free_block = after, before
                    before, after = block.prev_free_block, block.next_free_block
                block.prev_free_block = block.next_free_block = None
            before.next_free_block, after.prev_free_block = after, before
            self.num_free_blocks -= n
            return victims

        def append(self, block: Any) -> None:
            base.append(self, block)
            self._entered([block], False)

        def append_n(self, blocks: Any) -> None:
            base.append_n(self, blocks)
            if blocks:
                self._entered(blocks, False)

        def prepend_n(self, blocks: Any) -> None:
            base.prepend_n(self, blocks)
            if blocks:
                self._entered(blocks, True)

        def _entered(self, blocks: Any, to_front: bool) -> None:
            if self.tanren.on:
                try:
                    self.tanren.entered(blocks, to_front)
                except Exception as error:
                    self.tanren.failed(error)

    return TanrenQueue
