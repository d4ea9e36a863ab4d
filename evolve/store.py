"""The run folder: what was asked, every candidate with its parents, every measurement and call.

`run.toml` is the problem as resolved, `run.sqlite` holds the rest, `champions/` the text, `start/`
the policies that the problem names. A measurement is written as soon as it is there, and each file
is put in place whole: whenever the process ends, by whatever, the folder is valid, and a run that
begins again in it measures nothing twice.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from tanren_dsl.errors import TanrenError
from tanren_dsl.evolve.measures import Measure, Place, Stage
from tanren_dsl.evolve.windows import Role
from tanren_dsl.files import write_whole

DATABASE = "run.sqlite"
RUNNING, REACHED, MISSED, INTERRUPTED, FAILED = (
    "running", "reached", "did not reach", "interrupted", "failed",
)  # fmt: skip

_TABLES = """
create table run (key text primary key, value text not null);
create table candidates (
    hash text primary key, text text not null, parents text not null, generation integer not null,
    operator text not null, cost real not null, state text not null, note text,
    short real, train real, validation real
);
create table births (
    generation integer not null, place integer not null, hash text not null references candidates(hash),
    operator text not null, parents text not null, primary key (generation, place)
);
create table evaluations (
    hash text not null, role text not null, stage text not null, error text, measures text not null,
    primary key (hash, role, stage)
);
create table ledger (
    look integer primary key autoincrement, begun text not null, holdout text not null, policy text not null,
    state text not null, result text
);
"""


@dataclass(frozen=True, slots=True)
class CandidateRow:
    """One policy text and what became of it; mean scores, None where not measured."""

    hash: str
    text: str
    parents: tuple[str, ...]
    generation: int
    operator: str
    cost: float
    state: str
    note: str | None = None
    short: float | None = None
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


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A policy in all configurations of a role and stage: its measures, or why there are none."""

    hash: str
    role: Role
    stage: Stage
    measures: tuple[Measure, ...]
    error: str | None = None


