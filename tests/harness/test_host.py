import json
import os
import signal

import gymnasium
import numpy as np
import pytest

from perdure.core import seeds
from perdure.core.errors import ConfigError, DataError, Refused, RunFailed
from perdure.core.records import RegimeSchedule, Segment, Spec
from perdure.harness import runs, spaces
from perdure.harness.host import HostLearner
from perdure.harness.run import EvaluationPlan, Interrupted, Job, execute

SCHEDULE = RegimeSchedule(
    (
        Segment("low", "low", 0, 50, {"gain": 1.0}),
        Segment("high", "high", 50, 80, {"gain": 5.0}),
        Segment("l2", "low", 80, 120, {"gain": 1.0}),
    )
)


class Gain:
    def apply(self, env, params):
        env.unwrapped.gain = params["gain"]


def learner(worlds, world=None, algorithm=None, **changes):
    options = {"window_steps": 4, "n_envs": 2, "controller": Gain(), **changes}
    made = HostLearner(algorithm or worlds.Learns, lambda lane: (world or worlds.Walk)(), **options)
    return made


def job(folder, made, **changes):
    meta = {"run_id": "host", "algorithm_id": "learns", "task": "walk", "seeds": [4, 2], "config_hash": "h"}
    plan = EvaluationPlan(every=40, episodes=2, regimes=(("low", {"gain": 1.0}), ("high", {"gain": 5.0})))
    first = Job(made, SCHEDULE, meta, folder, 120, plan, checkpoint_every=24, progress=False)
    return first._replace(**changes)


def rows_of(folder):
    rows = runs.read_lines(folder / "traces.jsonl", [])
    for row in rows:
        row["wall"] = row["policy"]["latency_ms"] = 0
    return rows


def contents(folder):
    files = {name: (folder / f"{name}.jsonl").read_bytes() for name in ("windows", "evaluations")}
    return {**files, "rows": rows_of(folder)}


def test_a_run_records_each_step_of_each_seed_once(worlds, tmp_path):
    result = execute(job(tmp_path / "run", learner(worlds)))
    run = runs.load_run(tmp_path / "run")
    assert [(stream.seed, stream.step.tolist()) for stream in run.streams] == [(2, [*range(120)]), (4, [*range(120)])]
    assert run.segments == SCHEDULE.segments
    assert result.trace_path == tmp_path / "run" / "traces.jsonl"
    assert result.counts["rows"] == 240
    row = rows_of(tmp_path / "run")[0]
    assert (row["v"], row["run_id"], row["algorithm_id"], row["config_hash"]) == (1, "host", "learns", "h")
    assert row["regime"] == {"id": "low", "origin": "low", "boundary": True, "source": "none"}


def test_worlds_are_seeded_by_seed_and_lane(worlds):
    made = learner(worlds)
    state = made.init((4, 2))
    made.advance(state, SCHEDULE, 120)
    for arm in state:
        firsts = [env.reset_seeds[0] for env in arm.collector.envs]
        assert firsts == [seeds.stream(arm.seed, "world", lane) for lane in range(2)]


def test_two_runs_are_equal_and_another_seed_is_not(worlds, tmp_path):
    for name in ("a", "b"):
        execute(job(tmp_path / name, learner(worlds)))
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    first, second = runs.load_run(tmp_path / "a").streams
    assert (first.reward != second.reward).any()


def test_evaluations_change_nothing_and_repeat(worlds, tmp_path):
    execute(job(tmp_path / "with", learner(worlds)))
    execute(job(tmp_path / "without", learner(worlds), evaluation=EvaluationPlan()))
    assert rows_of(tmp_path / "with") == rows_of(tmp_path / "without")
    made = learner(worlds)
    state = made.init((4,))
    once, again = (made.evaluate(state, {"gain": 5.0}, 3) for _ in range(2))
    np.testing.assert_array_equal(once.returns, again.returns)
    assert once.lengths.tolist() == [[10, 10, 10]]
    assert len(set(once.returns[0])) == 3


