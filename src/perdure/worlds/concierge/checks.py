"""What is wrong with a domain file, told before any task is drawn from it."""

import string
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from perdure.core.errors import ConfigError
from perdure.worlds.concierge import entries, facts, forms, schema, wishes
from perdure.worlds.concierge.contract import SHOWN
from perdure.worlds.concierge.forms import refuse, refuse_unknown

SECTIONS = ("tools", "views", "pricing", "offers", "slots", "constraints", "templates", "skeletons", "phrases")
"""What the file of a vendor that goals are about must have."""
_BY_NAME = {
    "book": {"payment_token": "token"},
    "issue": {"requested_scope": "scope"},
    "charge": {"amount_inr": "integer", "payment_token": "token"},
    "refund": {"charge_id": "id", "amount_inr": "integer"},
}
"""Kind of tool -> the arguments that it must be called with, and their types."""

Places = Mapping[str, list[str]]


def check_domain(domain: str, spec: Mapping[str, Any], places: Places, place: str) -> None:
    """Raise ConfigError, naming the place and the entry, for what is missing, unknown or cannot be used."""
    if "prefix" not in spec or "tools" not in spec:
        raise ConfigError(f"{place}: domain {domain} lacks prefix or tools; every vendor has both")
    if "templates" in spec:
        for section in SECTIONS:
            if section not in spec:
                raise ConfigError(f"{place}: domain {domain} lacks the section {section}; see docs/concierge.md")
    forms.refuse_misfit(entries.DOMAIN, spec, place)
    for index, release in enumerate(spec.get("versions", ())):
        if release["number"] != index + 2:
            refuse(f"{place}: versions[{index}].number", release["number"], f"it must be {index + 2}, in order from 2")
    for verb, tool in spec["tools"].items():
        _check_tool(spec, places, verb, tool, place)
    for name, view in spec.get("views", {}).items():
        fields = [field[0] for field in view]
        for field in fields:
            if fields.count(field) > 1:
                raise ConfigError(f"{place}: views.{name} shows {field!r} twice; give each field a name of its own")
    for name, term in spec.get("derived", {}).items():
        refuse_unknown(f"{place}: derived.{name}", term, spec.get("terms", {}))
    if "templates" not in spec:
        return
    kinds = [tool["kind"] for tool in spec["tools"].values()]
    for kind in ("search", "book"):
        if kinds.count(kind) != 1:
            raise ConfigError(f"{place}: domain {domain} has {kinds.count(kind)} tools of kind {kind!r}; give it one")
    for name, drawn in spec["offers"]["attributes"].items():
        _check_attribute(spec, name, drawn, place)
    wishes.check_slots(spec, places, place)
    known = facts.kinds(spec, place)
    facts.refuse_unusable(spec, known, place)
    _check_sale(spec, known, place)
    _check_policies(spec, known, place)
    wishes.check_wishes(spec, known, place)
    _check_phrases(spec, place)


def tool_of(spec: Mapping[str, Any], kind: str) -> tuple[str, Mapping[str, Any]]:
    """The verb and the tool of a kind."""
    return next((verb, tool) for verb, tool in spec["tools"].items() if tool["kind"] == kind)


def _check_tool(spec: Mapping[str, Any], places: Places, verb: str, tool: Mapping[str, Any], place: str) -> None:
    where, arguments = f"{place}: tools.{verb}", tool["args"]
    forms.refuse_misfit(forms.NAME, verb, place, "the name of a tool")
    types = {*schema.TYPES, "items", "scope", *places}
    for name, argument in arguments.items():
        _check_argument(spec, types, argument, f"{where}.args.{name}")
        if name == "page" and argument["type"] not in ("count", "integer"):
            refuse(f"{where}.args.page.type", argument["type"], "it must be count")
    for name in (*tool.get("keys", ()), *([tool["selects"]] if "selects" in tool else ())):
        refuse_unknown(f"{where} is called by an argument that", name, arguments)
        if _may_lack(arguments[name]):
            raise ConfigError(f"{where}.args.{name} is optional; an argument that selects must be given")
    for name, kind in _BY_NAME.get(tool["kind"], {}).items():
        if name not in arguments or arguments[name]["type"] != kind or _may_lack(arguments[name]):
            raise ConfigError(f"{where}: a tool of kind {tool['kind']!r} needs the argument {name} of type {kind!r}")
    if tool["kind"] in ("cancel", "read") and not (arguments and not _may_lack(next(iter(arguments.values())))):
        raise ConfigError(f"{where}: its first argument names a booking; give it one that is not optional")
    if tool["kind"] in SHOWN:
        refuse_unknown(f"{where}.shown", tool.get("shown", SHOWN[tool["kind"]]), spec.get("views", {}))


def _may_lack(argument: Mapping[str, Any]) -> bool:
    return argument.get("optional", False) and "default" not in argument


