"""What a second `train` call in the same process compiles: `python again.py [sac ppo ...]`.

Counts the programs that XLA compiles in each of two calls that differ in their seeds alone, and their wall seconds.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import measure

CONTINUOUS = ("sac", "redq", "asac", "avg", "td3")
DISCRETE = ("dqn", "pqn", "ppo", "apo")


def agent(name: str) -> Any:
    """The agent in a size that runs in a second."""
    from perdure.core import registry
    from perdure.rl import feeds

    cls = registry.resolve("agents", name)
    if name in ("pqn", "ppo", "apo"):
        feed = feeds.Epochs(epochs=4, minibatches=4)
    elif name == "avg":
        return cls(hidden=(32, 32))
    else:
        feed = feeds.Replay(capacity=2_000, batch_size=32, learning_starts=128)
    return cls(feed=feed, hidden=(32, 32))


def calls(name: str, folder: str) -> dict[str, Any]:
    """Programs compiled in each call, and its seconds."""
    import jax

    from perdure import train

    compiled: list[float] = []

    def listen(event: str, seconds: float, **_: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(seconds)

    jax.monitoring.register_event_duration_secs_listener(listen)
    world = "perdure/pendulum" if name in CONTINUOUS else "perdure/cartpole"
    found: dict[str, Any] = {"programs": [], "seconds": [], "compiling": []}
    for call in (1, 2):
        compiled.clear()
        start = time.perf_counter()
        train(agent(name), world, 1_024, seeds=(call,), output_dir=folder, run_id=f"{name}-{call}", progress=False)
        found["seconds"].append(round(time.perf_counter() - start, 2))
        found["programs"].append(len(compiled))
        found["compiling"].append(round(sum(compiled), 2))
    jax.monitoring.unregister_event_duration_listener(listen)
    return found


def main() -> None:
    """Append a line an agent; all of them in one process, on an empty compile cache."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("agents", nargs="*", default=[*CONTINUOUS, *DISCRETE])
    parser.add_argument("--results", type=Path, default=Path("results.jsonl"))
    arguments = parser.parse_args()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PERDURE_CACHE"] = f"{folder}/cache"
        for name in arguments.agents:
            measure.record({"again": name, **calls(name, folder)}, arguments.results)


if __name__ == "__main__":
    main()
