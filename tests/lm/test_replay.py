import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.errors import ConfigError, Refused
from perdure.harness.checkpoint import decode, encode
from perdure.lm import off_policy
from perdure.lm.batch import TokenBatch
from perdure.lm.extensions.base import REPLAYED
from perdure.lm.extensions.prompts import OldPrompts, PromptReplay
from perdure.lm.extensions.rehearsal import CLEAR
from perdure.lm.objectives.advantages import gae
from perdure.lm.replay import Reservoir, vtrace


def by_definition(ratios, values, rewards, discounts, bootstrap, lam):
    """v_s = V_s + sum_t (prod_{i<t} gamma_i c_i) rho_t delta_t, as the paper writes it."""
    n, rho, c = len(values), np.minimum(1, ratios), lam * np.minimum(1, ratios)
    following = [*values[1:], bootstrap]
    delta = [rho[t] * (rewards[t] + discounts[t] * following[t] - values[t]) for t in range(n)]
    targets = [
        values[s] + sum(math.prod(discounts[i] * c[i] for i in range(s, t)) * delta[t] for t in range(s, n))
        for s in range(n)
    ]
    after = [*targets[1:], bootstrap]
    return targets, [rho[t] * (rewards[t] + discounts[t] * after[t] - values[t]) for t in range(n)]


@given(st.integers(1, 7), st.integers(0, 999))
def test_vtrace_is_its_definition(n, seed):
    random = np.random.default_rng(seed)
    logs, values, rewards = random.normal(size=(3, n))
    ends, bootstrap = random.random(n) < 0.4, random.normal()
    found = vtrace(logs, values, rewards, ends, bootstrap=bootstrap, gamma=0.9, lam=0.8)
    targets, advantages = by_definition(np.exp(logs), values, rewards, np.where(ends, 0.9, 1.0), bootstrap, 0.8)
    assert found.targets_T == pytest.approx(targets)
    assert found.advantages_T == pytest.approx(advantages)
    assert found.weights_T == pytest.approx(np.minimum(1, np.exp(logs)))


def test_on_policy_vtrace_targets_are_those_of_gae():
    values, rewards, ends = [0.5, -0.2, 0.3, 0.1], [0.0, 1.0, 0.0, 2.0], [False, True, False, True]
    for bootstrap in (0.0, 0.7):
        found = vtrace([0.0] * 4, values, rewards, ends, bootstrap=bootstrap, gamma=0.9, lam=0.8)
        expected = gae(values, rewards, ends, gamma=0.9, lam=0.8, bootstrap=bootstrap)
        assert found.targets_T == pytest.approx(expected.returns)


def test_vtrace_by_hand():
    # One token, pi/mu = 1/2: rho (r + gamma b - V) = .5 (1 + .9 * 2 - .4)
    found = vtrace([math.log(0.5)], [0.4], [1.0], [True], bootstrap=2.0, gamma=0.9)
    assert found.advantages_T[0] == pytest.approx(1.2)
    assert found.targets_T[0] == pytest.approx(1.6)
    assert vtrace([9.0], [0.0], [1.0], [True]).weights_T[0] == 1
    assert np.isfinite(vtrace([1e9], [0.0], [1.0], [True], rho_bar=1e6).advantages_T).all()
    with pytest.raises(ConfigError, match="one log-ratio"):
        vtrace([0.0], [0.0, 1.0], [0.0], [True])


def test_a_reservoir_keeps_every_item_with_one_probability():
    counts = np.zeros(10)
    for seed in range(2000):
        reservoir = Reservoir(3, seed)
        for item in range(10):
            reservoir.add(item)
        assert len(reservoir) == 3
        counts[reservoir.items] += 1
    assert np.abs(counts - 600).max() < 5 * math.sqrt(2000 * 0.3 * 0.7)


def test_a_reservoir_goes_on_where_it_was_saved():
    first = Reservoir(4, 1)
    for item in range(20):
        first.add(item)
    second = Reservoir(4)
    second.load(decode(encode(first.state())))
    for item in range(20, 60):
        assert first.add(item) == second.add(item)
    assert first.items == second.items
    assert first.sample(3) == second.sample(3)
    assert sorted(first.sample(9)) == sorted(first.items)
    with pytest.raises(ConfigError, match="capacity is 0"):
        Reservoir(0)


# --- CLEAR ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def backend(letters, stage):
    found = stage.Plain(letters.policy())
    with torch.no_grad():
        found.policy.value_head.summary.weight.normal_(generator=torch.Generator().manual_seed(0))
    return found


