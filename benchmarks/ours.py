"""Perdure's side of the comparison: whole runs through the learner, every step's columns handed to the host."""

import time
from typing import Any

import measure
import settings

WORLDS = {"CartPole-v1": "perdure/cartpole", "Pendulum-v1": "perdure/pendulum"}
"""Gymnasium id -> perdure's own world."""


def agent(setting: settings.Setting, precision: str) -> Any:
    """Perdure's agent for a setting; `precision` is that of the matrix products."""
    from perdure.core import registry
    from perdure.rl import feeds, greedy, optim

    cls = registry.resolve("agents", setting.algorithm)
    shape = {"hidden": setting.hidden, "activation": setting.activation, "precision": precision}
    epochs = feeds.Epochs(setting.epochs, setting.minibatches)
    replay = feeds.Replay(setting.replay, setting.batch or 1, learning_starts=setting.warm_up)
    epsilon = greedy.Epsilon(share=settings.EXPLORATION)
    own: dict[str, dict[str, Any]] = {
        "ppo": {
            "feed": epochs,
            "optimiser": optim.Adam(setting.learning_rate, epsilon=1e-5, clip_norm=0.5),
            "entropy_weight": setting.entropy,
        },
        "apo": {"feed": epochs, "optimiser": optim.Adam(setting.learning_rate, clip_norm=10.0)},
        "pqn": {"feed": epochs, "epsilon": epsilon},
        "dqn": {
            "feed": replay,
            "optimiser": optim.RMSProp(setting.learning_rate, epsilon=0.01 / max(setting.batch, 1) ** 2),
            "epsilon": epsilon,
            "target_period": settings.TARGET_EVERY,
        },
        "redq": {"feed": feeds.Replay(setting.replay, setting.batch or 1, 20.0, setting.warm_up)},
        "avg": {},
    }
    return cls(**own.get(setting.algorithm, {"feed": replay}), **shape)


def measured(setting: settings.Setting, precision: str, times: int, patience: float) -> tuple[dict[str, Any], int]:
    """The costs of `times` runs, each on new seeds, and the environment steps of one seed.

    `build` is the first `init` and `advance` together: tracing, compiling and one window of steps.
    """
    from perdure.core import records, registry
    from perdure.rl import learner

    # Whole windows, as the peers do: the learner does not end one of an on-policy agent in its midst.
    window = setting.window * setting.copies
    steps = setting.steps if setting.batch else -(-setting.steps // window) * window
    world = registry.resolve("worlds", WORLDS[setting.world])()
    trainer = learner.trainer(
        agent(setting, precision),
        world,
        (registry.resolve("extensions", setting.extension)(),) if setting.extension else (),
        n_envs=setting.copies,
        window_steps=setting.window,
        total_steps=steps,
    )
    schedule = records.RegimeSchedule((records.Segment("whole", "whole", 0, steps),))

    def begin(index: int) -> tuple[Any, Any]:
        seeds = tuple(range(1000 * index + 7, 1000 * index + 7 + setting.seeds))
        made = learner.JaxLearner(trainer, seeds)
        return made, made.init(seeds)

    def run(index: int) -> Any:
        made, state = begin(index)
        while (now := made.step(state)) < steps:
            state, _, _ = made.advance(state, schedule, steps - now)
        return state

    measure.wait_for_quiet(patience)
    start = time.perf_counter()
    made, state = begin(0)
    made.advance(state, schedule, window)
    build = time.perf_counter() - start
    sections, _ = measure.repeated(run, times, patience)
    return {"build": build, **measure.runs(sections)}, steps
