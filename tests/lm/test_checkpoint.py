"""Checkpoints of everything that changes: exact resume, and refusal of what does not belong."""

import json

import numpy as np
import pytest
import torch

from perdure.core.errors import DataError
from perdure.lm import checkpoint
from perdure.lm.step import Optimisation, Stepper
from perdure.lm.tiny import tiny_model

# peft asks transformers for a property under its old name.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")


class Training:
    """A tiny model with a value head, perhaps with LoRA on frozen weights, and steps on fixed random tokens."""

    def __init__(self, lora=False, seed=0, dropout=0.1):
        self.model = tiny_model(32, width=16, layers=2, heads=2, kv_heads=1, seed=seed)
        if lora:
            from peft import LoraConfig, get_peft_model

            torch.manual_seed(seed + 1)
            self.model = get_peft_model(
                self.model, LoraConfig(r=2, target_modules=["q_proj", "v_proj"], lora_dropout=dropout)
            )
        self.model.train()
        self.head = torch.nn.Linear(16, 1)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)
        self.stepper = Stepper(
            self.model, Optimisation(learning_rate=1e-2, warmup_steps=3), value_head=self.head, seed=5
        )

    def run(self, steps):
        losses = []
        for _ in range(steps):
            draw = torch.Generator().manual_seed(self.stepper.steps)
            ids = torch.randint(0, 32, (2, 8), generator=draw)
            losses.append(self.stepper.step([lambda ids=ids: self.loss(ids)])["step/loss"])
        return losses

    def loss(self, ids):
        out = self.model(input_ids=ids, labels=ids, output_hidden_states=True)
        return out.loss + self.head(out.hidden_states[-1]).square().mean() + self.head.bias.sum()

    def save(self, folder, **extra):
        folder.mkdir()
        parts = {"model": self.model, "value_head": self.head, "optimizer": self.stepper.optimizer}
        checkpoint.save(folder, **parts, extra={"stepper": self.stepper.state_dict(), **extra})

    def load(self, folder):
        parts = {"model": self.model, "value_head": self.head, "optimizer": self.stepper.optimizer}
        extra = checkpoint.load(folder, **parts)
        self.stepper.load_state_dict(extra["stepper"])
        return extra

    def tensors(self):
        return {name: each.detach().clone() for name, each in self.stepper.named.items()}


@pytest.mark.parametrize("lora", [False, True])
def test_a_resumed_training_is_bit_for_bit_the_unbroken_one(lora, tmp_path):
    whole, first = Training(lora), Training(lora)
    expected = whole.run(6)
    first.run(3)
    first.save(tmp_path / "c")
    second = Training(lora)
    second.load(tmp_path / "c")
    assert second.run(3) == expected[3:]
    for name, tensor in whole.tensors().items():
        assert torch.equal(tensor, second.tensors()[name]), name
    for mine, theirs in zip(whole.stepper.named.values(), second.stepper.named.values(), strict=True):
        for key, value in whole.stepper.optimizer.state[mine].items():
            assert torch.equal(value, second.stepper.optimizer.state[theirs][key])


def test_dropout_of_the_adapter_is_live_in_that_test():
    assert Training(lora=True).run(3) != Training(lora=True, dropout=0.0).run(3)


def test_a_frozen_base_is_not_written(tmp_path):
    training = Training(lora=True)
    training.run(1)
    training.save(tmp_path / "c")
    from safetensors import safe_open

    with safe_open(tmp_path / "c" / "weights.safetensors", "pt") as file:
        names = set(file.keys())
    assert {name for name in names if name.startswith("value_head.")} == {"value_head.weight", "value_head.bias"}
    assert all("lora_" in name for name in names if name.startswith("model."))
    size = sum(each.stat().st_size for each in (tmp_path / "c").iterdir())
    assert size < 40_000


def test_extra_state_comes_back_as_it_was(tmp_path):
    training = Training()
    random = np.random.Generator(np.random.Philox(7))
    random.random(3)
    shared = torch.arange(4.0)
    given = {
        "fisher": {"a.b": torch.arange(6.0).reshape(2, 3)[:, 1], "half": torch.ones(2, dtype=torch.bfloat16)},
        "twice": [shared, shared[1:]],
        "random": random.bit_generator.state,
        "replay": [{"reward": 0.1, "ids": (1, 2), "none": None}, {}],
        "array": np.array([1, 2], np.int16),
    }
    training.save(tmp_path / "c", **given)
    found = Training().load(tmp_path / "c")
    assert torch.equal(found["fisher"]["a.b"], given["fisher"]["a.b"])
    assert found["fisher"]["half"].dtype == torch.bfloat16
    assert [each.tolist() for each in found["twice"]] == [[0, 1, 2, 3], [1, 2, 3]]
    assert found["replay"] == given["replay"]
    assert found["array"].dtype == np.int16
    again = np.random.Generator(np.random.Philox(0))
    again.bit_generator.state = found["random"]
    assert again.random() == random.random()


