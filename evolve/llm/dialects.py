"""How each kind of server wants a request, and what may stand in it: an allow-list, no more.

One row a kind of server. A field that the row does not name is never sent; a setting that a row
has no name for is said to be left out. Where the grammar goes differs from server to server, and
one server's shape is an error, or worse, ignored, at another.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from tanren_dsl.grammar.renderings import LIMITS, Limits, ebnf_text, lark_text

Body: TypeAlias = dict[str, Any]
Message: TypeAlias = dict[str, str]
Api: TypeAlias = Literal["chat", "responses"]

PLAIN = "plain"
TOOL = "emit"
"""Name of the tool by which OpenAI's models hand over a policy."""
_DESCRIPTION = "Hand over the complete text of one policy."


@dataclass(frozen=True, slots=True)
class Dialect:
    """One row.

    Attributes:
        name: as in the settings.
        api: `chat` is `/chat/completions`, `responses` is `/responses`.
        fields: our name of a setting and the names it may be sent under, the first one first; `a.b`
            is the field `b` inside `a`.
        notations: how the grammar may be written, the default first; none: the server takes none.
        place: adds the grammar to a request.
    """

    name: str
    api: Api
    fields: Mapping[str, tuple[str, ...]]
    notations: tuple[Literal["lark", "ebnf"], ...] = ()
    place: Callable[[Body, str], None] | None = None

    def body(
        self,
        model: str,
        messages: Sequence[Message],
        wanted: Mapping[str, object],
        *,
        notation: str = "default",
        limits: Limits = LIMITS,
        refused: Collection[str] = (),
    ) -> Body:
        """The request.

        Args:
            model: its name on the server.
            messages: roles and texts.
            wanted: settings by our names; None is not sent.
            notation: of the grammar; `default` is the row's own.
            limits: of the grammar where it is EBNF.
            refused: names that this server has refused, and that are left out.
        """
        body: Body = {"model": model, "input" if self.api == "responses" else "messages": list(messages)}
        for name, value in wanted.items():
            sent_as = self.sent_as(name, refused)
            if value is not None and sent_as is not None:
                outer, _, inner = sent_as.partition(".")
                body[outer] = {inner: value} if inner else value
        if self.place is not None:
            self.place(body, self.grammar(notation, limits))
        return body

    def sent_as(self, name: str, refused: Collection[str] = ()) -> str | None:
        """The name under which a setting is sent, if it is."""
        return next((field for field in self.fields.get(name, ()) if field not in refused), None)

    def grammar(self, notation: str, limits: Limits = LIMITS) -> str:
        """The grammar as this server is given it."""
        chosen = notation if notation in self.notations else self.notations[0]
        if chosen == "ebnf":
            return ebnf_text(limits)
        return lark_text() if self.name in _READS_LARK else f"%llguidance {{}}\n{lark_text()}"


_READS_LARK = ("openai-responses", "openai-chat", "vllm")
"""Servers that take Lark as it is; the others tell it from GBNF by a first line."""


def _responses_tool(body: Body, grammar: str) -> None:
    tool_format = {"type": "grammar", "syntax": "lark", "definition": grammar}
    body["tools"] = [{"type": "custom", "name": TOOL, "description": _DESCRIPTION, "format": tool_format}]
    body["tool_choice"] = {"type": "custom", "name": TOOL}
    body["parallel_tool_calls"] = False


def _chat_tool(body: Body, grammar: str) -> None:
    tool_format = {"type": "grammar", "grammar": {"syntax": "lark", "definition": grammar}}
    custom = {"name": TOOL, "description": _DESCRIPTION, "format": tool_format}
    body["tools"] = [{"type": "custom", "custom": custom}]
    body["tool_choice"] = {"type": "custom", "custom": {"name": TOOL}}


def _structured_outputs(body: Body, grammar: str) -> None:
    body["structured_outputs"] = {"grammar": grammar}


def _ebnf(body: Body, grammar: str) -> None:
    body["ebnf"] = grammar


def _grammar(body: Body, grammar: str) -> None:
    body["grammar"] = grammar


_SAMPLING = {"temperature": ("temperature",), "top_p": ("top_p",)}
_LENGTH = {"max_tokens": ("max_tokens",)}
_SEED = {"seed": ("seed",)}
_EFFORT = {"reasoning_effort": ("reasoning_effort",)}

DIALECTS: dict[str, Dialect] = {
    row.name: row
    for row in (
        Dialect(
            "openai-responses",
            "responses",
            {
                **_SAMPLING,
                "max_tokens": ("max_output_tokens",),
                "reasoning_effort": ("reasoning.effort",),
            },
            ("lark",),
            _responses_tool,
        ),
        Dialect(
            "openai-chat",
            "chat",
            {**_SAMPLING, "max_tokens": ("max_completion_tokens", "max_tokens"), **_SEED, **_EFFORT},
            ("lark",),
            _chat_tool,
        ),
        Dialect(
            "vllm",
            "chat",
            {**_SAMPLING, **_LENGTH, **_SEED, **_EFFORT},
            ("ebnf", "lark"),
            _structured_outputs,
        ),
        Dialect("sglang", "chat", {**_SAMPLING, **_LENGTH, **_SEED, **_EFFORT}, ("ebnf", "lark"), _ebnf),
        Dialect("llama.cpp", "chat", {**_SAMPLING, **_LENGTH, **_SEED}, ("ebnf", "lark"), _grammar),
        Dialect(
            PLAIN,
            "chat",
            {**_SAMPLING, "max_tokens": ("max_tokens", "max_completion_tokens"), **_SEED, **_EFFORT},
        ),
    )
}
"""Every kind of server, by name."""

OWNERS = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llama.cpp"}
"""Who a server's list of models says they are owned by, and the dialect of that server."""
