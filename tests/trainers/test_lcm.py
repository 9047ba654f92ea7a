import dataclasses

import numpy as np
import pytest
import torch

from perdure.core.errors import ConfigError, DataError
from perdure.lm.conversation import EVALUATION
from perdure.lm.extensions.latent_context import Context, LatentContext
from perdure.lm.features import state_features, value_features
from perdure.trainers.lcm import CANONICAL_REGIMES, EncoderShape, LCMBackend, RegimeContextEncoder, regime_description

SMALL = EncoderShape(steps=3, width=16, embedding=8, hidden=8, latent=4)


def backend_of(letters, **options):
    return LCMBackend(letters.policy(context=192), **{"encoder": SMALL, "epochs": 1, "learning_rate": 1e-3, **options})


def test_windows_are_padded_with_zeros_on_the_left(letters):
    backend = backend_of(letters)
    assert not backend.context.window().any()
    backend.observe({"load": 3})
    backend.context.observe(None, 0.5, {}, ended=False)
    backend.observe({"load": 4})
    window = backend.context.window()
    assert window.shape == (3, 17)
    assert not window[0].any()
    for row, value, reward in ((1, 3, 0.0), (2, 4, 0.5)):
        assert np.array_equal(window[row, :16], value_features({"load": value}, width=16))
        assert window[row, 16] == np.float32(reward)
    found = backend.encode_recent()
    expected = backend.encoder(torch.from_numpy(window)[None])
    assert torch.allclose(found.z_BD, expected.z_BD, atol=1e-6)
    assert not found.z_BD.requires_grad
    assert backend.regime_prefix() == regime_description(found.logits_BR[0])


def test_the_prefix_opens_the_users_turn(letters):
    backend = backend_of(letters)
    policy = backend.policy
    policy.act("what now")
    (recorded,) = policy.take_generated()
    prompt = policy.chat.decode(recorded.ids[: recorded.turns[0].start])
    assert f"{backend.regime_prefix()}\nwhat now" in prompt
    assert "[REGIME: " in prompt


def test_only_the_last_k_rows_count_and_they_outlast_episodes(letters):
    backend = backend_of(letters)
    for number in range(5):
        backend.observe(f"step {number}")
        backend.context.observe(None, 0.0, {}, ended=True)
        backend.context.begin_episode(0)
    window = backend.context.window()
    assert np.array_equal(window[:, :16], [value_features(f"step {number}", width=16) for number in (2, 3, 4)])


def test_lanes_and_evaluations_have_contexts_of_their_own(letters):
    backend = backend_of(letters)
    backend.observe("a", 0)
    backend.observe("b", 1)
    alone = backend.context.window(0)
    backend.policy.begin_episode()
    backend.policy.act_greedy("judged")
    assert np.array_equal(backend.context.window(0), alone)
    first = backend.context.window(EVALUATION)
    backend.policy.begin_episode()
    backend.policy.act_greedy("judged")
    assert np.array_equal(backend.context.window(EVALUATION), first)


def test_the_reference_reads_key_paths_and_no_reward(letters):
    backend = LCMBackend(letters.policy(context=192), preset="reference")
    assert backend.settings.gae == "episodic"
    assert (backend.encoder.embed.in_features, backend.encoder.embed.out_features) == (4097, 256)
    backend.context.observe(None, 5.0, {}, ended=False)
    backend.observe({"load": 3})
    row = backend.context.window()[-1]
    assert np.array_equal(row[:4096], state_features({"load": 3}))
    assert row[4096] == 0
    assert backend.context.config.consistency > 0
    assert backend.context.config.told_steps == 0


def test_under_the_reference_no_gradient_reaches_the_head(letters, stage):
    backend = LCMBackend(letters.policy(context=192), preset="reference", epochs=1, learning_rate=1e-3)
    own = {id(each) for each in backend.context.parameters()}
    covered = {id(each) for each in backend.trainable_parameters()}
    head = {id(each) for each in backend.encoder.regime_head.parameters()}
    assert own <= covered
    assert not own & head
    assert not covered & head
    before = {name: each.clone() for name, each in backend.encoder.state_dict().items()}
    backend.update(stage.window(backend, ask=lambda step: {"load": step, f"key{step}": 1}, turns=4))
    after = backend.encoder.state_dict()
    assert all(torch.equal(before[name], after[name]) == name.startswith("regime_head") for name in before)


def test_consistency_stays_inside_episodes(letters, stage):
    backend = backend_of(letters, consistency=1.0, told_steps=0)
    stage.window(backend, count=6, turns=3)
    episodes = [each for each in backend.context._recent[0] if each]
    assert [len(each) for each in episodes] == [3, 3]
    latents = [backend.encoder(torch.from_numpy(np.stack(each))).z_BD for each in episodes]
    pairs = [1 - torch.cosine_similarity(z[t], z[t + 1], dim=0) for z in latents for t in range(2)]
    expected = torch.stack(pairs).mean().item()
    assert backend.context.penalty(backend).item() == pytest.approx(expected, rel=1e-4)
    backend.context.after_update(backend)
    assert backend.context.penalty(backend) is None


