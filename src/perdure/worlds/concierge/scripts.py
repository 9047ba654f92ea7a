"""Two agents that are told the goal: one learns from what it sees of a drift, the other never does.

Both read answers by the contract they know, which is the published one at first. The oracle adds each
drift as it is exposed, tells the user, and mends what it has booked; the drift-blind script goes on.
"""

import copy
from collections.abc import Mapping
from typing import Any, Self

from perdure.worlds.concierge import calls, chance, evidence, judge, schema, views
from perdure.worlds.concierge.catalogue import PAYMENT
from perdure.worlds.concierge.contract import Contract, offered
from perdure.worlds.concierge.errand import Errand
from perdure.worlds.concierge.judge import Choice
from perdure.worlds.concierge.records import Action, Observation

MOST_REPEATS = 2
"""How often the blind script repeats a call that failed before it gives up."""


_OWN = ("_contracts", "_weighed", "_untold", "_asked", "_answered", "_offers", "_searched", "_to_search")
"""What of a script changes in place."""


class Script:
    """An agent for one errand; `adapts` makes it the oracle, else it is blind to drift."""

    def __init__(self, errand: Errand, adapts: bool = True):
        self._errand, self._goal, self._adapts = errand, errand.task.goal, adapts
        self._known: tuple[str, ...] = ()
        self._learnt: tuple[str, ...] = ()
        self._contracts: dict[str, Contract] = {}
        self._weighed: list[Choice] = []
        self._found: Choice | None = None
        self._untold: list[str] = []
        self._asked: set[str] = set()
        self._answered: set[str] = set()
        self._offers: list[tuple[Mapping[str, Any], Mapping[str, Any], str]] = []
        self._searched: list[Mapping[str, Any]] = []
        self._to_search = self._queries()
        self._page = 1
        self._token = ""
        self._booking = ""
        self._booked: Choice | None = None
        self._booked_turn = 0
        self._last: Action | None = None
        self._chosen: Choice | None = None
        self._repeats = 0
        self._hopeless = False

    def blinded(self, errand: Errand) -> Self:
        """The drift-blind script at another errand that stands where this one's does; no drift was learnt of yet."""
        other = copy.copy(self)
        other._errand, other._adapts = errand, False
        for name in _OWN:
            setattr(other, name, copy.copy(getattr(self, name)))
        return other

    def act(self, seen: Observation) -> Action:
        """The next action."""
        self._learn(self._errand.turn)
        if self._last is not None:
            self._take_in(seen)
        if self._errand.due:
            self._learn(self._errand.turn + 1)
        self._last = self._next(seen)
        return self._last

    def _contract(self, domain: str) -> Contract:
        """What this agent takes the contract to be."""
        found = self._contracts.get(domain)
        if found is None:
            catalogue, task = self._errand.catalogue, self._errand.task
            own = tuple(name for name in self._learnt if catalogue.pattern(name).domain == domain)
            found = self._contracts[domain] = catalogue.contract(domain, task.versions.get(domain, 1), own)
        return found

    def _learn(self, turn: int) -> None:
        """Note what was exposed, to be told, and read and act by it from the turn on at which it is in force."""
        exposed, due = self._errand.exposed, self._errand.due
        if not self._adapts or len(exposed) == len(self._learnt):
            return
        untold = [name for name in exposed if name not in self._known]
        self._known += tuple(untold)
        self._untold += untold
        # What comes into force after the booking that stands takes nothing from it.
        until = turn if self._booked is None else self._booked_turn
        new = [name for name in exposed if name not in self._learnt and due.get(name, 0) <= until]
        if not new:
            return
        self._learnt += tuple(new)
        self._contracts, self._weighed, self._found = {}, [], None
        if any(self._errand.catalogue.pattern(name).expires for name in new):
            self._forget()
        elif self._selected():
            self._to_search = [query for query in self._queries() if query not in self._searched]

    def _forget(self) -> None:
        """Begin reading anew: what was read can no longer be booked."""
        self._offers, self._searched, self._to_search, self._page = [], [], self._queries(), 1
        self._weighed, self._found = [], None

    def _queries(self) -> list[dict[str, Any]]:
        """Searches in the order in which they are worth making; the last of the list is made first."""
        contract = self._contract(self._goal.domain)
        tool = calls.of_kind(contract, "search")
        keys = [dict(each) for each in self._goal.keys]
        if tool.single:
            keys = [{**each, tool.selects: value} for each in keys for value in self._ranked(tool.selects)]
        return keys[::-1]

    def _ranked(self, attribute: str) -> list[Any]:
        """Values of an attribute that has one offer each, the likeliest to be wanted first."""
        spec = self._errand.catalogue.domains[self._goal.domain]["offers"]["each"]
        fact, order = self._goal.prefer
        rows = sorted(spec, key=lambda row: row.get(fact, row["rank"]), reverse=order == "highest")
        allowed = offered(self._contract(self._goal.domain), attribute)
        return [row[attribute] for row in rows if allowed is None or row[attribute] in allowed]

    def _take_in(self, seen: Observation) -> None:
        action, result = self._last, seen.result
        assert action is not None
        if action.action_type == "clarify":
            self._answered |= self._asked
        if result is None or action.action_type != "tool_call":
            return
        tool = self._errand.vendors.tools[result.tool_name]
        if result.status != "ok":
            self._failed(result, tool.kind)
            return
        self._repeats = 0
        if tool.kind == "search":
            self._read(result.response, tool)
        elif tool.kind == "issue":
            self._token = result.response["payment_token"]
        elif tool.kind == "book":
            self._booking = next(iter(result.response.values()))
            self._booked, self._booked_turn = self._chosen, self._errand.turn
        elif tool.kind == "cancel":
            self._booking, self._booked = "", None

    def _failed(self, result: Any, kind: str) -> None:
        code = result.response["error_code"]
        if code == "QUOTE_EXPIRED":
            self._forget()
        elif kind == "search" and code != "TIMEOUT" and self._to_search:
            if code in ("VEHICLE_CLASS_UNAVAILABLE", "SCHOOL_HOURS_MINI_REJECTED") or not self._adapts:
                self._to_search.pop()
        elif code == "PAYMENT_AUTH_FAILED" and self._adapts and "required_scope" in result.response:
            self._token = ""
        if kind != "search" and code != "QUOTE_EXPIRED":
            self._repeats += 1
            self._hopeless = not self._adapts and self._repeats > MOST_REPEATS

    def _read(self, response: Mapping[str, Any], tool: Any) -> None:
        """Offers as this agent's contract reads them."""
        contract = self._contract(self._goal.domain)
        keys = {name: value for name, value in self._to_search[-1].items() if name in self._goal.keys[0]}
        view = contract.views["offer"]
        rows = [response] if tool.single else response["results"]
        if tool.single and "results" in response:
            rows = []
        listing = self._errand.vendors.listing(self._goal.domain, keys)
        for row in rows:
            try:
                found = views.read(view, row)
            except views.Unreadable:
                self._hopeless = not self._adapts
                continue
            name = found.pop("id", "")
            truth = self._truth(name, found, listing, tool)
            for attribute in contract.derived:
                found.pop(attribute, None)
            self._offers.append(({**truth, **found}, keys, name))
        if (
            self._adapts
            and "applied" in response
            and any(tool.arguments[name].default != self._window() for name in response["applied"])
        ):
            return
        if self._adapts and "next_page" in response:
            self._page = response["next_page"]
        else:
            self._page = 1
            self._searched.append(self._to_search.pop())

    def _selected(self) -> str:
        """The argument that asks for one offer at a time, "" where a search lists all."""
        tool = calls.of_kind(self._contract(self._goal.domain), "search")
        return tool.selects if tool.single else ""

    def _truth(self, name: str, found: Mapping[str, Any], listing: Any, tool: Any) -> Mapping[str, Any]:
        if tool.single:
            return next(offer for offer in listing if offer[tool.selects] == found[tool.selects])
        return self._errand.vendors.offer(name)

    def _next(self, seen: Observation) -> Action:
        goal = self._goal
        if self._untold:
            return self._tell(seen.language)
        for name in goal.withheld:
            if name not in self._answered:
                return self._ask(name, seen.language)
        if self._hopeless:
            return Action("submit", confidence=0.0)
        choice = self._best()
        if choice is None and self._to_search:
            return self._search(self._to_search[-1])
        if self._booked is not None and choice is not None and self._stands(choice):
            return Action("submit", confidence=1.0)
        if self._booking and not calls.has(self._contract(goal.domain), "cancel"):
            return Action("submit", confidence=0.0)
        if self._booking:
            return calls.cancel(self._contract(goal.domain), self._booking)
        if choice is None:
            return Action("submit", confidence=0.0)
        return self._book(choice, seen.language)

    def _best(self) -> Choice | None:
        """The best offer read so far, if no better one can be among what was not read."""
        if len(self._weighed) < len(self._offers):
            self._weigh()
        found = self._found
        return found if found is not None and self._settled(found) else None

    def _weigh(self) -> None:
        """Find the best of the offers read so far as the known contract has them."""
        contract, goal = self._contract(self._goal.domain), self._goal
        for offer, keys, name in self._offers[len(self._weighed) :]:
            (made,) = judge.candidates(contract, [offer], keys, goal)
            made.facts["id"] = name
            self._weighed.append(made)
        self._found = judge.best(contract, self._weighed, goal, self._errand.task.now)

    def _settled(self, found: Choice) -> bool:
        """Whether nothing that was not read yet can be better."""
        if not self._to_search:
            return True
        selects = self._selected()
        if selects:
            ranks = self._ranked(selects)
            return ranks.index(found.offer[selects]) < ranks.index(self._to_search[-1][selects])
        return self._page == 1 and len(self._goal.keys) > 1 and self._goal.prefer == ("depart", "lowest")

    def _stands(self, choice: Choice) -> bool:
        """Whether what is booked is what should be, and every consent was given before."""
        assert self._booked is not None
        same = (choice.offer["index"], choice.keys) == (self._booked.offer["index"], self._booked.keys)
        if not any(self._errand.catalogue.pattern(name).consent for name in self._learnt):
            return same
        told = evidence.told(self._errand.catalogue, self._errand.turns, self._errand.exposed)
        consented = all(
            told.get(name, 99) < self._booked_turn
            for name in self._learnt
            if self._errand.catalogue.pattern(name).consent
        )
        return same and consented

    def _search(self, query: Mapping[str, Any]) -> Action:
        contract = self._contract(self._goal.domain)
        return calls.search(contract, {**self._goal.request, **query}, self._page, self._window())

    def _window(self) -> Any:
        """The part of the day that the user asked for, or None."""
        return next((each.value for each in self._goal.constraints if each.test == "window"), None)

    def _book(self, choice: Choice, language: str) -> Action:
        payment = self._contract(PAYMENT)
        if not self._token:
            arguments = {"requested_scope": f"{schema.SCOPE}{payment.auth}"}
            return Action("tool_call", f"{PAYMENT}.get_token", arguments)
        total = choice.facts["total"]
        secrets: dict[str, str] = {}
        if payment.mfa_above and total > payment.mfa_above:
            secrets["mfa_code"] = self._goal.secrets["mfa_code"]
        contract = self._contract(self._goal.domain)
        gst = calls.of_kind(contract, "book").arguments.get("gst_number")
        if gst is not None and gst.required_by is not None and total > gst.required_by.get("above", -1):
            secrets["gst_number"] = self._goal.secrets["gst_number"]
        for name in secrets:
            if name not in self._answered:
                return self._ask(name, language)
        self._chosen = choice
        return calls.book(contract, choice, {**secrets, "payment_token": self._token})

    def _ask(self, slot: str, language: str) -> Action:
        self._asked.add(slot)
        return Action("clarify", message=self._errand.catalogue.words["asking"][slot][language])

    def _tell(self, language: str) -> Action:
        frame = chance.Draws(self._errand.task.seed, "tell").choice(self._errand.catalogue.words["telling"][language])
        facts = [frame.format(fact=self._errand.catalogue.pattern(name).tell[language]) for name in self._untold]
        self._untold = []
        return Action("speak", message=" ".join(facts))
