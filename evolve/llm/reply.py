"""What a server answered, and the text of a policy in it.

Models wrap an answer in thinking, fences and friendly words, or never come to the answer at all.
Only the wrapping is taken off here; whether what is left is a policy is for the parser to say.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tanren_dsl.errors import TanrenError
from tanren_dsl.evolve.llm.dialects import Api
from tanren_dsl.names import keywords
from tanren_dsl.parser import parse
from tanren_dsl.source import Source

ANSWER = "answer"
"""Name of a model's text in the checker's messages."""
_LONGEST = 1 << 18
"""Characters of an answer that are looked through; a policy has at most a quarter of that."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer.

    Attributes:
        text: what the model said, thinking that the server set apart left out.
        by_tool: the text came by a tool, as the grammar has it, without any wrapping.
        is_cut: the answer ended because its tokens were spent.
        has_thought: the server set thinking apart.
        refusal: the model's refusal, if it gave one.
        tokens_in, tokens_out: as counted by the server; None where it did not say.
    """

    text: str
    by_tool: bool
    is_cut: bool
    has_thought: bool
    refusal: str | None
    tokens_in: int | None
    tokens_out: int | None


def read_reply(api: Api, response: str) -> Reply:
    """The answer in a response of status 200.

    Raises:
        ValueError: it is not what such a server answers; the message says what is missing.
    """
    try:
        data = json.loads(response)
    except (ValueError, RecursionError):
        raise ValueError("the response is not JSON") from None
    if not isinstance(data, dict):
        raise ValueError("the response is not a JSON object")
    if data.get("error"):
        raise ValueError(f"the response holds an error: {error_text(data['error'])}")
    return _of_responses(data) if api == "responses" else _of_chat(data)


def error_text(error: object) -> str:
    """The message of an error that a server describes in one of the usual ways."""
    if isinstance(error, dict):
        for name in ("message", "error", "detail"):
            if error.get(name):
                return error_text(error[name])
    if isinstance(error, list) and error:
        return error_text(error[0])
    text = error if isinstance(error, str) else json.dumps(error)
    return " ".join(text.split())[:500]


def find_policy(reply: Reply) -> str:
    """The text that is most likely the policy; empty where there is none.

    Of several fences the last one that parses; without fences from the header on, less what cannot
    be read at the end, if that does not look like a part of the policy.
    """
    if reply.by_tool and parses(reply.text):
        return reply.text.strip()
    text = without_thinking(reply.text[:_LONGEST]).strip()
    fenced = [body for body in _fences(text) if body.strip()]
    if fenced:
        return next(
            (body for body in reversed(fenced) if parses(body)),
            next((body for body in reversed(fenced) if "policy" in body), fenced[-1]),
        )
    starts = [match.start() for match in re.finditer(r"(?m)^[ \t]*policy\s+\w+\s*:", text)]
    if not starts:
        inline = re.search(r"\bpolicy\s+\w+\s*:\s*(?:evict|schedule)\b", text)
        return text if inline is None else _without_prose(text[inline.start() :])
    ends = [*starts[1:], len(text)]
    found = [_without_prose(text[start:end].strip()) for start, end in zip(starts, ends, strict=True)]
    return next((one for one in reversed(found) if parses(one)), found[-1])


def without_thinking(text: str) -> str:
    """The text without what a model thought aloud, whether or not it marked where that ends.

    >>> without_thinking("<think>policy a?</think>policy b"), without_thinking("<think>and then")
    ('policy b', '')
    """
    text = re.sub(r"(?is)<\|channel\|>\s*(?:analysis|commentary)\b.*?(?:<\|end\|>|\Z)", "", text)
    text = re.sub(r"<\|[a-z_]+\|>(?:final\b|assistant\b)?", "", text)
    kept: list[str] = []
    is_inside = False
    for place, part in enumerate(_TAG.split(text)):
        if not place % 2:
            kept += [] if is_inside else [part]
        elif "/" in part:
            if not is_inside:  # the template opened it in the prompt
                kept.clear()
            is_inside = False
        else:
            is_inside = True
    return "".join(kept)


_TAG = re.compile(
    r"(</?(?:think|thinking|thought|reasoning|reflection)>|\[/?THINK\])",
    re.IGNORECASE,
)


def parses(text: str) -> bool:
    """Whether the parser reads this as a policy."""
    try:
        parse(Source(ANSWER, text))
    except TanrenError:
        return False
    return True


def _fences(text: str) -> Iterator[str]:
    """Bodies of fenced code; one that is not closed reaches to the end."""
    fence, body = "", list[str]()
    for line in text.splitlines():
        mark = re.match(r"\s*(`{3,}|~{3,})(.*)$", line)
        if mark is None or (fence and not (mark[1].startswith(fence) and not mark[2].strip())):
            body.append(line)
        elif fence:
            yield "\n".join(body)
            fence, body = "", []
        else:
            fence, body = mark[1], []
    if fence:
        yield "\n".join(body)


def _without_prose(text: str) -> str:
    """Less the lines at the end from the first on that the parser stumbles over, if they are prose."""
    try:
        parse(Source(ANSWER, text))
    except TanrenError as error:
        span = error.diagnostics[0].span
        if span is None:
            return text
        line, _ = span.source.line_col(span.start)
        lines = text.split("\n")
        head, stumbled = "\n".join(lines[: line - 1]), lines[line - 1].strip()
        first = re.match(r"\w*", stumbled)
        is_prose = first is not None and first[0] not in keywords() and stumbled[:1].isalpha()
        is_mark = re.match(r"[*_>`|#-]{1,3}\s*\w+ \w+ \w+", stumbled) is not None
        if (is_prose or is_mark) and parses(head):
            return head
    return text


def _of_chat(data: dict[str, Any]) -> Reply:
    try:
        choice = data["choices"][0]
        message = choice["message"]
        calls = [call for call in message.get("tool_calls") or [] if call.get("type") == "custom"]
        text = calls[0]["custom"]["input"] if calls else _joined(message.get("content"))
        thought = message.get("reasoning") or message.get("reasoning_content")
        usage = data.get("usage") or {}
        return Reply(
            text=_text(text),
            by_tool=bool(calls),
            is_cut=choice.get("finish_reason") == "length",
            has_thought=bool(thought),
            refusal=_optional(message.get("refusal")),
            tokens_in=_count(usage.get("prompt_tokens")),
            tokens_out=_count(usage.get("completion_tokens")),
        )
    except (LookupError, TypeError, AttributeError):
        raise ValueError("the response holds no message") from None


def _of_responses(data: dict[str, Any]) -> Reply:
    try:
        items = data["output"]
        tools = [item["input"] for item in items if item["type"] == "custom_tool_call"]
        parts = [part for item in items if item["type"] == "message" for part in item["content"]]
        said = "".join(part["text"] for part in parts if part["type"] == "output_text")
        refusals = [part["refusal"] for part in parts if part["type"] == "refusal"]
        usage = data.get("usage") or {}
        return Reply(
            text=_text(tools[0] if tools else said),
            by_tool=bool(tools),
            is_cut=(data.get("incomplete_details") or {}).get("reason") == "max_output_tokens",
            has_thought=any(item["type"] == "reasoning" for item in items),
            refusal=_optional(refusals[0] if refusals else None),
            tokens_in=_count(usage.get("input_tokens")),
            tokens_out=_count(usage.get("output_tokens")),
        )
    except (LookupError, TypeError, AttributeError):
        raise ValueError("the response holds no output") from None


def _joined(content: object) -> object:
    """Text that some servers give in parts."""
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content if part.get("type") == "text")
    return content or ""


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value.encode("utf-8", "replace").decode()  # JSON can hold halves of characters


def _optional(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _count(value: object) -> int | None:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 10**12:
        return None
    return value
