"""Perdure's side of the comparison: whole runs through the learner, every step's columns handed to the host."""

import time
from typing import Any

import measure
import settings

WORLDS = {"CartPole-v1": "perdure/cartpole", "Pendulum-v1": "perdure/pendulum"}
"""Gymnasium id -> perdure's own world."""


def agent(setting: settings.Setting, precision: str) -> Any:
    """Perdure's agent for a setting; `precision` is that of the matrix products."""
    import perdure.agents.dqn
    import perdure.agents.ppo
    import perdure.agents.sac
    from perdure.rl import feeds, greedy, optim

    shape = {"hidden": setting.hidden, "activation": setting.activation, "precision": precision}
    replay = feeds.Replay(setting.replay, setting.batch or 1, learning_starts=setting.warm_up)
    if setting.algorithm == "ppo":
        return perdure.agents.ppo.PPO(
            feed=feeds.Epochs(setting.epochs, setting.minibatches),
            optimiser=optim.Adam(setting.learning_rate, epsilon=1e-5, clip_norm=0.5),
            entropy_weight=setting.entropy,
            **shape,
        )
    if setting.algorithm == "dqn":
        return perdure.agents.dqn.DQN(
            feed=replay,
            optimiser=optim.RMSProp(setting.learning_rate, epsilon=0.01 / setting.batch**2),
            epsilon=greedy.Epsilon(share=settings.EXPLORATION),
            target_period=settings.TARGET_EVERY,
            **shape,
        )
    return perdure.agents.sac.SAC(feed=replay, **shape)


def measured(setting: settings.Setting, precision: str, times: int, patience: float) -> tuple[dict[str, Any], int]:
    """The costs of `times` runs, each on new seeds, and the environment steps of one seed.

    `build` is the first `init` and `advance` together: tracing, compiling and one window of steps.
    """
    from perdure.core import records, registry
    from perdure.rl import learner

    world = registry.resolve("worlds", WORLDS[setting.world])()
    trainer = learner.trainer(
        agent(setting, precision),
        world,
        n_envs=setting.copies,
        window_steps=setting.window,
        total_steps=setting.steps,
    )
    schedule = records.RegimeSchedule((records.Segment("whole", "whole", 0, setting.steps),))

    def begin(index: int) -> tuple[Any, Any]:
        seeds = tuple(range(1000 * index + 7, 1000 * index + 7 + setting.seeds))
        made = learner.JaxLearner(trainer, seeds)
        return made, made.init(seeds)

    def run(index: int) -> Any:
        made, state = begin(index)
        while made.step(state) < setting.steps:
            state, _, _ = made.advance(state, schedule, setting.steps - made.step(state))
        return state

    measure.wait_for_quiet(patience)
    start = time.perf_counter()
    made, state = begin(0)
    made.advance(state, schedule, setting.window * setting.copies)
    build = time.perf_counter() - start
    sections, _ = measure.repeated(run, times, patience)
    return {"build": build, **measure.runs(sections)}, setting.steps
