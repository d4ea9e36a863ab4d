"""A small Llama for machines without an accelerator: configuration and tokenizer, no weights.

vLLM fills the weights itself (`--load-format dummy`, from a fixed seed), so a folder of three
small files is a model that can be served, and nothing is downloaded. What it says is noise;
only how long it takes means something. Requests must set `ignore_eos`: a random model
may well sample the end of the text.

The default size is made for one core without bfloat16 arithmetic, where a prompt of 2,048 tokens
takes about 0.7 s and one that is cached 0.04 s. There a model of 26 M parameters (512, 8 layers)
takes 3 s in float32 and 14 s in bfloat16.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tanren_dsl.errors import TanrenError
from tanren_dsl.files import write_whole

VOCABULARY = 4096
"""Token ids of the model; id 0 ends a text."""

HIDDEN = 256
LAYERS = 4
POSITIONS = 8192
"""Longest text the model takes, in tokens."""

_END = "</s>"


def make_model(
    folder: Path,
    *,
    hidden: int = HIDDEN,
    layers: int = LAYERS,
    positions: int = POSITIONS,
    dtype: str = "float32",
) -> Path:
    """Write a Llama of 4 M parameters (at the default sizes) into `folder`; returns it.

    The same arguments give the same bytes. Files of these names are replaced, others are left.

    Args:
        folder: created if missing.
        hidden: width; a multiple of 128, for heads of 64 of which two share their keys and values.
        layers: number of layers.
        positions: longest text in tokens.
        dtype: of weights and KV cache, `bfloat16` or `float32`.

    Raises:
        TanrenError: the folder cannot be written, or `hidden` is not a multiple of 128.
    """
    if hidden <= 0 or hidden % 128:
        raise TanrenError(f"hidden must be a multiple of 128, found {hidden}")
    files = {
        "config.json": _config(hidden, layers, positions, dtype),
        "tokenizer.json": _tokenizer(),
        "tokenizer_config.json": _tokenizer_config(positions),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TanrenError(f"cannot write the model to {folder}: {error.strerror}") from None
    for name, content in files.items():
        write_whole(folder / name, json.dumps(content, indent=1) + "\n")
    return folder


def parameters(hidden: int = HIDDEN, layers: int = LAYERS) -> int:
    """Number of parameters of such a model: embeddings (tied), attention, MLP and norms."""
    attention = hidden * hidden * 3  # queries, output, and half as many keys and values
    mlp = 3 * hidden * _intermediate(hidden)
    return VOCABULARY * hidden + layers * (attention + mlp + 2 * hidden) + hidden


def kv_bytes_per_token(hidden: int = HIDDEN, layers: int = LAYERS, value_bytes: int = 4) -> int:
    """Bytes a token holds in the KV cache: for each layer a key and a value, half as wide as the model."""
    return hidden * layers * value_bytes


def _intermediate(hidden: int) -> int:
    return hidden * 11 // 4


def _config(hidden: int, layers: int, positions: int, dtype: str) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCABULARY,
        "hidden_size": hidden,
        "intermediate_size": _intermediate(hidden),
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // 64,
        "num_key_value_heads": hidden // 128,
        "head_dim": 64,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": positions,
        "tie_word_embeddings": True,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "torch_dtype": dtype,
    }


def _tokenizer() -> dict[str, Any]:
    """A word a token: `t1 t2 t3` is `[1, 2, 3]`, and any other word is token 1."""
    vocabulary = {_END: 0} | {f"t{number}": number for number in range(1, VOCABULARY)}
    end = {
        "id": 0,
        "content": _END,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [end],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "t1"},
    }


def _tokenizer_config(positions: int) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": _END,
        "bos_token": _END,
        "unk_token": "t1",
        "model_max_length": positions,
        "clean_up_tokenization_spaces": False,
    }
