"""Agents of the average reward and their discounted cousins in a world that never ends; the page of what they reach."""

from pathlib import Path

import numpy as np
import pytest

from perdure.agents.apo import APO
from perdure.agents.asac import ASAC
from perdure.agents.ppo import PPO
from perdure.agents.sac import SAC
from perdure.core.component import component
from perdure.core.records import RegimeSchedule, Segment, Spec
from perdure.metrics import aggregate
from perdure.rl import learner
from perdure.rl.feeds import Epochs, Replay
from perdure.rl.optim import Adam
from perdure.worlds.pure.pendulum import Pendulum

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "results" / "continuing.md"
HEAD = """# A world that never ends

The pendulum of `perdure/pendulum` without its time limit, begun once and never again. No registered world is like
that, so the test that makes this page has its own: `python -m pytest -m slow tests/slow/test_continuing.py`. An agent
of the average reward and its discounted cousin (discount 0.99) have the same hidden layers (64-64), rows, rates of
learning and seeds, and else their defaults; SAC's temperature is held at 0.2 as ASAC's is, and APO gives no bonus for
entropy, as PPO does not. The *weak* motor is the world's own, which has to swing the rod up; the *strong* one has
three times its torque (`gain: 3`) and can lift it. The reward is the mean of a step of the final greedy policy over
1,000 steps from a fresh start, the way up among them, twenty starts a seed; a rod that hangs has -9.9, and uniformly
random torques of the weak motor have about -6.1 in the world's own episodes of 200 steps. Intervals are 95 %
bootstrap intervals of the mean over five seeds. Nothing was tuned on this world.

Of the strong motor all five seeds are asked for more than -1; of the weak one nothing is asked, since neither PPO nor
APO gets beyond random torques there without a fresh start now and then. ASAC holds the rod up on every seed, SAC on
three of five.

| agent | motor | criterion | steps | reward a step | interval | seeds, lowest to highest |
|---|---|---|---|---|---|---|
"""
RATE = 1e-3
ADAM = Adam(learning_rate=RATE)
REPLAY = Replay(capacity=20_000, batch_size=128, learning_starts=1_000)
WINDOWS = Epochs(epochs=10, minibatches=8)
SHAPE = {"hidden": (64, 64)}
CASES = {
    "sac": (
        SAC(
            feed=REPLAY,
            actor_optimiser=ADAM,
            critic_optimiser=ADAM,
            temperature=0.2,
            temperature_optimiser=Adam(learning_rate=1e-12),
            **SHAPE,
        ),
        1,
        500,
        20_000,
    ),
    "asac": (ASAC(feed=REPLAY, actor_optimiser=ADAM, critic_optimiser=ADAM, **SHAPE), 1, 500, 20_000),
    "ppo": (PPO(feed=WINDOWS, optimiser=Adam(learning_rate=3e-4, clip_norm=10.0), **SHAPE), 16, 128, 409_600),
    "apo": (
        APO(feed=WINDOWS, optimiser=Adam(learning_rate=3e-4, clip_norm=10.0), entropy_weight=0.0, **SHAPE),
        16,
        128,
        409_600,
    ),
}
COUSINS = {"asac": "sac", "apo": "ppo"}
MOTORS = {"weak": 1.0, "strong": 3.0}
ROWS = [f"{name}, {motor}" for motor in MOTORS for name in CASES]


@component
class Persistent(Pendulum):
    """The pendulum without a time limit; `horizon` is how long an evaluation looks."""

    horizon: int = 1_000

    @property
    def spec(self) -> Spec:
        return super().spec._replace(episodic=False)

    def step(self, key, state, action, task):
        *rest, truncated = super().step(key, state, action, task)
        return *rest, truncated & False


@pytest.fixture(scope="module")
def pages(load_module):
    return load_module(Path(__file__).with_name("pages.py"))


def rewards(name, motor):
    """The mean reward of a step of each seed's final policy."""
    agent, copies, window, steps = CASES[name]
    trainer = learner.trainer(agent, Persistent(), n_envs=copies, window_steps=window, total_steps=steps)
    made = learner.JaxLearner(trainer, seeds=(0, 1, 2, 3, 4))
    params = {"gain": MOTORS[motor]}
    plan = RegimeSchedule((Segment("only", "only", 0, steps, params),))
    state = made.init(made.seeds)
    while made.step(state) < steps:
        state, window_rows, _ = made.advance(state, plan, steps - made.step(state))
        assert not window_rows.columns["truncated"].any()
    return np.asarray(made.evaluate(state, params, 20).returns).mean(axis=-1).tolist()


@pytest.mark.parametrize("row", ROWS)
def test_a_motor_that_can_lift_the_rod_learns_to(row, pages):
    name, motor = row.split(", ")
    found = rewards(name, motor)
    interval = aggregate.mean_interval(found)
    cells = [
        row,
        motor,
        "average reward" if name in COUSINS else "discounted",
        f"{CASES[name][3]:,}",
        f"{interval.value:.2f}",
        f"{interval.low:.2f} to {interval.high:.2f}",
        ", ".join(f"{value:.2f}" for value in sorted(found)),
    ]
    pages.write_row(PAGE, HEAD, ROWS, cells)
    assert len(found) == 5
    assert np.isfinite(found).all()
    assert motor == "weak" or min(found) > -1.0
