"""A small model with random weights whose tokens are bytes and words of the language.

Nothing that it says means anything, which is what a test of a grammar wants: whatever it
writes is text that the grammar let through.
"""

from __future__ import annotations

import json
from pathlib import Path

from tanren_dsl.bench.model import make_model
from tanren_dsl.ops import CALLS
from tanren_dsl.signals import SIGNALS

END = "</s>"
WORDS = (
    "policy ",
    " : evict",
    " : schedule",
    "\norder by ",
    "\nlet ",
    " = ",
    " if ",
    " else ",
    " / ",
    ", ",
    " ** 2",
)
TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"


def make_byte_model(folder: Path, positions: int) -> Path:
    """Write the model into `folder`, for texts of so many tokens; returns it."""
    make_model(folder, positions=positions)
    words = dict.fromkeys([*WORDS, *(row.name for row in SIGNALS), *(f"{name}(" for name in CALLS)])
    letters = byte_letters()
    pieces = [letters[byte] for byte in range(256)]
    pieces += ["".join(letters[byte] for byte in word.encode()) for word in words if len(word) > 1]
    vocabulary = {piece: number for number, piece in enumerate([END, *pieces])}
    config = json.loads((folder / "config.json").read_text())
    config["vocab_size"] = len(vocabulary)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    bytewise = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    tokenizer["pre_tokenizer"] = tokenizer["decoder"] = bytewise
    tokenizer["model"] = {"type": "BPE", "vocab": vocabulary, "merges": []}
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    del settings["unk_token"]
    settings["chat_template"] = TEMPLATE
    for name, data in (("config", config), ("tokenizer", tokenizer), ("tokenizer_config", settings)):
        (folder / f"{name}.json").write_text(json.dumps(data, indent=1))
    return folder


def byte_letters() -> dict[int, str]:
    """The letter that stands for each byte in tokenizers of the GPT-2 family."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + n) for n, byte in enumerate(others)}
