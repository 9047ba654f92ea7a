"""Two processes (gloo) that `accelerate launch` starts train as one does: run as a script, this file is one of them."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from perdure.core.errors import Refused, RunFailed
from perdure.core.records import RolloutWindow, Transition
from perdure.lm import checkpoint, decoder, packing, sharding, update
from perdure.lm.backend import Backend
from perdure.lm.conversation import Recorded
from perdure.lm.groups import GroupBackend, GroupTraining
from perdure.lm.objectives.table import Objective
from perdure.lm.policy import LanguagePolicy
from perdure.lm.sampler import sampler
from perdure.lm.sampling import Sampling
from perdure.lm.step import Optimisation, Stepper, rank, world_size
from perdure.lm.tiny import tiny_model
from perdure.lm.tokens import byte_tokenizer
from perdure.lm.trajectory import Sampled, Stop, Trajectory

OBJECTIVE = Objective("gae", "ppo", "turn_mean", kl="loss", kl_coefficient=0.1, entropy_coefficient=0.05)
VOCABULARY = 24


def batch_of(objective, rows=7):
    """Rows of random answers, advantages, returns and references, the same in every process."""
    random, made = np.random.default_rng(3), []
    for row in range(rows):
        each = Trajectory(terminated=True, group=row % 2)
        each.observe(random.integers(0, VOCABULARY, 2).tolist())
        for _ in range(1 + row % 3):
            ids = random.integers(0, VOCABULARY, int(random.integers(1, 6))).tolist()
            each.answer(Sampled(ids, (-3 + 0.1 * random.random(len(ids))).tolist(), Stop.END))
            each.observe([1])
        made.append(each)
    numbers = lambda: [random.standard_normal(len(each)) for each in made]
    batch = packing.pack(made, 0, advantages=numbers(), returns=numbers(), values=numbers())
    return batch._replace(reference_BT=batch.old_BT + 0.1)


def sharded_of(model):
    """The model, whose weights are dealt to the processes layer by layer."""
    from torch.distributed.fsdp import fully_shard

    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    assert len(sharding.parts(model)) == 3
    return model


def train(dealt, *, sharded=False):
    """Four optimiser steps on all rows; weights and the mean metrics."""
    model = tiny_model(VOCABULARY, width=16, layers=2, heads=2, kv_heads=1, seed=0)
    if sharded and world_size() == 2:
        model = sharded_of(model)
    head = torch.nn.Linear(16, 1)
    torch.nn.init.constant_(head.weight, 0.1)
    torch.nn.init.zeros_(head.bias)
    # A large epsilon makes the step proportional to the gradient, so that its size is compared too.
    settings = Optimisation(learning_rate=0.3, epsilon=0.1, max_grad_norm=0.5, tokens_per_micro_batch=20)
    stepper = Stepper(model, settings, value_head=head)
    batch = batch_of(OBJECTIVE)
    if not dealt:
        # The first process brings six rows, the second one.
        rows = [range(6), range(6, 7)][rank()] if world_size() == 2 else range(7)
        batch = packing.take(batch, list(rows))
    metrics = update.update(
        stepper,
        model,
        batch,
        OBJECTIVE,
        value_head=head,
        kl_coefficient=0.1,
        penalties=[] if sharded else [lambda: 0.01 * model.model.norm.weight.square().sum()],
        epochs=2,
        minibatches=2 if dealt else 1,
        order=np.random.default_rng(1) if dealt else None,
        dealt=dealt,
    )
    if sharded:  # Weights that a sampler would copy.
        engine = decoder.Engine(model)
        metrics["gain"] = float(engine.weights.gain.sum())
        metrics["products"] = float(sum(layer.down(torch.ones(1, 48)).sum() for layer in engine.weights.layers))
    whole = {name: each.full_tensor() if hasattr(each, "full_tensor") else each for name, each in stepper.named.items()}
    return {name: each.detach().clone() for name, each in whole.items()}, metrics


def policy_of(seed):
    """A small policy that speaks bytes."""
    tokenizer = byte_tokenizer()
    model = tiny_model(tokenizer, width=16, layers=2, heads=2, kv_heads=1, seed=seed)
    return LanguagePolicy(model, tokenizer, sampling=Sampling(max_new_tokens=5), seed=3, parse_actions=False)


def of_groups():
    """Two GRPO updates on groups of four whose episodes share a prompt; weights and metrics."""
    # A rate that moves the weights far in two steps, and an epsilon that keeps the gradient's size in them.
    optimisation = Optimisation(learning_rate=0.1, epsilon=0.1, tokens_per_micro_batch=60)
    training = GroupTraining(optimisation=optimisation, turns=1, minibatches=2)
    backend, random = GroupBackend(training, policy_of(0), (), 0), np.random.default_rng(5)
    for _ in range(2):
        rows = []
        for group in range(3):
            prompt = random.integers(0, 256, 6 + group).tolist()
            for _ in range(4):
                row = Recorded(terminated=True, group=group, lane=len(rows))
                row.observe(prompt)
                ids = random.integers(0, 256, int(random.integers(1, 8))).tolist()
                row.answer(Sampled(ids, [-5.5] * len(ids), Stop.END)).reward = float(random.random())
                rows.append(row)
        metrics = backend.update(rows)
    return named(backend), metrics


def of_windows():
    """Two PPO updates on the policy's own answers, in minibatches of three rows and of one; weights and metrics."""
    backend = Backend(
        policy_of(1), epochs=2, minibatch=3, learning_rate=0.1, epsilon=0.1, kl_coeff=0.1, kl_penalty="k3"
    )
    for window in range(2):
        steps = []
        for step in range(4 * window, 4 * window + 4):
            action = backend.policy.act_batch([f"q{step}"])[0]
            steps.append(Transition(step, f"q{step}", action, float(step % 3), True, False, "only", lane=0))
            backend.policy.record(steps[-1])
        metrics = backend.update(RolloutWindow(transitions=steps))
    return named(backend), metrics