def _check_argument(spec: Mapping[str, Any], types: Collection[str], argument: Mapping[str, Any], where: str) -> None:
    kind, default = argument["type"], argument.get("default")
    if kind.startswith("offered:"):
        offered = [each["attribute"] for each in spec.get("policies", {}).values() if each["kind"] == "offered"]
        refuse_unknown(f"{where}.type", kind, [f"offered:{name}" for name in offered])
    else:
        refuse_unknown(f"{where}.type", kind, types)
    if default is not None and not schema.CHECKS.get(kind, lambda value: isinstance(value, str))(default):
        refuse(f"{where}.default", default, f"it must be of the type {kind!r}")
    if "filter" in argument and argument["filter"] != "holds":
        wanted = {"at_most": ("integer", "count"), "window": ("window",)}.get(argument["filter"], (kind,))
        if kind not in wanted:
            refuse(f"{where}.type", kind, f"a filter {argument['filter']!r} is of the type {wanted[0]!r}")


def _check_attribute(spec: Mapping[str, Any], name: str, drawn: Mapping[str, Any], place: str) -> None:
    """Whether an attribute can be drawn as it says."""
    where, offers = f"{place}: offers.attributes.{name}", spec["offers"]
    ways = [way for way in ("low", "choice", "chance", "times", "menu") if way in drawn]
    if len(ways) != 1 or (("low" in drawn) != ("high" in drawn)):
        raise ConfigError(f"{where} is drawn by {ways or 'nothing'}; give low and high, choice, chance, times or menu")
    if "low" in drawn and drawn["low"] > drawn["high"]:
        refuse(f"{where}.low", drawn["low"], f"it must not be above high, {drawn['high']}")
    if "choice" in drawn and len({facts.kind_of(value) for value in drawn["choice"]}) > 1:
        refuse(f"{where}.choice", drawn["choice"], "its values must be of one kind")
    if drawn.get("distinct") and ("low" not in drawn or "step" not in drawn or "shared" in drawn):
        raise ConfigError(f"{where} is distinct; give it low, high and step, and do not share it")
    most = len(offers["each"]) if "each" in offers else offers.get("count", [1, 1])[1]
    if drawn.get("distinct") and (drawn["high"] - drawn["low"]) // drawn["step"] + 1 < most:
        raise ConfigError(f"{where} is distinct, but low to high by step are fewer than {most} numbers; widen them")
    if len(drawn.get("times", [0] * most)) < most:
        refuse(f"{where}.times", drawn["times"], f"give an hour for each of up to {most} offers")
    if "times" in drawn and "date" not in tool_of(spec, "search")[1].get("keys", ()):
        raise ConfigError(f"{where} has times; `date` must be one of the keys of the search")
    if "factor" in drawn:
        columns = [key for key, value in offers.get("each", [{}])[0].items() if facts.kind_of(value) == facts.NUMBER]
        refuse_unknown(f"{where}.factor", drawn["factor"], columns)
        if "low" not in drawn:
            raise ConfigError(f"{where} has a factor; give it low and high")
    if "menu" in drawn:
        _check_menu(spec, drawn, where)


def _check_menu(spec: Mapping[str, Any], drawn: Mapping[str, Any], where: str) -> None:
    least = 5
    fit = [dish for dish in drawn["menu"] if dish[1] != "nonveg" or "veg_rows" not in drawn]
    if len(fit) < least:
        raise ConfigError(f"{where}.menu has {len(fit)} dishes that any kitchen serves; give at least {least}")
    for dish in drawn["menu"]:
        if dish[2] > dish[3]:
            refuse(f"{where}.menu", dish, "a dish is [name, diet, low, high], low first")
    if "veg_rows" in drawn:
        refuse_unknown(f"{where}.veg_rows", drawn["veg_rows"], spec["offers"]["attributes"])


def _check_sale(spec: Mapping[str, Any], known: facts.Kinds, place: str) -> None:
    """Whether what is on offer can be found, named and booked."""
    offers, views = spec["offers"], spec["views"]
    (looking, search), (booking, book) = tool_of(spec, "search"), tool_of(spec, "book")
    if ("count" in offers) == ("each" in offers):
        raise ConfigError(f"{place}: offers has {'both' if 'each' in offers else 'none'} of count and each; give one")
    rows = offers.get("each", [])
    for index, row in enumerate(rows):
        if row.keys() != rows[0].keys():
            refuse(f"{place}: offers.each[{index}]", dict(row), "every row must have the same keys")
    for verb, tool in ((looking, search), (booking, book)):
        by_value = tool.get("single", False) if tool is search else bool(tool.get("keys"))
        if "selects" not in tool and (by_value or tool is book):
            raise ConfigError(f"{place}: tools.{verb} lacks selects; say which argument picks an offer")
        if by_value and not (rows and tool["selects"] in rows[0]):
            refuse(f"{place}: tools.{verb}.selects", tool["selects"], "it must be a key of every row of offers.each")
    if search.get("single") and facts.kind_of(rows[0].get("rank", "")) != facts.NUMBER:
        raise ConfigError(f"{place}: offers.each lacks rank; a search for single offers goes by it")
    if book.get("keys", []) not in ([], search.get("keys", [])):
        refuse(f"{place}: tools.{booking}.keys", book["keys"], f"they must be those of {looking}, or none")
    named = search["selects"] if search.get("single") else "id"
    if "offer" not in views or named not in [field[1] for field in views["offer"]]:
        raise ConfigError(f"{place}: views.offer does not show {named!r}; offers are told apart by it")
    shown = book.get("shown", "booking")
    if views[shown][0][1] != "booking_id":
        refuse(f"{place}: views.{shown}[0]", views[shown][0], "a booking must begin with 'booking_id'")
    for verb, tool in ((looking, search), (booking, book)):
        for name in tool.get("keys", ()):
            refuse_unknown(f"{place}: tools.{verb}.keys has an entry that", name, spec["slots"])
    if not book.get("keys") and facts.kind_of_type(book["args"][book["selects"]]["type"]) != facts.TEXT:
        refuse(f"{place}: tools.{booking}.selects", book["selects"], "an offer is picked by an id")


