"""Seconds and memory of importing a library in a fresh interpreter: `python imports.py --times 5`."""

import argparse
import os
import subprocess
import sys
from pathlib import Path

import measure

STATEMENTS = {
    "jax": "import jax",
    "perdure": "import perdure",
    "perdure with an agent": "from perdure import PPO",
    "ajax": "from ajax import PPO",
    "rejax": "from rejax import PPO",
}

TIMED = """
import resource, time
start = time.perf_counter()
{statement}
print(time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def main() -> None:
    """Import each library in turn, round after round; append a line an import."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--patience", type=float, default=60)
    parser.add_argument("--results", type=Path, default=Path("results.jsonl"))
    arguments = parser.parse_args()
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    measure.wait_for_quiet(arguments.patience)
    for _ in range(arguments.times):
        for name, statement in STATEMENTS.items():
            command = [sys.executable, "-c", TIMED.format(statement=statement)]
            output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
            seconds, megabytes = map(float, output.split())
            measure.record({"import": name, "seconds": seconds, "peak": megabytes}, arguments.results)


if __name__ == "__main__":
    main()
