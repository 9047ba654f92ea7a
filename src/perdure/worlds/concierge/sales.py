"""A sale as a booking call states it, and why it is refused for what else was or was not said."""

from collections.abc import Iterable, Mapping
from typing import Any

from perdure.worlds.concierge.contract import Tool
from perdure.worlds.concierge.judge import Refusal
from perdure.worlds.concierge.records import Booking

_UNREQUESTED = {"payment_token", "mfa_code", "passenger_name"}


def request(tool: Tool, values: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a booking that say what is booked, beyond the offer."""
    skipped = {tool.selects, *tool.keys, *_UNREQUESTED}
    return {
        argument.request or name: values[name]
        for name, argument in tool.arguments.items()
        if name in values and name not in skipped and not argument.filter
    }


def lacking(tool: Tool, known: Mapping[str, Any], values: Mapping[str, Any]) -> Refusal | None:
    """A missing argument that only some sales need."""
    for name, argument in tool.arguments.items():
        rule = argument.required_by
        if rule is not None and "above" in rule and name not in values and known["total"] > rule["above"]:
            extras = {"field_name": name, "gst_threshold_inr": rule["above"], "computed_total_inr": known["total"]}
            return Refusal("schema_error", rule["code"], extras)
    return None


def duplicate(standing: Iterable[Booking], sale: tuple[str, Any, Any, Any], now: str) -> Refusal | None:
    """A refusal where the same sale (vendor, offer, keys, request) stands already."""
    for booking in standing:
        if (booking.domain, booking.offer, booking.keys, booking.request) == sale:
            return Refusal("policy_error", "DUPLICATE_BOOKING", {"existing_id": booking.booking_id, "original_ts": now})
    return None
