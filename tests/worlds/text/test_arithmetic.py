import itertools

import gymnasium
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.errors import ConfigError, DataError
from perdure.worlds.text.arithmetic import FORMATS, OPERATORS, TIERS, Arithmetic, value
from perdure.worlds.text.experts import ArithmeticExpert

REGIMES = list(itertools.product(range(5), range(5), range(3), range(2)))


def params(regime):
    return dict(zip(("operator", "format", "tier", "cued"), regime, strict=True))


def asked(seed=0, **kwargs):
    world = Arithmetic(**kwargs)
    return world, world.reset(seed=seed)[0]


@pytest.mark.parametrize(
    ("operator", "operands", "right"),
    [
        (0, (3, 4), 7),
        (0, (9, 9), 18),
        (1, (3, 9), 6),
        (2, (3, 9), 9),
        (3, (3, 9), 3),
        (4, (7, 8), 6),
        (0, (1, 2, 3), 6),
        (1, (9, 2, 8), 1),
        (4, (5, 3, 7), 5),
    ],
)
def test_the_rules_on_worked_numbers(operator, operands, right):
    assert value(operands, operator) == right


@pytest.mark.parametrize(
    ("operator", "format", "observation", "answer"),
    [
        (0, 0, "sum 7 3 as N", "10"),
        (1, 1, "difference 7 3 as =N", "=4"),
        (2, 2, "larger 7 3 as <N>", "<7>"),
        (3, 3, "smaller 7 3 as N.", "3."),
        (4, 4, 'product 7 3 as {"answer": N}', '{"answer": 1}'),
    ],
)
def test_questions_and_answers_in_full(operator, format, observation, answer):
    world, seen = asked(seed=1, operator=operator, format=format)
    assert (seen, world.expert(seen)) == (observation, answer)
    hidden, seen = asked(seed=1, operator=operator, format=format, cued=0)
    assert (seen, hidden.expert(seen)) == ("answer 7 3", answer)


@pytest.mark.parametrize(
    ("action", "reward", "valid", "action_valid"),
    [
        ("<10>", 1.0, True, True),
        (" <10>\n", 1.0, True, True),
        ("10", 0.5, False, True),
        ("=10", 0.5, False, True),
        ("<010>", 0.5, True, True),
        ({"answer": 10}, 0.5, False, True),
        ("<9>", 0.0, True, True),
        ("11", 0.0, False, True),
        ("<-10>", 0.0, True, True),
        ("ten", -0.1, False, False),
        ("", -0.1, False, False),
        ("<10> <11>", -0.1, False, False),
        ("9 10 11", -0.1, False, False),
        ("<１０>", -0.1, False, False),
        ({"answer": "10"}, -0.1, False, False),
        ({"answer": 10.0}, -0.1, False, False),
        ({"answer": True}, -0.1, False, False),
        ({"answer": float("nan")}, -0.1, False, False),
        (["<10>"], -0.1, False, False),
        (None, -0.1, False, False),
        (b"<10>", -0.1, False, False),
        ("<10>" + " " * 10**7, -0.1, False, False),
    ],
)
def test_what_each_kind_of_answer_is_worth(action, reward, valid, action_valid):
    world, _ = asked(seed=1, format=2)
    _, found, terminated, truncated, info = world.step(action)
    assert found == reward
    assert (terminated, truncated) == (True, False)
    assert (info["valid"], info["action_valid"]) == (valid, action_valid)
    assert info["success"] == (reward == 1)
    assert info["verifier_pass"] == float(reward == 1)
    assert sum(info["reward_components"].values()) == reward


@pytest.mark.parametrize("action", ['{"answer":10}', 'It is {"answer": 10}.', {"answer": 10}])
def test_an_object_counts_alike_as_text_and_as_a_value(action):
    world, _ = asked(seed=1, format=4)
    assert world.step(action)[1] == 1


def test_the_expert_scores_the_upper_bound_in_every_regime_and_noise_the_lower():
    world = Arithmetic()
    for regime in REGIMES:
        world.set_regime(params(regime))
        expert = ArithmeticExpert(operator=regime[0], format=regime[1])
        low, high = world.bounds(params(regime))
        for seed in range(300):
            observation, _ = world.reset(seed=seed)
            assert world.observation_space.contains(observation)
            assert world.action_space.contains(expert(observation))
            assert expert(observation) == world.expert(observation)
            assert world.step(expert(observation))[1] == high
        world.reset(seed=0)
        assert world.step("?")[1] == low


