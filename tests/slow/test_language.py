"""Language policies learn arithmetic from reward; docs/results/language.md says how well."""

import json
import statistics
import time
from pathlib import Path

import pytest

from perdure.pipeline import Pipeline

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "results" / "language.md"
HEAD = """# Language policies, measured

Five seeds of a tiny model (0.8 million parameters) that 230 steps of supervised tuning have half taught cued sums
(`configs/arithmetic_grpo.yaml`, `configs/arithmetic_ppo.yaml`; `perdure pipeline` runs them, `make test-slow` writes
this page). The bound is 1. *Before* and *after* are the mean return of 128 greedy episodes a seed; *sampled* is that of
the last 1,024 answers of each. Intervals are 95 % bootstrap intervals of the mean over seeds. CPU seconds are of the
reinforcement learning alone, one process, one thread.

| learner | before | after | interval | seeds, lowest to highest | sampled | answers a seed | CPU seconds a seed |
|---|---|---|---|---|---|---|---|
"""


@pytest.fixture(scope="module")
def pages(load_module):
    """The module pages.py beside this file."""
    return load_module(Path(__file__).with_name("pages.py"))


@pytest.mark.parametrize("name", ["grpo", "rloo", "ppo"])
def test_the_reward_rises_to_nine_tenths_of_its_bound(name, tmp_path, pages):
    document = ROOT / "configs" / ("arithmetic_ppo.yaml" if name == "ppo" else "arithmetic_grpo.yaml")
    chain = Pipeline.read(document, (f"algorithm.name=lm/{name}", f"run.output_dir={tmp_path}"))
    chain.run_stage("sft")
    began = time.process_time()
    folder = chain.run()[-1].folder
    seconds = (time.process_time() - began) / 5
    marks: dict[int, list[float]] = {}
    for line in (folder / "evaluations.jsonl").read_text().splitlines():
        row = json.loads(line)
        marks.setdefault(row["step"], []).append(statistics.mean(row["returns"]))
    before, after = marks[min(marks)], marks[max(marks)]
    rows = [json.loads(line) for line in (folder / "traces.jsonl").read_text().splitlines()]
    last = [row["reward"] for row in rows if row["step"] >= max(marks) - 1024]
    mean, interval, seeds = pages.summed_up(after, digits=3)
    cells = [f"`lm/{name}`", f"{statistics.mean(before):.2f}", mean, interval, seeds]
    cells += [f"{statistics.mean(last):.2f}", str(max(marks)), f"{seconds:.0f}"]
    pages.write_row(PAGE, HEAD, [f"`lm/{each}`" for each in ("grpo", "rloo", "ppo")], cells)
    assert min(after) >= 0.9
    assert statistics.mean(before) < 0.75
