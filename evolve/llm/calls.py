"""Every exchange with a model server, kept in the run's database: what was asked, answered and spent.

A row is there before its request is sent, with the worst that it may cost, and is completed after:
a process that is killed in between has spent that worst. What was spent is always read from here,
so a resumed run goes on counting, and an ask that has an outcome is never asked again.

The connection must not be in a transaction of somebody else's when these functions are called.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tanren_dsl.errors import TanrenError

_TABLES = (
    """
    create table if not exists calls (
        id integer primary key, key text not null, turn integer not null, attempt integer not null,
        hash text not null, counted integer not null, url text not null, model text not null,
        dialect text not null, began real not null, request text not null, status integer, response text,
        error text, tokens_in integer not null, tokens_out integer not null, usd real not null,
        seconds real not null, waited_s real not null default 0, done integer not null default 0
    )
    """,
    "create index if not exists calls_by_key on calls (key, hash, turn)",
    """
    create table if not exists proposals (
        key text not null, hash text not null, text text, reason text, calls integer not null,
        primary key (key, hash)
    )
    """,
    "create table if not exists call_facts (name text primary key, value text not null)",
)


@dataclass(frozen=True, slots=True)
class Worst:
    """The most that one request may cost: tokens of the prompt and the answer, US dollars, seconds."""

    tokens_in: int
    tokens_out: int
    usd: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Request:
    """One attempt, before it is sent.

    Attributes:
        key, turn: of the ask; turn 0 is the first, 1 the repair.
        hash: of what is asked, in no server's dialect.
        counted: whether it counts as a call; the list of a server's models does not.
        body: as sent, without headers.
    """

    key: str
    turn: int
    hash: str
    counted: bool
    url: str
    model: str
    dialect: str
    body: dict[str, Any]
    worst: Worst


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back: the response as text with its status, or an error; and what it cost."""

    status: int | None
    response: str | None
    error: str | None
    tokens_in: int
    tokens_out: int
    usd: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Proposal:
    """What an ask gave: a policy's canonical text, or why there is none; and the calls made for it."""

    text: str | None
    reason: str | None
    calls: int


@dataclass(frozen=True, slots=True)
class Spent:
    """What all calls of a run have cost: tokens, US dollars, seconds in calls and in waits."""

    calls: int
    tokens_in: int
    tokens_out: int
    usd: float
    wall_s: float

    def __str__(self) -> str:
        return (
            f"{self.calls:,} calls, {self.tokens_in:,} tokens in and {self.tokens_out:,} out, "
            f"{self.usd:.4f} USD, {self.wall_s:.0f} s"
        )


class CallLog:
    """The tables of exchanges, outcomes and what was learned about the server."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        with self._transaction():
            for table in _TABLES:
                db.execute(table)

    def begin(self, request: Request, began: float) -> int:
        """Keep an attempt before it is sent; returns its number in the log.

        `began` is in seconds since 1970.
        """
        worst = request.worst
        with self._transaction():
            (attempts,) = self._db.execute(
                "select count(*) from calls where key = ? and hash = ? and turn = ?",
                (request.key, request.hash, request.turn),
            ).fetchone()
            row = self._db.execute(
                "insert into calls (key, turn, attempt, hash, counted, url, model, dialect, began, request,"
                " tokens_in, tokens_out, usd, seconds) values (?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
                (
                    *(request.key, request.turn, attempts + 1, request.hash, request.counted, request.url),
                    *(request.model, request.dialect, began, json.dumps(request.body, ensure_ascii=False)),
                    *(worst.tokens_in, worst.tokens_out, worst.usd, worst.seconds),
                ),
            ).lastrowid
        assert row is not None
        return row

    def finish(self, row: int, answer: Answer) -> None:
        """Complete an attempt."""
        with self._transaction():
            self._db.execute(
                "update calls set status = ?, response = ?, error = ?, tokens_in = ?, tokens_out = ?,"
                " usd = ?, seconds = ?, done = 1 where id = ?",
                (
                    *(answer.status, answer.response, answer.error, answer.tokens_in, answer.tokens_out),
                    *(answer.usd, answer.seconds, row),
                ),
            )

    def waited(self, row: int, seconds: float) -> None:
        """Add the wait that followed an attempt."""
        with self._transaction():
            self._db.execute("update calls set waited_s = waited_s + ? where id = ?", (seconds, row))

    def answered(self, key: str, turn: int, request_hash: str) -> tuple[str, str] | None:
        """Dialect and response of the attempt that succeeded, if one did."""
        row = self._db.execute(
            "select dialect, response from calls where key = ? and turn = ? and hash = ? and done = 1"
            " and error is null and status = 200 order by id limit 1",
            (key, turn, request_hash),
        ).fetchone()
        return None if row is None else (str(row[0]), str(row[1]))

    def failures(self, key: str, turn: int, request_hash: str) -> tuple[int, str]:
        """Attempts that failed, and what the last one said; refused requests are changed and not counted."""
        rows = self._db.execute(
            "select error from calls where key = ? and turn = ? and hash = ? and done = 1"
            " and error is not null and coalesce(status, 0) not in (400, 422) order by id",
            (key, turn, request_hash),
        ).fetchall()
        return len(rows), str(rows[-1][0]) if rows else ""

    def calls_of(self, key: str) -> int:
        """Attempts made for an ask, finished or not."""
        (count,) = self._db.execute(
            "select count(*) from calls where key = ? and counted = 1", (key,)
        ).fetchone()
        return int(count)

    def keep(self, key: str, request_hash: str, proposal: Proposal) -> None:
        """Keep what an ask gave; what is kept already stays."""
        with self._transaction():
            self._db.execute(
                "insert or ignore into proposals values (?,?,?,?,?)",
                (key, request_hash, proposal.text, proposal.reason, proposal.calls),
            )

    def proposal(self, key: str, request_hash: str) -> Proposal | None:
        """What an ask gave, if it was asked before."""
        row = self._db.execute(
            "select text, reason, calls from proposals where key = ? and hash = ?", (key, request_hash)
        ).fetchone()
        return None if row is None else Proposal(*row)

    def has_key(self, key: str) -> bool:
        """Whether anything is kept of an ask of this name."""
        row = self._db.execute(
            "select 1 from calls where key = ? union select 1 from proposals where key = ?", (key, key)
        ).fetchone()
        return row is not None

    def spent(self) -> Spent:
        """The sum over all attempts; one that never ended counts as the worst it could cost."""
        row = self._db.execute(
            "select coalesce(sum(counted), 0), coalesce(sum(tokens_in), 0), coalesce(sum(tokens_out), 0),"
            " coalesce(total(usd), 0), coalesce(total(seconds + waited_s), 0) from calls"
        ).fetchone()
        return Spent(int(row[0]), int(row[1]), int(row[2]), float(row[3]), float(row[4]))

    def fact(self, name: str) -> str | None:
        """Something learned about the server."""
        row = self._db.execute("select value from call_facts where name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def learn(self, name: str, value: str) -> None:
        """Keep something learned about the server."""
        with self._transaction():
            self._db.execute("insert or replace into call_facts values (?, ?)", (name, value))

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            with self._db:
                yield
        except sqlite3.Error as error:
            raise TanrenError(f"cannot write the log of model calls: {error}") from None
