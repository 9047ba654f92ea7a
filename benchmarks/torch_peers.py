"""Measure Stable-Baselines3 or SBX on one setting: `python torch_peers.py --library sb3 --setting ppo-4`.

Both step Gymnasium's environments from Python. The first `learn` call (which compiles, in SBX) fills the replay and
is reported apart; further calls on the same model are the steady state.
"""

import argparse
import os
import time
from pathlib import Path

import measure
import settings


def model(library_name: str, setting: settings.Setting):
    """The library's agent for the setting, on the CPU."""
    from stable_baselines3.common.env_util import make_vec_env

    library, activation = _library(library_name, setting.activation)
    worlds = make_vec_env(setting.world, n_envs=setting.copies, seed=0)
    network = {"net_arch": list(setting.hidden)}
    common = {"learning_rate": setting.learning_rate, "device": "cpu", "seed": 0}
    replay = {
        "buffer_size": setting.replay,
        "learning_starts": setting.warm_up,
        "batch_size": setting.batch,
        "train_freq": 1,
        "gradient_steps": 1,
    }
    if setting.algorithm == "ppo":
        rows = setting.copies * setting.window // setting.minibatches
        rounds = {
            "n_steps": setting.window,
            "n_epochs": setting.epochs,
            "batch_size": rows,
            "ent_coef": setting.entropy,
        }
        return library.PPO(
            "MlpPolicy", worlds, policy_kwargs={**network, "activation_fn": activation}, **rounds, **common
        )
    if setting.algorithm == "dqn":
        target = {"target_update_interval": settings.TARGET_EVERY, "exploration_fraction": settings.EXPLORATION}
        return library.DQN("MlpPolicy", worlds, policy_kwargs=network, **replay, **target, **common)
    return library.SAC("MlpPolicy", worlds, policy_kwargs=network, **replay, **common)


def _library(name: str, activation: str):
    if name == "sbx":
        import sbx
        from flax import linen

        return sbx, getattr(linen, activation)
    import stable_baselines3
    import torch

    # Two torch threads on two busy cores stall in OpenMP's barriers.
    torch.set_num_threads(1)
    return stable_baselines3, {"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU}[activation]


def main() -> None:
    """Read the command line, measure, append a line to the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", required=True, choices=["sb3", "sbx"])
    parser.add_argument(
        "--setting", required=True, choices=[name for name, each in settings.SETTINGS.items() if each.torch_steps]
    )
    parser.add_argument("--times", type=int, default=2)
    parser.add_argument("--steps", type=int, help="environment steps of a call, instead of the setting's")
    parser.add_argument("--patience", type=float, default=60)
    parser.add_argument("--results", type=Path, default=Path("results.jsonl"))
    arguments = parser.parse_args()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    setting = settings.SETTINGS[arguments.setting]
    steps = arguments.steps or setting.torch_steps
    start = time.perf_counter()
    agent = model(arguments.library, setting)
    ready = time.perf_counter() - start
    first, _ = measure.timed(lambda: agent.learn(setting.warm_up + steps))
    before = agent.num_timesteps
    sections, _ = measure.repeated(
        lambda _: agent.learn(steps, reset_num_timesteps=False), arguments.times, arguments.patience, tries=1
    )
    done = (agent.num_timesteps - before) // arguments.times
    costs = measure.runs(sections)
    row = {
        "library": arguments.library,
        "setting": arguments.setting,
        "steps": done,
        "seeds": 1,
        "first_call": first.wall,
    }
    rates = {"rate": done / costs["median_wall"], "cpu_rate": done / costs["median_cpu"]}
    measure.record({**row, **costs, **rates, "ready": ready, "peak": measure.peak_megabytes()}, arguments.results)


if __name__ == "__main__":
    main()
