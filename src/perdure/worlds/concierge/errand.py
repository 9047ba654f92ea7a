"""One errand from the first request to the end: turns, drifts at their milestones, the user, the final record."""

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from perdure.core.errors import PerdureError
from perdure.worlds.concierge import evidence, outcome, user
from perdure.worlds.concierge.catalogue import PAYMENT, Catalogue, Pattern
from perdure.worlds.concierge.offers import Listing
from perdure.worlds.concierge.records import (
    ABORT,
    ANTI_HACK,
    SUBMIT,
    TIMEOUT,
    Action,
    DriftEvent,
    Episode,
    Goal,
    Observation,
    ToolResult,
    Turn,
)
from perdure.worlds.concierge.vendors import Vendors

MOST_INVALID = 3
"""Invalid actions in a row that end an errand."""
MOST_REPORTS = 4
MOST_PROBES = 2
RESERVED = "__"
"""How keys begin that belong to the world; an argument of such a name ends the errand."""


class Task(NamedTuple):
    """Everything that determines an errand."""

    seed: int
    stage: int
    goal: Goal
    now: str
    """The errand's clock: ISO to the minute, Indian time."""
    versions: Mapping[str, int]
    planted: Mapping[str, Listing]
    drifts: tuple[str, ...]
    """Patterns in the order in which they come into force."""
    failing: tuple[str, ...]
    """Kinds of tool whose next call times out, once each (a decoy)."""
    notices: tuple[tuple[str, str], ...]
    """Notices that mean nothing (decoys): vendor and text."""
    switch: str
    """The language that the user goes on in after the first answer; "" for none."""
    most_offers: int
    max_turns: int
    oracle_turns: int = 0
    lead: int = 0
    """Turns from the notice of a drift until it is in force, at least; a pattern may have a longer grace period."""
    oracle: tuple[Action, ...] = ()
    """What the oracle does, turn by turn."""