def test_a_random_policy_gets_its_random_state_back(worlds):
    class Stateful:
        def __init__(self):
            self.rng = np.random.default_rng(0)

        def act(self, observation):
            return int(self.rng.integers(3))

        def state_dict(self):
            return {"rng": self.rng.bit_generator.state}

        def load_state_dict(self, state):
            self.rng.bit_generator.state = state["rng"]

    class Algorithm(worlds.Learns):
        def __init__(self, seed, spec):
            super().__init__(seed, spec)
            self.policy = Stateful()

    made = learner(worlds, algorithm=Algorithm)
    state = made.init((4,))
    before = state[0].algorithm.policy.rng.bit_generator.state
    made.evaluate(state, None, 2)
    assert state[0].algorithm.policy.rng.bit_generator.state == before


@pytest.mark.parametrize("kind", ["Walk", "Saveable"])
@pytest.mark.parametrize("stop", [8, 56, 72])
def test_an_interrupted_run_resumed_equals_the_run_left_whole(worlds, tmp_path, kind, stop):
    world = getattr(worlds, kind)
    execute(job(tmp_path / "whole", learner(worlds, world)))

    class Stops(HostLearner):
        def advance(self, state, schedule, steps):
            if self.step(state) == stop:
                raise KeyboardInterrupt
            return super().advance(state, schedule, steps)

    first = Stops(worlds.Learns, lambda lane: world(), window_steps=4, n_envs=2, controller=Gain())
    with pytest.raises(KeyboardInterrupt):
        execute(job(tmp_path / "run", first))
    execute(job(tmp_path / "run", learner(worlds, world), resume=True))
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


def test_time_limits_of_gymnasium_survive_a_resume(worlds, tmp_path):
    def limited():
        return gymnasium.wrappers.TimeLimit(worlds.Saveable(horizon=1000), 7)

    execute(job(tmp_path / "whole", learner(worlds, limited)))

    class Stops(worlds.Learns):
        def update(self, window):
            if window.last_step == 64:
                raise RuntimeError("stop")
            return super().update(window)

    with pytest.raises(RunFailed, match="RuntimeError: stop"):
        execute(job(tmp_path / "run", learner(worlds, limited, Stops)))
    execute(job(tmp_path / "run", learner(worlds, limited), resume=True))
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


def stopped(worlds, folder, world, algorithm):
    class Stops(algorithm):
        def update(self, window):
            if window.last_step == 64:
                raise RuntimeError("stop")
            return super().update(window)

    with pytest.raises(RunFailed):
        execute(job(folder, learner(worlds, world, Stops)))


def test_a_world_that_its_seed_does_not_determine_cannot_be_replayed(worlds, tmp_path):
    stopped(worlds, tmp_path / "run", worlds.Forgetful, worlds.Learns)
    with pytest.raises(DataError, match="not determined by its seed; let it offer get_state and set_state"):
        execute(job(tmp_path / "run", learner(worlds, worlds.Forgetful), resume=True))


def test_an_algorithm_that_cannot_load_cannot_resume(worlds, tmp_path):
    class Saves(worlds.Learns):
        load_checkpoint = None

    stopped(worlds, tmp_path / "run", worlds.Walk, Saves)
    with pytest.raises(Refused, match=r"Saves has no load_checkpoint\(path\)"):
        execute(job(tmp_path / "run", learner(worlds, algorithm=Saves), resume=True))


def test_a_world_that_raises_ends_the_run_with_all_rows_readable(worlds, tmp_path):
    made = learner(worlds, lambda: worlds.Walk(bad=("raise", 14)))
    with pytest.raises(RunFailed, match=r"step 26, environment 0 .* raised OSError: cable pulled"):
        execute(job(tmp_path / "run", made, evaluation=EvaluationPlan()))
    run = runs.load_run(tmp_path / "run")
    assert run.meta["status"] == "failed"
    assert run.streams[-1].step.tolist() == [*range(26)]


