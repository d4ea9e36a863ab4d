"""The grammar of the language, and the table of typical syntax mistakes.

Data and its readers only: parsing is `tanren_dsl.parser`.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Mistake:
    """One typical mistake and the hint it deserves; conditions that are empty always hold.

    Attributes:
        found: what stands at the error: token types of the grammar or exact text; `END` for the end.
        starts: beginnings of the text that stands at the error.
        after: what stands before it, as `found`.
        follows: what stands behind it, as `found`.
        want: token types of which the grammar would accept at least one there.
        hint: the advice; `{open}` is the place of the innermost open bracket.
        example: a text that makes the mistake.
    """

    found: tuple[str, ...]
    starts: tuple[str, ...]
    after: tuple[str, ...]
    follows: tuple[str, ...]
    want: tuple[str, ...]
    hint: str
    example: str


@cache
def grammar_text() -> str:
    """The grammar in the Lark dialect that our parser, llguidance and XGrammar accept."""
    return files(__name__).joinpath("tanren.lark").read_text(encoding="utf-8")


@cache
def mistakes() -> tuple[Mistake, ...]:
    """The table of typical mistakes; the first row that fits wins."""
    table = tomllib.loads(files(__name__).joinpath("mistakes.toml").read_text(encoding="utf-8"))
    return tuple(
        Mistake(
            found=tuple(row.get("found", ())),
            starts=tuple(row.get("starts", ())),
            after=tuple(row.get("after", ())),
            follows=tuple(row.get("follows", ())),
            want=tuple(row.get("want", ())),
            hint=row["hint"],
            example=row["example"],
        )
        for row in table["mistake"]
    )