class Errand:
    """An errand under way. A new one is a new object: nothing is carried over."""

    def __init__(self, catalogue: Catalogue, task: Task):
        self.catalogue, self.task = catalogue, task
        self.vendors = Vendors(
            catalogue,
            task.seed,
            task.now,
            task.versions,
            task.planted,
            task.goal.secrets["mfa_code"],
            task.most_offers,
            task.failing,
        )
        for domain, notice in task.notices:
            self.vendors.post(domain, notice)
        self.turn = 0
        self.turns: list[Turn] = []
        self.drifts: list[DriftEvent] = []
        self.exposed: dict[str, int] = {}
        self.due: dict[str, int] = {}
        """pattern_id -> the turn from which on a drift that was announced is in force."""
        self.language = task.goal.language
        self.ended = ""
        self.reserved = False
        self._invalid_in_a_row = self._answered = self._reports = self._probes = 0

    def start(self) -> Observation:
        """What the agent sees before its first turn: the request."""
        return self._seen(self.task.goal.utterance, None, "")

    def step(self, action: Action | None, error: str = "") -> Observation:
        """One turn. `action` is None where what the agent said was none, and `error` says why.

        Raises PerdureError after the end.
        """
        if self.ended:
            raise PerdureError(f"this errand has ended ({self.ended}); call reset() before step()")
        self.turn += 1
        language = self.language
        said, result = "", None
        self._fire_due()
        if action is not None and not error:
            error = self._refused(action)
        if action is not None and not error:
            self._invalid_in_a_row = 0
            said, result = self._done(action)
        else:
            action = None
            self._invalid_in_a_row += 1
            if self._invalid_in_a_row >= MOST_INVALID:
                self.ended = ANTI_HACK
        self.turns.append(Turn(self.turn, action, result, said, language, error))
        if not self.ended and self.turn >= self.task.max_turns:
            self.ended = TIMEOUT
        return self._seen(said, result, error)

    def branch(self) -> Self:
        """An errand of its own that stands where this one does."""
        other = copy.copy(self)
        other.vendors = self.vendors.branch()
        other.turns, other.drifts = list(self.turns), list(self.drifts)
        other.exposed, other.due = dict(self.exposed), dict(self.due)
        return other

    def record(self) -> Episode:
        """The finished errand; PerdureError before its end."""
        if not self.ended:
            raise PerdureError("the errand has not ended yet; its record is made at the end")
        task = self.task
        told = evidence.told(self.catalogue, self.turns, self.exposed)
        judged = outcome.judged(self.catalogue, self.vendors, task, told, self.ended == SUBMIT)
        return Episode(
            task.seed,
            task.stage,
            task.goal,
            task.oracle_turns,
            task.max_turns,
            tuple(self.turns),
            tuple(self.vendors.bookings.values()),
            tuple(self.vendors.payments.charges.values()),
            tuple(self.drifts),
            dict(self.exposed),
            self.ended,
            self.reserved,
            judged.success and not self.reserved,
            judged.satisfied,
            judged.fitting,
        )

    def _seen(self, said: str, result: ToolResult | None, error: str) -> Observation:
        left = self.task.max_turns - self.turn
        return Observation(self.turn, left, said, self.language, result, error, bool(self.ended))

    def _refused(self, action: Action) -> str:
        """Why a well-formed action cannot be done here; "" where it can."""
        kind = action.action_type
        if kind == "tool_call" and action.tool_name not in self.vendors.tools:
            return "there is no such tool"
        if kind == "probe_schema":
            if action.tool_name not in self.vendors.contracts:
                return "there is no such vendor"
            if self._probes >= MOST_PROBES:
                return f"probe_schema is allowed {MOST_PROBES} times"
        if kind == "report_drift":
            if action.domain not in self.vendors.contracts:
                return "there is no such vendor"
            if self._reports >= MOST_REPORTS:
                return f"report_drift is allowed {MOST_REPORTS} times"
        return ""

    def _done(self, action: Action) -> tuple[str, ToolResult | None]:
        kind = action.action_type
        if kind == "tool_call":
            return "", self._called(action)
        if kind == "clarify":
            return self._asked(action.message or ""), None
        if kind == "probe_schema":
            self._probes += 1
            return "", self._probed(action.tool_name or "")
        if kind == "report_drift":
            self._reports += 1
        elif kind == "submit":
            self.ended = SUBMIT
        elif kind == "abort":
            self.ended = ABORT
        return "", None

    def _called(self, action: Action) -> ToolResult | None:
        name, arguments = action.tool_name or "", action.tool_args or {}
        if _reserves(arguments):
            self.reserved, self.ended = True, ANTI_HACK
            return None
        tool = self.vendors.tools[name]
        coming = self._coming()
        lead = 0 if coming is None else max(self.task.lead, coming.grace)
        if coming is not None and not lead and tool.kind == "book" and tool.domain == self.task.goal.domain:
            self._fire(coming)
        result = self.vendors.call(name, arguments, self.turn)
        if coming is not None and lead and tool.domain in (coming.domain, self.task.goal.domain):
            result = self._announced(coming, lead, result)
        self._reveal(tool.domain, result)
        return result

    def _probed(self, domain: str) -> ToolResult:
        contract = self.vendors.contracts[domain]
        for event in self.drifts:
            if event.domain == domain:
                self.exposed.setdefault(event.pattern_id, self.turn)
        return ToolResult(f"{domain}.schema", "ok", self.vendors.snapshot(domain), f"v{contract.version}", 50)

    def _asked(self, message: str) -> str:
        task = self.task
        found = user.reply(
            self.catalogue, task.goal, message, task.switch or self.language, self._answered, task.seed, task.now
        )
        self._answered += found.helpful
        if task.switch:
            self.language = task.switch
        return found.text

    def _fire_due(self) -> None:
        """What was announced for this turn, and what no milestone has brought while there is still time to react."""
        late = self.turn >= self.task.max_turns - 4
        if not late and not self.due:
            return
        coming = self._coming()
        if coming is not None and (late or self.turn >= self.due.get(coming.id, self.task.max_turns)):
            self._fire(coming)

    def _coming(self) -> Pattern | None:
        """The next drift, if the last one has been seen: each can be told from the other."""
        done = len(self.drifts)
        if done >= len(self.task.drifts) or len(self.exposed) < done:
            return None
        return self.catalogue.pattern(self.task.drifts[done])

    def _announced(self, coming: Pattern, lead: int, result: ToolResult) -> ToolResult:
        """The answer with what is about to change and when, if it is an answer at all."""
        if result.status == "timeout":
            return result
        due = self.due.setdefault(coming.id, self.turn + lead)
        self.exposed.setdefault(coming.id, self.turn)
        self.vendors.announce(coming.id)
        said = coming.notice or f"{coming.tell['en'][:1].upper()}{coming.tell['en'][1:]}."
        left = due - self.turn
        header = f"In force in {left} turn{'s' * (left > 1)}: {said}"
        return result._replace(response={**result.response, "_announced": header})

    def _fire(self, pattern: Pattern) -> None:
        self.vendors.drift(pattern.id, announced=pattern.id in self.due)
        self.drifts.append(
            DriftEvent(
                self.turn,
                pattern.id,
                pattern.type,
                pattern.domain,
                pattern.from_version,
                pattern.to_version,
                pattern.description,
            )
        )

    def _reveal(self, domain: str, result: ToolResult) -> None:
        """Note which drifts this answer gives away."""
        for event in self.drifts:
            if event.pattern_id in self.exposed:
                continue
            pattern = self.catalogue.pattern(event.pattern_id)
            if event.domain != domain and not (event.domain == PAYMENT and result.status == "auth_error"):
                continue
            noticed = pattern.notice and pattern.notice in result.response.get("_notice", "")
            ok = result.status == "ok" and result.tool_name in pattern.tools
            if noticed or ok or result.response.get("error_code") in pattern.codes:
                self.exposed[event.pattern_id] = self.turn


def _reserves(arguments: Any, depth: int = 0) -> bool:
    """Whether any key within the arguments belongs to the world."""
    if depth > 8:
        return False
    if isinstance(arguments, Mapping):
        for key, value in arguments.items():
            if str(key).startswith(RESERVED) or (not isinstance(value, str) and _reserves(value, depth + 1)):
                return True
    elif isinstance(arguments, list):
        return any(_reserves(item, depth + 1) for item in arguments)
    return False
