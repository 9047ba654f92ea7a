"""What both text worlds owe: seeds, lanes, regimes, forks, states, and a life inside the harness."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from perdure.core.errors import ConfigError, DataError, PerdureError
from perdure.harness import observations, worldstate
from perdure.harness.collector import RolloutCollector
from perdure.harness.spaces import as_json, spec_of
from perdure.regimes.controllers import controller_for
from perdure.worlds.conformance import HostConformance
from perdure.worlds.text.arithmetic import Arithmetic
from perdure.worlds.text.experts import ArithmeticExpert, OrdersExpert
from perdure.worlds.text.orders import Orders

WORLDS = [Arithmetic, Orders]
SHIFT = {Arithmetic: {"operator": 2.0, "format": 1.0}, Orders: {"names": 1.0, "nested": 1.0}}


class Conformance(HostConformance):
    steps = 20

    def test_the_spaces_are_ones_that_perdure_reads(self):
        env = self.make()
        spec = spec_of(env)
        assert (spec.horizon, spec.episodic) == (3, True)
        assert as_json(env.observation_space) == {"kind": "text", "min_length": 0, "max_length": 8192}


class TestArithmetic(Conformance):
    def make(self):
        return Arithmetic(turns=3)


class TestOrders(Conformance):
    def make(self):
        return Orders(turns=3)


@pytest.mark.parametrize("world", WORLDS)
def test_gymnasium_finds_no_fault(world):
    check_env(world(), skip_render_check=True)


@pytest.mark.parametrize("world", WORLDS)
def test_a_seed_begins_a_lane_and_resets_go_along_it(world):
    one, other = world(), world()
    first = [one.reset(seed=7)[0], *(one.reset()[0] for _ in range(5))]
    other.reset(seed=8)
    assert [other.reset(seed=7)[0], *(other.reset()[0] for _ in range(5))] == first
    assert len(set(first)) > 3
    assert one.reset(seed=8)[0] != first[0]


@pytest.mark.parametrize("world", WORLDS)
def test_answers_do_not_change_the_questions_to_come(world):
    one, other = world(), world()
    one.reset(seed=7)
    other.reset(seed=7)
    one.step(one.expert())
    assert one.reset()[0] == other.reset()[0]


SCRIPT = """
import json
from perdure.worlds.text.arithmetic import Arithmetic
from perdure.worlds.text.orders import Orders
worlds = (Arithmetic(), Orders(extra=1))
print(json.dumps([[world.reset(seed=3)[0], world.step("?"), world.reset()[0], world.expert()] for world in worlds]))
"""


def test_processes_and_hash_seeds_agree():
    told = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1")
    }
    assert len(told) == 1
    assert json.loads(told.pop())[0][0] == Arithmetic().reset(seed=3)[0]


@pytest.mark.parametrize("world", WORLDS)
def test_an_episode_keeps_the_regime_it_was_asked_under(world):
    env = world()
    before, _ = env.reset(seed=1)
    right = env.expert(before)
    env.set_regime(SHIFT[world])
    assert env.step(right)[1] == 1
    after, _ = env.reset(seed=1)
    assert after != before
    assert env.regime == {**env.regime, **SHIFT[world]}
    env.set_regime({})
    assert env.reset(seed=1)[0] == before


@pytest.mark.parametrize("world", WORLDS)
def test_a_fork_goes_its_own_way(world):
    env = world(turns=3)
    env.reset(seed=1)
    env.set_regime(SHIFT[world])
    env.step("?")
    fork = env.fork()
    assert fork is not env
    assert fork.get_state() == env.get_state()
    right = env.expert()
    assert fork.step(right) == env.fork().step(right)
    fork.reset(seed=9)
    fork.set_regime({})
    assert env.expert() == right
    assert env.step(right)[1] == pytest.approx(0.8)
    assert env.fork().reset()[0] == env.reset()[0]


@pytest.mark.parametrize("world", WORLDS)
def test_a_state_is_json_and_goes_only_into_its_own_world(world):
    env = world()
    env.reset(seed=1)
    env.step("?")
    saved = json.loads(json.dumps(env.get_state()))
    other = world()
    other.set_state(saved)
    assert other.get_state() == saved
    with pytest.raises(DataError, match="this state is of"):
        world(turns=2).set_state(saved)
    fresh = world()
    fresh.set_state(world().get_state())
    with pytest.raises(PerdureError, match="call reset"):
        fresh.step("?")


@pytest.mark.parametrize("world", WORLDS)
def test_tasks_are_named_without_leaving_the_lane(world):
    env, other = world(), world()
    env.reset(seed=1)
    other.reset(seed=1)
    named, _ = env.reset(options={"task": {"index": 5}})
    assert named == world().reset(seed=5)[0]
    assert env.step(env.expert())[1] == 1
    assert env.reset()[0] == other.reset()[0]
    for task in (5, {"index": -1}, {"index": True}, {"indx": 1}, {"index": 1, "more": 2}):
        with pytest.raises(ConfigError, match="the task is"):
            env.reset(options={"task": task})


@pytest.mark.parametrize("world", WORLDS)
def test_a_step_needs_an_open_question(world):
    env = world()
    with pytest.raises(PerdureError, match="call reset"):
        env.step("?")
    with pytest.raises(PerdureError, match="call reset"):
        env.expert()
    env.reset(seed=0)
    env.step(env.expert())
    with pytest.raises(PerdureError, match="call reset"):
        env.step("?")


@pytest.mark.parametrize("world", WORLDS)
def test_examples_are_questions_of_a_lane_answered_rightly(world):
    env, regime = world(), SHIFT[world]
    found = list(env.examples(20, seed=4, params=regime))
    env.set_regime(regime)
    env.reset(seed=4)
    for number, example in enumerate(found):
        observation = env.reset(seed=4)[0] if number == 0 else env.reset()[0]
        assert example.messages == [{"role": "user", "content": observation}]
        assert env.step(example.response)[1] == example.reward == 1
        assert example.success
        assert example.regime == {**example.regime, **regime}
    assert len({example.messages[0]["content"] for example in found}) > 10


@pytest.mark.parametrize("world", WORLDS)
def test_the_controller_of_regimes_suits_it(world):
    env = world()
    controller = controller_for(env)
    controller.check(env, SHIFT[world], "params")
    controller.apply(env, SHIFT[world])
    env.reset(seed=0)
    assert env.regime == {**env.regime, **SHIFT[world]}


class Answers:
    """A policy that says what the expert says, or noise every third time."""

    def __init__(self, expert):
        self.expert, self.count = expert, 0

    def act(self, observation):
        self.count += 1
        return "?" if self.count % 3 == 0 else self.expert(observation)


class Rows(list):
    write = list.append


@pytest.mark.parametrize(("world", "expert"), [(Arithmetic, ArithmeticExpert()), (Orders, OrdersExpert())])
def test_a_collector_drives_it_through_a_shift_and_resumes_it(world, expert):
    from perdure.core.records import RegimeSchedule, Segment

    segments = (Segment("a", "a", 0, 12), Segment("b", "b", 12, 24, SHIFT[world]))
    schedule = RegimeSchedule(segments, "oracle")

    def collector():
        envs = [world(turns=1), world(turns=1)]
        return RolloutCollector(envs, Answers(expert), 8, rows, auto_reset=True, seed=3, regime=schedule)

    rows = Rows()
    whole = collector().collect(24)
    assert [t.reward for t in whole.transitions] == [1.0, 1.0, -0.1] * 8
    assert all(t.terminated for t in whole.transitions)
    assert len({row["obs_digest"] for row in rows}) > 12
    json.dumps(rows)

    first = collector()
    first.collect(10)
    second = collector()
    second.policy.count = first.policy.count
    second.restore(first.snapshot(), [])
    assert [t.observation for t in second.collect(14).transitions] == [t.observation for t in whole.transitions[10:]]


def test_observations_are_digested_and_finite():
    observation = Arithmetic().reset(seed=0)[0]
    assert observations.finite(observation)
    assert observations.digest(observation) != observations.digest(observation + " ")
    assert observations.as_action("7", Arithmetic().action_space) == "7"
    assert worldstate.read(Arithmetic())["state"]["turn"] == 0


def test_lanes_of_neighbouring_seeds_share_nothing():
    openings = np.array([[Arithmetic(tier=1).reset(seed=seed)[0]] for seed in range(200)])
    assert len(np.unique(openings)) > 180
