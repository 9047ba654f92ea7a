"""A learner of a few lines, whose whole state is a counter and a running sum, and a run of it as a program.

    python fake.py FOLDER [--resume] [--die WHERE AT] [--pause SECONDS]

WHERE is "advance" (between two windows) or "save" (half a checkpoint written): the process then
kills itself with SIGKILL at step AT.
"""

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

from perdure.core.errors import DataError
from perdure.core.records import Evaluation, RegimeSchedule, RolloutWindow, Segment
from perdure.harness.run import EvaluationPlan, Job, execute

SCHEDULE = RegimeSchedule(
    (
        Segment("earth", "earth", 0, 300, {"gravity": 9.8}),
        Segment("moon", "moon", 300, 600, {"gravity": 1.6}),
        Segment("earth_again", "earth", 600, 1000, {"gravity": 9.8}),
    )
)
PLAN = EvaluationPlan(every=250, episodes=2, regimes=(("earth", {"gravity": 9.8}), ("moon", {"gravity": 1.6})))


class FakeLearner:
    """Two lanes, windows of 32 steps; every number is a function of (seed, step, what came before)."""

    def __init__(self, die=None, pause=0.0, window=32, reward=None):
        self.window, self.die, self.pause, self.reward = window, die, pause, reward
        self.shifts, self.closed = [], False

    def init(self, seeds):
        self.seeds = tuple(seeds)
        return {"step": 0, "sums": [0.0] * len(seeds)}

    def step(self, state):
        return state["step"]

    def advance(self, state, schedule, steps):
        begin = state["step"]
        size = min(self.window, schedule.total_steps - begin)
        if size > steps:
            return state, self._window(np.arange(0), schedule), {}
        if self.die and self.die[0] == "advance" and begin >= self.die[1]:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(self.pause)
        window = self._window(np.arange(begin, begin + size), schedule)
        rewards = window.columns["reward"].reshape(len(self.seeds), size)
        sums = [value * 0.5 + float(row.sum()) for value, row in zip(state["sums"], rewards)]
        metrics = {"step": np.array([begin + size]), "loss/sum": np.array([sums])}
        return {"step": begin + size, "sums": sums}, window, metrics

    def _window(self, steps, schedule):
        count, size = len(self.seeds), len(steps)
        step, seed = np.tile(steps, count), np.repeat(np.array(self.seeds), size)
        index = schedule.index_at(step)
        starts = np.array([segment.start for segment in schedule.segments])
        reward = np.sin(step * 0.1 + seed) if self.reward is None else self.reward(step)
        columns = {
            "seed": seed,
            "step": step,
            "lane": step % 2,
            "reward": reward.astype(np.float32),
            "terminated": step % 20 >= 18,
            "truncated": np.zeros(len(step), bool),
            "regime": index,
            "origin": index,
            "boundary": np.isin(step, starts),
            "action": (step % 3).astype(np.int32),
        }
        return RolloutWindow(columns=columns)

    def evaluate(self, state, params, episodes):
        returns = np.array([[value + params["gravity"] + e for e in range(episodes)] for value in state["sums"]])
        features = np.random.default_rng(state["step"]).normal(size=(len(self.seeds), 16, 4))
        return Evaluation(returns, np.full(returns.shape, 7), {"entropy": returns.mean(axis=1)}, {"critic": features})

    def on_regime_shift(self, state, shift):
        self.shifts.append((state["step"], shift))
        return {**state, "sums": [0.0 for _ in state["sums"]]}

    def save(self, state, folder):
        text = json.dumps({"program": "fake", **state})
        (folder / "state.json").write_text(text[: len(text) // 2])
        if self.die and self.die[0] == "save" and state["step"] >= self.die[1]:
            os.kill(os.getpid(), signal.SIGKILL)
        (folder / "state.json").write_text(text)

    def load(self, folder):
        state = json.loads((folder / "state.json").read_text())
        if state.pop("program") != "fake":
            raise DataError(f"{folder} is another program's checkpoint; start a new run")
        self.seeds = (0, 3)
        return state

    def export(self, state, folder):
        np.savez(folder / "weights.npz", sums=np.array(state["sums"]))
        return {"kind": "fake"}

    def close(self):
        self.closed = True


def job(folder, learner=None, **changes):
    meta = {"run_id": "fake-run", "algorithm_id": "fake", "task": "toy", "seeds": [0, 3], "config_hash": "abc"}
    first = Job(
        learner or FakeLearner(), SCHEDULE, meta, Path(folder), 1000, PLAN, checkpoint_every=200, progress=False
    )
    return first._replace(**changes)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--die", nargs=2)
    parser.add_argument("--pause", type=float, default=0.0)
    given = parser.parse_args()
    die = (given.die[0], int(given.die[1])) if given.die else None
    execute(job(given.folder, FakeLearner(die, given.pause), resume=given.resume))


if __name__ == "__main__":
    for library in ("jax", "torch"):
        sys.modules[library] = None
    main()
