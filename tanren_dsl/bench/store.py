"""The folder of a comparison: settings, finished rounds, what servers reported, results.

    bench.json                                  the settings; a folder holds one comparison
    CONFIG/ARM/round-N/requests.jsonl           a line for each request
    CONFIG/ARM/round-N/round.json               what the server counted; written last: the round is done
    servers/NNN-ARM.log, servers/NNN-ARM.json   all a server said; its faults, once it has stopped
    results.json

Every file is written whole or not at all, so an interrupted comparison goes on where it stopped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tanren_dsl.bench.client import Record
from tanren_dsl.errors import TanrenError
from tanren_dsl.files import write_whole

_MAY_GROW = "rounds"


@dataclass(frozen=True, slots=True)
class Counted:
    """What a server counted in a round, and which server it was.

    Tokens looked up and found in the prefix cache, preempted requests; None if the server was gone
    before it could be asked. `server` names its report; None for a server elsewhere.
    """

    queried_tokens: float | None
    hit_tokens: float | None
    preemptions: float | None
    server: str | None
    duration_s: float


@dataclass(frozen=True)
class Round:
    """One arm under one load, once: a record for each request, and the server's counters."""

    records: Sequence[Record]
    counted: Counted


@dataclass(frozen=True, slots=True)
class Report:
    """What a server of an arm said about its policy until it stopped, all its rounds and warm-ups together.

    `faults` and `decisions` are None if it did not say, as a server that was killed.
    """

    arm: str
    faults: int | None
    decisions: int | None
    exit_status: int | None
    policy_lines: tuple[str, ...]


class Store:
    """Reads and writes such a folder."""

    def __init__(self, folder: Path) -> None:
        """Address a folder; nothing is made yet."""
        self.folder = folder

    def open(self, settings: Mapping[str, Any]) -> None:
        """Make the folder, or go on with the one that is there.

        Raises:
            TanrenError: it cannot be made, or holds a comparison with other settings. More rounds
                than before are no other setting.
        """
        path = self.folder / "bench.json"
        wanted = json.loads(json.dumps(settings))
        if path.exists():
            found = _read(path)
            names = [n for n in {**found, **wanted} if n != _MAY_GROW and found.get(n) != wanted.get(n)]
            if names or found.get(_MAY_GROW, 0) > wanted.get(_MAY_GROW, 0):
                name = names[0] if names else _MAY_GROW
                raise TanrenError(
                    f"{self.folder} holds a comparison with other settings: {name} was "
                    f"{_short(found.get(name))}, now {_short(wanted.get(name))}",
                    hint="another --out, or remove that folder",
                )
        elif self.folder.exists() and (not self.folder.is_dir() or any(self.folder.iterdir())):
            raise TanrenError(f"{self.folder} exists and holds no comparison", hint="another --out")
        try:
            (self.folder / "servers").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise TanrenError(f"cannot make {self.folder}: {error.strerror or error}") from None
        write_whole(path, json.dumps(wanted, indent=2) + "\n")

    def has_round(self, config: str, arm: str, number: int) -> bool:
        """Whether a round, counted from 0, is finished."""
        return (self._round(config, arm, number) / "round.json").is_file()

    def write_round(self, config: str, arm: str, number: int, done: Round) -> None:
        """Keep a finished round."""
        folder = self._round(config, arm, number)
        folder.mkdir(parents=True, exist_ok=True)
        lines = "".join(json.dumps(record.as_json()) + "\n" for record in done.records)
        write_whole(folder / "requests.jsonl", lines)
        write_whole(folder / "round.json", json.dumps(asdict(done.counted), indent=2) + "\n")

    def read_round(self, config: str, arm: str, number: int) -> Round:
        """A finished round.

        Raises:
            TanrenError: its files are damaged.
        """
        folder = self._round(config, arm, number)
        counted = _read(folder / "round.json")
        try:
            lines = (folder / "requests.jsonl").read_text(encoding="utf-8").splitlines()
            return Round([Record.from_json(json.loads(line)) for line in lines], Counted(**counted))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TanrenError(
                f"{folder} is damaged: {error}", hint="remove it, and that round is run again"
            ) from None

    def new_server(self, arm: str) -> str:
        """The name of the next server of an arm."""
        taken = [int(path.name[:3]) for path in (self.folder / "servers").glob("[0-9][0-9][0-9]-*.log")]
        return f"{max(taken, default=0) + 1:03d}-{arm}"

    def server_log(self, server: str) -> Path:
        """Where a server's output goes."""
        return self.folder / "servers" / f"{server}.log"

    def write_report(self, server: str, report: Report) -> None:
        """Keep what a stopped server reported."""
        text = json.dumps(asdict(report), indent=2) + "\n"
        write_whole(self.folder / "servers" / f"{server}.json", text)

    def read_report(self, server: str) -> Report | None:
        """The report of a server, or None if it never came to write one."""
        path = self.folder / "servers" / f"{server}.json"
        if not path.is_file():
            return None
        found = _read(path)
        return Report(**{**found, "policy_lines": tuple(found["policy_lines"])})

    def write_results(self, results: Mapping[str, Any]) -> Path:
        """Keep the results; returns where."""
        path = self.folder / "results.json"
        write_whole(path, json.dumps(results, indent=2, allow_nan=False) + "\n")
        return path

    def _round(self, config: str, arm: str, number: int) -> Path:
        return self.folder / config / arm / f"round-{number + 1}"


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise TanrenError(f"{path} is damaged: {error}") from None


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
