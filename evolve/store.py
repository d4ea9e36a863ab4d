"""The run folder: what was asked, every candidate with its parents, every measurement.

`run.toml` is the problem as resolved, `run.sqlite` holds the rest, `champions/` the text.
Each generation is one transaction, each file is put in place whole: at any moment the
folder is valid, if perhaps of a run that has not ended.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tanren_dsl.errors import TanrenError
from tanren_dsl.evolve.fitness import Count
from tanren_dsl.files import write_whole

DATABASE = "run.sqlite"
RUNNING, FINISHED, INTERRUPTED = "running", "finished", "interrupted"

_TABLES = """
create table run (key text primary key, value text not null);
create table candidates (
    hash text primary key, text text not null, parents text not null, generation integer not null,
    operator text not null, cost real not null, state text not null, note text,
    train real, validation real
);
create table births (
    generation integer not null, place integer not null, hash text not null references candidates(hash),
    operator text not null, parents text not null, primary key (generation, place)
);
create table evaluations (
    hash text not null references candidates(hash), role text not null, window text not null,
    label text not null, capacity integer not null, hits integer not null, lookups integer not null,
    faults integer not null, primary key (hash, role, window, label)
);
"""


@dataclass(frozen=True, slots=True)
class CandidateRow:
    """One policy text and what became of it; scores in points, None where not measured."""

    hash: str
    text: str
    parents: tuple[str, ...]
    generation: int
    operator: str
    cost: float
    state: str
    note: str | None = None
    train: float | None = None
    validation: float | None = None


@dataclass(frozen=True, slots=True)
class Birth:
    """One individual of a generation; several may have the same text."""

    generation: int
    place: int
    hash: str
    operator: str
    parents: tuple[str, ...]


class Store:
    """An open run folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._db = sqlite3.connect(folder / DATABASE)
        self._db.execute("pragma foreign_keys = on")

    @classmethod
    def create(cls, folder: Path, resolved: str, *, replace: bool = False) -> Store:
        """Make a run folder.

        Args:
            folder: new or empty, or an earlier run's with `replace`.
            resolved: the text of `run.toml`.
            replace: remove an earlier run that is there.

        Raises:
            TanrenError: something is there already, or it cannot be made.
        """
        try:
            if folder.is_dir() and any(folder.iterdir()):
                if not (replace and (folder / DATABASE).is_file()):
                    raise _taken(folder)
                _clear(folder)
            (folder / "champions").mkdir(parents=True, exist_ok=True)
            write_whole(folder / "run.toml", resolved)
            draft = folder / f".{DATABASE}"
            draft.unlink(missing_ok=True)
            with sqlite3.connect(draft) as db:
                db.executescript(_TABLES)
                db.execute("insert into run values ('status', ?)", (RUNNING,))
            db.close()
            os.replace(draft, folder / DATABASE)
        except (OSError, sqlite3.Error) as error:
            _undo(folder)
            raise _unwritable(folder, error) from None
        return cls(folder)

    def record(
        self,
        candidates: Iterable[CandidateRow],
        births: Iterable[Birth],
        counts: Mapping[str, Iterable[Count]],
    ) -> None:
        """Add or update candidates, with individuals and measurements, in one transaction."""
        with self._transaction():
            self._db.executemany(
                "insert into candidates values (?,?,?,?,?,?,?,?,?,?) on conflict (hash) do update set "
                "state = excluded.state, note = excluded.note, train = excluded.train, "
                "validation = excluded.validation",
                [
                    (row.hash, row.text, json.dumps(row.parents), row.generation, row.operator, row.cost,
                     row.state, row.note, row.train, row.validation)
                    for row in candidates
                ],
            )  # fmt: skip
            self._db.executemany(
                "insert into births values (?,?,?,?,?)",
                [(b.generation, b.place, b.hash, b.operator, json.dumps(b.parents)) for b in births],
            )
            self._db.executemany(
                "insert or replace into evaluations values (?,?,?,?,?,?,?,?)",
                [
                    (key, c.role, c.window, c.label, c.capacity, c.hits, c.lookups, c.faults)
                    for key, found in counts.items()
                    for c in found
                ],
            )

    def champion(self, name: str, text: str) -> Path:
        """Write the champion's file."""
        path = self.folder / "champions" / f"{name}.tpl"
        try:
            write_whole(path, text)
        except OSError as error:
            raise _unwritable(self.folder, error) from None
        return path

    def note(self, **facts: object) -> None:
        """Facts about the whole run, such as its status."""
        with self._transaction():
            self._db.executemany(
                "insert or replace into run values (?, ?)",
                [
                    (key, value if isinstance(value, str) else json.dumps(value))
                    for key, value in facts.items()
                ],
            )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All or nothing; a full disk is the folder's fault, not ours."""
        try:
            with self._db:
                yield
        except sqlite3.Error as error:
            raise _unwritable(self.folder, error) from None

    def close(self) -> None:
        """Close the database."""
        self._db.close()


def status_of(folder: Path) -> str | None:
    """The status of a run folder, None where there is no run."""
    if not (folder / DATABASE).is_file():
        return None
    db = sqlite3.connect(folder / DATABASE)
    try:
        row = db.execute("select value from run where key = 'status'").fetchone()
        return str(row[0]) if row else None
    except sqlite3.DatabaseError:
        return None
    finally:
        db.close()


def _unwritable(folder: Path, error: OSError | sqlite3.Error) -> TanrenError:
    return TanrenError(f"cannot write {folder}: {getattr(error, 'strerror', None) or error}")


def _taken(folder: Path) -> TanrenError:
    status = status_of(folder)
    what = f"holds a run ({status})" if status else "is not empty"
    return TanrenError(f"{folder} {what}", hint="choose another folder with --out")


def _undo(folder: Path) -> None:
    """Leave nothing of a run folder that could not be made, but the folder."""
    with suppress(OSError):
        for name in (f".{DATABASE}", ".run.toml.tmp", "run.toml"):
            (folder / name).unlink(missing_ok=True)
        (folder / "champions").rmdir()


def _clear(folder: Path) -> None:
    """Remove an earlier run, nothing else."""
    (folder / DATABASE).unlink()
    for name in ("run.toml", "tanren_policy.py"):
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder / "champions", ignore_errors=True)
