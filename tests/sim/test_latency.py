"""Latency profiles: the arithmetic, bit for bit, and files that are refused by name."""

from __future__ import annotations

import math
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tanren_dsl.errors import TanrenError
from tanren_dsl.kernels.jit import jit
from tanren_dsl.sim.latency import (
    ATTENTION,
    BASE,
    CONTEXT,
    DECODE,
    EMPTY,
    LATENCY_WIDTH,
    PREFILL,
    TERMS,
    Latency,
    constant,
    latency_text,
    parse_latency,
    profiles,
    read_latency,
    step_time,
)

GOOD = """
name = "mine"
source = "a guess"
basis = "estimate"

[microseconds]
base = 1000
prefill = 10.5
attention = 200
decode = 30
context = 4
empty = 50
"""


@jit
def called(coefficients, tokens, prefill, pairs, decodes, context):  # type: ignore[no-untyped-def]
    """The function inside a compiled one, as the simulator uses it."""
    return step_time(coefficients, tokens, prefill, pairs, decodes, context)


def plain(
    c: list[float], tokens: int, prefill_tokens: int, pairs: float, decodes: int, context: float
) -> int:
    """What the driver of an engine computes, written anew."""
    if tokens == 0:
        value = c[EMPTY]
    else:
        value = (
            ((c[BASE] + c[PREFILL] * prefill_tokens) + c[ATTENTION] * (pairs / 1e6)) + c[DECODE] * decodes
        ) + c[CONTEXT] * (context / 1e3)
    return max(1 if tokens else 0, math.floor(value + 0.5))


def test_the_places_are_a_vector_of_six() -> None:
    assert tuple(range(LATENCY_WIDTH)) == (BASE, PREFILL, ATTENTION, DECODE, CONTEXT, EMPTY)
    assert TERMS == ("base", "prefill", "attention", "decode", "context", "empty")


numbers = st.floats(0.0, 1e9, allow_nan=False)
counts = st.integers(0, 1 << 20)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(numbers, min_size=6, max_size=6),
    counts,
    counts,
    st.integers(0, 1 << 40),
    st.integers(0, 1 << 34),
)
def test_compiled_and_plain_times_are_the_same_bits(
    numbers: list[float], prefill: int, decodes: int, pairs: int, context: int
) -> None:
    vector, tokens = np.array(numbers), prefill + decodes
    expected = plain(numbers, tokens, prefill, pairs, decodes, context)
    assert called(vector, tokens, prefill, pairs, decodes, context) == expected
    assert called(vector, tokens, prefill, float(pairs), decodes, float(context)) == expected
    assert step_time(vector, tokens, prefill, float(pairs), decodes, float(context)) == expected


def test_each_term_is_what_the_docstring_says() -> None:
    vector = parse_latency(GOOD, "text").coefficients
    assert step_time(vector, 0, 0, 0.0, 0, 0.0) == 50
    assert step_time(vector, 100, 100, 2e6, 0, 0.0) == 1000 + 1050 + 400
    assert step_time(vector, 8, 0, 0.0, 8, 500_000.0) == 1000 + 240 + 2000


def test_a_step_with_tokens_takes_time_and_halves_are_rounded_up() -> None:
    nothing = constant(0.0).coefficients
    assert step_time(nothing, 5, 5, 15.0, 0, 0.0) == 1
    assert step_time(nothing, 0, 0, 0.0, 0, 0.0) == 0
    assert step_time(constant(2.5).coefficients, 1, 1, 1.0, 0, 0.0) == 3


def test_a_constant_is_the_same_whatever_a_step_does() -> None:
    vector = constant(20_000).coefficients
    assert step_time(vector, 0, 0, 0.0, 0, 0.0) == 20_000
    assert step_time(vector, 5000, 4000, 8e6, 1000, 9e6) == 20_000
    with pytest.raises(TanrenError, match="a constant step: step_us: expected microseconds from 0"):
        constant(-1)


