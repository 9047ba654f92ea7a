"""Running statistics by which observations and rewards are brought to one scale."""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from perdure.rl import acting, windows
from perdure.rl.ops import moments
from perdure.rl.phases import Batch


class Normaliser(NamedTuple):
    """Running statistics of observations and of discounted returns; () where unused."""

    obs: Any
    returns: Any
    running: Any

    @classmethod
    def begin(cls, trainer: Any) -> "Normaliser":
        agent = trainer.agent
        return cls(
            moments.empty(windows.frame_spec(trainer.world).obs_shape) if agent.normalize_observations else (),
            moments.empty() if agent.normalize_rewards else (),
            jnp.zeros(trainer.n_envs) if agent.normalize_rewards else (),
        )

    def look(self, trainer: Any, obs: jax.Array) -> jax.Array:
        """Observations as the networks see them; of windows every observation by itself."""
        if not trainer.agent.normalize_observations:
            return obs
        return windows.framewise(trainer.world, partial(moments.standardise, self.obs), obs)

    def see(self, trainer: Any, rows: Batch) -> Batch:
        """Rows as an update sees them: observations standardised, rewards in units of the returns' spread."""
        rows = acting.with_experts(trainer, rows)
        rows = rows._replace(obs=self.look(trainer, rows.obs), next_obs=self.look(trainer, rows.next_obs))
        if acting.keeps_reset_obs(trainer.agent):
            rows = rows._replace(reset_obs=self.look(trainer, rows.reset_obs))
        if not trainer.agent.normalize_rewards:
            return rows
        return rows._replace(reward=rows.reward * jax.lax.rsqrt(self.returns.variance + 1e-8))

    def given(self, trainer: Any, provided: Mapping[str, Any]) -> "Normaliser":
        """The statistics, those of observations as an extension provides them under "obs_moments", if one does."""
        found = provided.get("obs_moments") if trainer.agent.normalize_observations else None
        return self if found is None else self._replace(obs=found)

    def absorb_prior(self, trainer: Any, rows_B: Batch) -> "Normaliser":
        """The statistics with the rows of a dataset added, in their order."""
        apart = self._replace(running=jnp.zeros(1) if trainer.agent.normalize_rewards else ())
        return apart.absorb(trainer, jax.tree.map(lambda x: x[:, None], rows_B))._replace(running=self.running)

    def absorb(self, trainer: Any, rows_TN: Batch) -> "Normaliser":
        """The statistics with fresh rows added."""
        result = self
        if trainer.agent.normalize_observations:
            seen = windows.last(trainer.world, rows_TN.obs)
            result = result._replace(obs=moments.extend(self.obs, seen.reshape(-1, *seen.shape[2:])))
        if trainer.agent.normalize_rewards:

            def step(running_N, row):
                running_N = trainer.agent.discount * running_N + row.reward
                return jnp.where(row.terminated | row.truncated, 0.0, running_N), running_N

            running, seen_TN = jax.lax.scan(step, self.running, rows_TN)
            result = result._replace(returns=moments.extend(self.returns, seen_TN.reshape(-1)), running=running)
        return result
