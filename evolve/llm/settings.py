"""The table `[models]` of a problem file: which server, how it is asked, and what may be spent."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

from tanren_dsl.errors import TanrenError
from tanren_dsl.evolve.llm.dialects import DIALECTS
from tanren_dsl.evolve.reader import Reader

AUTO = "auto"
NO_KEY = "none"
"""What is sent as a key to a server that wants none."""

Notation: TypeAlias = Literal["default", "lark", "ebnf"]


@dataclass(frozen=True, slots=True)
class Caps:
    """The most that a run may spend; None: no limit.

    Attributes:
        calls: requests for an answer, those that failed included.
        tokens: of prompts and answers together.
        usd: US dollars, by the prices of the settings.
        wall_s: seconds spent in calls and in waiting between them.
    """

    calls: int | None = None
    tokens: int | None = None
    usd: float | None = None
    wall_s: float | None = None


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """How a model is asked. A key never stands in the file, only the name of its variable.

    Attributes:
        dialect: a name of `DIALECTS`, or `auto`.
        notation: how the grammar is written; `default` is the dialect's own choice.
        base_url, model: given here, or by the variables `base_url_env` and `model_env`.
        needs_key: False where a server wants none.
        temperature, top_p, reasoning_effort: sent if given.
        max_tokens: most tokens of an answer, thinking included.
        seed: whether the seed of each ask is sent.
        attempts: most attempts of one turn, the first included.
        timeout_s: seconds that one attempt may take, the whole answer read.
        longest_wait_s: most seconds waited before another attempt.
        prompt_chars: most characters of the first prompt.
        price_in, price_out: US dollars a million tokens; None: not known.
    """

    dialect: str = AUTO
    notation: Notation = "default"
    base_url: str | None = None
    base_url_env: str = "OPENAI_BASE_URL"
    model: str | None = None
    model_env: str = "TANREN_MODEL"
    needs_key: bool = True
    key_env: str = "OPENAI_API_KEY"
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int = 4096
    seed: bool = False
    reasoning_effort: str | None = None
    attempts: int = 5
    timeout_s: float = 300.0
    longest_wait_s: float = 60.0
    prompt_chars: int = 24_000
    price_in: float | None = None
    price_out: float | None = None
    caps: Caps = Caps()


@dataclass(frozen=True, slots=True)
class Address:
    """Where a model is: the base URL, the model's name and the key."""

    base_url: str
    model: str
    key: str


def read_models(reader: Reader) -> ModelSettings | None:
    """The settings of a table, or None where it is empty or missing.

    Raises:
        TanrenError: names the key, what was expected and what was found.
    """
    if not reader.data:
        return None
    known = ModelSettings()
    key = reader.take("key")
    if key is not None and key is not False:
        raise TanrenError(
            f"{reader.source}: {reader.path}.key: expected false, for a server that wants no key",
            hint="a key never stands in the file: put it into the variable that `key_env` names",
        )
    settings = ModelSettings(
        dialect=_one_of(reader, "dialect", (AUTO, *DIALECTS), known.dialect),
        notation=_notation(reader),
        base_url=_base_url(reader),
        base_url_env=reader.text("base_url_env", known.base_url_env),
        model=_optional_text(reader, "model"),
        model_env=reader.text("model_env", known.model_env),
        needs_key=key is None,
        key_env=reader.text("key_env", known.key_env),
        temperature=_optional(reader, "temperature", low=0.0, high=2.0),
        top_p=_optional(reader, "top_p", low=0.0, high=1.0, above=True),
        max_tokens=reader.whole("max_tokens", known.max_tokens, least=16, most=1_000_000),
        seed=reader.truth("seed", known.seed),
        reasoning_effort=_optional_text(reader, "reasoning_effort"),
        attempts=reader.whole("attempts", known.attempts, least=1, most=100),
        timeout_s=reader.number("timeout_s", known.timeout_s, low=0.0, above=True),
        longest_wait_s=reader.number("longest_wait_s", known.longest_wait_s, low=0.0),
        prompt_chars=reader.whole("prompt_chars", known.prompt_chars, least=12_000, most=1_000_000),
        price_in=_optional(reader, "price_in", low=0.0),
        price_out=_optional(reader, "price_out", low=0.0),
        caps=_caps(reader.table("caps")),
    )
    reader.finish()
    check_prices(settings)
    return settings


