import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.worlds.concierge import protocol
from perdure.worlds.concierge.records import KINDS, Action

ARGUMENTS = st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5), max_size=3)
MESSAGES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=30)
ACTIONS = st.one_of(
    st.builds(
        lambda name, given: Action("tool_call", name, given), st.sampled_from(["airline.search", "cab.book"]), ARGUMENTS
    ),
    st.builds(lambda text: Action("speak", message=text), MESSAGES),
    st.builds(lambda text: Action("clarify", message=text), MESSAGES),
    st.builds(lambda name: Action("probe_schema", name), st.sampled_from(["cab", "hotel"])),
    st.builds(lambda kind: Action("report_drift", domain="cab", kind=kind), st.sampled_from(KINDS)),
    st.builds(
        lambda share, text: Action("submit", confidence=share, message=text), st.floats(0, 1), st.none() | MESSAGES
    ),
    st.builds(lambda text: Action("abort", message=text), st.none() | MESSAGES),
)


@pytest.mark.parametrize("wire", protocol.PROTOCOLS)
@given(action=ACTIONS)
def test_what_is_written_is_parsed_back(wire, action):
    text = protocol.written(action, wire)
    assert protocol.parsed(f"Let me see.\n```json\n{text}\n```", wire) == (action, "")


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("no object", "no JSON object"),
        ('{"tool": "a", "tool": "b"}', "no JSON object"),
        ('{"submit": NaN}', "no JSON object"),
        ('{"submit": 1.5}', "confidence is not valid"),
        ('{"submit": true}', "confidence is not valid"),
        ('{"submit": 0.5, "confidence2": 1}', "unknown field 'confidence2'"),
        ('{"say": ""}', "message is not valid"),
        ('{"say": "a\\u0000b"}', "message is not valid"),
        ({"say": "x" * 2001}, "message is not valid"),
        ('{"tool": "a.b", "args": [1]}', "tool_args is not valid"),
        ('{"tool": "a.b", "message": "hi"}', "does not take message"),
        ('{"tool": 7}', "tool_name is not valid"),
        ('{"probe": "cab", "tool_args": {}}', "does not take tool_args"),
        ('{"report": "cab"}', "needs kind"),
        ('{"report": "cab", "kind": "price"}', "kind is not valid"),
        ('{"action_type": "tool_call", "tool_name": "a.b"}', "needs tool_args"),
        ('{"action_type": "fly"}', "action_type is one of"),
        ('{"action_type": ["submit"]}', "action_type is one of"),
        ('{"action_type": "abort", "confidence": 0.2}', "does not take confidence"),
        ('{"hello": 1}', "no action was found"),
        ('{"abort": false}', "abort is true or left out"),
        (None, "no JSON object"),
        ({"submit": float("nan")}, "no JSON object"),
        (f'{{"submit": 1{"0" * 400}}}', "confidence is not valid"),
        ({"submit": 10**400}, "confidence is not valid"),
        (Action("tool_call", "a.b", {1: object()}), "no JSON object"),
    ],
)
def test_what_is_no_action_is_told_why(said, why):
    action, reason = protocol.parsed(said)
    assert action is None
    assert why in reason


@pytest.mark.parametrize(
    ("said", "action"),
    [
        (
            '{"name": "airline_get_booking", "arguments": {"booking_id": "x"}}',
            Action("tool_call", "airline.get_booking", {"booking_id": "x"}),
        ),
        ('{"function": {"name": "say", "arguments": "{\\"message\\": \\"hi\\"}"}}', Action("speak", message="hi")),
        ('<tool_call>{"name": "submit", "arguments": {"confidence": 1}}</tool_call>', Action("submit", confidence=1)),
        ('{"name": "abort"}', Action("abort")),
    ],
)
def test_native_calls_come_in_several_dresses(said, action):
    assert protocol.parsed(said, "native") == (action, "")


@pytest.mark.parametrize(
    "said",
    [
        '{"name": 3}',
        '{"name": "say", "arguments": "hi"}',
        '{"name": "say", "arguments": {"text": "hi"}}',
        '{"submit": 1}',
    ],
)
def test_bad_native_calls_are_refused(said):
    assert protocol.parsed(said, "native")[0] is None


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=8),
        lambda x: (
            st.lists(x)
            | st.dictionaries(
                st.sampled_from([*Action._fields, "tool", "args", "say", "submit", "name", "arguments", "function"]), x
            )
        ),
    )
)
def test_nothing_makes_the_parser_raise(said):
    for wire in protocol.PROTOCOLS:
        action, why = protocol.parsed(said, wire)
        assert (action is None) == bool(why)
