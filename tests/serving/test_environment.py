"""The OpenEnv environment: the world's episodes, its reward as a tree, and nothing hidden in what it tells."""

import json

import pytest
from pydantic import ValidationError

pytest.importorskip("openenv")
from perdure.core.errors import PerdureError
from perdure.serving import rubric
from perdure.serving.environment import ConciergeEnvironment
from perdure.serving.messages import ConciergeAction, ConciergeObservation, ConciergeOpening
from perdure.serving.refusals import NoEpisode
from perdure.worlds.concierge import baselines, interface
from perdure.worlds.concierge.chance import Draws
from perdure.worlds.concierge.errand import Errand
from perdure.worlds.concierge.world import Concierge


def said(action):
    """What an agent of `baselines` does, as a client sends it."""
    return ConciergeAction(text="hm") if action is None else ConciergeAction(**interface.plain(action))


@pytest.mark.parametrize("stage", [1, 3])
@pytest.mark.parametrize("agent", ["oracle", "drift_blind", "random", "crier", "mumbler", "spammer", "instant_abort"])
def test_the_tree_gives_the_reward_of_the_world_to_the_last_bit(agent, stage):
    served, world = ConciergeEnvironment(), Concierge({"stage": stage})
    for seed in range(8):
        served.reset(seed=seed, stage=stage)
        world.reset(seed=seed)
        errand = Errand(world.catalogue, world.task)
        act, seen, found = baselines.AGENTS[agent](errand, Draws(seed, "agent")), errand.start(), None
        while not seen.done:
            action = act(seen)
            seen = errand.step(action, "" if action is not None else "none")
            text, reward, over, _, info = world.step("hm" if action is None else action)
            found = served.step(said(action))
            assert (found.text, found.reward, found.done) == (text, reward, over)
        assert found is not None
        parts = {name.split(".")[-1]: each.last_score for name, each in served.rubric.named_rubrics()}
        assert {name: parts[name] for name in rubric.MEASURES} == info["reward_components"]
        assert served.rubric.last_score == reward


def test_a_reset_forgets_the_scores():
    served = ConciergeEnvironment()
    served.reset(seed=0)
    served.step(ConciergeAction(action_type="abort"))
    assert served.rubric.get_rubric("useful.r1").last_score == 0.0
    served.reset(seed=0)
    assert {each.last_score for each in (served.rubric, *served.rubric.rubrics())} == {None}


def test_nothing_tells_what_is_hidden():
    served = ConciergeEnvironment({"stage": 3})
    for seed in range(10):
        told = [served.reset(seed=seed).model_dump()]
        world = Concierge({"stage": 3})
        world.reset(seed=seed)
        drifts = world.task.drifts
        while not told[-1]["done"]:
            said = world.expert()
            world.step(said)
            told += [served.step(ConciergeAction(text=said)).model_dump()]
            assert served.state.model_dump().keys() == {"episode_id", "step_count"}
        text = json.dumps([each["metadata"] for each in told])
        assert not any(name in text for name in drifts)
        assert all(each["metadata"].keys() <= {"action_valid", "seed", "max_turns"} for each in told[:-1])
        end = {"action_valid", "success", "ended", "reward_components"}
        assert told[-1]["metadata"].keys() == end


def test_steps_need_an_episode():
    served = ConciergeEnvironment()
    abort = ConciergeAction(action_type="abort")
    for call in (lambda: served.step(abort), served.full_state):
        with pytest.raises(NoEpisode):
            call()
    served.reset(seed=0)
    assert served.step(abort).done
    with pytest.raises(NoEpisode, match="reset first"):
        served.step(abort)
    served.close()
    for call in (lambda: served.reset(seed=0), lambda: served.step(abort)):
        with pytest.raises(NoEpisode, match="closed"):
            call()


def test_a_reset_that_is_refused_leaves_no_episode_half_begun():
    served = ConciergeEnvironment()
    served.reset(seed=0)
    with pytest.raises(ValidationError):
        served.reset(seed=0, sede=1)
    with pytest.raises(PerdureError, match="0 to 599"):
        served.reset(split="probe", index=600)
    with pytest.raises(PerdureError, match="terse users speak en and hinglish"):
        ConciergeEnvironment(terse=True).reset(language_weights={"ta": 1.0})
    assert not served.step(ConciergeAction(action_type="speak", message="Hello.")).done


def test_native_calls_are_read_where_the_server_speaks_them():
    served, world = ConciergeEnvironment(protocol="native"), Concierge(protocol="native")
    assert served.reset(seed=3).text == world.reset(seed=3)[0]
    call = '{"name": "payment_get_token", "arguments": {"requested_scope": "payments:write:v1"}}'
    assert served.step(ConciergeAction(text=call)).text == world.step(call)[0]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.1, 1.1, True, "0.5"])
def test_confidences_that_are_none(value):
    with pytest.raises(ValidationError):
        ConciergeAction(action_type="submit", confidence=value)


def test_schemas_refuse_what_they_do_not_know():
    for model, fields in ((ConciergeObservation, {}), (ConciergeOpening, {"tools": []})):
        with pytest.raises(ValidationError):
            model(text="", turn=0, budget_remaining=8, goal="x", **fields)
