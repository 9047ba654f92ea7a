"""Small host environments and policies for the tests of the host path."""

import gymnasium
import numpy as np


class Walk(gymnasium.Env):
    """A counter with noise of size `gain` that ends at `horizon`; the reward is `gain` times the action plus noise."""

    def __init__(self, horizon=10, persistent=False, truncates=False, bad=None):
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space = gymnasium.spaces.Discrete(3)
        self.horizon, self.persistent, self.truncates, self.bad = horizon, persistent, truncates, bad
        self.gain, self.t, self.total, self.closed = 1.0, 0, 0, False
        self.reset_seeds = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.reset_seeds.append(seed)
        self.t = 0
        return self._see(), {}

    def step(self, action):
        self.t += 1
        self.total += 1
        if self.bad == ("raise", self.total):
            raise OSError("cable pulled")
        reward = self.gain * float(action) + float(self.np_random.normal())
        if self.bad == ("reward", self.total):
            reward = float("nan")
        over = self.t >= self.horizon
        return self._see(), reward, over and not self.truncates, over and self.truncates, {}

    def _see(self):
        seen = np.array([self.t, self.gain * self.np_random.normal()])
        return np.full(2, np.inf) if self.bad == ("observation", self.total) else seen

    def close(self):
        self.closed = True


class Saveable(Walk):
    """A Walk whose whole state can be read and set."""

    def get_state(self):
        return {"t": self.t, "total": self.total, "rng": self.np_random.bit_generator.state}

    def set_state(self, state):
        self.t, self.total = state["t"], state["total"]
        self.np_random.bit_generator.state = state["rng"]


class Forgetful(Walk):
    """A Walk whose noise does not come from its seed."""

    def _see(self):
        return np.array([self.t, np.random.default_rng().normal()])


class Script:
    """The actions 0, 1, 2, 0, ... and what was observed."""

    def __init__(self):
        self.count, self.seen, self.observed = 0, [], []

    def act(self, observation):
        self.seen.append(np.array(observation))
        self.count += 1
        return (self.count - 1) % 3


class Learns:
    """An algorithm whose policy draws at random around what it has been rewarded for."""

    def __init__(self, seed, spec, features=False):
        self.policy, self.spec, self.updates, self.shifts = Draws(), spec, [], []
        self.total = 0.0
        if features:
            self.features = lambda: {"net": np.arange(12.0).reshape(4, 3)}

    def update(self, window):
        self.updates.append(window.columns["step"].tolist())
        self.total += float(window.rewards().sum())
        self.policy.lean = self.total
        return {"loss/total": self.total}

    def on_regime_shift(self, shift):
        self.shifts.append((len(self.updates), shift))

    def save_checkpoint(self, path):
        (path / "state.txt").write_text(f"{self.total.hex()}\n{self.policy.rng.bit_generator.state['state']['state']}")

    def load_checkpoint(self, path):
        total, state = (path / "state.txt").read_text().split()
        self.total = self.policy.lean = float.fromhex(total)
        whole = self.policy.rng.bit_generator.state
        whole["state"]["state"] = int(state)
        self.policy.rng.bit_generator.state = whole


class Draws:
    """A policy with a random state of its own."""

    def __init__(self):
        self.lean = 0.0
        self.rng = np.random.default_rng(0)

    def seed(self, number):
        self.rng = np.random.default_rng(number)

    def act(self, observation):
        return int(self.rng.integers(3) + abs(self.lean)) % 3

    def act_greedy(self, observation):
        return int(abs(self.lean)) % 3