def test_a_cued_prompt_says_all_that_its_expert_needs():
    world = Arithmetic()
    for regime in REGIMES:
        world.set_regime({**params(regime), "cued": 1})
        observation, _ = world.reset(seed=3)
        assert ArithmeticExpert(operator=4 - regime[0], format=4 - regime[1])(observation) == world.expert(observation)


def test_a_hidden_prompt_says_nothing_of_the_regime():
    prompts = {asked(seed=3, operator=a, format=b, cued=0)[1] for a in range(5) for b in range(5)}
    assert len(prompts) == 1


@pytest.mark.parametrize("tier", range(3))
def test_a_tier_draws_all_of_its_operands(tier):
    world = Arithmetic(tier=tier)
    count, limit = TIERS[tier]
    world.reset(seed=0)
    drawn = [operand for _ in range(1000) for operand in operands(world.reset()[0])]
    assert (len(drawn), set(drawn)) == (1000 * count, set(range(limit)))


def operands(observation):
    return [int(word) for word in observation.split() if word.isdigit()]


def test_further_turns_hint_and_pay_less():
    world, _ = asked(seed=1, format=2, turns=4)
    hints, rewards = zip(*(world.step(action)[:2] for action in ("none", "<11>", "=10", "<10>")), strict=True)
    assert [hint.partition(".")[0] for hint in hints] == [
        "No number in a known form",
        "Too high",
        "The number is right, its form is not",
        "Right",
    ]
    # Worth .8^2 * .5 = .32 at the third turn, .8^3 = .512 at the fourth.
    assert rewards == pytest.approx((-0.1, 0.0, 0.32, 0.192))


def test_a_right_answer_ends_the_episode_and_the_turns_do():
    world, _ = asked(seed=1, turns=3)
    assert [world.step(action)[2] for action in ("1", "2", "3")] == [False, False, True]
    world.reset(seed=1)
    assert world.step("10")[2]


def test_noise_at_every_turn_scores_the_lower_bound():
    world, _ = asked(turns=3, invalid_cost=0.2)
    low, high = world.bounds({})
    assert sum(world.step("?")[1] for _ in range(3)) == pytest.approx(low)
    assert (low, high) == pytest.approx((-0.6, 1.0))


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=8,
)


@given(ANY | st.from_regex(r"[=<]?-?[0-9]{0,9}[.>]?"), st.sampled_from(REGIMES))
def test_no_answer_breaks_the_world(action, regime):
    world = Arithmetic(**params(regime), turns=2)
    world.reset(seed=1)
    observation, reward, _, truncated, info = world.step(action)
    assert world.observation_space.contains(observation)
    assert -0.1 <= reward <= 1
    assert not truncated
    assert (reward == 1) == info["success"]


@pytest.mark.parametrize(
    ("kwargs", "text"),
    [
        ({"operator": 5}, "operator is 5; it must be a whole number from 0 to 4"),
        ({"format": -1}, "format is -1"),
        ({"tier": "2"}, "tier is '2'"),
        ({"turns": 0}, "turns is 0"),
        ({"invalid_cost": -1}, "invalid_cost is -1"),
        ({"invalid_cost": float("nan")}, "invalid_cost is nan"),
    ],
)
def test_wrong_arguments_are_refused(kwargs, text):
    with pytest.raises(ConfigError, match=text):
        Arithmetic(**kwargs)


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({"operater": 1}, "no parameter 'operater'; did you mean 'operator'"),
        ({"operator": 0.5}, "operator is 0.5"),
        ({"operator": float("nan")}, "operator is nan"),
    ],
)
def test_wrong_regimes_are_refused_and_change_nothing(params, text):
    world, _ = asked(seed=0)
    for call in (world.set_regime, world.check_regime, world.bounds):
        with pytest.raises(ConfigError, match=text):
            call(params)
    assert world.reset(seed=0)[0].startswith("sum")


def test_the_expert_refuses_what_is_no_question():
    with pytest.raises(DataError, match="no question of perdure/arithmetic"):
        ArithmeticExpert()("What is it?")


def test_names_of_rules_and_forms_are_told_apart():
    assert len({name for name, _ in OPERATORS}) == len(OPERATORS)
    assert len(set(FORMATS)) == len(FORMATS)


def test_it_is_built_by_its_name_in_a_document():
    from perdure.worlds.adapters.gymnasium import make

    env = make("perdure/arithmetic", {"operator": 2})
    assert isinstance(env, gymnasium.Env)
    assert env.reset(seed=1)[0] == "larger 7 3 as N"
