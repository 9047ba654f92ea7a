"""Published JSON Schemas and the check of arguments say the same, by an independent validator of the subset used."""

import re

from hypothesis import given
from hypothesis import strategies as st

from perdure.worlds.concierge import catalogue, schema

DATA = catalogue.default()
TOOLS = [
    (tool, DATA.contract(domain, version))
    for domain in DATA.domains
    for version in (1, 2)
    for tool in DATA.contract(domain, version).tools.values()
]
PLACES = DATA.words["places"]
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 30)
    | st.floats(allow_nan=False)
    | st.sampled_from(
        [
            "",
            "BLR",
            "mall",
            "mini",
            "suv",
            "2026-05-01",
            "2026-02-30",
            "01-05-2026",
            "2026-05-01T10:00",
            "14:00",
            "25:00",
            "morning",
            "AIR-1a2b",
            "29ABCDE1234F1Z5",
            "payments:write:v1",
            "x" * 50,
            "\ud800",
        ]
    ),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.fixed_dictionaries({"dish_id": inner, "qty": inner}, optional={"modifiers": inner, "more": inner})
    ),
    max_leaves=6,
)


def valid(value, rules):
    """JSON Schema draft 2020, as far as the world's schemas go."""
    kind = rules.get("type")
    kinds = {"string": str, "integer": int, "boolean": bool, "array": list, "object": dict}
    if not isinstance(value, kinds[kind]) or (kind == "integer" and isinstance(value, bool)):
        return False
    if "enum" in rules and value not in rules["enum"]:
        return False
    if kind == "string":
        return rules.get("minLength", 0) <= len(value) <= rules.get("maxLength", 10**9) and (
            "pattern" not in rules or re.search(rules["pattern"], value) is not None
        )
    if kind == "integer":
        return rules["minimum"] <= value <= rules["maximum"]
    if kind == "array":
        return rules.get("minItems", 0) <= len(value) <= rules.get("maxItems", 12) and all(
            valid(item, rules["items"]) for item in value
        )
    if kind == "object":
        return set(rules["required"]) <= value.keys() <= rules["properties"].keys() and all(
            valid(item, rules["properties"][name]) for name, item in value.items()
        )
    return True


@given(st.sampled_from(TOOLS), st.data())
def test_what_is_understood_is_valid_by_the_published_schema(tool_and_contract, drawn):
    tool, contract = tool_and_contract
    names = [*tool.arguments, "stranger"]
    arguments = drawn.draw(st.dictionaries(st.sampled_from(names), VALUES, max_size=len(names)))
    rules = schema.json_schema(tool, contract, PLACES)
    assert rules["additionalProperties"] is False
    refused = schema.problem(tool, arguments, contract, PLACES)
    for name, argument in tool.arguments.items():
        # Classes of vehicles are a policy's to refuse, and of scopes one is current; the rest is the schema's.
        if argument.type.startswith("offered:") or argument.type == "scope":
            rules["properties"][name] = {"type": "string"}
    if refused is None:
        assert valid(arguments, rules)
    elif not valid(arguments, rules):
        assert refused.status == "schema_error"
    else:
        assert refused.code == "TYPE_MISMATCH", "only dates and times that do not exist"


def test_required_arguments_follow_the_contract():
    before, after = (DATA.contract("airline", 2, drifts) for drifts in ((), ("airline.pax_required",)))
    rules = [schema.json_schema(each.tools["airline.book"], each, PLACES) for each in (before, after)]
    assert rules[0]["required"] == ["flight_id", "payment_token"]
    assert rules[1]["required"] == ["flight_id", "payment_token", "passenger_count"]
    classes = [
        schema.json_schema(DATA.contract("cab", v).tools["cab.book"], DATA.contract("cab", v), PLACES) for v in (1, 2)
    ]
    assert [rule["properties"]["vehicle_class"]["enum"] for rule in classes] == [
        ["mini", "sedan"],
        ["mini", "sedan", "suv", "infant_seat_sedan"],
    ]


def test_arguments_are_understood_in_one_form():
    contract = DATA.contract("airline", 1, ("airline.date_format",))
    found = schema.understood(contract.tools["airline.search"], {"from": "BLR", "to": "DEL", "date": "09-05-2026"})
    assert found["date"] == "2026-05-09"
    order = DATA.contract("restaurant", 1).tools["restaurant.order"]
    items = [{"dish_id": "b", "qty": 1}, {"dish_id": "a", "qty": 2, "modifiers": ["hot"]}]
    assert schema.understood(order, {"items": items})["items"] == (("a", 2), ("b", 1))
