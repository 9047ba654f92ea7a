import gymnasium
import numpy as np
import pytest

from perdure.core.errors import ConfigError, RunFailed
from perdure.core.records import RegimeSchedule, Segment
from perdure.harness.collector import RolloutCollector

SCHEDULE = RegimeSchedule(
    (
        Segment("low", "low", 0, 6, {"gain": 1.0}),
        Segment("high", "high", 6, 14, {"gain": 5.0}),
        Segment("low_again", "low", 14, 40, {"gain": 1.0}),
    )
)


class Gain:
    """Sets the gain of a Walk and remembers when."""

    def __init__(self):
        self.calls = []

    def apply(self, env, params):
        env.gain = params["gain"]
        self.calls.append((env.total, params["gain"]))


class Rows(list):
    def write(self, row):
        self.append(row)


def test_windows_have_the_asked_lengths_and_the_last_is_partial(worlds):
    collector = RolloutCollector(worlds.Walk(), worlds.Script(), 8, auto_reset=True, seed=1)
    windows = list(collector.windows(20))
    assert [len(window) for window in windows] == [8, 8, 4]
    assert [t.step for window in windows for t in window.transitions] == list(range(20))
    assert collector.step_index == 20


def test_a_windows_end_neither_resets_nor_changes_the_stream(worlds):
    def rewards(size):
        collector = RolloutCollector(worlds.Walk(), worlds.Script(), size, auto_reset=True, seed=1)
        return [t.reward for window in collector.windows(30) for t in window.transitions]

    assert rewards(7) == rewards(30)


def test_the_seed_goes_to_the_first_reset_only(worlds):
    env = worlds.Walk(horizon=4)
    list(RolloutCollector(env, worlds.Script(), 10, auto_reset=True, seed=3).windows(10))
    assert env.reset_seeds == [3, None, None]


def test_next_observation_is_the_true_successor_also_at_an_episodes_end(worlds):
    collector = RolloutCollector(worlds.Walk(horizon=4), worlds.Script(), 8, auto_reset=True, seed=3)
    (window,) = collector.windows(8)
    assert [t.next_observation[0] for t in window.transitions] == [1, 2, 3, 4, 1, 2, 3, 4]
    assert [t.observation[0] for t in window.transitions] == [0, 1, 2, 3, 0, 1, 2, 3]
    assert [t.terminated for t in window.transitions] == [False, False, False, True] * 2


def test_truncation_does_not_reset_unless_asked(worlds):
    env = worlds.Walk(horizon=4, truncates=True)
    (window,) = RolloutCollector(env, worlds.Script(), 6, seed=3).windows(6)
    assert env.reset_seeds == [3]
    assert [t.observation[0] for t in window.transitions] == [0, 1, 2, 3, 4, 5]
    assert [t.truncated for t in window.transitions] == [False, False, False, True, True, True]
    env = worlds.Walk(horizon=4, truncates=True)
    list(RolloutCollector(env, worlds.Script(), 6, auto_reset=True, seed=3).windows(6))
    assert env.reset_seeds == [3, None]


def test_stepping_past_a_termination_needs_a_persistent_world(worlds):
    with pytest.raises(RunFailed, match="step 4, environment 0: its episode has terminated; set auto_reset"):
        list(RolloutCollector(worlds.Walk(horizon=4), worlds.Script(), 6).windows(6))
    (window,) = RolloutCollector(worlds.Walk(horizon=4, persistent=True), worlds.Script(), 6).windows(6)
    assert len(window) == 6


def test_lanes_take_turns_and_steps_count_over_all_of_them(worlds):
    envs = [worlds.Walk(horizon=3), worlds.Walk(horizon=5)]
    collector = RolloutCollector(envs, worlds.Script(), 4, auto_reset=True, seed=[11, 12])
    (window,) = collector.windows(8)
    assert [(t.step, t.lane) for t in window.transitions] == [(n, n % 2) for n in range(8)]
    assert [env.reset_seeds[0] for env in envs] == [11, 12]
    assert [t.terminated for t in window.transitions] == [False] * 4 + [True] + [False] * 3


def test_one_seed_for_several_lanes_gives_each_its_own(worlds):
    envs = [worlds.Walk(), worlds.Walk()]
    RolloutCollector(envs, worlds.Script(), 4, seed=5).reset()
    assert [env.reset_seeds for env in envs] == [[5], [6]]


