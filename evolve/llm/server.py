"""Asking one server: its dialect, attempts, waits and caps. Every attempt is in the log.

What is learned on the way, the dialect that it speaks and the fields that it refuses, is kept in
the log too, by its address, so that a resumed run does not learn it again.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tanren_dsl.evolve.llm.backoff import is_worth_another, wait_of
from tanren_dsl.evolve.llm.calls import Answer, CallLog, Request, Worst
from tanren_dsl.evolve.llm.caps import CAP, cap_reached, cost_of, refusal, worst_of
from tanren_dsl.evolve.llm.dialects import DIALECTS, OWNERS, PLAIN, Body, Dialect, Message
from tanren_dsl.evolve.llm.refused import message_of, refused_field
from tanren_dsl.evolve.llm.reply import Reply, read_reply
from tanren_dsl.evolve.llm.sent import Sent
from tanren_dsl.evolve.llm.settings import AUTO, NO_KEY, Address, ModelSettings
from tanren_dsl.grammar.renderings import LIMITS, Limits

if TYPE_CHECKING:
    from tanren_dsl.evolve.llm.client import Client

Clock = Callable[[], float]
Sleep = Callable[[float], None]

_HOSTS = {"api.openai.com": "openai-responses", ".openai.azure.com": "openai-chat"}
_LIST_S = 30.0


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of an ask: `hash` identifies what is said, in no server's dialect."""

    key: str
    number: int
    hash: str
    messages: tuple[Message, ...]
    seed: int


@dataclass(frozen=True, slots=True)
class Failed:
    """Why there is no answer; `status` is the last one of the server's, if it gave one."""

    reason: str
    status: int | None = None


