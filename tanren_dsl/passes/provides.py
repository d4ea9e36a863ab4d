"""Does a mode or target provide what a policy reads? A signal it lacks is refused by name."""

from __future__ import annotations

from tanren_dsl.errors import UnsupportedError
from tanren_dsl.ir import Policy
from tanren_dsl.signals import signals_of


def require_signals(policy: Policy, provider: str, what: str) -> None:
    """Raise UnsupportedError unless `provider` (a name in `Signal.provided_by`) has every signal.

    `what` names the mode or target in the message.

    >>> from tanren_dsl.check import loads
    >>> require_signals(loads("policy p : evict order by waiting / max_running"), "replay", "replay mode")
    Traceback (most recent call last):
    ...
    tanren_dsl.errors.UnsupportedError: error: p: replay mode does not provide `waiting`, `max_running`
      hint: `tanren-dsl explain` lists who provides which signal
    """
    rows = signals_of(policy.kind)
    missing = [f"`{name}`" for name in policy.signals() if provider not in rows[name].provided_by]
    if missing:
        raise UnsupportedError(
            f"{policy.name}: {what} does not provide {', '.join(missing)}",
            hint="`tanren-dsl explain` lists who provides which signal",
        )
