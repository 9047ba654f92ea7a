"""Measure one library on one setting, in a process of its own: `python peers.py --library ajax --setting ppo-4`.

A library's program is traced, compiled and then run several times on new keys: the same executable, with no
evaluation inside. Every library's program takes one key per seed and returns its final training state.
"""

import argparse
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import measure
import ours
import settings


class Program(NamedTuple):
    """A library made ready for a setting."""

    train: Callable[[Any], Any]
    """Keys [seeds] -> training state; traceable."""
    steps_done: Callable[[Any], int]
    """Environment steps that one seed really took."""


def ajax(setting: settings.Setting) -> Program:
    """ajax-rl 0.4.0: its agents' own training function, mapped over seeds as its `train` does."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    agent = _ajax_agent(setting)
    train_one = agent.get_make_train()(
        env_args=agent.env_args,
        actor_optimizer_args=agent.actor_optimizer_args,
        critic_optimizer_args=agent.critic_optimizer_args,
        network_args=agent.network_args,
        agent_config=agent.agent_config,
        total_timesteps=setting.steps,
        num_episode_test=10,
        run_ids=[],
        logging_config=None,
    )

    def train(keys):
        return jax.vmap(train_one)(keys, jnp.arange(setting.seeds))[0]

    return Program(train, lambda state: int(np.ravel(state.collector_state.timestep)[0]))


def _ajax_agent(setting: settings.Setting):
    import ajax

    layers = tuple(token for width in setting.hidden for token in (str(width), setting.activation))
    rates = {"actor_learning_rate": setting.learning_rate, "critic_learning_rate": setting.learning_rate}
    layouts = {"actor_architecture": layers, "critic_architecture": layers}
    replay = {"buffer_size": setting.replay, "batch_size": setting.batch, "learning_starts": setting.warm_up}
    rounds = {"n_steps": setting.window, "n_epochs": setting.epochs, "num_minibatches": setting.minibatches}
    if setting.algorithm == "ppo":
        return ajax.PPO(
            setting.world,
            n_envs=setting.copies,
            **rounds,
            batch_size=setting.copies * setting.window // setting.minibatches,
            ent_coef=setting.entropy,
            **rates,
            **layouts,
        )
    if setting.algorithm in ("dqn", "pqn"):
        single = {
            "learning_rate": setting.learning_rate,
            "architecture": layers,
            "epsilon_decay_frac": settings.EXPLORATION,
        }
        if setting.algorithm == "dqn":
            return ajax.DQN(setting.world, target_update_interval=settings.TARGET_EVERY, **single, **replay)
        return ajax.PQN(setting.world, n_envs=setting.copies, **rounds, **single)
    if setting.algorithm == "apo":
        return ajax.APO(setting.world, n_envs=setting.copies, **rounds, **rates, **layouts)
    if setting.algorithm == "avg":
        return ajax.AVG(setting.world, **layouts)
    if setting.algorithm != "sac":
        made = {"td3": ajax.TD3, "asac": ajax.ASAC, "redq": ajax.REDQ}[setting.algorithm]
        return made(setting.world, **replay, **layouts)
    starts = {"policy_update_start": setting.warm_up, "alpha_update_start": setting.warm_up}
    if setting.extension:
        from ajax.extensions.offline import ConservativeQ

        starts["extensions"] = (ConservativeQ(),)
    return ajax.SAC(setting.world, **replay, **rates, **layouts, **starts)


def rejax(setting: settings.Setting) -> Program:
    """rejax 0.1.3 on gymnax 1.x, whose step returns one value more than rejax unpacks."""
    import gymnax
    import jax
    import numpy as np
    from gymnax.wrappers import LegacyStepAPIWrapper

    class OldStep(LegacyStepAPIWrapper):
        def __deepcopy__(self, memo):
            # rejax copies what it is given, and copying this wrapper never ends.
            return self

    world, params = gymnax.make(setting.world)
    algorithm = _rejax_algorithm(setting, OldStep(world), params).replace(eval_callback=lambda *_: ())

    def train(keys):
        return jax.vmap(lambda key: algorithm.train(key)[0])(keys)

    return Program(train, lambda state: int(np.ravel(state.global_step)[0]))


def _rejax_algorithm(setting: settings.Setting, world, params):
    import rejax as library
    from flax import linen
    from rejax.networks import DiscreteQNetwork, EpsilonGreedyPolicy

    common = {
        "env": world,
        "env_params": params,
        "total_timesteps": setting.steps,
        "eval_freq": setting.steps,
        "learning_rate": setting.learning_rate,
        "gamma": 0.99,
        "skip_initial_evaluation": True,
        "num_envs": setting.copies,
    }
    network = {"activation": setting.activation, "hidden_layer_sizes": setting.hidden}
    replay = {"buffer_size": setting.replay, "fill_buffer": setting.warm_up, "batch_size": setting.batch}
    if setting.algorithm == "ppo":
        rounds = {"num_steps": setting.window, "num_epochs": setting.epochs, "num_minibatches": setting.minibatches}
        return library.PPO.create(
            **common, **rounds, max_grad_norm=0.5, ent_coef=setting.entropy, agent_kwargs=dict(network)
        )
    if setting.algorithm == "pqn":
        return _rejax_pqn(library, common, setting)
    if setting.algorithm == "td3":
        return _rejax_td3(library.TD3.create(**common, **replay, polyak=0.995), setting)
    if setting.algorithm == "sac":
        return library.SAC.create(**common, **replay, polyak=0.995, hidden_layer_sizes=setting.hidden)
    target = {"ddqn": False, "target_update_freq": settings.TARGET_EVERY, "polyak": 0.0}
    agent = EpsilonGreedyPolicy(DiscreteQNetwork)(
        hidden_layer_sizes=setting.hidden, action_dim=2, activation=getattr(linen, setting.activation)
    )
    built = library.DQN.create(**common, **replay, **target, exploration_fraction=settings.EXPLORATION)
    return built.replace(agent=agent)


def _rejax_td3(built, setting: settings.Setting):
    """With the setting's networks: rejax's TD3 has 64 units a layer whatever it is told."""
    from flax import linen
    from rejax.networks import DeterministicPolicy, QNetwork

    shape = {"hidden_layer_sizes": setting.hidden, "activation": getattr(linen, setting.activation)}
    actor = DeterministicPolicy(built.actor.action_dim, built.actor.action_range, **shape)
    return built.replace(actor=actor, critic=QNetwork(**shape))


def _rejax_pqn(library, common: dict, setting: settings.Setting):
    """With the setting's networks: rejax's PQN has 64 units a layer whatever it is told."""
    built = library.PQN.create(
        **common,
        num_steps=setting.window,
        num_epochs=setting.epochs,
        num_minibatches=setting.minibatches,
        max_grad_norm=10.0,
        exploration_fraction=settings.EXPLORATION,
    )
    shape = {"hidden_layer_sizes": setting.hidden, "action_dim": 2, "activation": built.agent.activation}
    return built.replace(agent=type(built.agent)(**shape))


def compiled(make: Callable[[settings.Setting], Program], setting: settings.Setting, times: int, patience: float):
    """The costs of a peer's program, and the environment steps that one seed really took."""
    program = make(setting)
    costs, state = measure.compiled(program.train, lambda index: (_keys(index, setting.seeds),), times, patience)
    return costs, program.steps_done(state)


