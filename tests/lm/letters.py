"""Text worlds and policies that the tests of the language side share: tiny, quick, and of a known reward."""

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

from perdure.lm.policy import LanguagePolicy
from perdure.lm.prompts import PromptBuilder
from perdure.lm.sampling import Sampling
from perdure.lm.tiny import tiny_model
from perdure.lm.tokens import byte_tokenizer

TEXT = spaces.Text(max_length=200, charset="abcdefghijklmnopqrstuvwxyz0123456789 ?.")


class Letters(gymnasium.Env):
    """Asks for a letter by the seed; the reward is the share of the answer's bytes that are below "n"."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}
    observation_space = TEXT
    action_space = spaces.Text(max_length=200)

    def __init__(self, turns: int = 2, fail_at: int | None = None):
        self.turns, self.fail_at, self.turn, self.bias = turns, fail_at, 0, 0.0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.turn = 0
        return f"letter {self.np_random.integers(100)}?", {}

    def step(self, action):
        self.turn += 1
        if self.turn == self.fail_at:
            raise ValueError("the world broke")
        text = action if isinstance(action, str) else str(action)
        reward = float(np.mean([character < "n" for character in text])) if text else 0.0
        return f"turn {self.turn}", reward + self.bias, self.turn >= self.turns, False, {}

    def set_regime(self, params):
        """Add `bias` to every reward."""
        self.bias = params.get("bias", 0.0)


def policy(seed: int = 0, context: int = 96, **options: Any) -> LanguagePolicy:
    """A model of some 20,000 random weights."""
    tokenizer = byte_tokenizer()
    model = tiny_model(tokenizer, width=32, layers=2, heads=2, kv_heads=1, context=context, seed=seed)
    sampling = options.pop("sampling", Sampling(max_new_tokens=6))
    return LanguagePolicy(model, tokenizer, sampling=sampling, prompts=PromptBuilder(), seed=seed, **options)
