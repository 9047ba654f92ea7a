"""The continual methods on the demonstration's stream: one sweep, and the page of what each arm did."""

import sys
from pathlib import Path

import pytest

from perdure.cli.training import sweep
from perdure.harness.runs import find_runs, load_run
from perdure.metrics.summary import summarise

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "results" / "continual.md"
SHOWN = {
    "reward": ("reward", 0),
    "adaptation_speed": ("adaptation speed", 2),
    "forgetting": ("forgetting", 0),
    "recovery_time": ("recovery time", 0),
    "stability": ("stability", 2),
    "performance_gap": ("performance gap", 0),
    "average_performance": ("average performance", 0),
    "matrix_forgetting": ("matrix forgetting", 0),
}
HEAD = """# Continual methods on a shifting stream

PPO on a cart-pole whose push is reversed, whose pole then grows heavy and long, before the first world comes
back (61,440 steps each; 64-64 relu, four epochs of four minibatches, learning rate 1e-3), told of the shifts by
an oracle. Every method has its default strength but where `configs/continual_methods.yaml` says otherwise; none
was tuned. The numbers are interquartile means over four seeds with 95 % bootstrap intervals; [the
metrics](../metrics.md) have a page of their own. An arm is marked \\* where its interval is apart from that of
`plain`, for better or worse: four seeds tell large differences only.

`python -m pytest -m slow tests/slow/test_continual.py` makes this page again.

"""


def page(groups):
    """The page of the groups of a summary, `plain` first and the rest by name."""
    found = {group["algorithm_id"]: group["metrics"] for group in groups}
    order = ["plain", *sorted(found.keys() - {"plain"})]
    lines = [f"| arm | {' | '.join(title for title, _ in SHOWN.values())} |", f"|---|{'---|' * len(SHOWN)}"]
    for name in order:
        cells = [_cell(found[name][metric], found["plain"][metric], digits) for metric, (_, digits) in SHOWN.items()]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return HEAD + "\n".join(lines) + "\n"


def _cell(metric, plain, digits):
    if metric["value"] is None:
        return "-"
    apart = metric["low"] > plain["high"] or metric["high"] < plain["low"]
    interval = f"{metric['value']:.{digits}f} [{metric['low']:.{digits}f}, {metric['high']:.{digits}f}]"
    return interval + (" \\*" if apart else "")


def groups_of(folder):
    """The measured arms of every run below a folder, as plain values."""
    runs = [load_run(run) for run in find_runs(folder)]
    streams = [stream for run in runs for stream in run.streams]
    return summarise(streams, [row for run in runs for row in run.evaluations]).as_dict()["groups"]


@pytest.mark.slow
def test_every_arm_ends_with_finite_metrics(tmp_path):
    sweep(ROOT / "configs" / "continual_methods.yaml", [f"output_dir={tmp_path}"])
    groups = groups_of(tmp_path)
    PAGE.write_text(page(groups), encoding="utf-8")
    assert len(groups) == 23
    assert all(group["metrics"]["reward"]["n"] == 4 for group in groups)


if __name__ == "__main__":
    PAGE.write_text(page(groups_of(Path(sys.argv[1]))), encoding="utf-8")
