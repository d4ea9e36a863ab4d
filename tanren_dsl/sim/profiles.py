"""Engine profiles: what differs between the engine versions that the simulators copy."""

from __future__ import annotations

from dataclasses import dataclass

from tanren_dsl.errors import TanrenError


@dataclass(frozen=True, slots=True)
class Profile:
    """One engine version.

    Attributes:
        name: how it is named on the command line.
        version: the release it is tested against.
        unhashed_first: a freed block without hash goes to the head of the free queue and is
            taken before any other, unscored; else it is appended and scored like the rest.
        refill: the asynchronous loop schedules again after an empty batch while it has room.
        alone_exempt: the only request there is may use the whole budget, whatever the limit of a prefill.
        index_fixed: after pushing out, by priority, a request that was passed over in this step, the
            next one in line is not skipped.
    """

    name: str
    version: str
    unhashed_first: bool
    refill: bool
    alone_exempt: bool
    index_fixed: bool


PROFILES: dict[str, Profile] = {
    "vllm-0.19": Profile(
        "vllm-0.19", "0.19.1", unhashed_first=False, refill=False, alone_exempt=False, index_fixed=False
    ),
    "vllm-0.32": Profile(
        "vllm-0.32", "0.32.0", unhashed_first=True, refill=True, alone_exempt=True, index_fixed=True
    ),
}


def profile_of(name: str) -> Profile:
    """The profile of a name.

    Raises:
        TanrenError: there is none.
    """
    if name not in PROFILES:
        raise TanrenError(f"unknown engine {name!r}", hint=f"known engines: {', '.join(PROFILES)}")
    return PROFILES[name]
