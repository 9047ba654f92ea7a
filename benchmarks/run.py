"""Measure everybody in one run: `python run.py`, an hour or two on two quiet cores.

Libraries take turns, one process a measurement, round after round, so that a slow quarter of an hour hurts all alike.
PEERS_312 and PEERS_311 name the two interpreters (README.md says what is installed in each).
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

import settings

HERE = Path(__file__).parent
GROUPS = ("products", "imports", *settings.SETTINGS, "user")
JAX_LIBRARIES = ("perdure", "perdure-bf16", "ajax", "rejax")
TORCH_LIBRARIES = ("sbx", "sb3")
REJAX = ("ppo", "dqn", "sac", "pqn", "td3")
"""Algorithms of ours that rejax has."""
BFLOAT16 = ("dqn", "sac")
"""Settings whose products are also measured in bfloat16."""


def commands(group: str, first_round: bool) -> list[list[str]]:
    """The measurements of a group in one round, as command lines without their common options."""
    newer, older = os.environ["PEERS_312"], os.environ.get("PEERS_311")
    if group == "products":
        return [[newer, "products.py"]] if first_round else []
    if group == "imports":
        return [[newer, "imports.py", "--times", "1"]]
    if group == "user":
        return [[newer, "user.py", "--library", library] for library in ("perdure", "ajax")]
    absent = {"perdure-bf16"} - ({"perdure-bf16"} if group in BFLOAT16 else set())
    absent |= {"rejax"} - ({"rejax"} if settings.SETTINGS[group].algorithm in REJAX and group != "sac-cql" else set())
    names = [name for name in JAX_LIBRARIES if name not in absent]
    rows = [[newer, "peers.py", "--library", name, "--setting", group, "--times", "1"] for name in names]
    if older and settings.SETTINGS[group].torch_steps:
        rows += [
            [older, "torch_peers.py", "--library", name, "--setting", group, "--times", "1"] for name in TORCH_LIBRARIES
        ]
    return rows


def main() -> None:
    """Run every chosen group for the asked number of rounds; failures are logged and do not stop the rest."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("groups", nargs="*", help=f"any of {', '.join(GROUPS)}; default all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--patience", type=float, default=60, help="seconds to wait for a quiet machine before each run"
    )
    parser.add_argument("--results", type=Path, default=HERE / "results.jsonl")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.groups) - set(GROUPS))
    if unknown or "PEERS_312" not in os.environ:
        parser.error(f"unknown groups: {', '.join(unknown)}" if unknown else "set PEERS_312 to the peers' interpreter")
    failures = 0
    for turn in range(arguments.rounds):
        for group in arguments.groups or GROUPS:
            for command in commands(group, turn == 0):
                patience = ["--patience", str(arguments.patience)]
                failures += _measure([*command, *patience], arguments.results.resolve(), turn)
    sys.exit(f"{failures} measurements failed" if failures else 0)


def _measure(command: list[str], results: Path, turn: int) -> int:
    start = time.perf_counter()
    finished = subprocess.run([*command, "--results", str(results)], cwd=HERE, capture_output=True, text=True)
    state = "done" if finished.returncode == 0 else f"FAILED\n{finished.stderr[-1500:]}"
    print(f"round {turn}: {' '.join(command[1:])}: {time.perf_counter() - start:.0f} s, {state}", flush=True)
    return finished.returncode != 0


if __name__ == "__main__":
    main()
