"""PPOBackend: its switches, its guards, its one checkpoint, and a run through the harness."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from perdure.core.errors import ConfigError, DataError, Refused, RunFailed
from perdure.core.protocols import Algorithm
from perdure.core.records import RegimeSchedule, Segment
from perdure.harness.collector import RolloutCollector
from perdure.harness.host import HostLearner
from perdure.lm import forward
from perdure.lm.factory import language_policy
from perdure.lm.hooks import Hooks
from perdure.lm.sampling import Sampling
from perdure.metrics.advantages import compute_gae
from perdure.trainers.ppo import PPOBackend

SCHEDULE = RegimeSchedule((Segment("one", "one", 0, 10_000),))


@pytest.fixture
def played(letters):
    """`played(policy, steps)`: windows of the policy in a world of two turns."""

    def play(policy, steps=6, turns=2, lanes=1):
        envs = [letters.Letters(turns) for _ in range(lanes)]
        collector = RolloutCollector(envs, policy, steps, auto_reset=True, seed=0)
        return collector.collect(steps * lanes)

    return play


def backend(letters, options=None, **training):
    options = {"context": 200, **(options or {})}
    training = {"learning_rate": 1e-2, "minibatch": 4, "epochs": 2, **training}
    return PPOBackend(letters.policy(**options), **training)


def weights_of(algorithm):
    return {name: each.detach().clone() for name, each in algorithm.named_parameters().items()}


def with_dropout(letters, rate=0.5):
    """The options of a policy whose model drops attention weights while it trains."""
    policy = letters.policy(context=200)
    for layer in policy.model.model.layers:
        layer.self_attn.attention_dropout = rate
    return policy


# Batches


def test_a_batch_holds_tokens_rewards_and_episodes(letters, played):
    algorithm = backend(letters)
    window = played(algorithm.policy, 5)
    batch = algorithm.batch_from(window)
    assert batch.rewards == window.rewards().tolist()
    assert batch.episode_lengths == (2, 2, 1)
    assert [bool(tail) for tail in batch.tails] == [False, False, True]
    chat = algorithm.policy.chat
    ended = batch.rows[2].turns[0].stop == "end"
    assert list(batch.tails[2]) == batch.rows[2].ids + chat.following("turn 1", ended=ended)


@pytest.mark.parametrize(
    ("switch", "rows", "lengths", "tails"),
    [
        ({}, 3, (2, 2, 1), [0, 0, 1]),
        ({"gae": "degenerate"}, 3, None, []),
        ({"bootstrap": "zero"}, 3, (2, 2, 1), [0, 0, 0]),
        ({"value_position": "final"}, 5, (2, 2, 1), [0, 0, 1]),
        ({"ratio": "sequence_mean"}, 5, (2, 2, 1), [0, 0, 1]),
        ({"ratio": "gspo"}, 5, (2, 2, 1), [0, 0, 1]),
        ({"preset": "reference"}, 5, None, []),
        ({"preset": "reference", "gae": "episodic"}, 5, (2, 2, 1), [0, 0, 0]),
        ({"preset": "reference", "gae": "episodic", "bootstrap": "value"}, 5, (2, 2, 1), [0, 0, 1]),
    ],
)
def test_switches_shape_the_batch(letters, played, switch, rows, lengths, tails):
    algorithm = backend(letters, **switch)
    batch = algorithm.batch_from(played(algorithm.policy, 5))
    assert (len(batch.rows), batch.episode_lengths) == (rows, lengths)
    assert [int(bool(tail)) for tail in batch.tails] == tails
    assert len(batch) == 5


def test_fresh_prompts_bootstrap_from_the_next_prompt(letters, played):
    algorithm = backend(letters, {"conversation": "fresh"})
    batch = algorithm.batch_from(played(algorithm.policy, 1))
    assert list(batch.tails[0]) == algorithm.policy.chat.prompt([{"role": "user", "content": "turn 1"}])


def test_only_the_actions_tokens_are_trained(letters):
    algorithm = backend(letters, action_tokens="qwen_think")
    policy = algorithm.policy
    answer = 'x {"a":{"b":1}}'
    row = _spoken(policy, answer)
    assert policy.chat.decode(_trained(algorithm._sliced(row))) == '{"b":1}}'
    for mode, kept in (("first_json", '{"a":{"b":1}}'), ("outermost_json", '{"a":{"b":1}}'), ("all", answer)):
        other = PPOBackend(policy, action_tokens=mode)
        assert policy.chat.decode(_trained(other._sliced(row))) == kept
    assert policy.chat.decode(_trained(row)) == answer


def _spoken(policy, answer):
    from perdure.lm.conversation import Recorded
    from perdure.lm.trajectory import Sampled, Stop

    row = Recorded()
    row.observe([1])
    ids = policy.tokenizer(answer, add_special_tokens=False)["input_ids"]
    row.answer(Sampled(ids, [-1.0] * len(ids), Stop.LENGTH))
    return row


def _trained(row):
    return [token for token, mine in zip(row.ids, row.mask, strict=True) if mine]


def test_answers_without_steps_are_refused(letters, played):
    algorithm = backend(letters)
    window = played(algorithm.policy)
    algorithm.policy.take_generated()
    with pytest.raises(RunFailed, match="the policy recorded 0 answers"):
        algorithm.update(window)


# Estimates and the loss


def test_the_reference_update_is_its_formula(letters, played):
    """One optimiser step on all samples, written out: degenerate advantages, mean log-ratio, value after the answer."""
    algorithm = backend(
        letters, {"preset": "reference"}, preset="reference", update_dropout=False, epochs=1, minibatch=99
    )
    policy = algorithm.policy
    window = played(policy, 4)
    batch = algorithm.batch_from(window)
    with torch.no_grad():
        padded = forward.pad(batch.rows, 0)
        scores = forward.score(policy.model, padded.ids_BT, padded.lengths_B, value_head=policy.value_head)
        values = scores.final_values_B.tolist()
    advantages, returns = compute_gae(window.rewards().tolist(), values, None, 0.99, 0.95)
    normalised = (np.array(advantages) - np.mean(advantages)) / (np.std(advantages) + 1e-8)
    metrics = algorithm._train(batch)
    assert metrics["policy_loss"] == pytest.approx(-normalised.mean(), abs=1e-6)  # The ratio is 1.
    assert metrics["value_loss"] == pytest.approx(0.5 * np.mean((np.array(values) - returns) ** 2), rel=1e-5)
    assert metrics["ratio_first"] == pytest.approx(1)


def test_the_gradient_is_the_policy_gradient_where_nothing_has_moved(letters, played):
    """One step of plain gradient descent against -mean A log p plus half the squared error, built by hand."""
    policy = letters.policy(context=200)
    parameters = [*policy.model.parameters(), *policy.value_head.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=1.0)
    options = {"epochs": 1, "minibatch": 99, "max_grad_norm": 0.0, "value_coef": 0.3, "gamma": 0.9, "lam": 0.8}
    algorithm = PPOBackend(policy, optimizer, **options)
    window = played(policy, 4)
    batch = algorithm.batch_from(window)
    padded = forward.pad(batch.rows, 0)
    scores = forward.score(policy.model, padded.ids_BT, padded.lengths_B, value_head=policy.value_head)
    advantages, targets = _episodes_by_hand(batch, window, scores.values_BT.detach().double().numpy())
    mask = padded.mask_BT
    wanted = -(torch.tensor(advantages) * scores.logprobs_BT)[mask].mean()
    wanted = wanted + 0.3 * 0.5 * (torch.tensor(targets) - scores.values_BT)[mask].square().mean()
    gradients = torch.autograd.grad(wanted, parameters, allow_unused=True)
    before = [each.detach().clone() for each in parameters]
    algorithm._train(batch)
    for old, new, gradient in zip(before, parameters, gradients, strict=True):
        torch.testing.assert_close(old - new.detach(), gradient.float(), atol=2e-5, rtol=1e-3)


def _episodes_by_hand(batch, window, values):
    """Token advantages of whole episodes that terminate, each in its own row, normalised over all tokens."""
    advantages, targets = np.zeros(values.shape), np.zeros(values.shape)
    for number, row in enumerate(batch.rows):
        places = [(t, t == turn.end - 1, turn.reward) for turn in row.turns for t in range(turn.start, turn.end)]
        following, advantage = 0.0, 0.0
        for t, last, reward in reversed(places):
            gamma = 0.9 if last else 1.0
            error = last * reward + gamma * following - values[number, t]
            advantage = error + gamma * 0.8 * advantage
            advantages[number, t], following = advantage, values[number, t]
            targets[number, t] = advantage + following
    chosen = np.zeros(values.shape, bool)
    for number, row in enumerate(batch.rows):
        chosen[number, : len(row)] = row.mask
    pooled = advantages[chosen]
    return np.where(chosen, (advantages - pooled.mean()) / (pooled.std() + 1e-8), 0.0), targets


def test_micro_batches_change_nothing_but_rounding(letters, played):
    whole, cut = backend(letters, kl_coeff=0.1), backend(letters, kl_coeff=0.1, tokens_per_micro_batch=64)
    for algorithm in (whole, cut):
        algorithm.update(played(algorithm.policy, 6))
    for name, each in weights_of(whole).items():
        torch.testing.assert_close(weights_of(cut)[name], each, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("switch", [{}, {"ratio": "sequence_mean"}, {"ratio": "gspo"}, {"value_position": "final"}])
def test_the_first_ratio_is_one_without_dropout(letters, played, switch):
    algorithm = PPOBackend(with_dropout(letters), learning_rate=1e-2, minibatch=4, **switch)
    metrics = algorithm.update(played(algorithm.policy))
    assert metrics["ratio_first"] == pytest.approx(1, abs=1e-6)
    assert metrics["sampler/largest_difference"] < 1e-4


def test_the_references_old_pass_has_dropout_live(letters, played):
    ratios = {}
    for name in ("train", "eval", "sampler"):
        algorithm = PPOBackend(with_dropout(letters), old_policy_pass=name, minibatch=99, epochs=1)
        ratios[name] = algorithm.update(played(algorithm.policy))["ratio_first"]
    assert abs(ratios["train"] - 1) > 1e-3
    assert ratios["eval"] == pytest.approx(1, abs=1e-6)
    assert ratios["sampler"] == pytest.approx(1, abs=1e-4)
    algorithm = PPOBackend(with_dropout(letters), update_dropout=True, minibatch=99, epochs=1)
    assert abs(algorithm.update(played(algorithm.policy))["ratio_first"] - 1) > 1e-3
    assert not algorithm.policy.model.training


def test_the_l2_anchor_pulls_to_the_first_weights_once_a_step(letters, played):
    options = {"preset": "reference", "kl_coeff": 0.5, "update_dropout": False, "old_policy_pass": "eval"}
    algorithm = backend(letters, {"preset": "reference"}, epochs=1, minibatch=2, **options)
    start = weights_of(algorithm)
    assert float(algorithm._anchor().detach()) == 0
    with torch.no_grad():
        algorithm.named_parameters()["model.norm.weight"].add_(0.5)
        algorithm.named_parameters()["v_head.summary.bias"].add_(9.0)  # The critic is not anchored.
    width = start["model.norm.weight"].numel()
    assert float(algorithm._anchor().detach()) == pytest.approx(0.5 * 0.25 * width)
    metrics = algorithm.update(played(algorithm.policy, 4))
    assert metrics["step/penalty"] > 0
    assert "kl_reference" not in metrics


def test_the_divergence_is_measured_from_the_first_weights(letters, played):
    algorithm = backend(letters, kl_coeff=0.1, epochs=1, minibatch=99)
    first = algorithm.update(played(algorithm.policy, 4))
    assert first["kl_reference"] == pytest.approx(0, abs=1e-9)
    second = algorithm.update(played(algorithm.policy, 4))
    assert second["kl_reference"] > 0
    assert second["kl"] == pytest.approx(0, abs=1e-9)  # The old policy is this update's.


def test_no_snapshot_is_taken_without_an_anchor(letters):
    assert backend(letters)._start == {}
    assert backend(letters, kl_coeff=0.1)._start.keys() < backend(letters).named_parameters().keys()


def test_kl_under_adapters_is_a_switch(letters, played):
    kl = {}
    for preset in ("corrected", "reference"):
        policy = language_policy(
            tiny={"width": 32, "layers": 1, "heads": 2, "kv_heads": 1}, lora={"r": 2}, max_new_tokens=4
        )
        algorithm = PPOBackend(policy, preset=preset, learning_rate=1e-2, minibatch=2)
        kl[preset] = algorithm.update(played(policy, 4))["kl"]
    assert kl["corrected"] > 0
    assert kl["reference"] == 0


def test_the_entropy_bonus_and_the_critics_weight_count(letters, played):
    plain, curious = (
        backend(letters, epochs=1, minibatch=99),
        backend(letters, epochs=1, minibatch=99, entropy_coef=0.5),
    )
    one, other = (each.update(played(each.policy, 4)) for each in (plain, curious))
    assert other["step/loss"] == pytest.approx(one["step/loss"] - 0.5 * one["entropy"], rel=1e-5)
    assert one["entropy"] == pytest.approx(math.log(259), rel=0.02)


def test_clipping_covers_the_value_head(letters, played):
    algorithm = backend(letters, epochs=1, minibatch=99, value_coef=1e6, max_grad_norm=1.0)
    optimizer = torch.optim.SGD(algorithm.trainable_parameters(), lr=1.0)
    algorithm = PPOBackend(algorithm.policy, optimizer, epochs=1, minibatch=99, value_coef=1e6, max_grad_norm=1.0)
    before = weights_of(algorithm)
    algorithm.update(played(algorithm.policy, 4))
    moved = torch.cat([(before[name] - each).flatten() for name, each in weights_of(algorithm).items()])
    assert float(moved.norm()) == pytest.approx(1.0, rel=1e-4)
    assert float((before["v_head.summary.bias"] - weights_of(algorithm)["v_head.summary.bias"]).abs()) > 0


def test_an_optimizer_must_cover_the_value_head(letters):
    policy = letters.policy()
    with pytest.raises(ConfigError, match=r"the optimizer misses 2 of \d+ trainable tensors, such as the value head's"):
        PPOBackend(policy, torch.optim.SGD(policy.model.parameters(), lr=0.1))


def test_only_the_adapter_and_the_critic_are_trained_under_lora(letters, played):
    policy = language_policy(
        tiny={"width": 32, "layers": 1, "heads": 2, "kv_heads": 1}, lora={"r": 2}, max_new_tokens=4
    )
    algorithm = PPOBackend(policy, learning_rate=1e-2)
    assert all("lora_" in name or name.startswith("v_head.") for name in algorithm.named_parameters())
    base = {name: each.clone() for name, each in policy.model.named_parameters() if not each.requires_grad}
    before = weights_of(algorithm)
    algorithm.update(played(policy, 4))
    assert all(torch.equal(each, dict(policy.model.named_parameters())[name]) for name, each in base.items())
    assert any(not torch.equal(before[name], each) for name, each in weights_of(algorithm).items())


def test_the_sampler_speaks_with_the_new_weights(letters, played):
    algorithm = backend(letters, {"conversation": "fresh"})
    algorithm.update(played(algorithm.policy, 4))
    metrics = algorithm.update(played(algorithm.policy, 4))
    assert metrics["sampler/largest_difference"] < 1e-4
    assert algorithm.policy.version == 2


def test_a_constant_reward_moves_no_policy_once_the_critic_knows_it(letters, played):
    algorithm = backend(letters, epochs=1, minibatch=99, gae="degenerate", lam=1.0)
    with torch.no_grad():
        algorithm.policy.value_head.summary.bias.fill_(0.0)
    window = played(algorithm.policy, 4)
    for transition in window.transitions:
        transition.reward = 0.0
    before = weights_of(algorithm)
    algorithm.update(window)
    assert all(torch.equal(before[name], each) for name, each in weights_of(algorithm).items())


# Options


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"clip_rang": 0.1}, r"algorithm.kwargs.clip_rang is not a key here; did you mean 'clip_range'"),
        ({"ratio": "token"}, r"algorithm.kwargs.ratio is 'token'; it must be one of sequence_mean, per_token, gspo"),
        ({"gae": "long"}, r"gae is 'long'; it must be one of degenerate, episodic"),
        ({"action_tokens": "some"}, r"action_tokens is 'some'"),
        ({"old_policy_pass": "none"}, r"old_policy_pass is 'none'"),
        ({"gamma": 1.5}, r"gamma is 1.5; it lies between 0 and 1"),
        ({"epochs": 0}, r"epochs is 0"),
        ({"kl_coeff": -1.0}, r"kl_coeff is -1.0"),
        ({"clip_range": 0.0}, r"clip_range is 0.0"),
        ({"preset": "paper"}, r"preset is 'paper'"),
        ({"learning_rate": 0.0}, r"learning_rate is 0.0; it must be positive"),
        ({"minibatch": True}, r"minibatch is True"),
    ],
)
def test_unusable_options_are_refused(letters, options, complaint):
    with pytest.raises(ConfigError, match=complaint):
        PPOBackend(letters.policy(), **options)


def test_sampling_that_the_ratios_cannot_use_is_refused(letters):
    cut = letters.policy(sampling=Sampling(top_p=0.9))
    with pytest.raises(Refused, match=r"sampling.top_p cuts the distribution, but old_policy_pass is sampler"):
        PPOBackend(cut, old_policy_pass="sampler")
    PPOBackend(cut, old_policy_pass="eval")
    with pytest.raises(Refused, match=r"sampling.greedy is true while training"):
        PPOBackend(letters.policy(sampling=Sampling(greedy=True)))


def test_a_folder_without_value_head_is_refused_unless_asked_for(letters, tmp_path):
    letters.policy().save(tmp_path)
    (tmp_path / "v_head.safetensors").unlink()
    with pytest.raises(DataError, match=r"has no value head, and a new one spoils"):
        PPOBackend(language_policy(tmp_path))
    PPOBackend(language_policy(tmp_path, value_head="fresh"))
    PPOBackend(language_policy(tmp_path), preset="reference")


@pytest.mark.parametrize("preset", ["corrected", "reference"])
def test_a_key_of_its_own_overrides_the_preset(letters, preset):
    explicit = {
        "gae": "degenerate" if preset == "corrected" else "episodic",
        "ratio": "gspo",
        "action_tokens": "first_json",
        "old_policy_pass": "sampler",
        "update_dropout": preset == "corrected",
        "value_position": "final" if preset == "corrected" else "token",
        "bootstrap": "zero" if preset == "corrected" else "value",
        "kl_penalty": "k2",
        "kl_under_adapters": preset != "corrected",
    }
    assert PPOBackend(letters.policy(), preset=preset).settings == PPOBackend(letters.policy(), preset=preset).settings
    base = PPOBackend(letters.policy(), preset=preset).settings
    for key, value in explicit.items():
        changed = PPOBackend(letters.policy(), preset=preset, **{key: value}).settings
        assert getattr(changed, key) == value != getattr(base, key)
        assert replace(changed, **{key: getattr(base, key)}) == base


# Replay and hooks


def test_replay_first_fills_then_mixes_and_forgets_episodes(letters, played):
    algorithm = backend(letters, preset="reference", gae="episodic", replay_size=3)
    window = played(algorithm.policy, 4)
    for transition in window.transitions:
        transition.reward = 0.25 * (transition.step + 1)
    batch = algorithm.batch_from(window)
    assert algorithm.mix_replay(batch) is batch
    assert len(algorithm.replay) == 3
    algorithm.updates = 1
    mixed = algorithm.mix_replay(batch)
    assert len(mixed.rows) == 4 + 3
    assert mixed.episode_lengths is None
    assert mixed.rewards[:4] == batch.rewards
    assert set(mixed.rewards[4:]) <= {0.5, 0.75, 1.0}
    assert batch.rewards == [0.25, 0.5, 0.75, 1.0]  # Relabelled are copies.


def test_no_replay_changes_nothing(letters, played):
    algorithm = backend(letters)
    batch = algorithm.batch_from(played(algorithm.policy, 4))
    algorithm.updates = 1
    assert algorithm.mix_replay(batch) is batch


class Watching(Hooks):
    name = "watching"

    def __init__(self):
        self.told, self.weight = [], torch.nn.Parameter(torch.tensor(2.0))
        self.kept = {"count": 0, "array": np.arange(3.0), "tensor": torch.ones(2)}

    def begin(self, backend):
        self.told.append("begin")

    def parameters(self):
        return [self.weight]

    def batch(self, backend, batch):
        self.told.append(("batch", len(batch)))
        self.kept["count"] += 1
        return batch

    def penalty(self, backend):
        self.told.append(("penalty", len(backend.minibatch.rows)))
        return self.weight**2

    def after_update(self, backend):
        self.told.append("after")

    def shift(self, backend, shift):
        self.told.append(shift["ending"])

    def metrics(self):
        return {"weight": float(self.weight.detach())}

    def state(self):
        return self.kept

    def load(self, state):
        self.kept = dict(state)


def test_hooks_take_part_in_order_and_their_penalty_is_in_the_step(letters, played):
    hook = Watching()
    algorithm = backend(letters, hooks=(hook,), epochs=1, minibatch=2)
    metrics = algorithm.update(played(algorithm.policy, 6))
    assert hook.told == ["begin", ("batch", 6), ("penalty", 2), ("penalty", 1), "after"]
    assert float(hook.weight.detach()) < 2
    assert metrics["step/penalty"] == pytest.approx(4, rel=0.05)
    assert metrics["watching/weight"] == pytest.approx(float(hook.weight.detach()))
    algorithm.on_regime_shift({"ending": "one"})
    assert hook.told[-1] == "one"
    assert algorithm.minibatch is None


def test_a_subclass_may_add_to_the_loss(letters, played):
    class Sparse(PPOBackend):
        def _apply_auxiliary_regularization(self):
            return 10 * sum(each.square().sum() for each in self.trainable_parameters())

    algorithm = Sparse(letters.policy(context=200), learning_rate=1e-2)
    before = sum(float(each.detach().square().sum()) for each in algorithm.trainable_parameters())
    algorithm.update(played(algorithm.policy, 4))
    assert sum(float(each.detach().square().sum()) for each in algorithm.trainable_parameters()) < before


def test_two_hooks_of_one_name_are_refused(letters):
    with pytest.raises(ConfigError, match=r"two hooks are called 'watching'"):
        backend(letters, hooks=(Watching(), Watching()))


def test_a_loss_that_is_not_finite_changes_no_weight(letters, played):
    class Broken(Hooks):
        def penalty(self, backend):
            return backend.trainable_parameters()[0].sum() * torch.nan

    algorithm = backend(letters, hooks=(Broken(),))
    before = weights_of(algorithm)
    with pytest.raises(RunFailed, match=r"optimiser step 0: the loss is nan; no weight was changed"):
        algorithm.update(played(algorithm.policy, 4))
    assert all(torch.equal(before[name], each) for name, each in weights_of(algorithm).items())


# Runs


def test_it_is_an_algorithm(letters):
    assert isinstance(backend(letters), Algorithm)


def learner(letters, turns=2, lanes=2, policy=None, **options):
    class Kept(letters.Letters):
        """The world with a state of its own, so that a run can be resumed without a trace."""

        def get_state(self):
            return {"turn": self.turn, "random": json.dumps(self.np_random.bit_generator.state)}

        def set_state(self, state):
            self.turn = state["turn"]
            self.np_random.bit_generator.state = json.loads(state["random"])

    def make(seed, spec):
        return backend(letters, {"seed": seed, "context": 120, **(policy or {})}, seed=seed, **options)

    return HostLearner(make, lambda lane: Kept(turns), window_steps=5, n_envs=lanes)


def run(made, state, windows):
    metrics = []
    for _ in range(windows):
        state, _, found = made.advance(state, SCHEDULE, 10_000)
        metrics.append({name: np.array(values) for name, values in found.items()})
    return metrics


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"kl_coeff": 0.1, "hooks": True},
        {"preset": "reference", "kl_coeff": 0.1, "replay_size": 8, "policy": {"preset": "reference"}},
        {"old_policy_pass": "train", "update_dropout": True, "ratio": "gspo"},
    ],
)
def test_a_resumed_run_is_the_unbroken_one_bit_for_bit(letters, tmp_path, options):
    def fresh():
        changed = {**options, "hooks": (Watching(),)} if options.get("hooks") else options
        return learner(letters, turns=3, **changed)

    unbroken = fresh()
    expected = run(unbroken, state := unbroken.init((3,)), 4)
    broken = fresh()
    first = broken.init((3,))
    run(broken, first, 2)
    broken.save(first, tmp_path)
    resumed = fresh()
    again = resumed.load(tmp_path)
    found = run(resumed, again, 2)
    for ours, theirs in zip(found, expected[2:], strict=True):
        assert ours.keys() == theirs.keys()
        for name in ours:
            np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)
    ours, theirs = again[0].algorithm, state[0].algorithm
    for name, each in weights_of(ours).items():
        assert torch.equal(each, weights_of(theirs)[name]), name
    assert ours.policy.state_dict() == theirs.policy.state_dict()
    if ours.hooks:
        assert ours.hooks[0].kept["count"] == 4


def test_a_checkpoint_is_a_policy_too_and_foreign_hooks_are_refused(letters, played, tmp_path):
    algorithm = backend(letters)
    algorithm.update(played(algorithm.policy, 4))
    algorithm.save_checkpoint(tmp_path)
    policy = type(algorithm.policy).from_checkpoint(tmp_path)
    assert policy.loaded_value_head
    ids = [3, 4, 5]
    assert torch.equal(policy.forward(ids).values_B, algorithm.policy.forward(ids).values_B)
    with pytest.raises(DataError, match=r"was saved with hooks \[\]"):
        backend(letters, hooks=(Watching(),)).load_checkpoint(tmp_path)


def test_a_detectors_alarm_cuts_a_window_in_the_middle_of_a_conversation(letters, played):
    algorithm = backend(letters)
    window = played(algorithm.policy, 6, turns=3)
    parts = [replace(window, transitions=window.transitions[a:b], columns={}) for a, b in ((0, 2), (2, 6))]
    first = algorithm.batch_from(parts[0])
    assert first.rewards == parts[0].rewards().tolist()
    assert [bool(tail) for tail in first.tails] == [True]
    second = algorithm.batch_from(parts[1])
    assert second.rewards == parts[1].rewards().tolist()
    assert second.episode_lengths == (1, 3)


def test_evaluations_do_not_change_training(letters):
    seen = []
    for evaluate in (True, False):
        made = learner(letters)
        state = made.init((1,))
        metrics = run(made, state, 1)
        if evaluate:
            once, again = (made.evaluate(state, None, 3) for _ in range(2))
            np.testing.assert_array_equal(once.returns, again.returns)
        seen.append(metrics + run(made, state, 1))
    for ours, theirs in zip(*seen, strict=True):
        for name in ours:
            np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)


@pytest.mark.parametrize(
    "options", [{}, {"preset": "reference", "policy": {"preset": "reference"}}], ids=["corrected", "reference"]
)
def test_it_learns_to_say_small_letters(letters, options):
    made = learner(
        letters, turns=1, lanes=8, epochs=2, minibatch=20, learning_rate=5e-3, **{**options, "kl_coeff": 0.0}
    )
    state = made.init((0,))
    rewards = []
    for _ in range(12):
        state, window, _ = made.advance(state, SCHEDULE, 10_000)
        rewards.append(window.rewards().mean())
    assert np.mean(rewards[-3:]) > np.mean(rewards[:3]) + 0.15
