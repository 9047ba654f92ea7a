import math

import pytest
import torch

from perdure.core.component import make
from perdure.core.errors import ConfigError, DataError, RunFailed
from perdure.lm import fisher as measure
from perdure.lm import loading
from perdure.lm.batch import TokenBatch
from perdure.lm.extensions.anchors import PreviousPolicy
from perdure.lm.extensions.consolidation import EWC
from perdure.lm.fisher import FisherSample
from perdure.lm.policy import LanguagePolicy
from perdure.trainers.ewc import EWCBackend, EWCMode


@pytest.fixture
def trained(letters, stage):
    """A backend that has seen one window, and its window."""

    def make(**options):
        backend = EWCBackend(letters.policy(), epochs=1, learning_rate=1e-3, **options)
        backend.update(stage.window(backend, reward=lambda step, action: (0.0, 1.0, -0.5, 0.4)[step % 4]))
        return backend

    return make


def test_nothing_is_held_before_the_first_shift(trained, stage):
    backend = trained()
    assert not backend.has_snapshots
    assert backend._apply_auxiliary_regularization() is None
    backend.on_regime_shift(stage.shift())
    assert backend.has_snapshots
    assert backend._apply_auxiliary_regularization().item() == 0


def test_the_penalty_is_half_lambda_times_the_weighted_distance(trained, stage):
    backend = trained(ewc_lambda=3.0)
    backend.on_regime_shift(stage.shift())
    anchor = backend.consolidation.anchors[0]
    with torch.no_grad():
        for parameter in backend.named_parameters().values():
            parameter += 0.1
    expected = 1.5 * sum(float((each * 0.01).sum()) for each in anchor["precision"].values())
    assert backend._apply_auxiliary_regularization().item() == pytest.approx(expected, rel=1e-3)
    assert all(float(each.min()) >= 0 and float(each.max()) <= 1 for each in anchor["precision"].values())


def test_the_fisher_information_is_that_of_the_given_samples(trained):
    backend = trained()
    samples = [FisherSample([1, 2, 3, 4], [False, False, True, True]), FisherSample([9, 8], [False, True])]
    found = backend.estimate_fisher(samples)
    raw = measure.estimate_fisher(
        backend.policy.model, backend.named_parameters(), samples, value_head=backend.policy.value_head
    )
    expected = measure.normalised(raw)
    assert found.keys() == backend.named_parameters().keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)


def test_online_fisher_fades_and_the_anchor_is_the_newest(trained, stage):
    backend = trained(fisher_gamma=0.5)
    samples = [FisherSample([1, 2, 3], [False, True, True])]
    backend.consolidate(samples, [1.0])
    first = backend.consolidation.anchors[0]["precision"]
    with torch.no_grad():
        for parameter in backend.named_parameters().values():
            parameter += 0.01
    fresh = backend.estimate_fisher(samples * 4)
    backend.consolidate(samples, [1.0])
    (anchor,) = backend.consolidation.anchors
    for name, parameter in backend.named_parameters().items():
        assert torch.equal(anchor["weights"][name], parameter.detach())
        assert torch.allclose(anchor["precision"][name], 0.5 * first[name] + fresh[name], atol=1e-5)


def test_snapshots_leave_first_in_first_out_and_are_summed_or_averaged(trained):
    backend = trained(mode=EWCMode.MULTI_SNAPSHOT, snapshots=2, average_snapshots=False)
    samples = [FisherSample([1, 2, 3], [False, True, True])]
    stood = []
    for _ in range(3):
        backend.consolidate(samples, [1.0])
        stood.append(backend.consolidation.anchors[-1])
        with torch.no_grad():
            for parameter in backend.named_parameters().values():
                parameter += 0.05
    assert [a is b for a, b in zip(backend.consolidation.anchors, stood[1:], strict=True)] == [True, True]
    summed = backend._apply_auxiliary_regularization().item()
    backend.consolidation.config = make(EWC, {"mode": "multi_snapshot", "snapshots": 2}, "x")
    assert backend._apply_auxiliary_regularization().item() == pytest.approx(summed / 2, rel=1e-5)


def test_only_the_regime_that_ends_is_measured_on(trained, stage):
    backend = trained()
    first = [row.ids for row in backend.consolidation._pool]
    assert len(first) == 8
    backend.update(stage.window(backend, start=8))
    assert len(backend.consolidation._pool) == 16
    backend.on_regime_shift(stage.shift())
    assert backend.consolidation._pool == []
    backend.update(stage.window(backend, start=16))
    assert len(backend.consolidation._pool) == 8
    last = trained(whole_regime=False)
    last.update(stage.window(last, count=4, start=8))
    assert len(last.consolidation._pool) == 4


def test_a_regime_without_an_update_is_not_consolidated(trained, stage):
    backend = trained()
    backend.on_regime_shift(stage.shift())
    anchor = backend.consolidation.anchors[0]
    backend.on_regime_shift(stage.shift("edi_spike", "baseline"))
    assert backend.consolidation.anchors[0] is anchor


def test_replayed_and_missing_answers_are_not_measured_on(letters, stage):
    backend = EWCBackend(letters.policy())
    rows = (stage.row([1], [2]), stage.row([1], [2], lane=-2), stage.row([1], [2], math.nan))
    backend.consolidation.batch(backend, TokenBatch(rows))
    assert backend.consolidation._pool == [rows[0]]


