"""What separates two groups: counted exactly, found where it was planted, denied where there is nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tanren_dsl.diagnosis.features import Feature, Features, features_of
from tanren_dsl.diagnosis.patterns import find_patterns
from tanren_dsl.diagnosis.separation import auc, contrasts, separations
from tanren_dsl.units import PLAIN, TIME, TOKENS

values = st.lists(st.integers(0, 5), min_size=1, max_size=12)


@given(values, values)
def test_auc_is_the_share_of_pairs_with_ties_halved(one: list[int], other: list[int]) -> None:
    pairs = [(a > b) + 0.5 * (a == b) for a in one for b in other]
    assert auc(np.array(one, float), np.array(other, float)) == pytest.approx(sum(pairs) / len(pairs))


def test_auc_of_an_empty_group_tells_nothing() -> None:
    assert auc(np.zeros(0), np.ones(3)) == auc(np.ones(3), np.zeros(0)) == 0.5


def drawn(seed: int, n: int = 4000) -> Features:
    rng = np.random.default_rng(seed)
    rows = (
        Feature("age", "age", TIME, "age / mean(age)"),
        Feature("age / mean(age)", "age", PLAIN, "age"),
        Feature("depth", "depth", TOKENS),
        Feature("uses", "uses", PLAIN),
    )
    age = rng.uniform(0, 100e6, n)
    table = np.column_stack([age, age / 50e6, rng.integers(0, 1000, n), rng.integers(0, 4, n)])
    return Features(rows, table)


def test_a_planted_conjunction_is_found_with_both_forms_of_its_threshold() -> None:
    features = drawn(1)
    age, depth = features.values[:, 0], features.values[:, 2]
    bad = (age <= 20e6) & (depth >= 700)
    (pattern,) = find_patterns(features, bad * 3.0, ~bad)
    assert {one.feature.family for one in pattern.conditions} == {"age", "depth"}
    assert pattern.share > 0.85
    assert pattern.precision > 0.9
    assert pattern.lift == pytest.approx(pattern.precision / bad.mean())
    assert bad[pattern.example]
    timed = next(one for one in pattern.conditions if one.feature.family == "age")
    forms = [timed.text, timed.twin]
    assert sorted(form.split(" <= ")[0] for form in forms) == ["age", "age / mean(age)"]
    assert any(form.startswith("age <= ") and form.endswith(" s") for form in forms)


def test_two_causes_are_two_patterns_by_their_regret() -> None:
    features = drawn(2)
    old, deep = features.values[:, 0] >= 90e6, features.values[:, 2] <= 60
    regret = np.where(old, 5.0, np.where(deep, 4.0, 0.0))
    found = find_patterns(features, regret, regret == 0)
    assert [one.conditions[0].feature.family for one in found] == ["age", "depth"]
    assert found[0].share > found[1].added > 0.1
    assert sum(one.added for one in found) <= 1.0 + 1e-9


@pytest.mark.parametrize("seed", range(5))
def test_noise_has_no_pattern(seed: int) -> None:
    features = drawn(seed)
    bad = np.random.default_rng(100 + seed).random(4000) < 0.1
    assert find_patterns(features, bad * 1.0, ~bad) == ()
    assert all(one.strength < 0.1 for one in separations(features, bad, ~bad))


def test_too_few_decisions_are_not_generalised() -> None:
    features = drawn(3, 10)
    bad = np.arange(10) < 5
    assert find_patterns(features, bad * 1.0, ~bad) == ()
    nobody = np.zeros(10, bool)
    assert separations(features, nobody, ~nobody) == ()


def test_the_search_is_the_same_every_time_and_order_free_in_its_totals() -> None:
    features = drawn(4)
    bad = features.values[:, 3] >= 3
    assert find_patterns(features, bad * 1.0, ~bad) == find_patterns(features, bad * 1.0, ~bad)
    (pattern,) = find_patterns(features, bad * 1.0, ~bad)
    assert (pattern.text, pattern.share, pattern.right) == ("uses >= 3", 1.0, 0)


def test_features_are_named_as_a_policy_writes_them_and_constants_drop_out() -> None:
    signals = {
        "last_use": np.array([1.0, 2.0]), "age": np.array([4e6, 2e6]), "depth": np.array([0.0, 8.0]),
        "chain": np.array([16.0, 8.0]), "uses": np.array([1.0, 1.0]), "mean_gap": np.array([0.0, 1e6]),
    }  # fmt: skip
    found = features_of("evict", signals, {"age": np.array([2e6, 0.0])})
    by_name = {row.text: found.values[:, k].tolist() for k, row in enumerate(found.rows)}
    assert by_name["age / mean(age)"] == [2.0, 0.0]
    assert by_name["age / mean_gap"] == [0.0, 2.0]
    assert by_name["chain - depth"] == [16.0, 0.0]
    assert by_name["depth / chain"] == [0.0, 1.0]
    assert {"uses", "last_use"}.isdisjoint(by_name)


def test_contrasts_count_ties_half_and_leave_out_who_had_no_rival() -> None:
    lost = {"age": np.array([1e6, 2e6, 5e6, 9e6])}
    preferred = {"age": np.array([2e6, 2e6, np.nan, 9e6])}
    (one,) = contrasts("evict", lost, preferred, np.array([True, True, True, False]))
    assert (one.lower, one.regretted, one.preferred) == (0.75, 1.5e6, 2e6)
