"""Measure a trace that perdure did not make: five keys a row are enough. Needs neither JAX nor torch.

python examples/02_metrics_of_any_trace.py runs/foreign
"""

import json
import math
import sys
from pathlib import Path

from perdure.harness import runs
from perdure.metrics import six

LENGTH = 600
SHIFTS = ("calm", "storm", "calm")


def write_trace(folder: Path) -> None:
    """A learner that approaches a score of 1, falls back at each shift, and half remembers the first regime."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "traces.jsonl").open("w") as trace:
        for step in range(LENGTH * len(SHIFTS)):
            segment, since = divmod(step, LENGTH)
            start = 0.5 if segment == 2 else 0.0
            score = 1.0 - (1.0 - start) * math.exp(-since / 100)
            row = {"seed": 0, "step": step, "reward": score, "terminated": True, "truncated": False}
            trace.write(json.dumps({**row, "regime": {"id": SHIFTS[segment]}}) + "\n")


def main(folder: Path) -> None:
    """Write the trace, read it back as anybody's, print the six metrics."""
    write_trace(folder)
    (stream,) = runs.load_run(folder).streams
    for name, metric in six.six_metrics(stream).items():
        value = metric.reason if metric.value is None else f"{metric.value:.3f} {metric.unit}"
        print(f"{name:18} {value}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/foreign"))