def test_nothing_to_consolidate_raises(letters):
    backend = EWCBackend(letters.policy(), parameter_scope="value_only", value_fisher=False)
    with pytest.raises(DataError, match="no sample"):
        backend.consolidate()
    with pytest.raises(RunFailed, match="0 everywhere"):
        backend.consolidate([FisherSample([1, 2], [False, True])], [1.0])
    assert not backend.has_snapshots


def test_a_scope_without_parameters_is_refused_at_construction(letters):
    with pytest.raises(ConfigError, match="'lora_only' matches no parameter"):
        EWCBackend(letters.policy(), preset="reference")


def test_presets_and_keys(letters):
    corrected = EWCBackend(letters.policy()).consolidation.config
    reference = EWCBackend(letters.policy(), preset="reference", parameter_scope="all").consolidation.config
    changed = {
        "fisher_bands": ("quantile", "absolute"),
        "exact_budget": (True, False),
        "whole_regime": (True, False),
        "average_snapshots": (True, False),
        "value_fisher": (True, False),
    }
    for name, value in vars(corrected).items():
        assert (value, getattr(reference, name)) == changed.get(name, (value, value)), name
    assert EWCBackend(
        letters.policy(), preset="reference", parameter_scope="all", exact_budget=True
    ).consolidation.config.exact_budget
    mine = EWCBackend(letters.policy(), gamma=0.5, fisher_gamma=0.25)
    assert (mine.settings.gamma, mine.consolidation.config.fisher_gamma) == (0.5, 0.25)
    with pytest.raises(ConfigError, match="did you mean"):
        EWCBackend(letters.policy(), fisher_gama=0.5)
    with pytest.raises(ConfigError, match="fisher_gamma is 2"):
        EWCBackend(letters.policy(), fisher_gamma=2.0)


def test_it_holds_the_policy_back_and_by_its_lambda(letters, stage):
    distances = []
    for strength in (0.0, 1e4):
        backend = EWCBackend(letters.policy(), ewc_lambda=strength, epochs=1, learning_rate=1e-3)
        backend.update(stage.window(backend))
        backend.on_regime_shift(stage.shift())
        for number in range(6):
            backend.update(
                stage.window(backend, start=8 + 8 * number, reward=lambda step, action: float(len(str(action)) % 2))
            )
        anchor = backend.consolidation.anchors[0]
        parameters = backend.named_parameters()
        distances.append(
            sum(
                float((f * (parameters[n].detach() - anchor["weights"][n]) ** 2).sum())
                for n, f in anchor["precision"].items()
            )
        )
    assert distances[1] < 0.5 * distances[0]


def test_a_resumed_training_is_the_uninterrupted_one(letters, stage, tmp_path):
    options = {"epochs": 1, "learning_rate": 1e-3, "fisher": "sampled", "mode": "multi_snapshot"}
    first = EWCBackend(letters.policy(), **options)
    first.update(stage.window(first))
    first.on_regime_shift(stage.shift())
    first.update(stage.window(first, start=8))
    first.save_checkpoint(tmp_path)
    second = EWCBackend(letters.policy(seed=1), **options)
    second.load_checkpoint(tmp_path)
    for backend in (first, second):
        backend.on_regime_shift(stage.shift("edi_spike", "baseline"))
        backend.update(stage.window(backend, start=16))
    assert len(second.consolidation.anchors) == 2
    for (name, a), b in zip(first.named_parameters().items(), second.named_parameters().values(), strict=True):
        assert torch.equal(a, b), name
    other = EWCBackend(letters.policy(), parameter_scope="v_head")
    with pytest.raises(DataError, match="anchors of all"):
        other.load_checkpoint(tmp_path)


@pytest.fixture
def adapted(letters):
    """A policy whose adapter alone is trained."""
    policy = letters.policy()
    model = loading.adapted(policy.model, loading.LoRA(r=2, target=("q_proj", "v_proj")), seed=0)
    return LanguagePolicy(model, policy.tokenizer, sampling=policy.sampling)


def test_the_reference_holds_adapters_alone(adapted, stage):
    backend = EWCBackend(adapted, preset="reference", epochs=1, learning_rate=1e-2)
    backend.update(stage.window(backend))
    backend.on_regime_shift(stage.shift())
    held = backend.consolidation.anchors[0]["weights"]
    assert held
    assert all("lora_" in name for name in held)
    assert held.keys() == {name for name in backend.named_parameters() if not name.startswith("v_head")}


def test_the_previous_policy_of_an_adapter_is_its_former_adapter(adapted, stage):
    hook = PreviousPolicy().build()
    backend = EWCBackend(adapted, hooks=[hook], parameter_scope="lora_and_value", epochs=1, learning_rate=1e-2)
    backend.on_regime_shift(stage.shift())
    assert all("lora_" in name for name in hook.weights)
    backend.minibatch = TokenBatch((stage.row([5, 6], [7, 8, 9]),))
    assert hook.divergence(backend).item() == pytest.approx(0, abs=1e-6)
    backend.update(stage.window(backend, reward=lambda step, action: len(str(action)) % 3))
    backend.minibatch = TokenBatch((stage.row([5, 6], [7, 8, 9]),))
    assert hook.divergence(backend).item() > 1e-7
