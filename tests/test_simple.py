"""`perdure.train` and what comes of it."""

import numpy as np
import pytest

import perdure
from perdure import DQN, PPO, Epochs, L2Init, Replay, train
from perdure.core.errors import ConfigError
from perdure.harness import load


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    agent = PPO(feed=Epochs(2, 2), hidden=(8,))
    return train(
        agent,
        "perdure/cartpole",
        1_000,
        n_envs=4,
        window_steps=50,
        seeds=(0, 3),
        extensions=[L2Init(0.1)],
        regime={
            "provider": "schedule",
            "segments": [{"id": "a", "steps": 600}, {"id": "b", "steps": 400, "params": {"force": -10.0}}],
        },
        episodes=3,
        output_dir=tmp_path_factory.mktemp("runs"),
        progress=False,
    )


def test_scores_hold_the_returns_of_every_seed_and_episode(trained):
    assert {regime: returns.shape for regime, returns in trained.scores.items()} == {"a": (2, 3), "b": (2, 3)}
    assert all((returns >= 1).all() for returns in trained.scores.values())


def test_the_run_directory_holds_a_document_that_gives_the_same_run(trained):
    config = load.experiment(trained.folder, ())
    assert config.run_id == trained.folder.name
    assert config.algorithm.kwargs == {"feed": {"epochs": 2, "minibatches": 2}, "hidden": [8]}
    assert [each.name for each in config.algorithm.extensions] == ["l2_init"]


def test_the_policy_of_a_seed_is_a_function_of_one_observation(trained):
    policy = trained.policy(seed=3)
    assert policy(np.zeros(4)) in (0, 1)
    assert policy(np.zeros(4)) == policy([0.0, 0.0, 0.0, 0.0])


def test_a_seed_that_was_not_trained_is_refused(trained):
    with pytest.raises(ConfigError, match="seed is 1, which"):
        trained.policy(seed=1)


def test_the_report_lands_in_the_run_directory(trained):
    assert trained.report() == trained.folder / "report.html"
    assert (trained.folder / "report.html").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("agent", "changed"),
    [
        (DQN(), {}),
        (DQN(double=True), {"double": True}),
        (DQN(feed=Replay(capacity=100_000, batch_size=64, learning_starts=5)), {"feed": {"learning_starts": 5}}),
        (DQN(optimiser=perdure.Adam(1e-3)), None),
    ],
)
def test_a_component_becomes_the_document_that_builds_it_again(agent, changed):
    from perdure import simple
    from perdure.core import component

    kwargs = simple._changed(agent)
    assert changed in (None, kwargs)
    assert component.make(DQN, kwargs, "algorithm.kwargs") == agent


def test_every_public_name_is_importable():
    for name in perdure.__all__:
        assert getattr(perdure, name) is not None


def test_an_unknown_public_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'PPPO'"):
        perdure.PPPO  # noqa: B018