class ModelServer:
    """One server and model. Must be closed."""

    def __init__(
        self,
        settings: ModelSettings,
        address: Address,
        log: CallLog,
        clock: Clock,
        sleep: Sleep,
        limits: Limits = LIMITS,
    ) -> None:
        self.address = address
        self._settings, self._log, self._clock, self._sleep = settings, log, clock, sleep
        self._limits = limits
        self._made: Client | None = None

    def ask(self, turn: Turn, most_tokens: int | None = None) -> Reply | Failed:
        """The answer to a turn, after as many attempts as the settings allow; never raises for the server.

        `most_tokens` of the answer replaces the settings' own.
        """
        settings, log = self._settings, self._log
        failures, last = log.failures(turn.key, turn.number, turn.hash)
        if failures >= settings.attempts:  # of a process that ended before it could say so
            return Failed(f"{last} ({failures} attempts)")
        if (reached := cap_reached(settings.caps, log.spent())) is not None:
            return Failed(reached)
        form, has_fallen_back = self.dialect(), False
        while True:
            body = self._body(form, turn, most_tokens)
            if self._must_limit() and form.sent_as("max_tokens", self.refused()) is None:
                return Failed("the server takes no limit on the tokens of an answer, and a cap needs one")
            left = self._seconds_left()
            worst = worst_of(settings, body, most_tokens or settings.max_tokens, left)
            if (reached := refusal(settings.caps, log.spent(), worst)) is not None:
                return Failed(reached)
            row, sent, reply, wrong = self._attempt(form, turn, body, worst)
            if reply is not None:
                if has_fallen_back:
                    log.learn(self._fact("dialect"), form.name)
                taken = "taken" if form.place is not None else "none"
                log.learn(self._fact(f"{form.name} grammar"), taken)
                return reply
            if self._refuse_field(form, sent):
                continue
            if form.place is not None and settings.dialect == AUTO and _may_be_the_grammar(form, sent):
                form, has_fallen_back = DIALECTS[PLAIN], True
                continue
            failures += 1
            if not is_worth_another(sent.status) and sent.status != 200:
                return Failed(wrong, sent.status)
            if failures >= settings.attempts:
                return Failed(f"{wrong} ({failures} attempts)", sent.status)
            if (reached := self._wait(row, failures, turn, sent)) is not None:
                return Failed(f"{reached}; before that {wrong}", sent.status)

    def dialect(self, listed: Sent | None = None) -> Dialect:
        """The server's dialect: set, learned before, or found out now by its list of models."""
        settings = self._settings
        if settings.dialect != AUTO:
            return DIALECTS[settings.dialect]
        known = self._log.fact(self._fact("dialect"))
        if known is None:
            host = urlsplit(self.address.base_url).hostname or ""
            known = next((name for end, name in _HOSTS.items() if host.endswith(end)), None)
            if known is None:
                known = _dialect_by_owner(listed or self.models())
            if known is not None:
                self._log.learn(self._fact("dialect"), known)
        return DIALECTS[known or PLAIN]

    def models(self) -> Sent:
        """The server's list of models; it costs nothing and counts as no call."""
        worst = Worst(0, 0, 0.0, min(_LIST_S, self._settings.timeout_s))
        request = Request(
            "probe", 0, "models", False, f"{self.address.base_url}/models", self.address.model, "", {}, worst
        )
        began = self._clock()
        row = self._log.begin(request, began)
        sent = self._client().models(worst.seconds)
        wrong = "" if sent.status == 200 else self._safe(_described(sent))
        self._finish(row, sent, wrong, began, (0, 0))
        return sent

    def takes_grammar(self, form: Dialect) -> bool | None:
        """Whether an answer came back to a request in this dialect with the grammar; None: not tried yet."""
        known = self._log.fact(self._fact(f"{form.name} grammar"))
        return None if known is None else known == "taken"

    def refused(self) -> list[str]:
        """Fields that the server has refused, as they were sent."""
        return list(json.loads(self._log.fact(self._fact("refused")) or "[]"))

    def close(self) -> None:
        """Close the client, if there is one."""
        if self._made is not None:
            self._made.close()
            self._made = None

    def _client(self) -> Client:
        if self._made is None:
            from tanren_dsl.evolve.llm.client import Client  # takes a second to load

            self._made = Client(self.address, self._clock)
        return self._made

    def _body(self, form: Dialect, turn: Turn, most_tokens: int | None) -> Body:
        settings = self._settings
        wanted = {
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            "max_tokens": most_tokens or settings.max_tokens,
            "seed": turn.seed if settings.seed else None,
            "reasoning_effort": settings.reasoning_effort,
        }
        return form.body(
            self.address.model,
            turn.messages,
            wanted,
            notation=settings.notation,
            limits=self._limits,
            refused=self.refused(),
        )

    def _attempt(
        self, form: Dialect, turn: Turn, body: Body, worst: Worst
    ) -> tuple[int, Sent, Reply | None, str]:
        """Send once, between two entries of the log; the last of the four says what went wrong."""
        path = "responses" if form.api == "responses" else "chat/completions"
        url = f"{self.address.base_url}/{path}"
        request = Request(
            turn.key, turn.number, turn.hash, True, url, self.address.model, form.name, body, worst
        )
        began = self._clock()
        row = self._log.begin(request, began)
        sent = self._client().send(form.api, body, worst.seconds)
        reply, wrong = None, ""
        if sent.status == 200:
            try:
                reply = read_reply(form.api, sent.text)
            except ValueError as problem:
                wrong = str(problem)
        else:
            wrong = self._safe(_described(sent))
        self._finish(row, sent, wrong, began, _tokens(sent, reply, worst))
        return row, sent, reply, wrong

    def _finish(self, row: int, sent: Sent, wrong: str, began: float, tokens: tuple[int, int]) -> None:
        seconds = max(0.0, self._clock() - began)
        usd = cost_of(self._settings, *tokens)
        response = self._safe(sent.text) if sent.status is not None else None
        self._log.finish(row, Answer(sent.status, response, wrong or None, *tokens, usd, seconds))

    def _safe(self, text: str) -> str:
        """What a server said, without our key, should it have repeated it."""
        return text.replace(self.address.key, "(key)") if self.address.key != NO_KEY else text

    def _refuse_field(self, form: Dialect, sent: Sent) -> bool:
        """Note a field that the server does not take, once; whether there was one."""
        refused = self.refused()
        named = [name for name in form.fields if form.sent_as(name, refused) is not None]
        fields = [field for name in named if (field := form.sent_as(name, refused)) is not None]
        field = refused_field(sent.status, sent.text, fields)
        if field is None:
            return False
        self._log.learn(self._fact("refused"), json.dumps([*refused, field]))
        return True

    def _wait(self, row: int, failures: int, turn: Turn, sent: Sent) -> str | None:
        """Wait before another attempt, if the cap on time leaves room for it; else say so."""
        settings, began = self._settings, self._clock()
        seed = f"{turn.seed}:{turn.key}:{turn.number}:{failures}"
        seconds = wait_of(failures, seed, settings.longest_wait_s, sent.retry_after, began)
        cap = settings.caps.wall_s
        if cap is not None and self._log.spent().wall_s + seconds >= cap:
            return f"{CAP} {cap:g} s leaves no room for a wait of {seconds:.1f} s"
        try:
            self._sleep(seconds)
        finally:  # an interrupted wait was a wait
            self._log.waited(row, max(0.0, self._clock() - began))
        return None

    def _seconds_left(self) -> float:
        """Seconds that the next attempt may take."""
        cap = self._settings.caps.wall_s
        left = self._settings.timeout_s if cap is None else cap - self._log.spent().wall_s
        return max(0.001, min(self._settings.timeout_s, left))

    def _must_limit(self) -> bool:
        return self._settings.caps.tokens is not None or self._settings.caps.usd is not None

    def _fact(self, name: str) -> str:
        return f"{name} of {self.address.model} at {self.address.base_url}"


def _tokens(sent: Sent, reply: Reply | None, worst: Worst) -> tuple[int, int]:
    """Tokens that an attempt is counted with: what the server says, else the worst, if it may have worked."""
    if reply is not None and reply.tokens_in is not None and reply.tokens_out is not None:
        return reply.tokens_in, reply.tokens_out
    is_free = not sent.reached or (sent.status is not None and sent.status != 200)
    return (0, 0) if is_free else (worst.tokens_in, worst.tokens_out)


def _dialect_by_owner(sent: Sent) -> str | None:
    """The dialect of a server that says whose models they are; `plain` if it is nobody known."""
    if sent.status != 200:
        return None
    try:
        owners = {str(row.get("owned_by", "")).lower() for row in json.loads(sent.text)["data"]}
    except (ValueError, LookupError, TypeError, AttributeError):
        return PLAIN
    return next((OWNERS[owner] for owner in sorted(owners) if owner in OWNERS), PLAIN)


def _may_be_the_grammar(form: Dialect, sent: Sent) -> bool:
    """Whether a refusal may be of the grammar, or of the API that carries it."""
    return sent.status in (400, 422) or (form.api == "responses" and sent.status in (404, 405))


def _described(sent: Sent) -> str:
    if sent.status is None:
        return sent.text[:500]
    return f"status {sent.status}: {message_of(sent.text)}"
