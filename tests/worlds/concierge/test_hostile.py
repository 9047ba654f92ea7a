"""Whatever a model says, the world neither breaks nor stalls, and it does not pay."""

import json
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.worlds.concierge.records import ACTION_TYPES, Action
from perdure.worlds.concierge.world import Concierge

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.lists(
        st.one_of(
            JSON,
            st.text(string.printable, max_size=40),
            st.dictionaries(
                st.sampled_from([*Action._fields, "tool", "args", "say", "ask", "probe", "report", "submit"]),
                JSON | st.sampled_from([*ACTION_TYPES, "airline.search", "cab", "hotel.book"]),
            ),
        ),
        min_size=1,
        max_size=16,
    ),
    st.booleans(),
)
def test_hostile_answers_neither_break_nor_pay(answers, native):
    world = Concierge({"stage": 2}, protocol="native" if native else "json")
    world.reset(seed=0)
    for answer in answers:
        seen, reward, over, _, info = world.step(answer)
        seen.encode()
        json.dumps(info)
        assert 0 <= reward <= 0.73 / 1.3
        if over:
            break


@pytest.mark.parametrize(
    "answer",
    [
        "x" * 10**7,
        "{" * 10**6,
        '{"tool": ' + "[" * 5000,
        '{"say": "' + "a" * 9000 + '"}',
        '{"submit": 1e999}',
        "\ud800",
    ],
)
def test_huge_and_broken_answers_cost_a_turn_and_no_time(answer):
    import time

    world = Concierge()
    world.reset(seed=0)
    began = time.process_time()
    _, _, over, _, info = world.step(answer)
    assert time.process_time() - began < 1
    assert (over, info["action_valid"]) == (False, False)


def test_a_storm_of_malformed_output_ends_below_a_timeout():
    world = Concierge()
    world.reset(seed=0)
    rewards = [world.step("hm")[1] for _ in range(3)]
    idle = Concierge()
    idle.reset(seed=0)
    for _ in range(8):
        _, timeout, over, _, _ = idle.step('{"say": "One moment, please."}')
    assert over
    assert rewards[-1] < timeout