def test_off_policy_losses_by_an_independent_writing(backend, stage):
    rows = [stage.row([1, 2], [3, 4], 0.7, [-2.0, -6.0]), stage.row([9], [8, 7, 6], -0.5, [-5.0, -5.5, -1.0])]
    then = [np.arange(4.0), np.arange(4.0) / 2]
    scores = backend.score(TokenBatch(tuple(rows)))
    found = off_policy.losses(scores, rows, then, gamma=0.9, lam=0.8)
    model, head = backend.policy.model, backend.policy.value_head
    sums = torch.zeros(4)
    for row, before in zip(rows, then, strict=True):
        out = model(input_ids=torch.tensor([row.ids]), output_hidden_states=True)
        at = [t for t in range(len(row)) if row.mask[t]]
        logp = torch.stack([out.logits[0, t - 1].log_softmax(-1)[row.ids[t]] for t in at])
        value = torch.stack([head(out.hidden_states[-1][0, t - 1]) for t in at])
        mu = torch.tensor([row.logprobs[t] for t in at])
        rewards = [0.0] * (len(at) - 1) + [row.turns[0].reward]
        discounts = [1.0] * (len(at) - 1) + [0.9]
        targets, advantages = by_definition(
            (logp - mu).exp().detach().numpy(), value.detach().numpy(), rewards, discounts, 0.0, 0.8
        )
        told = torch.tensor(before)[at].float()
        sums += torch.stack([
            -(torch.tensor(advantages).float() * logp).sum(),
            0.5 * (value - torch.tensor(targets).float()).square().sum(),
            (mu - logp).sum(),
            (value - told).square().sum(),
        ])  # fmt: skip
    assert torch.stack(list(found)).tolist() == pytest.approx((sums / 5).tolist(), rel=1e-4)


def test_a_truncated_conversation_bootstraps_from_what_follows(backend, stage):
    ended, cut = (stage.row([1, 2], [3, 4], 0.0, [-9.0, -9.0]) for _ in range(2))
    cut.terminated, cut.truncated = False, True
    scores = backend.score(TokenBatch((ended, cut)))
    losses = [off_policy.losses(scores, [row], gamma=1.0, lam=1.0).critic.item() for row in (ended,)]
    swapped = backend.score(TokenBatch((cut,)))
    losses.append(off_policy.losses(swapped, [cut], gamma=1.0, lam=1.0).critic.item())
    assert abs(losses[0] - losses[1]) > 1e-3


def test_clear_learns_from_earlier_updates_only(backend, stage):
    hook = CLEAR(capacity=4, rows=2).build(backend.policy)
    hook.begin(backend)
    batch = TokenBatch(tuple(stage.row([1, 2], [3, 4 + number]) for number in range(3)))
    assert hook.batch(backend, batch) is batch
    assert hook.penalty(backend) is None
    hook.batch(backend, TokenBatch((stage.row([1], [2], lane=REPLAYED), stage.row([1], [2], math.nan))))
    assert hook.metrics()["filled"] == 0.75
    assert hook.penalty(backend).item() != 0
    values = backend.score(batch).values_BT
    for number, (row, then) in enumerate(sorted(hook.past.items, key=lambda item: item[0].ids)):
        assert row.ids[-1] == 4 + number
        assert then.tolist() == pytest.approx(values[number].tolist(), abs=1e-6)


def test_clears_weights_weigh_its_terms(backend, stage):
    rows = TokenBatch((stage.row([1, 2], [3, 4], 0.7, [-2.0, -6.0]),))
    parts = {}
    for name in ("replay", "policy_cloning", "value_cloning"):
        only = {"replay": 0.0, "policy_cloning": 0.0, "value_cloning": 0.0, name: 2.0}
        hook = CLEAR(**only).build(backend.policy)
        hook.batch(backend, rows)
        hook.batch(backend, TokenBatch(()))
        if name == "value_cloning":
            with torch.no_grad():
                backend.policy.value_head.summary.bias += 0.5
        parts[name] = hook.penalty(backend).item()
        if name == "policy_cloning":
            assert parts[name] == pytest.approx(2 * hook.metrics()["policy_cloning"])
    found = off_policy.losses(backend.score(rows), rows.rows, gamma=0.99, lam=0.95)
    assert parts["value_cloning"] == pytest.approx(2 * 0.25, rel=1e-4)
    assert parts["policy_cloning"] == pytest.approx(2 * found.cloning.item(), rel=1e-4)
    assert parts["replay"] != 0


def test_cloning_brings_the_policy_back_to_what_it_said(backend, stage):
    hook = CLEAR(replay=0.0, policy_cloning=1.0, value_cloning=0.0).build(backend.policy)
    hook.batch(backend, TokenBatch((stage.row([1, 2], [3, 4, 5]),)))
    hook.batch(backend, TokenBatch(()))
    optimizer = torch.optim.SGD(backend.policy.model.parameters(), lr=0.1)
    said = []
    for _ in range(8):
        optimizer.zero_grad()
        hook.penalty(backend).backward()
        optimizer.step()
        said.append(hook.metrics()["policy_cloning"])
    assert said[-1] < said[0] - 0.5


