import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.errors import DataError
from perdure.worlds.text import orders
from perdure.worlds.text.experts import OrdersExpert
from perdure.worlds.text.orders import Order, Orders

SCHEMAS = list(itertools.product(range(3), range(2), range(2), range(3), range(2)))
ADA = Order("bolt", "red", 12, "Ada", "Friday", True)


def schema(choice=(0, 0, 0, 0, 0)):
    return dict(zip(("names", "nested", "text_numbers", "words", "extra"), choice, strict=True))


def judged(action, **params):
    return Orders().judge(ADA, {**schema(), **params}, action)


@pytest.mark.parametrize(
    ("params", "right"),
    [
        ({}, {"item": "bolt", "colour": "red", "quantity": 12, "customer": "Ada", "day": "Friday"}),
        ({"names": 1}, {"product": "bolt", "color": "red", "count": 12, "client": "Ada", "due": "Friday"}),
        (
            {"nested": 1, "text_numbers": 1},
            {"item": "bolt", "colour": "red", "quantity": "12", "delivery": {"customer": "Ada", "day": "Friday"}},
        ),
        (
            {"words": 1, "extra": 1},
            {"item": "bolt", "colour": "RED", "quantity": 12, "customer": "Ada", "day": "FRI", "urgent": True},
        ),
        (
            {"names": 2, "words": 2},
            {"part": "bolt", "paint": "red", "pieces": 12, "buyer": "Ada", "deadline": 5},
        ),
    ],
)
def test_the_right_object_under_worked_schemas(params, right):
    assert orders.record(ADA, {**schema(), **params}) == right
    assert judged(right, **params) == (1.0, True, True, "Right.")
    assert judged(f"Here it is: {json.dumps(right)}", **params).score == 1


def test_an_order_in_words():
    assert ADA.told() == "12 red bolts for Ada, by Friday, urgent"
    assert ADA._replace(quantity=1, urgent=False).told() == "1 red bolt for Ada, by Friday"


RIGHT = orders.record(ADA, schema())


@pytest.mark.parametrize(
    ("change", "score", "valid"),
    [
        ({"colour": "blue"}, 4 / 5, True),
        ({"colour": "pink"}, 4 / 5, False),
        ({"quantity": "12"}, 4 / 5, False),
        ({"quantity": 12.0}, 4 / 5, False),
        ({"quantity": 13, "day": "Monday"}, 3 / 5, True),
        ({"quantity": 21}, 4 / 5, False),
        ({"note": "x"}, 5 / 6, False),
        ({"item": ["bolt"]}, 4 / 5, False),
        ({"delivery": {"day": "Friday"}}, 5 / 6, False),
        ({"delivery": {}}, 5 / 6, False),
    ],
)
def test_each_field_counts_and_fields_too_many_do(change, score, valid):
    found = judged({**RIGHT, **change})
    assert found.score == pytest.approx(score)
    assert (found.action_valid, found.valid) == (True, valid)


@pytest.mark.parametrize(
    "action",
    [
        "",
        "red",
        "[1]",
        "{" * 10**7,
        '{"a":' * 10**5,
        '{"item": "bolt", "item": "bolt"}',
        '{"quantity": NaN}',
        {"quantity": float("nan")},
        {"item": "x" * 10**7},
        {("item",): "bolt"},
        {"item": b"bolt"},
        7,
        None,
    ],
)
def test_what_holds_no_object_costs_and_nothing_else(action):
    world = Orders()
    world.reset(seed=0)
    observation, reward, terminated, _, info = world.step(action)
    assert reward == -0.1
    assert not terminated
    assert not info["action_valid"]
    assert not info["valid"]
    assert observation.startswith("No JSON object found")


def test_true_is_not_one():
    assert judged(orders.record(ADA, {**schema(), "extra": 1}) | {"urgent": 1}, extra=1).score == pytest.approx(5 / 6)