def test_parameters_of_other_parts_come_back_with_their_moments(tmp_path):
    def build():
        model, other = torch.nn.Linear(2, 1), torch.nn.Parameter(torch.ones(2))
        return model, other, Stepper(model, Optimisation(learning_rate=0.1), others=[other])

    torch.manual_seed(0)
    model, other, stepper = build()
    for _ in range(2):
        stepper.step([lambda: model(other).sum()])
    checkpoint.save(tmp_path, model=model, optimizer=stepper.optimizer)
    model2, other2, stepper2 = build()
    assert checkpoint.load(tmp_path, model=model2, optimizer=stepper2.optimizer) == {}
    assert torch.equal(other2, other)
    stepper.step([lambda: model(other).sum()])
    stepper2.step([lambda: model2(other2).sum()])
    assert torch.equal(other2, other)


def test_the_settings_of_the_optimiser_come_back(tmp_path):
    def build(rate):
        model = torch.nn.Linear(2, 1)
        return model, torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.5, rate))

    model, optimizer = build(0.3)
    checkpoint.save(tmp_path, model=model, optimizer=optimizer)
    other, fresh = build(0.1)
    checkpoint.load(tmp_path, model=other, optimizer=fresh)
    assert (fresh.param_groups[0]["lr"], fresh.param_groups[0]["betas"]) == (0.3, (0.5, 0.3))


def test_a_checkpoint_belongs_to_its_base(tmp_path):
    training = Training(lora=True)
    training.save(tmp_path / "c")
    with pytest.raises(DataError, match="other frozen weights"):
        Training(lora=True, seed=3).load(tmp_path / "c")
    with pytest.raises(DataError, match="other frozen weights"):
        Training().load(tmp_path / "c")


def test_other_parts_are_refused_and_nothing_changes(tmp_path):
    Training().save(tmp_path / "c")
    training = Training(seed=4)
    before = training.tensors()
    with pytest.raises(DataError, match="was saved with an optimiser"):
        checkpoint.load(tmp_path / "c", model=training.model, value_head=training.head)
    with pytest.raises(DataError, match=r"value_head\.bias does not match: the file holds it"):
        checkpoint.load(tmp_path / "c", model=training.model, optimizer=training.stepper.optimizer)
    wider = torch.nn.Linear(17, 1)
    with pytest.raises(DataError, match=r"value_head\.weight is torch\.float32 \[1, 16\]"):
        checkpoint.load(tmp_path / "c", model=training.model, value_head=wider, optimizer=training.stepper.optimizer)
    assert all(torch.equal(each, before[name]) for name, each in training.tensors().items())


@pytest.mark.parametrize("name", ["weights.safetensors", "moments.safetensors", "extra.safetensors", "state.json"])
@pytest.mark.parametrize("damage", ["missing", "cut", "empty"])
def test_damaged_files_are_named(name, damage, tmp_path):
    training = Training()
    training.run(1)
    training.save(tmp_path / "c", tensor=torch.ones(3))
    file = tmp_path / "c" / name
    content = file.read_bytes()
    file.unlink()
    if damage != "missing":
        file.write_bytes(content[: len(content) // 2] if damage == "cut" else b"")
    other = Training(seed=1)
    before = other.tensors()
    with pytest.raises(DataError, match=name):
        other.load(tmp_path / "c")
    assert all(torch.equal(each, before[key]) for key, each in other.tensors().items())


def test_another_version_is_refused(tmp_path):
    Training().save(tmp_path / "c")
    file = tmp_path / "c" / "state.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"items": []}))
    with pytest.raises(DataError, match="not a checkpoint of this version"):
        Training().load(tmp_path / "c")


def test_state_that_is_no_value_is_refused(tmp_path):
    with pytest.raises(DataError, match="function"):
        checkpoint.save(tmp_path, model=torch.nn.Linear(1, 1), extra={"f": len})
    with pytest.raises(DataError, match="not text"):
        checkpoint.save(tmp_path, model=torch.nn.Linear(1, 1), extra={"a": {1: 2}})
