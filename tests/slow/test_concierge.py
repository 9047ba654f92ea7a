"""A tiny model learns errands under contracts that drift: imitation, then reward; the page of what it reaches."""

import collections
import concurrent.futures
import dataclasses
import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from perdure.lm.factory import language_policy
from perdure.lm.rollout import Episode, play
from perdure.pipeline import Pipeline
from perdure.worlds.concierge.statistics import paired_difference
from perdure.worlds.concierge.world import Concierge

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "configs" / "concierge_grpo.yaml"
PAGE = ROOT / "docs" / "results" / "concierge.md"
SEEDS = 3
SECONDS = 1500
"""Of processor time that a seed may take, its start included."""
TASKS = 240
REGIMES = {
    "no drift": {"stage": 1},
    "trained patterns": {"stage": 2},
    "variants": {"stage": 2, "held_out": 1},
    "unseen families": {"stage": 2, "held_out": 2},
}
RISES = ("trained patterns", "variants")
"""Where success and the drifts that are noticed have to rise."""
POINTS = ("untrained", "after imitation", "after reward")
COMMAND = "python -m pytest -m slow tests/slow/test_concierge.py"
HEAD = f"""# A tiny model and contracts that drift

A model of half a million parameters, random at first, orders cabs in `perdure/concierge` on its terse profile, in
English and Hinglish: `configs/concierge_grpo.yaml`, three seeds. It imitates errands of the oracle, then learns by
GRPO from the reward of its own: without drifts, with those of the published patterns, with a surge on longer trips
alone, with all of them again; how far a drift moves its number differs from errand to errand. The oracle's errands,
their order and those of GRPO differ from seed to seed, the first weights do not.

It is judged at three points on the same {TASKS} errands of the validation split of each of four kinds: without drift;
with the patterns trained on; with variants of them that nothing in training has (a surge of 75 percent, the smallest
cars refused from seven to one o'clock instead of nine, a fare under other fields); with unseen families, a class of
cars that is withdrawn and a limit of calls. *Sampled* answers are drawn at temperature 0.7, as in training. Numbers
are means over errands of means over seeds; a change stands with its 95 % bootstrap interval over errands, paired.

`{COMMAND}` makes this page again.

## Errands that succeed

One booking stands, the one the user wants under the contract it was made by, and what had to be told was told before.

"""
NOTICED = """
## Drifts that are noticed

The share of an errand's drifts that its agent told the user of or adapted to, over errands that have one; a drift that
the agent never came to meet was not noticed.

"""
BY = "Sampled answers to errands of stage 2, all kinds and seeds together.\n\n"
LASTING = f"""
## What it takes

Seconds of processor time on one thread, what judges apart; {SECONDS:,} are allowed.

"""


def judged(policy, params, greedy):
    """[{success, noticed, language, drift}] of the same TASKS errands of the validation split."""
    episodes = []
    for lane in range(TASKS):
        world = Concierge(params, terse=True, split="validation")
        observation, _ = world.reset(seed=lane)
        episodes.append(Episode(world, observation, np.random.default_rng(lane), lane=lane))
    play(policy, episodes, copies=1, turns=12, sampling=dataclasses.replace(policy.sampling, greedy=greedy))
    return [errand(episode.env.task, episode.trial().facts) for episode in episodes]


def errand(task, facts):
    """What is kept of an errand; a drift that its agent never came to meet was not noticed."""
    noticed = float(facts["drifts noticed"] or 0) if task.drifts else None
    kept = {"success": bool(facts["success"]), "noticed": noticed, "language": facts["language"]}
    return kept | {"drift": list(task.drifts)}


def measured(seed, folder, *options):
    """A seed of the document: its processor time, and what each point of its training makes of every regime."""
    places = ("stages.sft.seed", "stages.sft.data.expert.seed")
    seeded = [f"run.output_dir={folder}", f"run.seeds=[{seed}]", *(f"{place}={seed}" for place in places)]
    chain = Pipeline.read(DOCUMENT, [*seeded, *options])
    began = time.process_time()
    start = chain.run_stage("sft").folder
    taught = time.process_time() - began
    chain.run()
    seconds = time.process_time() - began
    kwargs = {**chain.config.algorithm.policy.kwargs}
    tiny = {**kwargs.pop("tiny"), "tokenizer": str(start / "vocabulary.json")}
    shared = {"domain_cab": 1, "drift": 1}
    found = {"seconds": seconds, "taught": taught, "judged": {}}
    end = chain.folder("export") / "policy" / f"seed-{seed}"
    for when, where in zip(POINTS, ("perdure/tiny", start, end), strict=True):
        policy = language_policy(where, **kwargs, **({"tiny": tiny} if where == "perdure/tiny" else {}))
        for regime, params in REGIMES.items():
            for greedy in (True, False):
                name = json.dumps([when, regime, "greedy" if greedy else "sampled"])
                found["judged"][name] = judged(policy, shared | params, greedy)
    return found


