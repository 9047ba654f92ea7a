"""The records of an errand: what is wanted, done, answered, and left behind at the end."""

from collections.abc import Mapping
from typing import Any, NamedTuple

KINDS = ("schema", "policy", "tnc", "pricing", "auth")
"""What about a contract may drift."""
LANGUAGES = ("hi", "ta", "kn", "en", "hinglish")
ACTION_TYPES = ("tool_call", "speak", "clarify", "probe_schema", "report_drift", "submit", "abort")
MAX_TURNS = {1: 8, 2: 12, 3: 16}
"""Stage -> turns an errand may take."""

SUBMIT, ABORT, TIMEOUT, ANTI_HACK = "SUBMIT", "ABORT", "TIMEOUT", "ANTI_HACK"
"""How an errand ends."""


class Action(NamedTuple):
    """One turn of the agent; which fields an action type takes, `protocol.checked` says."""

    action_type: str
    tool_name: str | None = None
    tool_args: Mapping[str, Any] | None = None
    message: str | None = None
    confidence: float | None = None
    rationale: str | None = None
    domain: str | None = None
    """Of report_drift: whose contract changed."""
    kind: str | None = None
    """Of report_drift: one of KINDS."""


class ToolResult(NamedTuple):
    """A vendor's answer."""

    tool_name: str
    status: str
    """ok, schema_error, policy_error, auth_error or timeout."""
    response: Mapping[str, Any]
    schema_version: str
    latency_ms: int


class DriftEvent(NamedTuple):
    """A contract that changed during an errand. Never shown to the agent."""

    turn: int
    """The turn it came into force, before that turn's action."""
    pattern_id: str
    drift_type: str
    domain: str
    from_version: int
    to_version: int
    description: str


class Constraint(NamedTuple):
    """What a booking must fulfil: `fact` compared with `value`."""

    name: str
    """Which clause of the lexicon tells it, and which slot the user is asked for."""
    fact: str
    """A fact of the offer under the contract in force, such as "total" (rupees)."""
    test: str
    """at_most, at_least, equals, before, after, holds or lacks."""
    value: Any


class Goal(NamedTuple):
    """What the user truly wants. Never shown to the agent, who hears the utterance only."""

    domain: str
    intent: str
    template: str
    keys: tuple[Mapping[str, Any], ...]
    """Arguments that select a listing; several where several will do (today or tomorrow)."""
    request: Mapping[str, Any]
    """Further arguments of the booking: passengers, checkin, checkout, arrival_time, items."""
    constraints: tuple[Constraint, ...]
    prefer: tuple[str, str]
    """A fact and "lowest" or "highest": of the offers that will do, this one is wanted."""
    language: str
    utterance: str
    withheld: tuple[str, ...]
    """Constraints that the utterance does not tell; the user does, if asked."""
    secrets: Mapping[str, str]
    """gst_number and mfa_code, which the user tells if asked."""


class Booking(NamedTuple):
    """A committed booking, ride, order or stay."""

    booking_id: str
    domain: str
    offer: Mapping[str, Any]
    keys: Mapping[str, Any]
    request: Mapping[str, Any]
    total: int
    """Rupees paid."""
    patterns: tuple[str, ...]
    """The drifts in force when it was made: what it is judged by."""
    turn: int
    charge_id: str
    cancelled: bool = False


class Charge(NamedTuple):
    """Money taken; `booking_id` is empty where the agent charged by hand."""

    charge_id: str
    amount: int
    booking_id: str
    refunded: int = 0


class Observation(NamedTuple):
    """All that the agent sees of a turn."""

    turn: int
    budget_remaining: int
    """Turns left."""
    user: str
    """What the user said last, "" where he said nothing new."""
    language: str
    """The language of the user's last words."""
    result: ToolResult | None
    error: str
    """Why the action was not understood, "" where it was."""
    done: bool


class Turn(NamedTuple):
    """What was done and what came of it."""

    turn: int
    action: Action | None
    """None where what the agent said was no action."""
    result: ToolResult | None
    user: str
    language: str
    """The language the user spoke last before this action."""
    error: str


class Episode(NamedTuple):
    """A finished errand: everything that scoring reads."""

    seed: int
    stage: int
    goal: Goal
    oracle_turns: int
    max_turns: int
    turns: tuple[Turn, ...]
    bookings: tuple[Booking, ...]
    charges: tuple[Charge, ...]
    drifts: tuple[DriftEvent, ...]
    exposed: Mapping[str, int]
    """pattern_id -> the turn whose result first revealed it."""
    ended: str
    reserved: bool
    """Whether a key of the world's own was written to."""
    success: bool
    """Whether the final state is what the user wanted (R1)."""
    satisfied: tuple[bool, ...]
    """Of each constraint, for the last standing booking; empty without one."""
    fitting: tuple[int, ...]
    """Turns of bookings that fulfil every constraint under the contract they were made by."""
