"""Proposals of a language model: ask once, let it repair once, keep what came of it.

The same ask gives the same proposal as long as the log is kept: a resumed run asks nothing twice,
and a replay asks nothing at all.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence

from tanren_dsl.errors import TanrenError
from tanren_dsl.evolve.llm.asking import Ask, Parent
from tanren_dsl.evolve.llm.calls import CallLog, Proposal, Spent
from tanren_dsl.evolve.llm.caps import CAP, cap_reached
from tanren_dsl.evolve.llm.dialects import DIALECTS, Message
from tanren_dsl.evolve.llm.judge import judge
from tanren_dsl.evolve.llm.prompt import first_messages, repair_messages
from tanren_dsl.evolve.llm.reply import Reply, find_policy, parses, read_reply
from tanren_dsl.evolve.llm.sent import Sent
from tanren_dsl.evolve.llm.server import Clock, Failed, ModelServer, Sleep, Turn
from tanren_dsl.evolve.llm.settings import Address, ModelSettings, address_of, check_prices
from tanren_dsl.grammar.renderings import LIMITS, Limits

__all__ = ["Ask", "Parent", "Proposal", "Proposer", "Spent"]

_PROBE_TOKENS = 16
"""Tokens of the answer to a probe: the fewest that OpenAI's API takes."""


class Proposer:
    """Asks a model for policies, one at a time. `close` it, or use it in a `with` statement.

    What was spent and what was answered is the log's: a proposer is made anew for a resumed run.
    """

    def __init__(
        self,
        settings: ModelSettings,
        log: CallLog,
        *,
        replay_only: bool = False,
        limits: Limits = LIMITS,
        clock: Clock = time.time,
        sleep: Sleep = time.sleep,
    ) -> None:
        """Find the server's address; nothing is sent yet.

        Args:
            settings: how the model is asked, and the caps.
            log: of this run.
            replay_only: answer from the log alone; no address or key is needed then.
            limits: of what an answer may repeat, where the grammar is EBNF.
            clock: seconds since 1970.
            sleep: waits so many seconds; may be interrupted by an exception.

        Raises:
            TanrenError: no address, model or key, or a cap on money without prices.
        """
        check_prices(settings)
        self._settings, self._log = settings, log
        self._server: ModelServer | None = None
        self._refused: str | None = None
        if not replay_only:
            self._server = ModelServer(settings, address_of(settings), log, clock, sleep, limits)

    def __enter__(self) -> Proposer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection to the server, if there is one."""
        if self._server is not None:
            self._server.close()

    def propose(self, ask: Ask) -> Proposal:
        """A policy, or why there is none; never raises for what a server does.

        An ask that has an outcome in the log, a failure too, is answered from there.

        Raises:
            TanrenError: the log cannot be written, or lacks the ask in a replay.
        """
        messages = first_messages(ask, self._settings.prompt_chars)
        first = self._turn(ask, 0, messages)
        known = self._log.proposal(ask.key, first.hash)
        if known is not None:
            return known
        text, reason = self._conversation(ask, first)
        proposal = Proposal(text, reason, self._log.calls_of(ask.key))
        self._log.keep(ask.key, first.hash, proposal)
        return proposal

    @property
    def exhausted(self) -> str | None:
        """Which cap is reached, in words, or leaves no room for the next call; else None."""
        return cap_reached(self._settings.caps, self._log.spent()) or self._refused

    @property
    def spent(self) -> Spent:
        """What all calls of the run have cost so far."""
        return self._log.spent()

    def probe(self) -> str:
        """Look at the server before a run: one list of models, and one short call with the grammar.

        The call counts, is kept in the log, and is made once for a server.

        Raises:
            TanrenError: the server does not answer, or refuses the key or the model.
        """
        if self._server is None:
            return f"models: replayed from the log of {self._log.spent().calls:,} calls, no server is asked"
        server, settings = self._server, self._settings
        address = server.address
        dialect = server.dialect(_listed(server, address))
        lines = [f"model {address.model} at {address.base_url}"]
        if server.takes_grammar(dialect) is None:
            ask = [_message("Answer with `policy lru : evict order by last_use` and nothing else.")]
            # an earlier probe that failed is no answer to this one
            turn = Turn("probe", 0, _hash(["probe", self._log.calls_of("probe")]), tuple(ask), 0)
            answer = server.ask(turn, _PROBE_TOKENS)
            if isinstance(answer, Failed):
                if answer.status in (401, 403, 404):
                    raise TanrenError(f"{address.base_url} refuses {address.model}: {answer.reason}")
                lines.append(f"a short call with the grammar failed: {answer.reason}")
            dialect = server.dialect()
        lines.append(_dialect_words(dialect.name, server.takes_grammar(dialect)))
        left_out = _left_out(settings, dialect.name, server.refused())
        if left_out:
            lines.append(f"not sent, since the server does not take it: {', '.join(left_out)}")
        lines.append(_caps_words(settings))
        return "\n".join(lines)

    def _turn(self, ask: Ask, number: int, messages: Sequence[Message]) -> Turn:
        """A turn with its hash: of what the ask and the settings say, not of the server's dialect."""
        settings = self._settings
        said = [
            messages,
            *(settings.model, settings.temperature, settings.top_p, settings.max_tokens),
            *(settings.reasoning_effort, ask.seed if settings.seed else None),
        ]
        return Turn(ask.key, number, _hash(said), tuple(messages), ask.seed)

    def _conversation(self, ask: Ask, first: Turn) -> tuple[str | None, str | None]:
        """Text or reason, after at most two turns."""
        turn = first
        while True:
            reply = self._reply(turn)
            if isinstance(reply, Failed):
                return None, reply.reason
            text, wrong = _policy_in(reply, ask, self._settings.max_tokens)
            if text is not None:
                return text, None
            if turn.number:
                return None, f"not a policy, nor after one repair: {wrong}"
            turn = self._turn(ask, 1, repair_messages(first.messages, _shown(reply), wrong))

    def _reply(self, turn: Turn) -> Reply | Failed:
        """The answer in the log, else the server's."""
        kept = self._log.answered(turn.key, turn.number, turn.hash)
        if kept is not None:
            dialect, response = kept
            return read_reply(DIALECTS[dialect].api, response)
        if self._server is None:
            known = "another request of this name" if self._log.has_key(turn.key) else "nothing of this name"
            raise TanrenError(
                f"the log has no answer to {turn.key!r} (turn {turn.number}): it holds {known}",
                hint="a replay takes the problem, the seed and the version that the log was made with",
            )
        answer = self._server.ask(turn)
        if isinstance(answer, Failed) and answer.reason.startswith(CAP):
            self._refused = answer.reason
        return answer