def apart(seed, folder):
    """`measured` in a process of its own, on one thread."""
    command = [sys.executable, __file__, str(seed), str(folder)]
    done = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def values(found, when, regime, answers, value):
    """A value of each errand that has it, averaged over the seeds."""
    tables = [each["judged"][json.dumps([when, regime, answers])] for each in found]
    rows = [[one[value] for one in lane] for lane in zip(*tables, strict=True)]
    return np.asarray([row for row in rows if None not in row], np.float64).mean(1)


def compared(found, regime, answers, value):
    """The cells of a comparison; the intervals of the change from the first point, and from the second, to the last."""
    points = [values(found, when, regime, answers, value) for when in POINTS]
    whole, last = (paired_difference(before, points[-1]) for before in points[:-1])
    return [*(f"{each.mean():.2f}" for each in points), told(last), told(whole)], (whole, last)


def told(change):
    return f"{change.value:+.2f} ({change.low:+.2f} to {change.high:+.2f})"


def grouped(found, key):
    """{name: {point: errands}} of sampled answers in stage 2, by the names an errand has."""
    groups = collections.defaultdict(lambda: collections.defaultdict(list))
    for each, when, regime in itertools.product(found, POINTS, REGIMES):
        if REGIMES[regime]["stage"] > 1:
            for one in each["judged"][json.dumps([when, regime, "sampled"])]:
                for name in key(one):
                    groups[name][when].append(one)
    return groups


def shares(errands):
    """The cells of some errands: which share succeeds, which share of their drifts is noticed."""
    noticed = [each["noticed"] for each in errands if each["noticed"] is not None]
    return f"{np.mean([each['success'] for each in errands]):.2f}", f"{np.mean(noticed):.2f}" if noticed else "-"


def table(head, rows):
    """Lines of a table."""
    return "".join(f"| {' | '.join(cells)} |\n" for cells in [head, ["---"] * len(head), *rows])


def by(found, title, key):
    """The section of a grouping."""
    rows = []
    for name, sides in sorted(grouped(found, key).items()):
        cells = zip(*(shares(sides[when]) for when in POINTS[1:]), strict=True)
        rows.append([f"`{name}`", f"{len(sides[POINTS[0]]):,}", *(cell for pair in cells for cell in pair)])
    points = [f"{what} {when}" for what in ("succeed", "noticed") for when in POINTS[1:]]
    return f"\n## By {title}\n\n{BY}{table([title, 'errands', *points], rows)}"


def write(found):
    """The page; the intervals of the changes."""
    text, changes = HEAD, {}
    head = ["errands", "answers", *POINTS, "change by reward", "change in all"]
    for value in ("success", "noticed"):
        rows = []
        for regime, answers in itertools.product(REGIMES, ("greedy", "sampled")):
            if value == "success" or REGIMES[regime]["stage"] > 1:
                cells, changes[regime, answers, value] = compared(found, regime, answers, value)
                rows.append([regime, answers, *cells])
        text += (NOTICED if value == "noticed" else "") + table(head, rows)
    text += by(found, "language", lambda one: [one["language"]])
    text += by(found, "pattern", lambda one: one["drift"] or ["none"])
    rows = [[str(seed), f"{each['taught']:.0f}", f"{each['seconds']:.0f}"] for seed, each in enumerate(found)]
    PAGE.write_text(text + LASTING + table(["seed", "imitation", "all"], rows), encoding="utf-8")
    return changes


def test_a_tiny_model_learns_errands_and_what_drifts(tmp_path):
    with concurrent.futures.ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        found = list(pool.map(lambda seed: apart(seed, tmp_path / str(seed)), range(SEEDS)))
    changes = write(found)
    assert max(each["seconds"] for each in found) <= SECONDS
    for regime, value in itertools.product(RISES, ("success", "noticed")):
        whole, last = changes[regime, "sampled", value]
        assert whole.low > 0
        assert last.high > 0, "what was imitated is not lost to the reward"


if __name__ == "__main__":
    print(json.dumps(measured(int(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])))