def check_prices(settings: ModelSettings) -> None:
    """Refuse a cap on money without prices: none is guessed.

    Raises:
        TanrenError: says which settings to give.
    """
    missing = [name for name in ("price_in", "price_out") if getattr(settings, name) is None]
    if settings.caps.usd is not None and missing:
        raise TanrenError(
            f"models.caps.usd limits the money, and the price of a token is not known: "
            f"expected models.{' and models.'.join(missing)}",
            hint="US dollars a million tokens, of the prompt and of the answer; 0 for a server of your own",
        )


def address_of(settings: ModelSettings, environment: Mapping[str, str] | None = None) -> Address:
    """Where the model is, by the settings and the environment.

    Raises:
        TanrenError: no base URL, no model, or no key for a server that is not on this machine.
    """
    environment = os.environ if environment is None else environment
    base_url = settings.base_url or environment.get(settings.base_url_env, "").strip()
    if not base_url:
        raise TanrenError(
            f"no address of a model server: expected {settings.base_url_env} in the environment, or "
            "models.base_url in the problem file, found neither",
            hint="such as https://api.openai.com/v1 or http://127.0.0.1:8000/v1; none is assumed",
        )
    if not _is_url(base_url):
        raise TanrenError(f"{settings.base_url_env}: expected an http or https address, found {base_url!r}")
    model = settings.model or environment.get(settings.model_env, "").strip()
    if not model:
        raise TanrenError(
            f"no model is named: expected {settings.model_env} in the environment, or models.model in the "
            "problem file, found neither",
            hint=f"{base_url.rstrip('/')}/models lists those of the server",
        )
    key = environment.get(settings.key_env, "").strip() if settings.needs_key else ""
    if not key and settings.needs_key and not is_local(base_url):
        raise TanrenError(
            f"no key for {base_url}: expected {settings.key_env} in the environment",
            hint="`key = false` in [models] says that the server wants none",
        )
    return Address(base_url.rstrip("/"), model, key or NO_KEY)


def is_local(url: str) -> bool:
    """Whether an address is this machine's own.

    >>> is_local("http://localhost:8000/v1"), is_local("http://[::1]/v1"), is_local("http://10.0.0.1/v1")
    (True, True, False)
    """
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and not parts.username
    except ValueError:
        return False


def _caps(reader: Reader) -> Caps:
    caps = Caps(
        calls=reader.whole("calls", least=0) if "calls" in reader.data else None,
        tokens=reader.whole("tokens", least=0, most=10**12) if "tokens" in reader.data else None,
        usd=_optional(reader, "usd", low=0.0),
        wall_s=_optional(reader, "wall_s", low=0.0),
    )
    for name in ("calls", "tokens"):
        reader.take(name)
    reader.finish()
    return caps


def _notation(reader: Reader) -> Notation:
    found = _one_of(reader, "notation", ("default", "lark", "ebnf"), "default")
    return "lark" if found == "lark" else "ebnf" if found == "ebnf" else "default"


def _base_url(reader: Reader) -> str | None:
    url = _optional_text(reader, "base_url")
    if url is not None and not _is_url(url):
        raise reader.error("base_url", "an http or https address without a key in it", url)
    return url


def _one_of(reader: Reader, key: str, names: tuple[str, ...], default: str) -> str:
    found = reader.text(key, default)
    if found not in names:
        raise reader.error(key, f"one of {', '.join(names)}", found)
    return found


def _optional_text(reader: Reader, key: str) -> str | None:
    return reader.text(key) if reader.take(key) is not None else None


def _optional(
    reader: Reader, key: str, *, low: float, high: float = float("inf"), above: bool = False
) -> float | None:
    return reader.number(key, low=low, high=high, above=above) if reader.take(key) is not None else None