class Store:
    """An open run folder, of this process alone unless it only reads."""

    def __init__(self, folder: Path, *, reads: bool = False) -> None:
        self.folder = folder
        self._held = (folder / "run.toml").open("rb")
        if not reads:
            _hold(self._held, folder)
        self.db = sqlite3.connect(folder / DATABASE)
        try:
            self.db.execute("pragma journal_mode = wal")
            # survives the end of the process; what only the end of the machine could lose is measured anew
            self.db.execute("pragma synchronous = normal")
            self.db.execute("pragma foreign_keys = on")
        except sqlite3.Error as error:
            self.close()
            raise _unwritable(folder, error) from None

    @classmethod
    def create(
        cls, folder: Path, resolved: str, *, files: Mapping[str, str] | None = None,
        facts: Mapping[str, str] | None = None, replace: bool = False,
    ) -> Store:  # fmt: skip
        """Make a run folder.

        Args:
            folder: new or empty, or an earlier run's with `replace`.
            resolved: the text of `run.toml`.
            files: by name, policies that the problem names; they lie in `start/`.
            facts: about the whole run, as `note` writes them.
            replace: remove an earlier run that is there.

        Raises:
            TanrenError: something is there already, or it cannot be made.
        """
        try:
            if folder.is_dir() and not is_free(folder):
                if not (replace and (folder / DATABASE).is_file()):
                    raise _taken(folder)
                _clear(folder)
            (folder / "champions").mkdir(parents=True, exist_ok=True)
            for name, text in (files or {}).items():
                (folder / "start").mkdir(exist_ok=True)
                write_whole(folder / "start" / name, text)
            write_whole(folder / "run.toml", resolved)
            draft = folder / f".{DATABASE}"
            draft.unlink(missing_ok=True)
            with sqlite3.connect(draft) as db:
                db.executescript(_TABLES)
                db.executemany("insert into run values (?, ?)", {"status": RUNNING, **(facts or {})}.items())
            db.close()
            os.replace(draft, folder / DATABASE)
        except (OSError, sqlite3.Error) as error:
            _undo(folder)
            raise _unwritable(folder, error) from None
        return cls(folder)

    @classmethod
    def open(cls, folder: Path, *, reads: bool = False) -> Store:
        """Open the folder of an earlier run.

        Args:
            folder: of the run.
            reads: nothing is written; another process may work there.

        Raises:
            TanrenError: there is none, it is not readable, or another process works there.
        """
        if not (folder / DATABASE).is_file() or not (folder / "run.toml").is_file():
            raise TanrenError(f"{folder} holds no run", hint="`tanren-dsl evolve` makes one")
        return cls(folder, reads=reads)

    def resolved(self) -> str:
        """The text of `run.toml`."""
        return (self.folder / "run.toml").read_text(encoding="utf-8")

    def fact(self, key: str) -> str | None:
        """One of the facts that `note` wrote."""
        row = self._all("select value from run where key = ?", key)
        return str(row[0][0]) if row else None

    def evaluations(self) -> Iterator[Evaluation]:
        """Everything that was ever measured."""
        rows = self._all("select hash, role, stage, error, measures from evaluations order by rowid")
        for key, role, stage, error, text in rows:
            measures = tuple(
                Measure(Place(role, window, label), tuple(figures), faults, mark)
                for window, label, figures, faults, mark in json.loads(text)
            )
            yield Evaluation(key, role, stage, measures, error)

    def add_evaluation(self, one: Evaluation) -> None:
        """Keep what was measured, or why it could not be."""
        rows = [(m.place.window, m.place.label, m.figures, m.faults, m.mark) for m in one.measures]
        with self._transaction():
            self.db.execute(
                "insert or replace into evaluations values (?,?,?,?,?)",
                (one.hash, one.role, one.stage, one.error, json.dumps(rows)),
            )

    def record(self, candidates: Iterable[CandidateRow], births: Iterable[Birth]) -> None:
        """Add or update candidates and individuals, in one transaction."""
        with self._transaction():
            self.db.executemany(
                "insert into candidates values (?,?,?,?,?,?,?,?,?,?,?) on conflict (hash) do update set "
                "state = excluded.state, note = excluded.note, short = excluded.short, "
                "train = excluded.train, validation = excluded.validation",
                [
                    (row.hash, row.text, json.dumps(row.parents), row.generation, row.operator, row.cost,
                     row.state, row.note, row.short, row.train, row.validation)
                    for row in candidates
                ],
            )  # fmt: skip
            self.db.executemany(
                "insert or replace into births values (?,?,?,?,?)",
                [(b.generation, b.place, b.hash, b.operator, json.dumps(b.parents)) for b in births],
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
            self.db.executemany(
                "insert or replace into run values (?, ?)",
                [
                    (key, value if isinstance(value, str) else json.dumps(value))
                    for key, value in facts.items()
                ],
            )

    def close(self) -> None:
        """Close the database, and leave the folder to others."""
        if hasattr(self, "db"):
            self.db.close()
        self._held.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All or nothing; a full disk is the folder's fault, not ours."""
        try:
            with self.db:
                yield
        except sqlite3.Error as error:
            raise _unwritable(self.folder, error) from None

    def _all(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        try:
            return self.db.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise TanrenError(f"{self.folder / DATABASE}: {error}", hint="is it another version's?") from None


def is_free(folder: Path) -> bool:
    """Whether a run may begin in a folder: it is missing, empty, or a run was killed before it was made."""
    if not folder.exists():
        return True
    if not folder.is_dir():
        return False
    drafts = {"run.toml", ".run.toml.tmp", "champions", "start", f".{DATABASE}", f".{DATABASE}-journal"}
    names = {path.name for path in folder.iterdir()}
    made = (folder / "champions").is_dir() and any((folder / "champions").iterdir())
    return not names or ("champions" in names and names <= drafts and not made)


def _hold(file: BinaryIO, folder: Path) -> None:
    """Keep other processes out of the folder until the file is closed, or this process ends."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise TanrenError(f"{folder}: another process works there", hint="wait for it, or end it") from None
    except OSError:  # a file system without locks
        pass


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
    hint = "choose another folder with --out" + (", or go on with --resume" if status else "")
    return TanrenError(f"{folder} {what}", hint=hint)


def _undo(folder: Path) -> None:
    """Leave nothing of a run folder that could not be made, but the folder."""
    with suppress(OSError):
        for name in (f".{DATABASE}", ".run.toml.tmp", "run.toml"):
            (folder / name).unlink(missing_ok=True)
        (folder / "champions").rmdir()


def _clear(folder: Path) -> None:
    """Remove an earlier run, nothing else."""
    (folder / DATABASE).unlink()
    for name in (f"{DATABASE}-wal", f"{DATABASE}-shm", "run.toml", "tanren_policy.py"):
        (folder / name).unlink(missing_ok=True)
    for name in ("champions", "start"):
        shutil.rmtree(folder / name, ignore_errors=True)
