"""Arms: the orders of service that are held against each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from tanren_dsl.check import loads
from tanren_dsl.errors import UnsupportedError
from tanren_dsl.ir import Policy
from tanren_dsl.kernels.abi import CompileOrdering
from tanren_dsl.scoring.settings import Settings
from tanren_dsl.sim.service import Service, by_priority, first_come, service_of
from tanren_dsl.trace.table import Ints, RequestTable

BASE = "fcfs"
ORACLE = "shortest_work_oracle"


@dataclass(frozen=True, eq=False)
class Arm:
    """One order of service.

    Attributes:
        label: unique among the arms of a scoreboard.
        policy: None for the engine's own orders.
        knows_work: whether requests carry their true work as a priority.
    """

    label: str
    service: Service
    policy: Policy | None = None
    knows_work: bool = False

    def priority(self, table: RequestTable) -> Ints | None:
        """[R] what the service orders by, if it is told: tokens of prompt and output, as they will be."""
        return table.prompt_tokens + table.output_tokens if self.knows_work else None


def base_arm() -> Arm:
    """First come, first served, by the engine's own queue."""
    return Arm(BASE, first_come())


def oracle_arm() -> Arm:
    """Shortest total work first, with outputs known: an order that no server could have.

    The engine's own priority service, with a request's tokens of prompt and output as its priority:
    the waiting are ordered by all their work, done or not, ties by arrival, and the request with the
    most work is pushed out when memory runs out. It takes nothing from a running request for a
    shorter one, and counts a cached token like any other. It shows what knowledge of the outputs is
    worth to an order of this kind. It is no proven optimum, least of all of the mean TTFT, where an
    order by prompts or by what is not cached may do better.
    """
    return Arm(ORACLE, by_priority(), knows_work=True)


def policy_arms(
    policies: Sequence[Policy],
    compile_ordering: CompileOrdering,
    settings: Settings,
    known: Sequence[Arm] = (),
) -> tuple[Arm, ...]:
    """Arms of schedule policies; one that is among the `known` arms, knobs included, is that arm.

    Raises:
        UnsupportedError: a policy evicts, or reads what engine mode does not provide.
    """
    found: list[Arm] = []
    taken = {BASE, ORACLE}
    for policy in policies:
        same = next((arm for arm in known if arm.policy == policy and arm.label not in taken), None)
        arm = same or Arm(_unique(policy.name, taken), _service(policy, compile_ordering, settings), policy)
        taken.add(arm.label)
        found.append(arm)
    return tuple(found)


def classic_arms(compile_ordering: CompileOrdering, settings: Settings) -> tuple[Arm, ...]:
    """The packaged schedule policies that engine mode can run, at their own knobs; `fcfs` is the first."""
    folder = files("tanren_dsl.examples") / "schedule"
    texts = sorted(file.name for file in folder.iterdir() if file.name.endswith(".tpl"))
    found = []
    for name in sorted(texts, key=lambda name: name != f"{BASE}.tpl"):
        policy = loads((folder / name).read_text(encoding="utf-8"), name)
        try:
            found.append(Arm(policy.name, _service(policy, compile_ordering, settings), policy))
        except UnsupportedError:
            continue
    return tuple(found)


def _service(policy: Policy, compile_ordering: CompileOrdering, settings: Settings) -> Service:
    return service_of(policy, compile_ordering, guard=settings.guard, seed_s=settings.guard_seed_s)


def _unique(name: str, taken: set[str]) -> str:
    number, label = 1, name
    while label in taken:
        number += 1
        label = f"{name} ({number})"
    return label