def _check_policies(spec: Mapping[str, Any], known: facts.Kinds, place: str) -> None:
    single = any(tool.get("single") or (tool["kind"] == "book" and tool.get("keys")) for tool in spec["tools"].values())
    needed = {"departed": "depart", "same_day_after": "depart", "stay": "nights", "minimum": "menu", "menu": "menu"}
    for name, policy in spec.get("policies", {}).items():
        where, kind = f"{place}: policies.{name}", policy["kind"]
        if kind in needed and needed[kind] not in known:
            raise ConfigError(f"{where} is of kind {kind!r}; that needs the fact {needed[kind]!r}, which nothing gives")
        if kind in ("stay", "minimum", "menu") and single:
            raise ConfigError(f"{where} is of kind {kind!r}; that needs a search that lists all offers")
        if kind == "outage":
            refuse_unknown(f"{where}.tool", policy["tool"], spec["tools"])
        if kind == "stay":
            arguments = tool_of(spec, "book")[1]["args"].items()
            given = {each.get("request", key) for key, each in arguments if not _may_lack(each)}
            if not given >= {"checkin", "checkout"}:
                raise ConfigError(f"{where} is of kind 'stay'; booking needs checkin and checkout")


def _check_phrases(spec: Mapping[str, Any], place: str) -> None:
    """Whether every text has the English that others fall back to, and is filled in with what there is."""
    slots, spoken = spec["slots"], spec["phrases"]
    for name, table in [*((f"phrases.{key}", each) for key, each in spoken.items()), *_tables(spec)]:
        if "en" not in table:
            raise ConfigError(f"{place}: {name} has no English text; add at least en")
    for name, slot in slots.items():
        if facts.kind_of_type(slot["type"]) == facts.NUMBER and name not in spoken:
            raise ConfigError(f"{place}: phrases.{name} has no English text; add at least en")
    told = {*slots, *(f"{name}_time" for name, slot in slots.items() if slot["type"] == "moment")}
    for language, texts in spec["skeletons"].items():
        for index, text in enumerate(texts):
            check_text(text, {*told, "purpose"}, f"{place}: skeletons.{language}[{index}]", sorted(told))
    for name, table in spoken.items():
        allowed = {"value"} if name in spec["constraints"] else {"n", "value"}
        if name.removesuffix("_one") in slots:
            allowed = allowed & {"n"}
        numbered = name in slots and facts.kind_of_type(slots[name]["type"]) == facts.NUMBER
        needed = ("n",) if numbered else ("value",) if _varies(spec["constraints"].get(name, {})) else ()
        for language, text in table.items():
            check_text(text, allowed, f"{place}: phrases.{name}.{language}", needed)


def _varies(constraint: Mapping[str, Any]) -> bool:
    """Whether users mean different values by a constraint, so that its phrase must say which."""
    compares = constraint.get("test", "holds") not in ("holds", "lacks")
    return compares and (constraint.get("planted", False) or len(constraint.get("choice", ())) > 1)


def _tables(spec: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield "skeletons", spec["skeletons"]
    yield from ((f"names.{name}", table) for name, table in spec.get("names", {}).items())


def check_text(text: str, filled: Collection[str], where: str, needed: Collection[str] = ()) -> None:
    """Raise ConfigError for a placeholder that is none of `filled`, or formatted, and where one `needed` is lacking."""
    try:
        fields = list(string.Formatter().parse(text))
    except ValueError as error:
        raise ConfigError(f"{where}: {error}; write {{{{ for a brace that stays") from None
    for _, name, detail, conversion in fields:
        if name is not None:
            refuse_unknown(f"{where} has a placeholder that", name, filled)
            if detail or conversion:
                raise ConfigError(f"{where} formats {{{name}}}; give the name alone")
    for name in needed:
        if name not in [field[1] for field in fields]:
            refuse(where, text, f"it must hold {{{name}}}, or nobody is told")
