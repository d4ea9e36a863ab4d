"""The ledger of a run: every look at its sealed hold-out, numbered, the unfinished ones too."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tanren_dsl.errors import TanrenError
from tanren_dsl.evolve.store import DATABASE, Store

BEGUN, DONE = "begun", "done"


@dataclass(frozen=True, slots=True)
class Look:
    """One look at the hold-out.

    Attributes:
        number: from 1; only the first was sealed.
        begun: when, in UTC.
        policy: declared name of what was judged.
        state: `begun` (it did not come to its end, and still counts) or `done`.
        result: what was printed, as JSON.
    """

    number: int
    begun: str
    policy: str
    state: str
    result: dict[str, Any] | None


def begin_look(store: Store, policy: str, holdout: str) -> int:
    """Write down that the hold-out is looked at, before it is; the number of the look."""
    try:
        with store.db:
            found = store.db.execute(
                "insert into ledger (begun, holdout, policy, state) values (?,?,?,?)",
                (datetime.now(UTC).isoformat(timespec="seconds"), holdout, policy, BEGUN),
            )
    except sqlite3.Error as error:
        raise TanrenError(f"cannot write {store.folder}: {error}") from None
    return int(found.lastrowid or 0)


def end_look(store: Store, number: int, result: dict[str, Any]) -> None:
    """Write down what was seen."""
    try:
        with store.db:
            store.db.execute(
                "update ledger set state = ?, result = ? where look = ?", (DONE, json.dumps(result), number)
            )
    except sqlite3.Error as error:
        raise TanrenError(f"cannot write {store.folder}: {error}") from None


def looks(store: Store) -> list[Look]:
    """All looks, the first first."""
    rows = store.db.execute("select look, begun, policy, state, result from ledger order by look")
    return [
        Look(number, begun, policy, state, json.loads(result) if result else None)
        for number, begun, policy, state, result in rows
    ]


def looks_elsewhere(store: Store, holdout: str) -> list[str]:
    """Runs in folders beside this one that looked at the same requests: luck adds up over them."""
    found = []
    for database in sorted(store.folder.resolve().parent.glob(f"*/{DATABASE}")):
        if database.parent == store.folder.resolve():
            continue
        count = _count(database, holdout)
        if count:
            found.append(f"{database.parent.name} ({count})")
    return found


def _count(database: Path, holdout: str) -> int:
    try:
        db = sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)
        try:
            row = db.execute("select count(*) from ledger where holdout = ?", (holdout,)).fetchone()
            return int(row[0])
        finally:
            db.close()
    except sqlite3.Error:
        return 0
