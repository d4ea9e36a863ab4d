"""Settings files: every error names its key; what stands in none has a default."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest

from tanren_dsl.errors import TanrenError
from tanren_dsl.scoring.settings import Settings, load_settings, parse_settings
from tanren_dsl.scoring.windows import MOST_REQUESTS

PACKAGED = Path(str(files("tanren_dsl.examples")), "configs", "score.toml")


def test_the_packaged_file_writes_out_the_defaults() -> None:
    found = load_settings(PACKAGED)
    assert found == Settings(trace="AzureLLMInferenceTrace_conv.csv", requests=MOST_REQUESTS)
    assert parse_settings("", "empty.toml") == Settings()


def test_a_file_sets_what_it_names() -> None:
    text = """
    trace = "chat:1:900"
    [server]
    capacity = 100
    caching = false
    [windows]
    starts = [0, 300, 600]
    requests = 100
    [load]
    shares = [1, 0.5]
    [score]
    k = 0
    """
    found = parse_settings(text, "mine.toml")
    assert found == Settings(
        trace="chat:1:900", capacity=100, caching=False, starts=(0, 300, 600), windows=3, requests=100,
        loads=(1.0, 0.5), k=0.0,
    )  # fmt: skip
    assert (found.server.usable_blocks, found.server.caching) == (100, False)
    assert not Settings(isolate=True).server.caching


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("trace = ", ["not TOML"]),
        ("trace = 3", ["trace: expected a text, found 3"]),
        ("trac = 'chat'", ["trac: unknown key", "did you mean `trace`?"]),
        ("[server]\ncapacty = 3", ["server.capacty: unknown key", "did you mean `server.capacity`?"]),
        ("[servr]\ncapacity = 3", ["servr: unknown key", "known keys: "]),
        ("server = 3", ["server: expected a table, found 3"]),
        (
            "[server]\ncapacity = 0",
            ["server.capacity: expected a whole number from 1 to 10,000,000, found 0"],
        ),
        ("[server]\ncapacity = true", ["server.capacity", "found True"]),
        ("[server]\nengine = 'vllm-9'", ["server.engine: expected one of vllm-0.19", "'vllm-9'"]),
        ("[server]\nisolate = 1", ["server.isolate: expected true or false, found 1"]),
        (
            "[load]\nshares = [0]",
            ["load.shares: expected 1 to 20 shares from 0.001 to 1000, each once", "(0,)"],
        ),
        ("[load]\nshares = [-1.0]", ["load.shares", "-1.0"]),
        ("[load]\nshares = [nan]", ["load.shares", "nan"]),
        ("[load]\nshares = [inf]", ["load.shares", "inf"]),
        ("[load]\nshares = []", ["load.shares", "found ()"]),
        ("[load]\nshares = [1, 1.0]", ["load.shares", "each once"]),
        ("[load]\nshares = 1.0", ["load.shares", "found 1.0"]),
        ("[load]\nidle = 0.95", ["load.idle: expected a share below all of load.shares, found 0.95"]),
        ("[load]\nidle = nan", ["load.idle", "found nan"]),
        ("[windows]\nstarts = [1, -1]", ["windows.starts: expected a list of request numbers", "-1"]),
        ("[windows]\nstarts = 4", ["windows.starts", "found 4"]),
        ("[windows]\nstarts = [0, 9]\ncount = 3", ["windows.starts: expected 3 of them", "found 2"]),
        ("[windows]\ncount = 0", ["windows.count"]),
        ("[windows]\nrepeats = 0", ["windows.repeats"]),
        ("[guard]\nseed_s = -1", ["guard.seed_s: expected seconds from 0, found -1"]),
        ("[score]\ns = 0.9", ["score.s: expected a number of at least 1, found 0.9"]),
        ("[score]\nk = 1" + 400 * "0", ["score.k", "..."]),
        ("[score]\nk = 1" + 5000 * "0", ["not TOML"]),
        ("k = 3", ["k: unknown key"]),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_an_error_names_the_key(text: str, says: list[str]) -> None:
    with pytest.raises(TanrenError) as caught:
        parse_settings(text, "mine.toml")
    for words in ("mine.toml: ", *says):
        assert words in str(caught.value)
    assert len(str(caught.value)) < 700


def test_an_unreadable_file_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_bytes(b"\xff")
    with pytest.raises(TanrenError, match=r"p\.toml: not UTF-8: byte 0xff"):
        load_settings(tmp_path / "p.toml")
    with pytest.raises(TanrenError, match=r"cannot read .*q\.toml"):
        load_settings(tmp_path / "q.toml")


def test_a_trace_is_looked_for_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text("trace = 'mine.csv'\nprofile = 'mine.toml'\n")
    assert load_settings(tmp_path / "p.toml").trace == "mine.csv"
    (tmp_path / "mine.csv").touch()
    (tmp_path / "mine.toml").touch()
    found = load_settings(tmp_path / "p.toml")
    assert (found.trace, found.profile) == (str(tmp_path / "mine.csv"), str(tmp_path / "mine.toml"))


def test_changed_settings_are_checked_too() -> None:
    with pytest.raises(TanrenError, match=r"server\.capacity: expected a whole number"):
        Settings().changed(capacity=-1)
