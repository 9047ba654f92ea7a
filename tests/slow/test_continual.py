"""The continual methods on the demonstration's stream and on a harder one: a sweep and a page each."""

import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from perdure.cli.training import sweep
from perdure.harness.runs import find_runs, load_run
from perdure.metrics.summary import summarise

ROOT = Path(__file__).parents[2]
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
METRICS = """The numbers are interquartile means over {seeds} seeds with 95 % bootstrap intervals; [the
metrics](../metrics.md) have a page of their own. An arm is marked \\* where its interval is apart from that of
`plain`, for better or worse: {seeds} seeds tell large differences only. [How the methods
work](../continual/index.md) has a page for each.

`python -m pytest -m slow tests/slow/test_continual.py` makes this page again.
"""
DEMO = """# Continual methods on a shifting stream

PPO on a cart-pole whose push is reversed, whose pole then grows heavy and long, before the first world comes
back (61,440 steps each; 64-64 relu, four epochs of four minibatches, learning rate 1e-3), told of the shifts by
an oracle. Every method has its default strength but where `configs/continual_methods.yaml` says otherwise; none
was tuned. The layers of `plasticity_injection` are wider for the heads that they hold: 64-64 learn at a time.
"""
HARDER = """# Continual methods on a harder stream

PPO on an acrobot through eight segments of five worlds (61,440 steps each): as it is, with the torque reversed, with a
heavier lower link, as it is, with a weak torque, with twice the gravity and the torque reversed and doubled, reversed
as before, and as it is. The agent is that of [the demonstration's stream](continual.md); so are the methods, by
`configs/harder_stream.yaml`; none was tuned. `plasticity_injection` has heads for the first three of the seven shifts.
"""


class Stream(NamedTuple):
    """A sweep, and the page that tells of it."""

    name: str
    head: str
    arms: int
    seeds: int

    @property
    def page(self) -> Path:
        """Where the table stands."""
        return ROOT / "docs" / "results" / f"{self.name}.md"

    @property
    def text(self) -> str:
        """What stands above the table."""
        return self.head + METRICS.format(seeds={3: "three", 4: "four"}[self.seeds]) + "\n"


STREAMS = {
    "continual_methods": Stream("continual", DEMO, 25, 4),
    "harder_stream": Stream("harder", HARDER, 9, 3),
}


def page(stream, groups):
    """The page of the groups of a summary, `plain` first and the rest by name."""
    found = {group["algorithm_id"]: group["metrics"] for group in groups}
    order = ["plain", *sorted(found.keys() - {"plain"})]
    lines = [f"| arm | {' | '.join(title for title, _ in SHOWN.values())} |", f"|---|{'---|' * len(SHOWN)}"]
    for name in order:
        cells = [_cell(found[name][metric], found["plain"][metric], digits) for metric, (_, digits) in SHOWN.items()]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return stream.text + "\n".join(lines) + "\n"


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
@pytest.mark.parametrize("document", STREAMS)
def test_every_arm_ends_with_finite_metrics(document, tmp_path):
    stream = STREAMS[document]
    sweep(ROOT / "configs" / f"{document}.yaml", [f"output_dir={tmp_path}"])
    groups = groups_of(tmp_path)
    stream.page.write_text(page(stream, groups), encoding="utf-8")
    assert len(groups) == stream.arms
    assert all(group["metrics"]["reward"]["n"] == stream.seeds for group in groups)


if __name__ == "__main__":
    done = STREAMS[sys.argv[1]]
    done.page.write_text(page(done, groups_of(Path(sys.argv[2]))), encoding="utf-8")