def _policy_in(reply: Reply, ask: Ask, max_tokens: int) -> tuple[str | None, str]:
    """The canonical text of an answer, or None and what is wrong."""
    if reply.refusal is not None:
        return None, f"the model refused: {reply.refusal}"
    text = find_policy(reply)
    if not text.strip():
        thought = "only thinking" if reply.has_thought or reply.text.strip() else "nothing"
        spent = f", and its {max_tokens:,} tokens were spent" if reply.is_cut else ""
        return None, f"the answer held {thought}{spent}"
    if reply.is_cut and not _is_closed(reply, text):
        # what parses may still be less than what was meant
        return None, f"the answer was cut off after {max_tokens:,} tokens: write a shorter policy"
    verdict = judge(text, ask)
    return verdict.text, verdict.wrong or ""


def _is_closed(reply: Reply, text: str) -> bool:
    """Whether the policy of an answer that was cut stands in a fence that was closed before."""
    at = reply.text.rfind(text.strip())
    behind = reply.text[at + len(text.strip()) :].lstrip() if at >= 0 else ""
    return behind.startswith(("```", "~~~")) and parses(text)


def _shown(reply: Reply) -> str:
    """What a model is shown of its own answer: the policy without thinking, or its words."""
    return find_policy(reply) or reply.refusal or ""


def _listed(server: ModelServer, address: Address) -> Sent:
    """The server's list of models, if it lets us in."""
    sent = server.models()
    if sent.status in (401, 403):
        raise TanrenError(f"{address.base_url} refuses the key: status {sent.status}")
    if sent.status is None:
        raise TanrenError(f"{address.base_url} does not answer: {sent.text}", hint="is the server started?")
    return sent


def _dialect_words(name: str, takes_grammar: bool | None) -> str:
    if DIALECTS[name].place is None:
        return f"dialect {name}: no grammar is sent, answers are read by the parser"
    words = "the grammar is taken" if takes_grammar else "no answer to a request with the grammar yet"
    return f"dialect {name}: {words}"


def _left_out(settings: ModelSettings, dialect: str, refused: Sequence[str]) -> list[str]:
    """Settings that are given and not sent."""
    given = {
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "max_tokens": settings.max_tokens,
        "seed": True if settings.seed else None,
        "reasoning_effort": settings.reasoning_effort,
    }
    row = DIALECTS[dialect]
    return [name for name, value in given.items() if value is not None and row.sent_as(name, refused) is None]


def _caps_words(settings: ModelSettings) -> str:
    caps = settings.caps
    known = {
        "calls": caps.calls,
        "tokens": caps.tokens,
        "USD": caps.usd,
        "s": caps.wall_s,
    }
    said = [f"{value:,} {unit}" for unit, value in known.items() if value is not None]
    return f"at most {', '.join(said)}" if said else "no cap on calls, tokens, money or time"


def _hash(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def _message(content: str) -> Message:
    return {"role": "user", "content": content}