def test_steps_that_do_not_divide_among_the_lanes_are_refused(worlds):
    collector = RolloutCollector([worlds.Walk(), worlds.Walk()], worlds.Script(), 4)
    with pytest.raises(ConfigError, match="7 steps do not divide among 2 environments"):
        list(collector.windows(7))


def test_a_policy_may_act_for_all_lanes_at_once(worlds):
    class Batch(worlds.Script):
        def act_batch(self, seen):
            self.seen.append(len(seen))
            return [1] * len(seen)

    policy = Batch()
    collector = RolloutCollector([worlds.Walk(), worlds.Walk(), worlds.Walk()], policy, 2, seed=0)
    (window,) = collector.windows(6)
    assert policy.seen == [3, 3]
    assert [t.action for t in window.transitions] == [1] * 6


def test_what_a_policy_thought_and_observes(worlds):
    class Thinks(worlds.Script):
        def act_with_info(self, observation):
            return 2, {"logprob": -0.5, "value": 3.0, "entropy": 1.0}

        def observe(self, observation, reward, info):
            self.observed.append((observation[0], reward))

    policy, rows = Thinks(), Rows()
    (window,) = RolloutCollector(worlds.Walk(), policy, 3, rows, seed=0).windows(3)
    assert (window.transitions[0].logprob, window.transitions[0].value) == (-0.5, 3.0)
    assert policy.observed == [(t.next_observation[0], t.reward) for t in window.transitions]
    assert rows[0]["policy"]["entropy"] == 1.0
    assert rows[0]["policy"]["effective_rank"] is None


def test_a_shift_acts_before_its_first_step_in_the_middle_of_window_and_episode(worlds):
    env, gain = worlds.Walk(horizon=10), Gain()
    collector = RolloutCollector(env, worlds.Script(), 8, auto_reset=True, seed=0, regime=SCHEDULE, controller=gain)
    rows = [t for window in collector.windows(20) for t in window.transitions]
    assert gain.calls == [(0, 1.0), (6, 5.0), (14, 1.0)]
    assert env.reset_seeds == [0, None, None]
    assert [t.step for t in rows if t.boundary] == [0, 6, 14]
    assert [rows[5].regime_id, rows[6].regime_id, rows[14].regime_id] == ["low", "high", "low_again"]
    assert (rows[14].regime_origin, rows[6].regime_origin) == ("low", "high")


def test_a_drift_moves_its_parameters_and_has_no_boundary_between_pieces(worlds):
    pieces = RegimeSchedule(
        (
            Segment("drift", "drift", 0, 4, {"gain": 0.0}, {"gain": 4.0}),
            Segment("drift", "drift", 4, 8, {"gain": 4.0}, {"gain": 0.0}),
        )
    )
    gain = Gain()
    (window,) = RolloutCollector(worlds.Walk(), worlds.Script(), 8, regime=pieces, controller=gain, seed=0).windows(8)
    assert [value for _, value in gain.calls] == [0, 1, 2, 3, 4, 3, 2, 1]
    assert [t.boundary for t in window.transitions] == [True] + [False] * 7


def test_the_default_controller_sets_attributes_of_gymnasium_worlds(worlds):
    env = gymnasium.make("CartPole-v1")
    schedule = RegimeSchedule((Segment("a", "a", 0, 2, {}), Segment("b", "b", 2, 8, {"gravity": 20.0})))
    collector = RolloutCollector(env, worlds.Script(), 2, auto_reset=True, seed=0, regime=schedule)
    policy_actions = iter([0, 1] * 4)
    collector.policy.act = lambda observation: next(policy_actions)
    gravities = [env.unwrapped.gravity for _ in collector.windows(6)]
    assert gravities == [9.8, 20.0, 20.0]
    env.close()


def test_the_environments_own_label_wins(worlds):
    class Labelled(worlds.Walk):
        def step(self, action):
            *rest, info = super().step(action)
            label = "own" if self.total <= 3 else {"id": "other", "origin": "own"}
            return *rest, {**info, "regime": label}

    collector = RolloutCollector(Labelled(), worlds.Script(), 6, seed=0, regime=SCHEDULE, controller=Gain())
    (window,) = collector.windows(6)
    assert [t.regime_id for t in window.transitions] == ["own"] * 3 + ["other"] * 3
    assert [t.boundary for t in window.transitions] == [True, False, False, True, False, False]
    assert window.transitions[4].regime_origin == "own"


