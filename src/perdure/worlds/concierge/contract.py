"""A vendor's contract in force: the domain file with stock releases and drifts applied, compiled once.

Everything that answers, prices, refuses or judges reads the same `Contract`, so that what a drift
changes is changed for all of them at once.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from perdure.worlds.concierge.views import View, view_of

SHOWN = {"search": "offer", "book": "booking", "read": "booking"}
"""Kind of tool -> the view of its answer, where the file names no other."""


class Argument(NamedTuple):
    """An argument of a tool."""

    name: str
    type: str
    optional: bool = False
    default: Any = None
    """What a missing argument means; told in the answer as `applied` where it is not None."""
    filter: str = ""
    """Of a search: how it selects among offers, by the fact `of`."""
    of: str = ""
    request: str = ""
    """The name it has in a booking's request, where that is another."""
    required_by: Mapping[str, Any] | None = None
    """A rule that makes an optional argument mandatory: its `code`, and `above` how many rupees."""


class Tool(NamedTuple):
    """A tool of a vendor."""

    name: str
    domain: str
    kind: str
    """search, book, cancel, read; or issue, charge, refund of the payment vendor."""
    description: str
    arguments: Mapping[str, Argument]
    keys: tuple[str, ...]
    """Arguments that select a listing."""
    selects: str
    """The argument that picks an offer of a listing: its id, or an attribute of that name."""
    single: bool
    """Whether a search answers with the one offer selected."""
    shown: str
    """The view of its answer."""

    @property
    def verb(self) -> str:
        return self.name.partition(".")[2]


class Part(NamedTuple):
    """A part of a price: `amount` rupees, or a share of a fact or of the sum so far."""

    name: str
    of: str
    """The fact it is reckoned by, "sum" for the parts before it, "" for a fixed amount."""
    amount: int
    percent: int | None
    per: str
    """The fact it is multiplied by, such as nights; "" for none."""
    condition: str
    exception: str
    quoted: bool
    """Whether a search tells it; else it is added at booking."""


class Contract(NamedTuple):
    """What a vendor does, at one version and with some drifts."""

    domain: str
    prefix: str
    version: int
    epoch: int
    """How often the ids of offers were renewed; earlier ids are refused as QUOTE_EXPIRED."""
    tools: Mapping[str, Tool]
    views: Mapping[str, View]
    terms: Mapping[str, Any]
    derived: Mapping[str, str]
    """Attribute of an offer -> the term that stands in where the offer says nothing of its own (-1)."""
    pricing: tuple[Part, ...]
    policies: tuple[Mapping[str, Any], ...]
    page_size: int
    """Offers a search answers with at a time; 0 for all."""
    item_fields: tuple[str, ...]
    """Fields that each item of an order must have."""
    auth: int
    """Version of the token and scope asked for (payment)."""
    mfa_above: int
    """Rupees above which a charge needs a code; 0 for never (payment)."""


def compiled(spec: Mapping[str, Any], version: int, epoch: int) -> Contract:
    """The contract that a (patched) domain specification describes."""
    domain = spec["domain"]
    tools = {f"{domain}.{verb}": _tool(domain, verb, tool) for verb, tool in spec["tools"].items()}
    return Contract(
        domain=domain,
        prefix=spec["prefix"],
        version=version,
        epoch=epoch,
        tools=tools,
        views={name: view_of(fields, f"{domain}.views.{name}") for name, fields in spec.get("views", {}).items()},
        terms=spec.get("terms", {}),
        derived=spec.get("derived", {}),
        pricing=tuple(_part(part) for part in spec.get("pricing", ())),
        policies=tuple(spec.get("policies", {}).values()),
        page_size=spec.get("page_size", 0),
        item_fields=tuple(spec.get("item_fields", ())),
        auth=spec.get("auth", {}).get("version", 1),
        mfa_above=spec.get("auth", {}).get("mfa_above", 0),
    )


def _part(part: Mapping[str, Any]) -> Part:
    return Part(
        name=part["name"],
        of=part.get("of", ""),
        amount=part.get("amount", 0),
        percent=part.get("percent"),
        per=part.get("per", ""),
        condition=part.get("if", ""),
        exception=part.get("unless", ""),
        quoted=part.get("at") != "booking",
    )


def _tool(domain: str, verb: str, tool: Mapping[str, Any]) -> Tool:
    return Tool(
        name=f"{domain}.{verb}",
        domain=domain,
        kind=tool["kind"],
        description=tool.get("description", ""),
        arguments={name: Argument(name, **fields) for name, fields in tool["args"].items()},
        keys=tuple(tool.get("keys", ())),
        selects=tool.get("selects", ""),
        single=tool.get("single", False),
        shown=tool.get("shown", SHOWN.get(tool["kind"], "")),
    )


def offered(contract: Contract, attribute: str) -> list[str] | None:
    """The values that a policy of kind "offered" allows for an attribute; None where nothing restricts it."""
    for policy in contract.policies:
        if policy["kind"] == "offered" and policy["attribute"] == attribute:
            return policy["values"]
    return None