def test_a_profile_survives_its_text() -> None:
    latency = replace(parse_latency(GOOD, "text"), residual='a "half"\nof ü %', prefill_us=1 / 3)
    assert parse_latency(latency_text(latency), "text") == latency
    assert "not held against an engine" in parse_latency(GOOD, "text").summary
    assert latency.summary == f"mine (estimate; {latency.residual})"


@pytest.mark.parametrize("name", profiles())
def test_shipped_profiles_are_named_after_their_files_and_say_where_they_are_from(name: str) -> None:
    latency = read_latency(name)
    assert latency.name == name
    assert len(latency.source) > 20
    assert (latency.coefficients > 0).all()
    assert (latency.basis == "measured") == (latency.residual is not None)


def test_three_profiles_are_shipped() -> None:
    assert {"gb10-llama-3.1-8b", "gb10-llama-3.2-1b", "cpu-llama-25m"} <= set(profiles())


def test_the_estimate_for_gb10_gives_back_the_rates_it_is_made_of() -> None:
    vector = read_latency("gb10-llama-3.1-8b").coefficients
    one = step_time(vector, 1, 0, 0.0, 1, 1024.0)
    many = step_time(vector, 32, 0, 0.0, 32, 32 * 1024.0)
    prefill = step_time(vector, 8192, 8192, 8 * 1024 * 1025 / 2, 0, 0.0)
    assert 1e6 / one == pytest.approx(20.5, rel=0.01)
    assert 32e6 / many == pytest.approx(368, rel=0.01)
    assert 8192e6 / prefill == pytest.approx(7949, rel=0.01)


def test_a_file_goes_before_a_shipped_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("cpu-llama-25m").write_text(GOOD)
    assert read_latency("cpu-llama-25m").name == "mine"
    assert read_latency(tmp_path / "cpu-llama-25m").base_us == 1000.0


def test_an_unknown_name_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(TanrenError, match="no latency profile 'gb10'") as caught:
        read_latency("gb10")
    assert "gb10-llama-3.1-8b, gb10-llama-3.2-1b" in str(caught.value)
    with pytest.raises(TanrenError, match="Is a directory"):
        read_latency(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("base = 1000", "base = -1", "mine.toml: microseconds.base: expected microseconds from 0 to 1e+09"),
        ("decode = 30", "decode = -1", "1e+09, found -1"),
        ("decode = 30", "decode = nan", "microseconds.decode: expected microseconds from 0"),
        ("decode = 30", "decode = inf", "microseconds.decode: expected microseconds from 0"),
        ("decode = 30", "decode = true", "microseconds.decode: expected microseconds from 0"),
        ("decode = 30", 'decode = "30"', "microseconds.decode: expected microseconds from 0"),
        ("decode = 30", f"decode = {10**400}", "microseconds.decode: expected microseconds from 0"),
        ("decode = 30", "", "microseconds.decode: expected microseconds from 0 to 1e+09, found nothing"),
        ("decode = 30", "decoded = 30", "did you mean `decode`?"),
        ("name", "nome", "did you mean `name`?"),
        ('"a guess"', '""', "source: expected a text, found ''"),
        ('"estimate"', '"hope"', "basis: expected measured or estimate, found 'hope'"),
        ("[microseconds]", "[milliseconds]", "milliseconds: unknown key"),
        ("[microseconds]", "[[microseconds]]", "microseconds: expected a table with base, prefill"),
        ("name =", "name", "mine.toml: not TOML"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused_with_its_key(old: str, new: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(TanrenError) as caught:
        read_latency(path)
    assert words in str(caught.value)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_bytes(b"name = \xff")
    with pytest.raises(TanrenError, match="not UTF-8: byte 0xff"):
        read_latency(tmp_path / "x.toml")


def test_a_profile_cannot_be_made_wrong() -> None:
    good = tomllib.loads(GOOD)
    values = {f"{term}_us": good["microseconds"][term] for term in TERMS}
    with pytest.raises(TanrenError, match="latency x: basis: expected measured or estimate, found 'told'"):
        Latency("x", "y", "told", **values)
    with pytest.raises(TanrenError, match="latency x: decode: expected microseconds"):
        Latency("x", "y", "estimate", **{**values, "decode_us": math.nan})
