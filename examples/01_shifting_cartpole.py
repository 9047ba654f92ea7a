"""Train PPO on a cart-pole whose push is reversed half way, then read what it learned and forgot.

python examples/01_shifting_cartpole.py runs/examples
"""

import sys

from perdure import build
from perdure.harness import config, runs
from perdure.metrics import summary

DOCUMENT = {
    "environment": {"id": "perdure/cartpole"},
    "algorithm": {
        "name": "ppo",
        "kwargs": {"feed": {"epochs": 4, "minibatches": 4}, "hidden": [32, 32], "activation": "relu"},
        "extensions": [{"name": "l2_init"}],
    },
    "rollout": {"total_steps": 24_576, "n_envs": 16, "window_steps": 64},
    "regime": {
        "provider": "schedule",
        "segments": [
            {"id": "earth", "steps": 8_192},
            {"id": "reversed", "steps": 8_192, "params": {"force": -10.0}},
            {"id": "earth_again", "origin": "earth", "steps": 8_192},
        ],
    },
    "evaluation": {"every": 4_096, "episodes": 4},
    "run": {"seeds": [0, 1]},
}


def main(output_dir: str) -> None:
    """Train both seeds in one program; print the table of metrics."""
    document = {**DOCUMENT, "run": {**DOCUMENT["run"], "output_dir": output_dir}}
    result = build.run_experiment(config.ExperimentConfig.from_document(document))
    run = runs.load_run(result.folder)
    headers, rows = summary.summarise(run.streams, run.evaluations).table()
    for row in [headers, *rows]:
        print(*(cell.ljust(24) for cell in row))
    print(f"the run is in {result.folder}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs/examples")
