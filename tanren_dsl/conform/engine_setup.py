"""Make the real vLLM scheduler without a model: the half of `engine_driver.py` that knows vLLM's parts.

Imported by the driver from its own folder, inside a vLLM environment: standard library
and vLLM only, nothing of this package.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

Hasher = Callable[[Any], Any]

_MODEL = """{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
"intermediate_size": 128, "num_attention_heads": 2, "num_key_value_heads": 2, "num_hidden_layers": 1,
"vocab_size": 1048576, "max_position_embeddings": %d, "torch_dtype": "float32"}"""
_NUMBERS = count()
_LAST: dict[tuple[str, tuple[tuple[str, str], ...]], ModuleType] = {}


class DriverError(Exception):
    """Something that ends the run; `code` is the exit status."""

    def __init__(self, message: str, code: int = 2) -> None:
        self.code = code
        super().__init__(message)


def load_policy(path: str | None) -> ModuleType | None:
    """The emitted file as a module under a name of its own; None where there is no file.

    A file that is the same as in the run before, under the same variables, is the same
    module: what is compiled stays compiled. It makes a new scheduler for each run.
    """
    if path is None:
        return None
    key = (Path(path).read_text(encoding="utf-8"), tuple(sorted(os.environ.items())))
    module = _LAST.get(key)
    if module is not None:
        return module
    name = f"tanren_policy_{next(_NUMBERS)}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise DriverError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    if not hasattr(module, "Scheduler"):
        raise DriverError(f"{path} defines no Scheduler")
    for last in _LAST.values():
        sys.modules.pop(last.__name__, None)
    _LAST.clear()
    _LAST[key] = module
    return module


def make_scheduler(spec: dict[str, Any], module: ModuleType | None) -> tuple[Any, Hasher | None]:
    """The engine's scheduler, made as `EngineCore` makes it, and its request block hasher."""
    from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig, set_current_vllm_config
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core import single_type_kv_cache_manager as managers
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.structured_output import StructuredOutputManager

    block_size = int(spec["block_size"])
    caching = bool(spec.get("enable_prefix_caching", True))
    longest = int(spec["max_model_len"])
    with _model_folder(longest) as folder:
        model = ModelConfig(folder, skip_tokenizer_init=True, dtype="float32", max_model_len=longest)
        config = VllmConfig(
            model_config=model,
            cache_config=CacheConfig(enable_prefix_caching=caching),
            scheduler_config=SchedulerConfig(
                max_num_seqs=int(spec["max_num_seqs"]),
                max_num_batched_tokens=int(spec["max_num_batched_tokens"]),
                max_model_len=longest,
                enable_chunked_prefill=bool(spec.get("enable_chunked_prefill", True)),
                long_prefill_token_threshold=int(spec.get("long_prefill_token_threshold", 0)),
                scheduler_reserve_full_isl=bool(spec.get("scheduler_reserve_full_isl", True)),
                policy=str(spec.get("scheduling_policy", "fcfs")),
                is_encoder_decoder=False,
            ),
        )
    # The CPU platform rewrites these three; the scheduler is to see the engine's own.
    config.cache_config.block_size = block_size
    config.cache_config.num_gpu_blocks = int(spec["usable_blocks"]) + 1
    config.scheduler_config.async_scheduling = bool(spec["async"])
    if module is not None:
        config.scheduler_config.scheduler_cls = module.Scheduler
    hash_fn = get_hash_fn_by_name("sha256")
    init_none_hash(hash_fn)
    with set_current_vllm_config(config):
        if hasattr(managers, "register_all_kvcache_specs"):
            managers.register_all_kvcache_specs(config)
        scheduler = config.scheduler_config.get_scheduler_cls()(
            vllm_config=config,
            kv_cache_config=_kv_cache_config(config.cache_config.num_gpu_blocks, block_size),
            structured_output_manager=StructuredOutputManager(config),
            include_finished_set=False,
            log_stats=False,
            **_block_sizes(block_size),
        )
    return scheduler, get_request_block_hasher(block_size, hash_fn) if caching else None


def refills_after_empty() -> bool:
    """Whether this engine's batch queue schedules again after an empty batch."""
    spec = importlib.util.find_spec("vllm.v1.engine.core")
    if spec is None or spec.origin is None:
        raise DriverError("vllm.v1.engine.core is missing")
    text = Path(spec.origin).read_text(encoding="utf-8")
    return "model_executed or self.scheduler.has_requests()" in text


@contextlib.contextmanager
def _model_folder(max_model_len: int) -> Iterator[str]:
    """A folder that looks like a small Llama: a configuration, no weights."""
    with tempfile.TemporaryDirectory(prefix="tanren-model-") as folder:
        text = _MODEL % max_model_len
        Path(folder, "config.json").write_text(text, encoding="utf-8")
        yield folder


def _kv_cache_config(num_blocks: int, block_size: int) -> Any:
    import torch  # type: ignore[import-not-found]
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

    attention = FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=1, dtype=torch.float32)
    groups = [KVCacheGroupSpec(["layer"], attention)]
    return KVCacheConfig(num_blocks=num_blocks, kv_cache_tensors=[], kv_cache_groups=groups)


def _block_sizes(block_size: int) -> dict[str, int]:
    """The block-size arguments that this version's `EngineCore` passes."""
    from vllm.v1.core.sched.scheduler import Scheduler

    if "hash_block_size" in inspect.signature(Scheduler.__init__).parameters:
        return {"block_size": block_size, "hash_block_size": block_size}
    return {"block_size": block_size}
