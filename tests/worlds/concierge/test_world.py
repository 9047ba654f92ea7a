import json

import pytest
from gymnasium.utils.env_checker import check_env

from perdure.core.errors import ConfigError, DataError, PerdureError
from perdure.regimes import controllers
from perdure.worlds.concierge.records import LANGUAGES
from perdure.worlds.concierge.world import Concierge


def run(world, seed=0, params=None):
    """The observations, rewards and last info of an errand that the expert runs."""
    if params is not None:
        world.set_regime(params)
    seen, _ = world.reset(seed=seed)
    observations, rewards, over, info = [seen], [], False, {}
    while not over:
        seen, reward, over, truncated, info = world.step(world.expert())
        assert truncated is False
        observations.append(seen)
        rewards.append(reward)
    return observations, rewards, info


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
@pytest.mark.parametrize("observations", ["text", "structured"])
def test_it_is_a_gymnasium_environment(observations):
    world = Concierge({"stage": 2}, observations=observations)
    check_env(world, skip_render_check=True)
    for seen in run(world)[0]:
        assert world.observation_space.contains(seen)


@pytest.mark.parametrize("terse", [False, True])
@pytest.mark.parametrize("protocol", ["json", "native"])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_the_expert_returns_one_in_every_protocol(stage, protocol, terse):
    world = Concierge({"stage": stage}, protocol=protocol, terse=terse)
    for seed in range(12):
        _, rewards, info = run(world, seed)
        assert rewards[:-1] == [0.0] * (len(rewards) - 1)
        assert rewards[-1] == pytest.approx(1.0)
        assert world.bounds() == (0.0, 1.0)
        assert info["success"]
        assert info["verifier_pass"] == 1.0
        assert info["reward_components"]["r1"] == 1.0


def test_nothing_hidden_is_ever_observed():
    """Neither goal slots nor drift log nor schedule: the keys, ids, descriptions and later secrets are looked for."""
    world = Concierge({"stage": 3, "drift": 1, "held_out": 3})
    for seed in range(40):
        observations, _, _ = run(world, seed)
        task = world.task
        text = "\n".join(observations)
        forbidden = {
            "drift_log",
            "drift_schedule",
            "oracle",
            "planted",
            "constraints",
            "seed_utterance",
            task.goal.template,
        }
        for name in task.drifts:
            pattern = world.catalogue.pattern(name)
            forbidden |= {pattern.id, pattern.description}
        assert [word for word in forbidden if word in text] == []
        assert task.goal.secrets["mfa_code"] not in observations[0]
        assert task.goal.secrets["gst_number"] not in observations[0]
        if "budget" in task.goal.withheld:
            budget = next(each.value for each in task.goal.constraints if each.name == "budget")
            assert f"{budget:,}" not in observations[0]


def test_notices_are_not_seen_before_they_are_sent():
    world = Concierge({"stage": 2, "drift": 1, "pattern_airline_baggage_tnc_rewrite": 1})
    observations, _, info = run(world)
    exposed = info["breakdown"]["evidence"]["detections"][0]["exposed"]
    told = ["limited to 5 kg" in text and "_notice" in text for text in observations]
    assert told.index(True) == exposed


def test_a_drift_is_an_event_in_the_trace_and_no_boundary():
    world = Concierge({"stage": 2, "drift": 1, "pattern_cab_toll_unbundle": 1})
    world.reset(seed=1)
    over, events = False, []
    while not over:
        _, _, over, _, info = world.step(world.expert())
        assert "regime" not in info
        events += info.get("trace", {}).get("events", [])
    assert [event["drift"] for event in events] == ["cab.toll_unbundle"]
    assert info["trace"]["ended"] == "SUBMIT"


def test_a_regime_holds_for_whole_episodes():
    world = Concierge({"stage": 1})
    first, _ = world.reset(seed=5)
    world.set_regime({"stage": 3})
    assert world.task.stage == 1
    assert world.regime == {"stage": 1.0}
    world.reset()
    assert world.task.stage == 3
    world.set_regime({})
    assert world.reset(seed=5)[0] == first


def test_lanes_are_determined_by_seed_number_and_regime():
    one, other = Concierge({"stage": 2}), Concierge({"stage": 2})
    texts = [one.reset(seed=3)[0], one.reset()[0], one.reset()[0]]
    assert len(set(texts)) == 3
    assert [other.reset(seed=3)[0], other.reset()[0], other.reset()[0]] == texts
    assert other.reset(seed=4)[0] != texts[0]
    posed = other.reset(options={"task": {"seed": 20_000_001}})[0]
    assert Concierge({"stage": 2}).reset(seed=9, options={"task": {"seed": 20_000_001}})[0] == posed


def test_training_never_poses_a_validation_task():
    world, held = Concierge({"stage": 2}), Concierge({"stage": 2}, split="validation")
    for seed in range(30):
        world.reset(seed=seed)
        held.reset(seed=seed)
        assert 2_000_000 <= world.task.seed < 2_900_000
        assert 20_000_000 <= held.task.seed < 20_000_500


