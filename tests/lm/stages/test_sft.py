"""Supervised tuning: only answers teach, the model learns to answer, nothing else is written."""

import numpy as np
import pytest
import torch

from perdure.lm.stages import collecting, dataset, sft
from perdure.lm.stages.collecting import Regime
from perdure.lm.stages.dataset import Examples
from perdure.lm.stages.sections import SftConfig
from perdure.lm.trajectory import Sampled, Stop, Trajectory
from perdure.worlds.text.arithmetic import Arithmetic

ONE = [Regime("larger", "larger", {"operator": 2.0, "format": 1.0})]


def config(**changes):
    return SftConfig.model_validate({"data": {"expert": {}}, **changes})


def records(policy, episodes):
    return list(collecting.expert_episodes(lambda _: Arithmetic(), policy, ONE, episodes=episodes, turns=1, seed=0))


def rows(*masks):
    generator = np.random.default_rng(0)
    return [Trajectory(generator.integers(0, 256, len(mask)).tolist(), list(map(bool, mask)), []) for mask in masks]


@pytest.fixture
def policy(letters):
    return letters.policy(context=64)


def test_the_loss_is_the_mean_over_trainable_tokens_however_it_is_cut(policy):
    data = rows([0, 0, 1, 1, 0, 1], [0, 1, 0], [0] * 8 + [1])
    for row in data:
        row.logprobs = [0.0] * len(row)
    ids = [torch.tensor([row.ids]) for row in data]
    logits = [policy.model(input_ids=each).logits.log_softmax(-1)[0] for each in ids]
    wanted = [
        -float(logits[number][t - 1, row.ids[t]].detach())
        for number, row in enumerate(data)
        for t in range(1, len(row))
        if row.mask[t]
    ]
    for tokens in (9, 1000):
        task = sft.Supervised(policy, Examples(data, data, {}), config(tokens_per_micro_batch=tokens))
        parts = [float(part().detach()) for part in task.losses([0, 1, 2], 0)]
        assert len(parts) == (1 if tokens == 1000 else 3)
        assert sum(parts) == pytest.approx(np.mean(wanted), abs=1e-5)
        assert task.judge()["loss"] == pytest.approx(np.mean(wanted), abs=1e-5)


def test_only_answers_teach(policy):
    """The loss reaches the last hidden states before trainable tokens, and no other."""
    data = rows([0, 0, 1, 1, 0, 0, 1, 0])
    data[0].logprobs = [0.0] * 8
    task, seen = sft.Supervised(policy, Examples(data, [], {}), config()), []

    def keep(_, inputs):
        inputs[0].retain_grad()
        seen.append(inputs[0])

    handle = policy.model.get_output_embeddings().register_forward_pre_hook(keep)
    [loss] = task.losses([0], 0)
    loss().backward()
    handle.remove()
    assert seen[0].grad[0].any(-1).tolist() == [False, True, True, False, False, True, False, False]
    assert task.judge() == {}


def test_the_opening_steps_train_on_first_answers_alone(policy):
    whole = Trajectory()
    for ids in ([1, 2, 3], [4, 5]):
        whole.observe([9, 9, 9])
        whole.answer(Sampled(ids, [0.0] * len(ids), Stop.END))
    logprobs = policy.model(input_ids=torch.tensor([whole.ids])).logits.log_softmax(-1)[0].detach()
    said = [-float(logprobs[at - 1, whole.ids[at]]) for at in range(len(whole)) if whole.mask[at]]
    task = sft.Supervised(policy, Examples([whole], [whole], {}), config(opening_steps=2))
    told = [float(part().detach()) for step in range(3) for part in task.losses([0], step)]
    first, every = np.mean(said[:3]), np.mean(said)
    assert told == pytest.approx([first, first, every], abs=1e-5)
    assert task.judge()["loss"] == pytest.approx(every, abs=1e-5), "judged on whole examples all the while"


def test_the_model_learns_to_answer(policy, tmp_path):
    said, told = records(policy, 24), []
    settings = config(steps=140, batch=24, learning_rate=1e-2, warmup_steps=10, holdout=0.0, evaluate_every=35)
    source = {"kind": "expert"}
    sft.run(policy, said, source, settings, tmp_path, told.append)
    policy.refresh()
    right = []
    for record in said:
        policy.begin_episode()
        right.append(policy.act_greedy(record.messages[0]["content"]) == record.messages[1]["content"])
    assert np.mean(right) > 0.9
    assert told[0] == "24 examples to train on, 0 held out, of 24 read"
    assert {"model.safetensors", "config.json", "data.json", "metrics.jsonl"} <= {
        each.name for each in tmp_path.iterdir()
    }
    assert not list(tmp_path.glob("*head*")), "a critic of the policy before is none of the policy after"


def test_the_held_out_loss_falls(policy, tmp_path):
    settings = config(steps=40, batch=32, learning_rate=1e-2, holdout=0.2, evaluate_every=20)
    fitted = sft.run(policy, records(policy, 60), {}, settings, tmp_path, lambda text: None)
    assert fitted.best["loss"] < 0.5 * fitted.first["loss"]


def test_an_expert_is_written_as_the_policy_would_have_said_it(policy):
    record = records(policy, 1)[0]
    assert record.reward == 1.0
    assert record.verified is True
    made = dataset.examples([record], policy, config().filter, source={}, holdout=0, seed=0).train[0]
    policy.act(record.messages[0]["content"])
    [heard] = policy.take_generated()
    prompt = made.ids[: made.mask.index(True)]
    assert heard.ids[: len(prompt)] == prompt
    assert not any(heard.mask[: len(prompt)])
    assert policy.chat.decode(made.ids[len(prompt) :]) == record.messages[1]["content"]
