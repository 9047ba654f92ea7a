"""What each extension costs: CPU time of steps with it over those without, `python extensions.py --agent sac`.

One process an agent, one thread: CPU time then is the work. An extension runs with its defaults and those that it
needs; the bare agent is timed beside each one anew, in turns. Pretraining, which comes once, is made short.
"""

import argparse
import os
import statistics
from pathlib import Path
from typing import Any

import measure

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

COPIES, WINDOW, BUDGET = {"sac": 1, "ppo": 4}, 128, 200_000
STEPS = {"sac": 2_048, "ppo": 40_960}
"""Environment steps of a timed section: at least 1,000 updates, so that what comes every 1,000 updates counts."""
WARM = {"sac": 256, "ppo": 512}
PRETRAINING = {
    "n_steps": 64,
    "n_mc_steps": 64,
    "n_mc_episodes": 2,
    "online_light_steps": 2,
    "epochs": 1,
    "n_expert_steps": 64,
    "offline_updates": 0,
}
"""Numbers of steps before the run, in place of the defaults."""


def agent(name: str) -> Any:
    """Small networks: two layers of 64, and 64 rows an update (SAC) or 128 (PPO with 4 copies)."""
    from perdure.agents.ppo import PPO
    from perdure.agents.sac import SAC
    from perdure.rl import feeds

    if name == "sac":
        return SAC(feed=feeds.Replay(20_000, 64, learning_starts=128), hidden=(64, 64))
    return PPO(feed=feeds.Epochs(epochs=4, minibatches=4), hidden=(64, 64))


def parts(name: str, made: Any, world: Any) -> tuple[Any, ...]:
    """The extension with those that it needs before it, pretraining shortened."""
    import dataclasses

    from perdure import compatibility

    def shortened(part):
        known = {field.name for field in dataclasses.fields(part)} & PRETRAINING.keys()
        if type(part).__name__ == "PhiRefresh":
            known -= {"n_steps"}
        return dataclasses.replace(part, **{field: PRETRAINING[field] for field in known})

    found = compatibility.companions(compatibility.example(name, world.spec), world.spec, made)
    return tuple(shortened(part) for part in found)


class Running:
    """A compiled training that goes on where it stands."""

    def __init__(self, name: str, extensions: tuple[Any, ...]):
        from perdure.core import records, registry
        from perdure.rl import learner
        from perdure.worlds import catalogue

        self.name, (self.made, world) = name, (agent(name), _world(name))
        trainer = learner.trainer(
            self.made,
            catalogue.pure(world, {}),
            extensions,
            n_envs=COPIES[name],
            window_steps=WINDOW,
            total_steps=BUDGET,
            boundary_source="oracle",
            expert=registry.resolve("experts", world)(),
        )
        self.schedule = records.RegimeSchedule((records.Segment("whole", "whole", 0, BUDGET),), "oracle")
        self.learner = learner.JaxLearner(trainer, (7,))
        self.state = self.learner.init((7,))

    def run(self, steps: int) -> None:
        """`steps` more of them."""
        goal = self.learner.step(self.state) + steps
        while (now := self.learner.step(self.state)) < goal:
            self.state, _, _ = self.learner.advance(self.state, self.schedule, goal - now)


def _world(name: str) -> str:
    return {"sac": "perdure/pendulum", "ppo": "perdure/cartpole"}[name]


def compared(name: str, extension: str, bare: Running, times: int) -> dict[str, Any]:
    """CPU microseconds an environment step with and without, of `times` sections each in turns."""
    from perdure.core.errors import Refused

    try:
        made = parts(extension, bare.made, bare.learner.trainer.world)
        building, running = measure.timed(lambda: _ready(name, made))
    except Refused as error:
        return {"refused": str(error)}
    costs: dict[str, list[float]] = {"without": [], "with": []}
    for _ in range(times):
        for label, each in (("without", bare), ("with", running)):
            section, _ = measure.timed(lambda each=each: each.run(STEPS[name]))
            costs[label].append(1e6 * section.cpu / STEPS[name])
    medians = {label: statistics.median(found) for label, found in costs.items()}
    ratio = medians["with"] / medians["without"]
    others = [type(part).__name__ for part in made[:-1]]
    return {"microseconds": medians, "ratio": ratio, "build_cpu": building.cpu, "after": others, "all": costs}


def unused(name: str) -> dict[str, Any]:
    """Whether an extension that overrides no phase leaves the program given to XLA as it was, and its lines."""
    import hashlib

    import numpy as np

    from perdure.core.extension import Extension
    from perdure.rl import learner
    from perdure.rl import schedule as schedules

    def text(extensions):
        running = Running(name, extensions)
        plan = schedules.traced(running.schedule, running.learner.trainer.world)
        given = (running.state.train, plan, np.int32(1), np.int32(WINDOW), running.learner.data)
        return learner._advance.lower(running.learner.trainer, 1, *given).as_text()

    bare, extended = text(()), text((Extension(),))
    digests = [hashlib.sha256(found.encode()).hexdigest()[:16] for found in (bare, extended)]
    return {"same": bare == extended, "digests": digests, "lines": len(bare.splitlines())}


def _ready(name, made):
    running = Running(name, made)
    running.run(WARM[name])
    return running


def main() -> None:
    """Append a line an extension."""
    from perdure.core import registry

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agent", required=True, choices=sorted(STEPS))
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--only", nargs="*", help="names of extensions; default all")
    parser.add_argument("--results", type=Path, default=Path("results.jsonl"))
    arguments = parser.parse_args()
    measure.record({"unused": arguments.agent, **unused(arguments.agent)}, arguments.results)
    bare = _ready(arguments.agent, ())
    for extension in arguments.only or sorted(registry.names("extensions")):
        row = compared(arguments.agent, extension, bare, arguments.times)
        measure.record({"extension": extension, "agent": arguments.agent, **row}, arguments.results)


if __name__ == "__main__":
    main()