def named(backend):
    return {name: each.detach().clone() for name, each in backend.stepper.named.items()}


def whole(case):
    """What a case trains: weights and metrics as tensors."""
    weights, metrics = CASES[case]()
    return weights | {f"metric/{name}": torch.tensor(value, dtype=torch.float64) for name, value in metrics.items()}


CASES = {
    "dealt": lambda: train(True),
    "brought": lambda: train(False),
    "sharded": lambda: train(True, sharded=True),
    "sharded and brought": lambda: train(False, sharded=True),
    "groups": of_groups,
    "windows": of_windows,
}


def refuse():
    """What each process says: where the loss of the second one alone is not finite, and of sharded models."""
    layer = torch.nn.Linear(1, 1)
    torch.nn.init.ones_(layer.weight)
    factor = float("nan") if rank() == world_size() - 1 else 1.0
    with pytest.raises(RunFailed, match="optimiser step 0: the loss is nan"):
        Stepper(layer).step([lambda: layer(torch.ones(1)).sum() * factor])
    assert layer.weight.item() == 1.0
    tokenizer = byte_tokenizer()
    model = sharded_of(tiny_model(tokenizer, width=16, layers=2, heads=2, kv_heads=1))
    with pytest.raises(Refused, match="penalties on the weights of a sharded model"):
        Stepper(model).step([], [lambda: model.model.norm.weight.square().sum()])
    with pytest.raises(Refused, match="cannot sample from a sharded model"):
        sampler(model, tokenizer, backend="transformers")
    with pytest.raises(Refused, match="checkpoints of a sharded model"):
        checkpoint.save(Path("nowhere"), model=model)


def main(out):
    """One of two processes."""
    from accelerate import PartialState

    torch.set_num_threads(1)
    state = PartialState(cpu=True)
    assert torch.distributed.get_backend() == "gloo"
    for case in CASES:
        save_file(whole(case), f"{out}/{rank()}-{case}.safetensors")
    refuse()
    state.destroy_process_group()


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """(process, case) -> what it saved."""
    out = tmp_path_factory.mktemp("processes")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    # accelerate starts several processes for --multi_gpu alone; which devices they use is theirs to say.
    launch = "--multi_gpu --num_processes 2 --num_machines 1 --mixed_precision no --dynamo_backend no"
    command = [sys.executable, "-m", "accelerate.commands.launch", *launch.split(), "--main_process_port", "0"]
    done = subprocess.run(
        [*command, __file__, str(out)], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return {(n, case): load_file(out / f"{n}-{case}.safetensors") for n in range(2) for case in CASES}


@pytest.mark.parametrize("case", CASES)
def test_two_processes_train_as_one(results, case):
    expected = whole(case)
    for process in range(2):
        found = results[process, case]
        assert found.keys() == expected.keys()
        for name, tensor in expected.items():
            torch.testing.assert_close(
                found[name], tensor, atol=1e-5, rtol=1e-5, equal_nan=True, msg=lambda text, name=name: f"{name}: {text}"
            )


def test_both_processes_hold_the_same_weights(results):
    for case in CASES:
        first, second = results[0, case], results[1, case]
        assert all(torch.equal(first[name], second[name]) for name in first if not name.startswith("metric/"))


@pytest.mark.parametrize(("case", "seed"), [("dealt", None), ("groups", 0), ("windows", 1)])
def test_training_moved_the_weights(results, case, seed):
    model = tiny_model(VOCABULARY, width=16, layers=2, heads=2, kv_heads=1, seed=0)
    for name, each in (model if seed is None else policy_of(seed).model).named_parameters():
        assert (results[0, case][f"model.{name}"] - each).abs().max().item() > 1e-4


if __name__ == "__main__":
    main(Path(sys.argv[1]))
