"""Peak memory of a GRPO run on the tiny model through `perdure run`, and what importing the language side costs.

    OMP_NUM_THREADS=1 python language_memory.py

Each measurement is a process of its own; a number is the median of three. Prints two Markdown tables.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

REPEATS = 3
STATEMENTS = {
    "nothing": "pass",
    "perdure": "import perdure",
    "perdure.lm": "import perdure.lm",
    "the learner (torch)": "import perdure.lm.learner",
    "a tiny policy": "from perdure.lm.factory import language_policy; language_policy('perdure/tiny')",
    "torch": "import torch",
    "transformers' model": "from transformers import LlamaForCausalLM",
}
TIMED = """
import json, resource, sys, time
start, wall = time.process_time(), time.perf_counter()
{statement}
cost = [time.process_time() - start, time.perf_counter() - wall]
loaded = {{name: name in sys.modules for name in ("torch", "transformers", "jax")}}
print(json.dumps([*cost, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, loaded]))
"""
RUN = """
import json, resource, sys
from perdure.cli import main
sys.argv = ["perdure", "run", *sys.argv[1:]]
try:
    main()
except SystemExit as ended:
    assert not ended.code, ended.code
own = resource.getrusage(resource.RUSAGE_SELF)
children = resource.getrusage(resource.RUSAGE_CHILDREN)
print("\\nUSED " + json.dumps([own.ru_maxrss / 1024, children.ru_maxrss / 1024, own.ru_utime + own.ru_stime]))
"""
DOCUMENT = {
    "environment": {"id": "perdure/arithmetic"},
    "algorithm": {
        "name": "lm/grpo",
        "kwargs": {"optimisation": {"learning_rate": 2.0e-4}, "turns": 1},
        "policy": {"kwargs": {"name_or_path": "perdure/tiny", "max_new_tokens": 8}},
    },
    "rollout": {"total_steps": 1024, "groups_per_update": 8, "group_size": 8},
    "evaluation": {"episodes": 32},
    "run": {"seeds": [0]},
}
CASES = {
    "8 x 8, answers of 8 tokens": {},
    "the same, 4 seeds": {"run": {"seeds": [0, 1, 2, 3]}},
    "32 x 8, answers of 64 tokens": {"rollout": {"total_steps": 1024, "groups_per_update": 32, "group_size": 8}},
}


def main() -> None:
    """Measure and print."""
    print("| import | CPU-s | seconds | peak MB | loads |\n|---|---|---|---|---|")
    for name, statement in STATEMENTS.items():
        found = [json.loads(_output([TIMED.format(statement=statement)])) for _ in range(REPEATS)]
        cpu, wall, peak = (statistics.median(each[column] for each in found) for column in range(3))
        loads = ", ".join(each for each, loaded in found[0][3].items() if loaded) or "-"
        print(f"| {name} | {cpu:.2f} | {wall:.2f} | {peak:.0f} | {loads} |", flush=True)
    print("\n| run | peak MB | of a child | CPU-s |\n|---|---|---|---|")
    for name, changes in CASES.items():
        found = [_run(changes) for _ in range(1 if changes else REPEATS)]
        peak, child, cpu = (statistics.median(column) for column in zip(*found, strict=True))
        print(f"| {name} | {peak:.0f} | {child:.0f} | {cpu:.1f} |", flush=True)


def _run(changes: dict[str, object]) -> list[float]:
    """[peak MB, peak MB of its largest child, CPU seconds] of one run in a folder of its own."""
    document = json.loads(json.dumps({**DOCUMENT, **changes}))
    if "rollout" in changes:
        document["algorithm"]["policy"]["kwargs"]["max_new_tokens"] = 64
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.json"
        path.write_text(json.dumps(document))
        return json.loads(_output([RUN, str(path)], folder).rsplit("USED ", 1)[1])


def _output(program: list[str], folder: str | None = None) -> str:
    """What a fresh interpreter prints for `program` (source, then its arguments)."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", *program], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{done.stdout}\n{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