LIBRARIES = {
    "ajax": partial(compiled, ajax),
    "rejax": partial(compiled, rejax),
    "perdure": lambda setting, *rest: ours.measured(setting, "float32", *rest),
    "perdure-bf16": lambda setting, *rest: ours.measured(setting, "bfloat16", *rest),
}


def main() -> None:
    """Read the command line, measure, append a line to the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", required=True, choices=sorted(LIBRARIES))
    parser.add_argument("--setting", required=True, choices=sorted(settings.SETTINGS))
    parser.add_argument("--times", type=int, default=3, help="runs of the compiled program")
    parser.add_argument("--steps", type=int, help="environment steps of a seed, instead of the setting's")
    parser.add_argument("--seeds", type=int, help="seeds trained at once, instead of the setting's")
    parser.add_argument("--patience", type=float, default=60, help="seconds to wait for a quiet machine")
    parser.add_argument("--results", type=Path, default=Path("results.jsonl"))
    arguments = parser.parse_args()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    # Ajax switches JAX's disk cache on when imported; a cached program would hide what compiling costs.
    os.environ.setdefault("AJAX_NO_COMPILE_CACHE", "1")
    setting = settings.SETTINGS[arguments.setting]
    setting = setting._replace(steps=arguments.steps or setting.steps, seeds=arguments.seeds or setting.seeds)
    costs, steps = LIBRARIES[arguments.library](setting, arguments.times, arguments.patience)
    # Rows of another number of seeds belong to a table of their own.
    kind = "mapped" if arguments.seeds else "setting"
    row = {"library": arguments.library, kind: arguments.setting, "steps": steps, "seeds": setting.seeds}
    rates = _rates(setting, steps, costs)
    measure.record({**row, **costs, **rates, "peak": measure.peak_megabytes()}, arguments.results)


def _keys(index: int, seeds: int):
    import jax

    return jax.random.split(jax.random.PRNGKey(1000 * index + 7), seeds)


def _rates(setting: settings.Setting, steps: int, costs: dict) -> dict[str, float]:
    work = (steps - setting.warm_up if setting.batch else steps) * setting.seeds
    return {"rate": work / costs["median_wall"], "cpu_rate": work / costs["median_cpu"]}


if __name__ == "__main__":
    main()
