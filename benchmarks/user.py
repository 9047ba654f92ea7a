"""What a user pays for 100,000 steps of PPO on CartPole with five evaluations: `python user.py --library ajax`.

Two fresh processes share an empty compile cache on disk: the first finds nothing in it (cold), the second everything
(warm). Each trains, then makes the very same call again; import is reported apart. Perdure's run also writes its trace,
evaluations and checkpoint, as every run does.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import measure

AJAX = """
import json, time
start = time.perf_counter()
from ajax import PPO
from ajax.logging.wandb_logging import LoggingConfig
ready = time.perf_counter()
layers = ("64", "tanh", "64", "tanh")
log = LoggingConfig(config={}, log_frequency=20_480, use_wandb=False)
rounds = {"n_envs": 4, "n_steps": 128, "n_epochs": 4, "num_minibatches": 4}
agent = PPO("CartPole-v1", actor_architecture=layers, critic_architecture=layers, **rounds)
agent.train(seed=[1], n_timesteps=102_400, logging_config=log)
first = time.perf_counter()
state, evaluations = agent.train(seed=[1], n_timesteps=102_400, logging_config=log)
second = time.perf_counter()
score = float(evaluations["Eval/episodic mean reward"][0][-1])
print("RESULT", json.dumps({"import": ready - start, "first": first - ready, "second": second - first, "score": score}))
"""

PERDURE = """
import json, tempfile, time
start = time.perf_counter()
from perdure import build
from perdure.harness import config
ready = time.perf_counter()
document = {
    "environment": {"id": "perdure/cartpole"},
    "algorithm": {"name": "ppo", "kwargs": {"feed": {"epochs": 4, "minibatches": 4}, "hidden": [64, 64]}},
    "rollout": {"total_steps": 102_400, "n_envs": 4, "window_steps": 128},
    "evaluation": {"every": 20_480, "episodes": 10},
}

def run(name, folder):
    place = {"seed": 1, "output_dir": folder, "run_id": name}
    return build.run_experiment(config.ExperimentConfig.from_document({**document, "run": place}), progress=False)

with tempfile.TemporaryDirectory() as folder:
    run("first", folder)
    first = time.perf_counter()
    result = run("second", folder)
    second = time.perf_counter()
returns = result.evaluations[-1]["returns"]
seconds = {"import": ready - start, "first": first - ready, "second": second - first}
print("RESULT", json.dumps({**seconds, "score": sum(returns) / len(returns)}))
"""

SCRIPTS = {"ajax": (AJAX, "AJAX_JAX_COMPILE_CACHE_DIR"), "perdure": (PERDURE, "PERDURE_CACHE")}
"""Each library's script, and the variable that names its compile cache on disk."""


def run(library: str, cache: Path) -> dict[str, float]:
    """One process of the library's script; seconds of each part, of the whole process, and its CPU seconds."""
    script, variable = SCRIPTS[library]
    environment = {**os.environ, variable: str(cache), "JAX_PLATFORMS": "cpu"}
    environment.pop("AJAX_NO_COMPILE_CACHE", None)
    section, finished = measure.timed(
        lambda: subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
        )
    )
    parts = json.loads(finished.stdout.split("RESULT", 1)[1])
    return {**parts, "process": section.wall, "process_cpu": section.cpu, "others": section.others}


def main() -> None:
    """Measure a cold and a warm process; append a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", required=True, choices=sorted(SCRIPTS))
    parser.add_argument("--patience", type=float, default=60)
    parser.add_argument("--results", type=Path, default=Path("results.jsonl"))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="compile-cache-") as folder:
        for cache in ("cold", "warm"):
            measure.wait_for_quiet(arguments.patience)
            row = {"user": arguments.library, "cache": cache, **run(arguments.library, Path(folder))}
            measure.record(row, arguments.results)


if __name__ == "__main__":
    main()