def test_told_regimes_train_the_head(letters, stage):
    backend = backend_of(letters, learning_rate=1e-5)
    regimes = ("baseline", "edi_spike")
    for visit in range(6):
        ask = lambda step, visit=visit: {"load": 2.0 if visit % 2 == 0 else 900.0}
        metrics = backend.update(stage.window(backend, start=8 * visit, ask=ask))
        backend.on_regime_shift(stage.shift(regimes[visit % 2], regimes[1 - visit % 2]))
    assert metrics["latent_context/told"] == 2
    assert metrics["latent_context/accuracy"] > 0.9
    for _ in range(3):
        backend.observe({"load": 900.0})
    assert backend.regime_prefix().startswith("[REGIME: edi_spike(")


def test_a_revisit_is_learned_as_what_it_revisits(letters, stage):
    for origins, name in ((True, "baseline"), (False, "baseline_revisit")):
        context = Context(LatentContext(encoder=SMALL, origins=origins))
        context.see("x")
        context.shift(None, stage.shift("baseline_revisit", "edi_spike"))
        assert list(context._told) == [name]
    context.see("x")
    context.shift(None, stage.shift("detected-1", "detected-2"))
    assert list(context._told) == ["baseline_revisit"]


def test_one_told_regime_teaches_nothing(letters, stage):
    context = Context(LatentContext(encoder=SMALL))
    context.see("x")
    context.shift(None, stage.shift())
    before = context.encoder.regime_head.weight.clone()
    context.after_update(None)
    assert torch.equal(context.encoder.regime_head.weight, before)


def test_a_warmed_up_encoder_is_taken_up(letters, tmp_path):
    trained = RegimeContextEncoder(SMALL, seed=7)
    trained.save(tmp_path)
    backend = backend_of(letters)
    assert backend.load_warmup(tmp_path) == []
    assert torch.equal(backend.encoder.regime_head.weight, trained.regime_head.weight)
    named = backend_of(letters, warmup=str(tmp_path))
    assert torch.equal(named.encoder.embed.weight, trained.embed.weight)
    RegimeContextEncoder(SMALL, ("a", "b", "c")).save(tmp_path)
    with pytest.raises(DataError, match="labels"):
        backend.load_warmup(tmp_path)
    lenient = backend_of(letters, preset="reference")
    assert lenient.load_warmup(tmp_path) == ["regime_head.bias", "regime_head.weight"]


def test_an_encoder_of_ones_own(letters):
    encoder = RegimeContextEncoder(SMALL, ("sum", "product"), seed=3)
    backend = LCMBackend(letters.policy(context=192), context_encoder=encoder)
    assert backend.encoder is encoder
    assert backend.context.config.labels == ("sum", "product")
    with pytest.raises(ConfigError, match="brings its own"):
        LCMBackend(letters.policy(), context_encoder=encoder, hash_mode="python")
    with pytest.raises(ConfigError, match="other labels"):
        Context(LatentContext(), encoder)


def test_keys_change_what_they_name(letters):
    assert backend_of(letters, hash_mode="python").encoder.shape == dataclasses.replace(SMALL, hash_mode="python")
    keyed = LCMBackend(letters.policy(), encoder={"steps": 4}, labels=["a", "b"])
    assert keyed.encoder.shape == EncoderShape(steps=4)
    assert keyed.encoder.labels == ("a", "b")
    assert LCMBackend(letters.policy()).encoder.labels == CANONICAL_REGIMES
    seeds = [backend_of(letters, context_seed=seed).encoder.embed.weight for seed in (1, 1, 2)]
    assert torch.equal(seeds[0], seeds[1])
    assert not torch.equal(seeds[0], seeds[2])
    with pytest.raises(ConfigError, match="stepz"):
        LCMBackend(letters.policy(), encoder={"stepz": 4})


@pytest.mark.parametrize("options", [{}, {"consistency": 0.5}, {"preset": "reference"}])
def test_a_resumed_training_is_the_uninterrupted_one(letters, stage, tmp_path, options):
    first = backend_of(letters, **options)
    for number, ending in enumerate(("baseline", "edi_spike", "baseline")):
        first.update(stage.window(first, start=8 * number))
        first.on_regime_shift(stage.shift(ending))
    first.policy.act("left over")
    first.save_checkpoint(tmp_path)
    second = backend_of(letters, context_seed=5, **options)
    second.load_checkpoint(tmp_path)
    assert first.regime_prefix() == second.regime_prefix()
    for backend in (first, second):
        backend.policy.take_generated()
        backend.policy.begin_episode(0)
        backend.update(stage.window(backend, start=24))
    for a, b in zip(first.trainable_parameters(), second.trainable_parameters(), strict=True):
        assert torch.equal(a, b)