def test_an_oracle_splits_windows_and_tells_between_the_parts(worlds, tmp_path):
    made = []

    def algorithm(seed, spec):
        made.append(worlds.Learns(seed, spec))
        return made[-1]

    execute(
        job(
            tmp_path / "run", learner(worlds, algorithm=algorithm), schedule=SCHEDULE._replace(boundary_source="oracle")
        )
    )
    updates, shifts = made[0].updates, made[0].shifts
    assert [48, 49] in updates
    assert all(len({SCHEDULE.index_at(step) for step in steps}) == 1 for steps in updates)
    (count, shift), _ = shifts
    assert updates[count - 1] == [48, 49]
    assert shift == {
        "ending": "low",
        "ending_origin": "low",
        "starting": "high",
        "starting_origin": "high",
        "step": 50,
        "source": "oracle",
    }


def test_without_an_oracle_a_window_may_straddle_a_shift(worlds, tmp_path):
    made = []

    def algorithm(seed, spec):
        made.append(worlds.Learns(seed, spec))
        return made[-1]

    execute(job(tmp_path / "run", learner(worlds, algorithm=algorithm)))
    assert [*range(48, 56)] in made[0].updates
    assert made[0].shifts == []


def test_a_detector_splits_the_window_after_its_alarm(worlds, tmp_path):
    class Third:
        """An alarm at every third vector step from the 13th on."""

        def start(self, xp):
            return (0,)

        def step(self, xp, state, x):
            return (state[0] + 1,), state[0] == 12

    made = []

    def algorithm(seed, spec):
        made.append(worlds.Learns(seed, spec))
        return made[-1]

    schedule = SCHEDULE._replace(boundary_source="detector")
    endless = lambda: worlds.Walk(persistent=True, truncates=True)
    execute(job(tmp_path / "run", learner(worlds, endless, algorithm, detector=Third()), schedule=schedule))
    assert [24, 25] in made[0].updates
    assert [*range(26, 32)] in made[0].updates
    ((count, shift),) = made[0].shifts
    assert made[0].updates[count - 1] == [24, 25]
    assert (shift["ending"], shift["starting"], shift["step"], shift["source"]) == (
        "detected-0",
        "detected-1",
        26,
        "detector",
    )
    alarms = [event for event in runs.load_run(tmp_path / "run").events if event["kind"] == "alarm"]
    assert [event["step"] for event in alarms] == [32, 32]


def test_a_detector_is_shown_the_returns_of_episodes_as_they_end(worlds, tmp_path):
    class Shown:
        def __init__(self):
            self.values = []

        def start(self, xp):
            return ()

        def step(self, xp, state, x):
            self.values.append(x)
            return state, False

    shown, schedule = Shown(), SCHEDULE._replace(boundary_source="detector")

    class Signals(worlds.Learns):
        """Stops the run inside an episode, whose return so far must outlive the resume."""

        def update(self, window):
            if window.last_step == 64 and window.seed == 2:
                os.kill(os.getpid(), signal.SIGTERM)
            return super().update(window)

    with pytest.raises(Interrupted):
        execute(job(tmp_path / "run", learner(worlds, worlds.Saveable, Signals, detector=shown), schedule=schedule))
    again = learner(worlds, worlds.Saveable, detector=shown)
    execute(job(tmp_path / "run", again, schedule=schedule, resume=True))
    rows = rows_of(tmp_path / "run")
    ends = [[row["step"] for row in rows if row["seed"] == seed and row["terminated"]] for seed in (4, 2)]
    assert [len(steps) for steps in ends] == [12, 12]
    returns = []
    for step in range(18, 120, 20):
        # Both copies end together, after ten steps each.
        for seed in (4, 2):
            mine = [row["reward"] for row in rows if row["seed"] == seed and step - 18 <= row["step"] < step + 2]
            returns.append(sum(mine) / 2)
    assert sorted(shown.values) == pytest.approx(sorted(returns))


def test_a_detector_must_be_named(worlds, tmp_path):
    with pytest.raises(ConfigError, match=r"name one in regime\.detector"):
        execute(job(tmp_path / "run", learner(worlds), schedule=SCHEDULE._replace(boundary_source="detector")))


