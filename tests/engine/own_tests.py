"""vLLM's own tests with our file active: `python -m tests.engine.own_tests --engine-python PYTHON`.

Every test file runs in a plain vLLM and with policies whose order is vLLM's own, the shortcut
for such orders off. Each test must then end as it does without us, and the policy must
really have been there: attached, deciding, and never switched off by its guard.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path

from tanren_dsl.backends.vllm import emit
from tanren_dsl.check import loads
from tanren_dsl.conform.vllm_env import check_env
from tanren_dsl.errors import TanrenError
from tests.engine.one_run import CORE, Ran, run
from tests.engine.vllm_tests import prepare

POLICIES = {
    "lru": "policy lru : evict order by last_use",
    "every signal": """policy every_signal : evict
let load = (waiting + running) / max_running + kv_free + hit_rate + oldest_wait / (oldest_wait + mean_gap)
let past = uses + spaced_uses + ghost_uses + children + waiting_refs / max_running + gap / lifetime
let kind = depth / chain + (1 if generated else 0) + capacity / block_size
let pace = service_rate * age / token_budget + lifetime / mean_gap
order by last_use if load + past + kind + pace >= -1 else created
candidates all""",
    "served": """policy served : schedule
let load = (waiting + running) / max_running + kv_free + hit_rate + oldest_wait / (oldest_wait + wait)
let past = (cached_tokens + computed_tokens + output_tokens + attained_tokens) / max_tokens + preemptions
let pace = service_rate * wait / token_budget + uncached_tokens / block_size + (1 if resumed else 0)
let own = load + past + pace + capacity / block_size + abs(user_priority) >= -1
order by 0 if own else prompt_tokens, 0 if own else now - arrival
preempt by 0 if own else prompt_tokens""",
}
"""All order as vLLM does; the second and third make the file keep everything that it can keep."""

PLAIN_PYTHON = {"TANREN_NO_NUMBA": "1"}
"""The quick selection runs the second policy so, as the file can: compiling takes longer than the tests."""

QUICK = (
    "test_prefix_caching",
    "test_kv_cache_utils",
    "test_single_type_kv_cache_manager",
    "test_kv_cache_metrics",
)
QUICK_SERVED = ("test_scheduler", "test_async_scheduler")
"""What the quick selection runs for the schedule policy: files that make schedulers."""
HUB = ("test_scheduler_e2e", "test_reset_prefix_cache_e2e", "test_priority_scheduler_random")
"""Files of which nothing runs without weights, or a multimodal model, from the hub."""

TIMED = {"0.32.0": ("tests/v1/core/test_kv_cache_utils.py::test_is_kv_cache_spec_uniform",)}
"""Left out, by version: gives another Python 60 s to import vLLM, which a busy machine exceeds at random."""


def select(folder: Path, files: str) -> list[str]:
    """Test files below `tests/v1/core`: `quick`, `core` (all that can run) or `all`."""
    there = sorted((folder / CORE).rglob("test_*.py"))
    chosen = {
        "quick": [path for path in there if path.stem in QUICK + QUICK_SERVED],
        "core": [path for path in there if path.stem not in HUB],
        "all": there,
    }
    return [str(path.relative_to(folder)) for path in chosen[files]]


def differences(plain: Ran, other: Ran) -> list[str]:
    """Tests that ended otherwise than without us, one line each."""
    lines = []
    for test in sorted(plain.outcomes.keys() | other.outcomes.keys()):
        before, after = plain.outcomes.get(test), other.outcomes.get(test)
        if _ending(before) != _ending(after):
            lines.append(f"{test}: {_in_words(before)} without, {_in_words(after)} with {other.name}")
    return lines


def faults(ran: Ran) -> list[str]:
    """What a run with a policy did that it must not do, one line each."""
    counts = ran.attached["counts"]
    lines = [f"{ran.name}: {line}" for line in ran.attached["wrong"]]
    lines += [f"{ran.name}: {what}: none" for what in ("attached", "decisions") if not counts.get(what)]
    if counts.get("faults"):
        lines.append(f"{ran.name}: {counts['faults']} decisions fell back on vLLM's order")
    return lines


def table(runs: Sequence[Ran]) -> str:
    """Passed, failed and skipped tests by file, a column for each run."""
    columns = [_by_file(ran) for ran in runs]
    head = f"{'file':<52}" + "".join(f"{ran.name:>22}" for ran in runs)
    rows = [
        f"{file.removeprefix(CORE + '/'):<52}"
        + "".join(f"{_cell(column.get(file)):>22}" for column in columns)
        for file in columns[0]
    ]
    return "\n".join([head, *rows])


def account(ran: Ran) -> str:
    """What the plugin counted, in words."""
    counts = ran.attached["counts"]
    ways = ("schedulers", "managers alone", "bare pools", "bare queues")
    made = ", ".join(f"{counts.get(way, 0)} {way}" for way in ways)
    aside = "; ".join(f"{number} x {reason}" for reason, number in ran.attached["aside"].items()) or "none"
    return (
        f"{ran.name} ({ran.seconds:.0f} s): attached {counts.get('attached', 0)}, "
        f"{counts.get('decisions', 0)} decisions, {counts.get('faults', 0)} faults, "
        f"{len(ran.attached['wrong'])} wrong; "
        f"made by tests: {made}; stood aside: {aside}"
    )


def run_all(python: Path, files: str, jobs: int, only: str = "") -> tuple[list[Ran], list[str]]:
    """All runs, the plain one first, and every difference and fault found.

    Raises:
        TanrenError: no vLLM environment, its tests cannot be fetched, or pytest itself failed.
    """
    version = check_env(python)
    folder = prepare(version, python)
    chosen = [file for file in select(folder, files) if only in file]
    for test in TIMED.get(version, ()):
        chosen.append(f"--deselect={test}")
        sys.stderr.write(f"left out, for its time limit: {test}\n")

    def files_of(name: str) -> list[str]:
        if files != "quick" or name == "plain":
            return chosen
        stems = QUICK_SERVED if name == "served" else QUICK
        return [file for file in chosen if file.startswith("--") or Path(file).stem in stems]

    texts: dict[str, str | None] = {"plain": None}
    for name, written in POLICIES.items():
        policy = loads(written)
        texts[name] = emit(policy) if policy.kind == "evict" else emit(None, policy)
    special = dict.fromkeys(("every signal", "served"), PLAIN_PYTHON) if files == "quick" else {}
    with tempfile.TemporaryDirectory(prefix="tanren-own-tests-") as work, ThreadPoolExecutor(jobs) as pool:
        begun = [
            pool.submit(run, folder, python, files_of(name), name, text, Path(work), special.get(name, {}))
            for name, text in texts.items()
        ]
        plain, *active = runs = [one.result() for one in begun]
    wrong = []
    for ran in active:
        stems = {Path(file).stem for file in files_of(ran.name) if not file.startswith("--")}
        same = {
            test: ended for test, ended in plain.outcomes.items() if Path(test.split("::")[0]).stem in stems
        }
        wrong += [*differences(replace(plain, outcomes=same), ran), *faults(ran)]
    return runs, wrong


def main(arguments: list[str] | None = None) -> int:
    """The command line; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.engine.own_tests",
        description="Run vLLM's own tests plain and with the emitted file active, and compare.",
    )
    parser.add_argument("--engine-python", type=Path, required=True, help="Python of a vLLM environment")
    parser.add_argument("--files", choices=("quick", "core", "all"), default="quick")
    parser.add_argument("--only", default="", help="only files with this in their path")
    parser.add_argument("--jobs", type=int, default=3, help="runs at the same time")
    parser.add_argument("--json", action="store_true", help="everything, on standard output")
    given = parser.parse_args(arguments)
    try:
        runs, wrong = run_all(given.engine_python.absolute(), given.files, given.jobs, given.only)
    except TanrenError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    if given.json:
        print(json.dumps({"runs": [asdict(ran) for ran in runs], "wrong": wrong}))
    else:
        said = [account(ran) for ran in runs[1:]]
        print("passed / failed / skipped", table(runs), "", *said, "", *wrong, sep="\n")
        print(f"{len(runs[0].outcomes)} tests, {len(wrong)} differences or faults")
    return 1 if wrong else 0


def _ending(outcome: dict[str, str] | None) -> tuple[str, str] | None:
    return None if outcome is None else (outcome["outcome"], outcome["where"])


def _in_words(outcome: dict[str, str] | None) -> str:
    if outcome is None:
        return "not run"
    return " ".join(word for word in (outcome["outcome"], outcome["where"], outcome["message"]) if word)


def _by_file(ran: Ran) -> dict[str, Counter[str]]:
    files: dict[str, Counter[str]] = {}
    for test, outcome in ran.outcomes.items():
        word = outcome["outcome"].split()[0]
        files.setdefault(test.split("::")[0], Counter())[word] += 1
    return files


def _cell(counts: Counter[str] | None) -> str:
    if counts is None:
        return "not run"
    rest = sum(counts.values()) - counts["passed"] - counts["failed"] - counts["error"] - counts["skipped"]
    numbers = f"{counts['passed']} / {counts['failed'] + counts['error']} / {counts['skipped']}"
    return numbers + (f" / {rest} x" if rest else "")


if __name__ == "__main__":
    sys.exit(main())