def test_clear_needs_a_critic_unless_it_only_clones(letters, stage):
    without = stage.Plain(letters.policy(), critic=False)
    with pytest.raises(Refused, match="clear needs a critic"):
        CLEAR().build(without.policy).begin(without)
    hook = CLEAR(replay=0.0, value_cloning=0.0).build(without.policy)
    hook.begin(without)
    hook.batch(without, TokenBatch((stage.row([1, 2], [3]),)))
    hook.batch(without, TokenBatch(()))
    assert math.isfinite(hook.penalty(without).item())


# --- old prompts ---------------------------------------------------------------------------------------------------


def test_old_prompts_are_answered_by_the_present_policy_and_filtered(backend, stage):
    hook = OldPrompts(PromptReplay(prompts=2, copies=3, least=0.5), judge=lambda prompt, answer: len(answer) % 2 * 1.0)
    first = TokenBatch((stage.row([65, 66], [67, 68]), stage.row([70], [71])), episode_lengths=(1, 1), tails=((), ()))
    assert hook.batch(backend, first).rows == first.rows
    again = hook.batch(backend, first)
    assert again.rows[:2] == first.rows
    added = again.rows[2:]
    assert again.episode_lengths == (1,) * len(again.rows)
    assert len(again.tails) == len(again.rows)
    assert len(added) == round(6 * hook.metrics()["passed"])
    assert hook.metrics()["answered"] == 6
    for row in added:
        assert row.lane == REPLAYED
        assert row.terminated
        assert row.total == 1.0
        assert row.ids[: row.turns[0].start] in ([65, 66], [70])
        padded = backend.score(TokenBatch((row,))).logprobs_BT[0]
        assert padded.tolist() == pytest.approx(row.logprobs, abs=1e-4)


def test_without_a_judge_only_answers_seen_before_count(backend, stage):
    hook = OldPrompts(PromptReplay(prompts=1, copies=4, least=0.0))
    hook.batch(backend, TokenBatch((stage.row([65], [66], 0.8),)))
    assert len(hook.batch(backend, TokenBatch(())).rows) == 0
    rewards = hook.past.items[0]["rewards"]
    assert rewards == {backend.policy.chat.decode([66]): 0.8}

    class Known(dict):
        def get(self, key, default=None):
            return 0.6

    hook.past.items[0]["rewards"] = Known()
    assert [row.total for row in hook.batch(backend, TokenBatch(())).rows] == [0.6] * 4


def test_a_group_learner_gets_whole_groups(backend, stage):
    hook = OldPrompts(PromptReplay(prompts=2, copies=2), judge=lambda prompt, answer: 1.0 if prompt == "A" else 0.0)
    batch = TokenBatch((stage.row([65], [66], group=4), stage.row([66], [66], group=5)))
    hook.batch(backend, batch)
    added = hook.batch(backend, batch).rows[2:]
    assert len(added) == 2
    assert added[0].group == added[1].group > 5
    assert all(row.ids[0] == 65 for row in added)
    alone = OldPrompts(PromptReplay(copies=1))
    with pytest.raises(ConfigError, match="copies is 1"):
        alone.batch(backend, batch)


def test_only_an_answer_that_ended_an_episode_is_asked_for_anew(backend, stage):
    hook = OldPrompts(PromptReplay())
    longer = stage.row([65], [66])
    longer.observe([1])
    longer.answer(type("S", (), {"ids": [2], "logprobs": [-1.0], "stop": longer.turns[0].stop})())
    cut = stage.row([65], [66])
    cut.terminated = False
    hook.batch(
        backend, TokenBatch((longer, cut, stage.row([65], [66], math.nan), stage.row([65], [66], lane=REPLAYED)))
    )
    (item,) = hook.past.items
    assert item["prompt"] == [65, 66, 1]


def test_old_prompts_come_back(backend, stage):
    judge = lambda prompt, answer: float(len(answer) % 2)
    first, second = (OldPrompts(PromptReplay(copies=3), judge=judge) for _ in range(2))
    batch = TokenBatch((stage.row([65, 66], [67]),))
    first.batch(backend, batch)
    second.load(decode(encode(first.state())))
    assert first.batch(backend, batch) == second.batch(backend, batch)


def test_a_judge_is_named_as_a_function():
    for path in ("nowhere", "nowhere:at_all", "math:nothing", "math:pi", ":x"):
        with pytest.raises(ConfigError, match="judge"):
            PromptReplay(judge=path).build(None)