def test_a_wrapper_that_weighs_rewards_is_told_of_the_regime(worlds):
    class Told(worlds.Walk):
        told = ()

        def use_regime(self, name, origin):
            self.told = (*self.told, (self.total, name, origin))

    env = Told()
    list(RolloutCollector(env, worlds.Script(), 4, seed=0, regime=SCHEDULE, controller=Gain()).windows(8))
    assert env.told == ((0, "low", "low"), (6, "high", "high"))


def test_without_any_label_a_row_has_none(worlds):
    rows = Rows()
    (window,) = RolloutCollector(worlds.Walk(), worlds.Script(), 2, rows, seed=0).windows(2)
    assert window.transitions[0].regime_id is None
    assert rows[0]["regime"] == {"id": None, "origin": None, "boundary": False, "source": None}


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (("raise", 4), r"step 3, environment 0 .* raised OSError: cable pulled"),
        (("reward", 4), r"step 3, environment 0: the reward is nan"),
        (("observation", 4), r"step 3, environment 0: the observation is not finite"),
        (("observation", 0), r"step 0, environment 0: reset gave an observation that is not finite"),
    ],
)
def test_a_world_that_breaks_is_named_and_earlier_rows_are_written(worlds, bad, message):
    rows = Rows()
    collector = RolloutCollector(worlds.Walk(bad=bad), worlds.Script(), 8, rows, seed=0)
    with pytest.raises(RunFailed, match=message):
        list(collector.windows(8))
    assert [row["step"] for row in rows] == list(range(3 if bad[1] else 0))


def test_rows_are_written_step_by_step(worlds):
    rows = Rows()
    written = []

    class Watches(worlds.Script):
        def act(self, observation):
            written.append(len(rows))
            return super().act(observation)

    list(RolloutCollector(worlds.Walk(), Watches(), 4, rows, seed=0).windows(4))
    assert written == [0, 1, 2, 3]


def test_a_row_says_what_the_world_and_its_reward_record(worlds):
    class Tells(worlds.Walk):
        def step(self, action):
            *rest, info = super().step(action)
            extra = {
                "reward_components": {"cost": -1.0},
                "reward_raw": {"cost": 2.0},
                "reward_bounds": {"lb": -1, "ub": 0},
            }
            return *rest, {**info, **extra, "trace": {"t": 7.5, "events": ["spike"], "step": 99}}

    rows = Rows()
    list(RolloutCollector(Tells(), worlds.Script(), 2, rows, seed=0, run_seed=9).windows(2))
    assert rows[1]["components"] == {"cost": -1.0}
    assert rows[1]["raw"] == {"cost": 2.0}
    assert rows[1]["bounds"] == {"lb": -1, "ub": 0}
    assert (rows[1]["t"], rows[1]["events"], rows[1]["step"], rows[1]["seed"]) == (7.5, ["spike"], 1, 9)


def test_episodes_and_windows_are_counted_in_rows(worlds):
    rows = Rows()
    list(RolloutCollector(worlds.Walk(horizon=3), worlds.Script(), 2, rows, auto_reset=True, seed=0).windows(6))
    assert [row["episode"] for row in rows] == [0, 0, 0, 1, 1, 1]
    assert [row["window"] for row in rows] == [0, 0, 1, 1, 2, 2]


def test_the_provenance_is_the_environments_own(worlds):
    class Described(worlds.Walk):
        def describe_run(self):
            return {"server": "x"}

    collector = RolloutCollector(Described(), worlds.Script(), 2, seed=0)
    (window,) = collector.windows(2)
    assert collector.run == {"server": "x"}
    assert window.run == {"server": "x"}


def test_a_window_of_no_steps_is_refused(worlds):
    with pytest.raises(ConfigError, match="window_steps is 0"):
        RolloutCollector(worlds.Walk(), worlds.Script(), 0)


def test_digests_tell_observations_apart():
    from perdure.harness.observations import digest

    different = [np.zeros(2), np.zeros(3), np.zeros(2, np.float32), {"a": np.zeros(2)}, "text", (1, 2), [12], None]
    assert len({digest(value) for value in different}) == len(different)
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