def test_features_become_plasticity_measures(worlds, tmp_path):
    execute(
        job(tmp_path / "run", learner(worlds, algorithm=lambda seed, spec: worlds.Learns(seed, spec, features=True)))
    )
    assert set(runs.load_run(tmp_path / "run").evaluations[0].metrics) == {"effective_rank/net", "dormant/net"}


def test_a_never_ending_world_is_scored_by_its_mean_reward(worlds):
    made = learner(worlds, lambda: worlds.Walk(horizon=5, persistent=True))
    found = made.evaluate(made.init((1,)), None, 2)
    assert found.lengths.tolist() == [[1000, 1000]]
    assert abs(found.returns[0, 0]) < 0.2


def test_the_environment_that_is_trained_in_is_never_evaluated_in(worlds):
    env = worlds.Walk()
    made = learner(worlds, lambda: env, n_envs=1)
    state = made.init((1,))
    with pytest.raises(Refused, match="would step the environment that is trained in"):
        made.evaluate(state, None, 1)
    assert not env.closed


def test_environments_are_closed_at_the_end(worlds, tmp_path):
    envs = []

    def world():
        envs.append(worlds.Walk())
        return envs[-1]

    execute(job(tmp_path / "run", learner(worlds, world)))
    assert envs
    assert all(env.closed for env in envs)


def test_the_spec_of_gymnasium_worlds():
    env = gymnasium.make("CartPole-v1")
    assert spaces.spec_of(env) == Spec((4,), 2, True, (), (), 500, True)
    env.close()
    env = gymnasium.make("Pendulum-v1")
    assert spaces.spec_of(env) == Spec((3,), 1, False, (-2.0,), (2.0,), 200, True)
    env.close()


def test_a_bundle_is_exported_while_the_environment_is_open(worlds, tmp_path):
    from perdure.harness import export

    execute(job(tmp_path / "run", learner(worlds), export_dir=tmp_path / "bundle"))
    bundle = export.load_bundle(tmp_path / "bundle")
    assert bundle.spaces["action"] == {"kind": "discrete", "n": 3, "start": 0}
    assert (bundle.policy / "seed-4" / "state.txt").exists()
    assert bundle.manifest["policy"]["seeds"] == [4, 2]


def test_a_signal_leaves_a_host_run_that_resumes(worlds, tmp_path):
    class Signals(worlds.Learns):
        def update(self, window):
            if window.last_step == 64 and window.seed == 4:
                os.kill(os.getpid(), signal.SIGTERM)
            return super().update(window)

    execute(job(tmp_path / "whole", learner(worlds)))
    with pytest.raises(Interrupted) as caught:
        execute(job(tmp_path / "run", learner(worlds, algorithm=Signals)))
    assert caught.value.exit_code == 143
    execute(job(tmp_path / "run", learner(worlds), resume=True))
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


def test_provenance_lands_in_run_json(worlds, tmp_path):
    class Described(worlds.Walk):
        def describe_run(self):
            return {"server": "x"}

    result = execute(job(tmp_path / "run", learner(worlds, Described)))
    assert json.loads((tmp_path / "run" / "run.json").read_text())["provenance"] == {"server": "x"}
    assert result.provenance == {"server": "x"}


def test_a_resume_with_other_data_files_is_refused(worlds, tmp_path):
    class Files(worlds.Walk):
        digest = "a1"

        def describe_run(self):
            return {"data": self.digest}

    class Signals(worlds.Learns):
        def update(self, window):
            if window.last_step == 64 and window.seed == 4:
                os.kill(os.getpid(), signal.SIGTERM)
            return super().update(window)

    with pytest.raises(Interrupted):
        execute(job(tmp_path / "run", learner(worlds, Files, algorithm=Signals)))
    before = contents(tmp_path / "run")
    Files.digest = "b2"
    with pytest.raises(DataError, match=r"began with data files of hash a1, and the world's are now of hash b2; put"):
        execute(job(tmp_path / "run", learner(worlds, Files), resume=True))
    assert contents(tmp_path / "run") == before
    Files.digest = "a1"
    execute(job(tmp_path / "run", learner(worlds, Files), resume=True))
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "finished"
