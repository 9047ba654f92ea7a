"""The vendors of one errand: they answer calls by the contracts in force, and keep what was booked and charged."""

import copy
import json
from collections.abc import Mapping
from typing import Any, Self

from perdure.worlds.concierge import chance, judge, offers, sales, schema, searching, views
from perdure.worlds.concierge.catalogue import PAYMENT, Catalogue
from perdure.worlds.concierge.contract import Contract, Tool
from perdure.worlds.concierge.judge import Refusal
from perdure.worlds.concierge.offers import Listing
from perdure.worlds.concierge.payments import Payments, surfaced
from perdure.worlds.concierge.records import Booking, ToolResult

TIMEOUT_EVERY = 128
"""One call in so many times out; a repetition of it is another draw."""


class Vendors:
    """All vendors of an errand, with state of their own.

    `planted` are the listings that the task has laid out, by `offers.listing_key`; every other query is answered
    from `seed`. `now` is the errand's clock (ISO to the minute, Indian time), which stands still.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        seed: int,
        now: str,
        versions: Mapping[str, int],
        planted: Mapping[str, Listing],
        mfa_code: str,
        most_offers: int = 0,
        failing: tuple[str, ...] = (),
    ):
        self.catalogue, self.seed, self.now = catalogue, seed, now
        self.versions, self.planted, self._most = versions, planted, most_offers
        self._short = most_offers > 0  # Among few offers a syllable is enough, and a small vocabulary has it whole.
        self.contracts = {name: catalogue.contract(name, versions.get(name, 1)) for name in catalogue.domains}
        self.patterns: dict[str, tuple[str, ...]] = dict.fromkeys(catalogue.domains, ())
        self.tools: dict[str, Tool] = {}
        for contract in self.contracts.values():
            self.tools.update(contract.tools)
        self.bookings: dict[str, Booking] = {}
        self.payments = Payments(seed, now, mfa_code, self._fresh, self._short)
        self.notices: dict[str, str] = {}
        self._announced = ""
        self._failing = list(failing)
        self._attempts: dict[str, int] = {}
        self._calls: dict[str, int] = {}
        self._last: dict[str, int] = {}
        self._known: dict[str, tuple[Mapping[str, Any], Mapping[str, Any], int]] = {}
        self._places = catalogue.words["places"]

    def branch(self) -> Self:
        """Vendors of their own that stand where these do."""
        other = copy.copy(self)
        for name in _OWN:
            setattr(other, name, copy.copy(getattr(self, name)))
        other.payments = self.payments.branch(other._fresh)
        return other

    def announce(self, pattern_id: str) -> None:
        """Accept calls in the form that a drift will ask for besides the present form, until it is in force."""
        self._announced = pattern_id

    def drift(self, pattern_id: str, announced: bool = False) -> None:
        """Put a drift in force from the next call on; its notice, unless announced, waits for the next answer."""
        pattern = self.catalogue.pattern(pattern_id)
        domain = pattern.domain
        self._announced = ""
        self.patterns[domain] = (*self.patterns[domain], pattern_id)
        contract = self.catalogue.contract(domain, self.versions.get(domain, 1), self.patterns[domain])
        self.contracts[domain] = contract
        self.tools.update(contract.tools)
        if pattern.notice and not announced:
            self.post(domain, pattern.notice)

    def post(self, domain: str, notice: str) -> None:
        """Have a notice go out with the next answer of a vendor; several are joined."""
        waiting = self.notices.get(domain)
        self.notices[domain] = f"{waiting} {notice}" if waiting else notice

    def call(self, name: str, arguments: Mapping[str, Any], turn: int) -> ToolResult:
        """A vendor's answer to a call of one of `tools`."""
        tool = self.tools[name]
        domain = tool.domain
        contract = self.contracts[domain]
        noise = self._noise(name, arguments)
        if noise % TIMEOUT_EVERY == 0 or self._fails(tool):
            late = 5000 + noise // TIMEOUT_EVERY % 2001
            return ToolResult(name, "timeout", {"error_code": "TIMEOUT"}, f"v{contract.version}", late)
        found: dict[str, Any] | Refusal | None = schema.problem(tool, arguments, contract, self._places)
        if found is not None and self._announced:
            newer = self._newer(domain)
            if schema.problem(newer.tools[name], arguments, newer, self._places) is None:
                tool, contract, found = newer.tools[name], newer, None
        if found is None:
            found = self._limited(contract, turn)
        if found is None:
            self._last[domain] = turn
            found = getattr(self, _KINDS[tool.kind])(tool, contract, schema.understood(tool, arguments), turn)
        assert found is not None
        status = "ok"
        if isinstance(found, Refusal):
            status, found = found.status, {"error_code": found.code, **found.extras}
        notice = self.notices.pop(domain, None)
        if notice is not None:
            found["_notice"] = notice
        return ToolResult(name, status, found, f"v{contract.version}", 50 + noise // TIMEOUT_EVERY % 351)

    def snapshot(self, domain: str) -> dict[str, Any]:
        """What probe_schema tells: arguments of every tool and fields of every answer, as they are now."""
        contract = self.contracts[domain]
        tools = {tool.verb: schema.json_schema(tool, contract, self._places) for tool in contract.tools.values()}
        fields = {name: [field.name for field in view] for name, view in contract.views.items()}
        terms = {"terms": dict(contract.terms)} if contract.terms else {}
        return {"version": contract.version, "tools": tools, "fields": fields, **terms}

    def listing(self, domain: str, keys: Mapping[str, Any]) -> Listing:
        """The offers for a query."""
        planted = self.planted.get(offers.listing_key(domain, keys))
        if planted is not None:
            return planted
        return offers.listing(self.catalogue.domains[domain]["offers"], domain, self.seed, keys, self._most)

    def offer(self, offer_id: str) -> Mapping[str, Any]:
        """The offer that an id of any epoch names; KeyError for an id that was never given out."""
        return self._known[offer_id][0]

    def standing(self) -> list[Booking]:
        """Bookings that were not cancelled, oldest first."""
        return [booking for booking in self.bookings.values() if not booking.cancelled]

    def _newer(self, domain: str) -> Contract:
        """The contract that a vendor has announced, the present one where it has announced none."""
        if self.catalogue.pattern(self._announced).domain != domain:
            return self.contracts[domain]
        return self.catalogue.contract(domain, self.versions.get(domain, 1), (*self.patterns[domain], self._announced))

    def _drifts_of(self, contract: Contract) -> tuple[str, ...]:
        """The drifts by which a contract of this errand differs from its vendor's first one."""
        own = self.patterns[contract.domain]
        return own if contract is self.contracts[contract.domain] else (*own, self._announced)

    def _noise(self, name: str, arguments: Mapping[str, Any]) -> int:
        canonical = f"{name}{_canonical(arguments)}"
        attempt = self._attempts[canonical] = self._attempts.get(canonical, 0) + 1
        return chance.number(self.seed, "noise", canonical, attempt)

    def _fails(self, tool: Tool) -> bool:
        """Whether an outage swallows this call: one the task laid out, or one that a drift brought."""
        if tool.kind in self._failing:
            self._failing.remove(tool.kind)
            return True
        for policy in self.contracts[tool.domain].policies:
            if policy["kind"] == "outage" and policy["tool"] == tool.verb:
                done = self._calls[tool.name] = self._calls.get(tool.name, 0) + 1
                return done <= policy["attempts"]
        return False

    def _limited(self, contract: Contract, turn: int) -> Refusal | None:
        for policy in contract.policies:
            if policy["kind"] == "rate_limit":
                wait = self._last.get(contract.domain, -99) + policy["turns"] - turn
                if wait > 0:
                    return Refusal("policy_error", policy["code"], {"retry_after_turns": wait})
        return None

    def _search(self, tool: Tool, contract: Contract, values: dict[str, Any], turn: int) -> dict[str, Any] | Refusal:
        keys = {name: values[name] for name in tool.keys}
        request = sales.request(tool, values)
        rows: list[dict[str, Any]] = []
        for offer in self._selected(tool, self.listing(contract.domain, keys), values):
            known = judge.facts(contract, offer, request)
            if not searching.passes(tool, known, values) or judge.gone(contract, known, self.now):
                continue
            known["id"] = self._id(contract, offer, keys)
            if tool.single:
                refused = judge.refusal(contract, known, self.now)
                return refused or views.written(contract.views[tool.shown], known)
            rows.append(views.written(contract.views[tool.shown], known))
        if tool.single:
            return judge.refusal(contract, {tool.selects: values.get(tool.selects)}, self.now) or {"results": []}
        return searching.paged(contract, rows, values.get("page", 1)) | searching.applied(tool, values)

    def _selected(self, tool: Tool, listing: Listing, values: Mapping[str, Any]) -> Listing:
        if not tool.single:
            return listing
        return tuple(offer for offer in listing if offer.get(tool.selects) == values[tool.selects])

    def _id(self, contract: Contract, offer: Mapping[str, Any], keys: Mapping[str, Any]) -> str:
        """The id of an offer, `-Rn` where the plain one already names another."""
        plain = name = offers.offer_id(contract.prefix, self.seed, offer, keys, contract.epoch, self._short)
        again = 0
        while name in self._known and self._known[name] != (offer, keys, contract.epoch):
            again += 1
            name = f"{plain}-R{again}"
        self._known[name] = (offer, keys, contract.epoch)
        return name

    def _book(self, tool: Tool, contract: Contract, values: dict[str, Any], turn: int) -> dict[str, Any] | Refusal:
        found = self._chosen(tool, contract, values)
        if isinstance(found, Refusal):
            return found
        offer, keys = found
        request = sales.request(tool, values)
        known = judge.facts(contract, offer, request)
        refused = sales.lacking(tool, known, values) or judge.refusal(contract, known, self.now)
        refused = refused or sales.duplicate(self.standing(), (contract.domain, offer, keys, request), self.now)
        if refused is not None:
            return refused
        booking_id = self._fresh(contract.prefix, tool.name, offer["index"], *keys.values())
        paid = self.payments.pay(self.contracts[PAYMENT], known["total"], values, booking_id)
        if isinstance(paid, Refusal):
            return surfaced(paid)
        self.bookings[booking_id] = Booking(
            booking_id,
            contract.domain,
            offer,
            keys,
            request,
            known["total"],
            self._drifts_of(contract),
            turn,
            paid.charge_id,
        )
        known["booking_id"] = booking_id
        known["id"] = values.get(tool.selects)
        return views.written(contract.views[tool.shown], known)

    def _chosen(self, tool: Tool, contract: Contract, values: Mapping[str, Any]):
        """The offer a booking means and the keys of its listing, or why there is none."""
        if not tool.keys:
            found = self._known.get(values[tool.selects])
            if found is None or not values[tool.selects].startswith(contract.prefix):
                return Refusal("policy_error", "UNKNOWN_ID", {"field_name": tool.selects})
            if found[2] != contract.epoch:
                return Refusal("policy_error", "QUOTE_EXPIRED", {"field_name": tool.selects, "hint": "search again"})
            return found[0], found[1]
        keys = {name: values[name] for name in tool.keys}
        for offer in self.listing(contract.domain, keys):
            if offer[tool.selects] == values[tool.selects]:
                return offer, keys
        refused = judge.refusal(contract, {tool.selects: values[tool.selects]}, self.now)
        return refused or Refusal("policy_error", "UNKNOWN_ID", {"field_name": tool.selects})

    def _cancel(self, tool: Tool, contract: Contract, values: dict[str, Any], turn: int) -> dict[str, Any] | Refusal:
        booking = self._booking(contract, values)
        if isinstance(booking, Refusal):
            return booking
        if booking.cancelled:
            return Refusal("policy_error", "ALREADY_CANCELLED", {"existing_id": booking.booking_id})
        self.bookings[booking.booking_id] = booking._replace(cancelled=True)
        self.payments.give_back(booking.charge_id)
        return {"booking_id": booking.booking_id, "cancelled": True, "refund_inr": booking.total}

    def _read(self, tool: Tool, contract: Contract, values: dict[str, Any], turn: int) -> dict[str, Any] | Refusal:
        booking = self._booking(contract, values)
        if isinstance(booking, Refusal):
            return booking
        known = judge.facts(contract, booking.offer, booking.request)
        known |= {"booking_id": booking.booking_id, "total": booking.total, "cancelled": booking.cancelled}
        return views.written(contract.views[tool.shown], known) | {"cancelled": booking.cancelled}

    def _booking(self, contract: Contract, values: Mapping[str, Any]) -> Booking | Refusal:
        name, value = next(iter(values.items()))
        booking = self.bookings.get(value)
        if booking is None or booking.domain != contract.domain:
            return Refusal("policy_error", "UNKNOWN_ID", {"field_name": name})
        return booking

    def _paid(self, tool: Tool, contract: Contract, values: dict[str, Any], turn: int) -> dict[str, Any] | Refusal:
        return self.payments.call(tool.kind, contract, values)

    def _fresh(self, prefix: str, *parts: object) -> str:
        """An id that names nothing yet."""
        plain = name = chance.identifier(prefix, self._short, self.seed, "made", *parts)
        again = 0
        while name in self.bookings or name in self.payments.charges or name in self._known:
            again += 1
            name = f"{plain}-R{again}"
        return name


_OWN = ("contracts", "patterns", "tools", "bookings", "notices", "_failing", "_attempts", "_calls", "_last", "_known")
"""What changes in the course of an errand."""
_canonical = json.JSONEncoder(sort_keys=True).encode
_KINDS = {
    "search": "_search",
    "book": "_book",
    "cancel": "_cancel",
    "read": "_read",
    "issue": "_paid",
    "charge": "_paid",
    "refund": "_paid",
}
