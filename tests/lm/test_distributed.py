"""Two processes (gloo) train as one does: run as a script, this file is one of them."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from perdure.core.errors import RunFailed
from perdure.lm import packing, update
from perdure.lm.objectives.table import Objective
from perdure.lm.step import Optimisation, Stepper, rank, world_size
from perdure.lm.tiny import tiny_model
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


def train(dealt):
    """Four optimiser steps on all rows; weights and the mean metrics."""
    model = tiny_model(VOCABULARY, width=16, layers=2, heads=2, kv_heads=1, seed=0)
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
        penalties=[lambda: 0.01 * model.model.norm.weight.square().sum()],
        epochs=2,
        minibatches=2 if dealt else 1,
        order=np.random.default_rng(1) if dealt else None,
        dealt=dealt,
    )
    weights = {name: each.detach().clone() for name, each in stepper.named.items()}
    return weights, {f"metric/{name}": torch.tensor(value, dtype=torch.float64) for name, value in metrics.items()}


def refused():
    """What each process says where the loss of the second one alone is not finite."""
    layer = torch.nn.Linear(1, 1)
    torch.nn.init.ones_(layer.weight)
    factor = float("nan") if rank() == world_size() - 1 else 1.0
    with pytest.raises(RunFailed, match="optimiser step 0: the loss is nan"):
        Stepper(layer).step([lambda: layer(torch.ones(1)).sum() * factor])
    return layer.weight.item() == 1.0


def main(number, store, out):
    """One of two processes."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=number, world_size=2)
    for dealt in (True, False):
        weights, metrics = train(dealt)
        save_file(weights | metrics, f"{out}/{number}-{dealt}.safetensors")
    assert refused()
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """(process, dealt) -> what it saved."""
    out = tmp_path_factory.mktemp("processes")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, __file__]
    running = [
        subprocess.Popen([*command, str(n), str(out / "store"), str(out)], env=environment, stderr=subprocess.PIPE)
        for n in range(2)
    ]
    for each in running:
        _, errors = each.communicate(timeout=300)
        assert each.returncode == 0, errors.decode()[-2000:]
    return {(n, dealt): load_file(out / f"{n}-{dealt}.safetensors") for n in range(2) for dealt in (True, False)}


@pytest.mark.parametrize("dealt", [True, False])
@pytest.mark.parametrize("process", [0, 1])
def test_two_processes_train_as_one(results, process, dealt):
    weights, metrics = train(dealt)
    found = results[process, dealt]
    assert found.keys() == weights.keys() | metrics.keys()
    for name, tensor in (weights | metrics).items():
        torch.testing.assert_close(
            found[name], tensor, atol=1e-5, rtol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_both_processes_hold_the_same_weights(results):
    for dealt in (True, False):
        first, second = results[0, dealt], results[1, dealt]
        assert all(torch.equal(first[name], second[name]) for name in first)


def test_training_moved_the_weights(results):
    model = tiny_model(VOCABULARY, width=16, layers=2, heads=2, kv_heads=1, seed=0)
    for name, each in model.named_parameters():
        assert (results[0, True][f"model.{name}"] - each).abs().max().item() > 1e-4


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
