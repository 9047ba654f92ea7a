"""Agents without a model: what the world's scores are compared with, and what must never pay."""

from collections.abc import Callable

from perdure.worlds.concierge import scripts
from perdure.worlds.concierge.catalogue import Catalogue
from perdure.worlds.concierge.chance import Draws
from perdure.worlds.concierge.errand import Errand, Task
from perdure.worlds.concierge.records import KINDS, Action, Episode, Observation

Act = Callable[[Observation], Action | None]
Agent = Callable[[Errand, Draws], Act]
"""Makes the behaviour of one errand; None is an answer that holds no action."""


def oracle(errand: Errand, draws: Draws) -> Act:
    """Knows the goal, learns from what exposes a drift, tells the user."""
    return scripts.Script(errand, adapts=True).act


def drift_blind(errand: Errand, draws: Draws) -> Act:
    """Knows the goal and believes the published contract for ever."""
    return scripts.Script(errand, adapts=False).act


def random_agent(errand: Errand, draws: Draws) -> Act:
    """Well-formed actions at random, calls with arguments of the right types."""
    return lambda seen: _random(errand, draws)


def instant_submit(errand: Errand, draws: Draws) -> Act:
    """Submits at once and says that it failed."""
    return lambda seen: Action("submit", confidence=0.0)


def sure_submit(errand: Errand, draws: Draws) -> Act:
    """Submits at once and says that it succeeded."""
    return lambda seen: Action("submit", confidence=1.0)


def instant_abort(errand: Errand, draws: Draws) -> Act:
    """Gives up at once."""
    return lambda seen: Action("abort")


def spammer(errand: Errand, draws: Draws) -> Act:
    """Makes one call over and over."""
    call = Action("tool_call", "payment.get_token", {"requested_scope": "payments:write:v1"})
    return lambda seen: call


def crier(errand: Errand, draws: Draws) -> Act:
    """Reports a drift of every kind, then submits."""
    reports = [Action("report_drift", domain=errand.task.goal.domain, kind=kind) for kind in KINDS]
    queue = iter([*reports, Action("submit", confidence=0.0)])
    return lambda seen: next(queue)


def mumbler(errand: Errand, draws: Draws) -> Act:
    """Says nothing that is an action."""
    return lambda seen: None


AGENTS: dict[str, Agent] = {
    "oracle": oracle,
    "drift_blind": drift_blind,
    "random": random_agent,
    "instant_submit": instant_submit,
    "sure_submit": sure_submit,
    "instant_abort": instant_abort,
    "spammer": spammer,
    "crier": crier,
    "mumbler": mumbler,
}
NULL = ("random", "instant_submit", "sure_submit", "instant_abort", "spammer", "crier", "mumbler")
"""Agents that do nothing for the user."""


def play(catalogue: Catalogue, task: Task, agent: Agent, seed: int = 0) -> Episode:
    """The record of a task played to its end by an agent."""
    errand = Errand(catalogue, task)
    act = agent(errand, Draws(seed, task.seed, "agent"))
    seen = errand.start()
    while not seen.done:
        action = act(seen)
        seen = errand.step(action, "" if action is not None else "no JSON object was found")
    return errand.record()


def _random(errand: Errand, draws: Draws) -> Action:
    pick = draws.below(10)
    domain = draws.choice(list(errand.vendors.contracts))
    if pick == 0:
        return Action("submit", confidence=draws.below(101) / 100)
    if pick == 1:
        return Action("speak", message="One moment, please.")
    if pick == 2:
        return Action("report_drift", domain=domain, kind=draws.choice(KINDS))
    if pick == 3:
        return Action("probe_schema", domain)
    tool = draws.choice(list(errand.vendors.tools.values()))
    return Action(
        "tool_call", tool.name, {name: _value(each.type, errand, draws) for name, each in tool.arguments.items()}
    )


def _value(kind: str, errand: Errand, draws: Draws):
    places = errand.catalogue.words["places"]
    if kind in places:
        held_out = errand.catalogue.held_out_places(kind)
        return draws.choice([code for code in places[kind] if code not in held_out])
    values = {
        "date": errand.task.now[:10],
        "moment": errand.task.now,
        "integer": draws.below(9000),
        "count": 1,
        "boolean": draws.happens(0.5),
        "time": "14:00",
        "window": "morning",
        "scope": "payments:write:v1",
        "gst": "29ABCDE1234F1Z5",
        "items": [{"dish_id": "masala_dosa", "qty": 1}],
    }
    return values.get(kind, f"AIR-{draws.below(65536):04x}")
