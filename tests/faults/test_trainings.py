"""Whole trainings: twice by `train`, in windows of 200 steps and evaluated every 100, or refused before they begin."""

import json

import numpy as np
import pytest

from perdure import DQN, PPO, Epochs, build, train
from perdure.core.errors import Refused
from perdure.extensions.expert import ImitationLoss
from perdure.extensions.pretrain import PhiRefresh
from perdure.extensions.resets import ReDo
from perdure.extensions.target_mods import ValueBox
from perdure.harness import evaluation, load


@pytest.fixture(scope="module")
def trainings(watch, tmp_path_factory):
    """Two trainings of equal agents over different lengths, each with what was traced for it."""

    def once(total_steps):
        with watch.heard(watch.TRACED) as functions:
            done = train(
                PPO(feed=Epochs(1, 2), hidden=(7,)),
                "perdure/cartpole",
                total_steps,
                n_envs=4,
                window_steps=50,
                seeds=(0, 3),
                evaluate_every=100,
                episodes=2,
                output_dir=folder,
                progress=False,
            )
        return done, functions

    folder = tmp_path_factory.mktemp("runs")
    return once(1_100), once(1_500)


def lines(trained, name):
    return [json.loads(line) for line in (trained.folder / f"{name}.jsonl").read_text().splitlines()]


def test_a_second_training_compiles_nothing(trainings):
    (_, first), (_, second) = trainings
    assert first
    assert second == []


def test_a_run_ends_at_its_budget_and_keeps_what_it_evaluated(trainings):
    (trained, _), _ = trainings
    assert trained.result.counts["steps"] == 1_100
    assert trained.result.counts["rows"] == 2 * 1_100
    learner, state, _ = build.opened(trained.folder)
    assert learner.step(state) == 1_100
    assert int(state.train.clock.updates) == 5 * 2  # Of the five whole windows.
    assert {line["step"] for line in trained.result.evaluations} == {1_100}
    found = learner.evaluate(state, None, 2)
    (returns,) = trained.scores.values()
    np.testing.assert_array_equal(found.returns, returns)
    ranks = evaluation.plasticity(found.features)  # An update would move these, if not an episode.
    for position, line in enumerate(trained.result.evaluations):
        assert line["metrics"] == {name: values[position] for name, values in ranks.items()}
    # A skeleton, to load a checkpoint into, costs no step and no update.
    skeleton = learner.init((0, 3))
    skeleton, window, _ = learner.advance(skeleton, build.schedule_of(load.experiment(trained.folder, ())), 0)
    assert (learner.step(skeleton), int(skeleton.train.clock.updates), len(window)) == (0, 0, 0)


def test_a_curve_holds_no_padding(trainings):
    (trained, _), _ = trainings
    for seed in (0, 3):
        curve = [line for line in lines(trained, "evaluations") if line["seed"] == seed]
        assert [line["step"] for line in curve] == list(range(0, 1_101, 100))
        assert all(len(line["returns"]) == 2 and min(line["lengths"]) >= 1 for line in curve)
        windows = [line for line in lines(trained, "windows") if line["seed"] == seed]
        assert [line["step"] for line in windows] == [200, 400, 600, 800, 1_000, 1_100]
        assert all(line["metrics"]["loss/critic"] is not None for line in windows[:-1])


def test_what_cannot_work_is_refused_before_anything_is_compiled_or_written(watch, tiny, tmp_path):
    with watch.heard(watch.COMPILED) as functions:
        for name, parts in (
            ("dqn", (ImitationLoss(target="replay"),)),
            ("ppo", (ValueBox(),)),
            ("sac", (PhiRefresh(),)),
            ("td3", (ReDo(), ReDo(interval=5))),
        ):
            with pytest.raises(Refused):
                tiny.made(name, parts)
        with pytest.raises(Refused, match=r"ImitationLoss\) needs actor"):
            train(DQN(), "perdure/cartpole", 100, extensions=[ImitationLoss(target="replay")], output_dir=tmp_path)
    assert functions == []
    assert list(tmp_path.iterdir()) == []