def test_a_hint_names_the_wrong_fields_and_not_their_values():
    told = judged({"item": "bolt", "colour": "blue"}, nested=1).hint
    assert told.startswith("Wrong or missing: colour, such as")
    assert "item" not in told
    assert "customer in delivery" in told
    assert "quantity" in told
    assert "12" not in told
    assert "remove" in judged({**RIGHT, "note": 1}).hint


def test_hints_carry_a_hidden_schema_to_a_reader_within_three_turns():
    """Names and types of all fields stand in the first hint, an empty object's."""
    for choice in SCHEMAS:
        told = Orders().judge(ADA, schema(choice), {}).hint
        for path, allowed in orders.values(schema(choice)).items():
            assert f"{' in '.join(reversed(path))}, such as {json.dumps(allowed[0])}" in told


@pytest.mark.parametrize("cued", [0, 1])
def test_the_expert_scores_the_upper_bound_in_every_regime(cued):
    for choice in SCHEMAS:
        world = Orders(**schema(choice), cued=cued)
        high = world.bounds()[1]
        for seed in range(300):
            observation, _ = world.reset(seed=seed)
            assert len(observation) < 600
            answer = world.expert(observation)
            assert len(answer) < 150
            assert world.step(answer)[1:3] == (high, True)


@pytest.mark.parametrize("cued", [0, 1])
def test_an_expert_that_only_reads_answers_as_the_world_itself(cued):
    """Of a cued prompt it needs no fields; of a hidden one it has the schema's."""
    for choice in SCHEMAS:
        world = Orders(**schema(choice), cued=cued)
        expert = OrdersExpert(**({} if cued else schema(choice)))
        for seed in range(6):
            observation, _ = world.reset(seed=seed)
            assert expert(observation) == world.expert(observation)


def test_noise_scores_the_lower_bound():
    world = Orders()
    world.reset(seed=0)
    assert sum(world.step("?")[1] for _ in range(3)) == pytest.approx(world.bounds()[0])


def test_a_hidden_prompt_says_nothing_of_the_schema():
    assert len({Orders(**schema(choice), cued=0).reset(seed=3)[0] for choice in SCHEMAS}) == 1


def test_no_two_schemas_are_described_alike():
    assert len({orders.described(schema(choice)) for choice in SCHEMAS}) == len(SCHEMAS)


def test_the_example_of_a_prompt_is_no_order_that_is_asked():
    assert orders.SHOWN.item not in orders.ITEMS
    assert orders.SHOWN.customer not in orders.CUSTOMERS


def test_a_schema_allows_what_its_orders_hold():
    allowed = orders.values(schema((0, 1, 1, 2, 1)))
    assert allowed[("delivery", "day")] == (1, 2, 3, 4, 5)
    assert allowed[("quantity",)] == tuple(map(str, range(1, 21)))
    assert allowed[("urgent",)] == (False, True)
    assert len(allowed) == 6


def test_later_answers_are_worth_less_and_only_what_they_add():
    world = Orders()
    observation, _ = world.reset(seed=5)
    right = json.loads(OrdersExpert()(observation))
    partial = {name: right[name] for name in ("item", "colour", "quantity")}
    rewards = [world.step(action)[1] for action in (partial, {}, right)]
    assert rewards == pytest.approx([0.6, 0.0, 0.64 - 0.6])


def test_the_expert_refuses_what_is_no_question():
    with pytest.raises(DataError, match="no question of perdure/orders"):
        OrdersExpert()("Order: nothing")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["item", "day", "delivery"]), inner),
    max_leaves=8,
)


@given(JSON | st.text() | st.dictionaries(st.sampled_from(list(RIGHT)), JSON), st.sampled_from(SCHEMAS))
def test_no_answer_breaks_the_world(action, choice):
    world = Orders(**schema(choice))
    world.reset(seed=1)
    observation, reward, *_, info = world.step(action)
    assert world.observation_space.contains(observation)
    assert -0.1 <= reward <= 1
    assert 0 <= info["score"] <= 1
    assert info["success"] == (info["score"] == 1)
