"""The small model: its files, byte for byte the same each time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tanren_dsl.bench.model import VOCABULARY, kv_bytes_per_token, make_model, parameters
from tanren_dsl.errors import TanrenError


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_same_arguments_give_the_same_bytes(tmp_path: Path) -> None:
    first, second = make_model(tmp_path / "a" / "model"), make_model(tmp_path / "b")
    assert content(first) == content(second) == content(make_model(second))
    assert content(first).keys() == {"config.json", "tokenizer.json", "tokenizer_config.json"}


def test_every_token_id_has_a_word_and_one_ends_a_text(tmp_path: Path) -> None:
    folder = make_model(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    assert sorted(tokenizer["model"]["vocab"].values()) == list(range(VOCABULARY))
    assert config["vocab_size"] == VOCABULARY
    assert tokenizer["added_tokens"][0]["id"] == config["eos_token_id"] == 0


def test_sizes_are_those_of_the_configuration(tmp_path: Path) -> None:
    config = json.loads((make_model(tmp_path, hidden=512, layers=8) / "config.json").read_text())
    assert config["head_dim"] * config["num_attention_heads"] == config["hidden_size"] == 512
    assert config["num_attention_heads"] == 2 * config["num_key_value_heads"]
    assert 25e6 < parameters(512, 8) < 26e6
    assert 3.9e6 < parameters() < 4.1e6
    values = 2 * config["num_key_value_heads"] * config["head_dim"] * config["num_hidden_layers"]
    assert kv_bytes_per_token(512, 8) == 4 * values


def test_a_width_without_whole_heads_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TanrenError, match="multiple of 128, found 192"):
        make_model(tmp_path, hidden=192)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TanrenError, match=r"cannot write the model to .*file"):
        make_model(tmp_path / "file" / "model")
