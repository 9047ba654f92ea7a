import jax.numpy as jnp
import numpy as np
import pytest

from perdure import build
from perdure.core.errors import ConfigError
from perdure.frozen import FrozenPolicy
from perdure.harness.config import ExperimentConfig
from perdure.rl import experts


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    document = {
        "environment": {"id": "perdure/pendulum"},
        "algorithm": {"name": "ppo", "kwargs": {"hidden": [8], "feed": {"epochs": 1, "minibatches": 1}}},
        "rollout": {"total_steps": 64, "n_envs": 2, "window_steps": 16},
        "evaluation": {"episodes": 1},
        "run": {"seeds": [3, 4], "output_dir": str(tmp_path_factory.mktemp("runs")), "run_id": "a"},
    }
    return build.run_experiment(ExperimentConfig.from_document(document)).folder


def test_a_runs_policy_acts_as_an_expert_on_any_batch(folder):
    obs = np.random.default_rng(0).normal(size=(2, 3, 3)).astype(np.float32)
    for seed in (3, 4):
        expert, policy = FrozenPolicy(str(folder), seed), build.policy_of(folder, seed)
        experts.check(expert, build.opened(folder)[0].trainer.world.spec, "expert")
        found = np.asarray(expert(jnp.asarray(obs)))
        assert found.shape == (2, 3, 1)
        np.testing.assert_allclose(found[1, 2], policy(obs[1, 2]), rtol=1e-6)
    assert (found != np.asarray(FrozenPolicy(str(folder))(jnp.asarray(obs)))).any()


def test_a_seed_that_was_not_trained_is_refused(folder):
    with pytest.raises(ConfigError, match=r"seed is 9, which .* does not hold"):
        FrozenPolicy(str(folder), 9)(jnp.zeros((1, 3)))