def test_state_and_fork_are_exact_in_the_middle_of_an_errand():
    world = Concierge({"stage": 3, "drift": 1})
    world.reset(seed=2)
    for _ in range(3):
        world.step(world.expert())
    world.step("no action at all")
    saved = json.loads(json.dumps(world.get_state()))
    other, branch = Concierge({"stage": 3, "drift": 1}), world.fork()
    other.set_state(saved)
    token = '{"tool": "payment.get_token", "args": {"requested_scope": "payments:write:v1"}}'
    steps = [
        [each.step(action) for action in (token, '{"say": "Done."}', '{"submit": 0.5}')]
        for each in (world, other, branch)
    ]
    assert steps[0] == steps[1] == steps[2]
    assert world.reset()[0] == other.reset()[0] == branch.reset()[0]


def test_a_fork_changes_nothing_of_its_origin():
    world = Concierge({"stage": 1})
    world.reset(seed=1)
    branch = world.fork()
    branch.step('{"abort": true}')
    assert world.step(world.expert())[2] is False


def test_the_state_of_another_world_is_refused():
    with pytest.raises(DataError, match="not of"):
        Concierge({"stage": 2}).set_state(Concierge({"stage": 1}).get_state())


def test_steps_out_of_turn_are_refused():
    world = Concierge()
    with pytest.raises(PerdureError, match="call reset"):
        world.step("{}")
    world.reset(seed=0)
    world.step('{"abort": true}')
    with pytest.raises(PerdureError, match="has ended"):
        world.step('{"abort": true}')
    world.reset()
    world.step('{"say": "Hello there."}')
    with pytest.raises(PerdureError, match="from the first turn"):
        world.expert()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"protocol": "xml"}, "protocol is 'xml'"),
        ({"observations": "txt"}, "did you mean 'text'"),
        ({"profile": "propr"}, "did you mean 'proper'"),
        ({"split": "test"}, "split is 'test'"),
        ({"params": {"stage": 9}}, "whole number from 1 to 3"),
        ({"data": "shows"}, "data is 'shows'; give a list of folders"),
        ({"terse": "maybe"}, "terse is 'maybe'; it is true or false"),
    ],
)
def test_wrong_arguments_are_refused(arguments, said):
    with pytest.raises(ConfigError, match=said):
        Concierge(**arguments)


def test_tools_are_functions_with_strict_schemas():
    world = Concierge({"stage": 1}, protocol="native")
    world.reset(seed=0)
    functions = {tool["function"]["name"]: tool["function"]["parameters"] for tool in world.tools()}
    assert len(functions) == 16 + 6
    assert all(rules["additionalProperties"] is False for rules in functions.values())
    assert functions["payment_get_token"]["properties"]["requested_scope"]["enum"] == ["payments:write:v1"]
    assert all("." not in name for name in functions)


def test_tools_are_those_published_at_the_start_even_after_a_drift():
    world = Concierge({"stage": 2, "drift": 1, "pattern_airline_price_rename": 1}, protocol="native")
    world.reset(seed=0)
    before = json.dumps(world.tools())
    over = False
    while not over:
        over = world.step(world.expert())[2]
    assert json.dumps(world.tools()) == before


def test_profiles_change_the_reward_alone():
    rewards = {}
    for profile in ("proper", "legacy-0.50", "space-0.40"):
        world = Concierge({"stage": 1}, profile=profile)
        world.reset(seed=0)
        rewards[profile] = world.step('{"submit": 0.1}')[1]
    assert rewards["legacy-0.50"] == 0.3
    assert rewards["space-0.40"] == 0.5
    assert rewards["proper"] == pytest.approx((0.30 + 0.15 * 0.99) / 1.3)


def test_demonstrations_are_conversations_that_can_be_replayed():
    world = Concierge({"stage": 2}, terse=True)
    found = list(world.demonstrations(5, seed=3))
    assert [each.success for each in found] == [True] * 5
    observation, _ = world.reset(seed=3)
    for message in found[0].messages:
        if message["role"] == "user":
            assert message["content"] == observation
        else:
            observation, reward, over, _, _ = world.step(message["content"])
    assert over
    assert reward == pytest.approx(1.0)
    assert found[0].regime == {"stage": 2.0}


def test_every_language_can_be_asked_for():
    for language in LANGUAGES:
        world = Concierge({"stage": 2, f"language_{language}": 1})
        world.reset(seed=0)
        assert world.task.goal.language == language


def test_the_expert_goes_on_where_a_state_or_a_fork_stands():
    world = Concierge({"stage": 3, "drift": 1})
    world.reset(seed=4)
    for _ in range(3):
        world.step(world.expert())
    branch = world.fork()
    assert branch.expert() == world.expert()
    over = False
    while not over:
        _, reward, over, _, _ = branch.step(branch.expert())
    assert reward == pytest.approx(1.0)
    with pytest.raises(PerdureError, match="from the first turn"):
        branch.expert()


def test_a_wrong_number_of_a_regime_is_found_before_a_run():
    world = Concierge()
    before = repr(world.get_state())
    with pytest.raises(ConfigError, match=r"regime\.params: .*stagee"):
        controllers.controller_for(world).check(world, {"stagee": 2.0}, "regime.params")
    assert repr(world.get_state()) == before
