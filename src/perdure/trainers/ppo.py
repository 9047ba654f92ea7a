"""Proximal policy optimisation of a language policy (Schulman et al. 2017, arXiv 1707.06347), registered as lm/ppo.

Corrected by default: a value before each trained token, one ratio a token, advantages that bootstrap where an
episode is cut. `preset="reference"` reproduces the published backend: one sample a turn valued at its last token, one
length-normalised ratio an answer, every turn an episode of its own. Left out of the paper: nothing is annealed.
"""

from perdure.lm.backend import Backend
from perdure.lm.batch import TokenBatch
from perdure.lm.settings import OldPolicyPass, RatioMode

__all__ = ["OldPolicyPass", "PPOBackend", "RatioMode", "TokenBatch"]


class PPOBackend(Backend):
    """Proximal policy optimisation of answers, with a value head (Schulman et al. 2017, arXiv 1707.06347).

    A subclass may add to the loss of each optimiser step, inside the clipped gradient norm, by overriding
    `_apply_auxiliary_regularization() -> Tensor | None`.

        policy = LanguagePolicy(tiny_model(tokenizer), tokenizer)
        learner = HostLearner(lambda seed, spec: PPOBackend(policy, seed=seed), make_env, window_steps=64)
    """
