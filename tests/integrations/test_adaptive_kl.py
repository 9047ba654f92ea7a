"""The adaptive weight by worked numbers, against a plant, and what its callback refuses."""

import math
from types import SimpleNamespace

import pytest

pytest.importorskip("trl", reason="the extra trl is not installed")

from perdure.core.errors import ConfigError
from perdure.integrations.trl import AdaptiveKLCallback

FIELDS = [
    "train/beta_adaptive",
    "train/kl_measured",
    "train/kl_target",
    "train/beta_clamped_to_min",
    "train/beta_clamped_to_max",
]


def bound(beta=0.04, **options):
    """A callback and the trainer that it acts on."""
    trainer = SimpleNamespace(beta=beta, callback_handler=SimpleNamespace(callbacks=["reporter"]))
    return AdaptiveKLCallback(**options).bind(trainer), trainer


def tick(callback, **logs):
    """One log; returns what it then holds."""
    control = object()
    assert callback.on_log(SimpleNamespace(beta=0.04), None, control, logs=logs) is control
    return logs


def test_the_published_law_multiplies_by_the_exponential_of_the_relative_error():
    callback, trainer = bound(law="driftcall")
    logs = tick(callback, kl=0.05)
    assert trainer.beta == pytest.approx(0.04 * math.exp(0.5))
    assert [name for name in logs if name.startswith("train/")] == FIELDS
    assert [logs[name] for name in FIELDS] == [trainer.beta, 0.05, 0.04, 0.0, 0.0]


def test_the_gain_of_the_published_law_can_be_chosen():
    callback, trainer = bound(law="driftcall", kp=1.0)
    tick(callback, kl=0.08)
    assert trainer.beta == pytest.approx(0.04 * math.e)


@pytest.mark.parametrize(("kl", "beta", "flags"), [(0.0, 0.03, (1.0, 0.0)), (400.0, 0.05, (0.0, 1.0))])
def test_a_bound_that_cuts_is_told(kl, beta, flags):
    callback, trainer = bound(law="driftcall", beta_min=0.03, beta_max=0.05)
    logs = tick(callback, kl=kl)
    assert trainer.beta == beta
    assert (logs["train/beta_clamped_to_min"], logs["train/beta_clamped_to_max"]) == flags


def test_a_weight_that_stands_on_its_bound_of_itself_is_not_clamped():
    callback, trainer = bound(law="driftcall", beta_min=0.04)
    logs = tick(callback, kl=0.04)
    assert trainer.beta == 0.04
    assert (logs["train/beta_clamped_to_min"], logs["train/beta_clamped_to_max"]) == (0.0, 0.0)


@pytest.mark.parametrize("kl", [None, math.nan, math.inf, -0.01, "0.04", True])
def test_what_is_no_divergence_does_nothing(kl):
    callback, trainer = bound(law="driftcall")
    assert tick(callback, kl=kl) == {"kl": kl}
    assert tick(callback, loss=1.0) == {"loss": 1.0}
    assert trainer.beta == 0.04


@pytest.mark.parametrize("gain", [2.0, 8.0, 20.0])
def test_the_default_law_settles_a_plant_and_stays_within_bounds(gain):
    callback, trainer = bound()
    kl, seen = 0.0, []
    for _ in range(100):
        tick(callback, kl=kl)
        kl += 0.3 * (0.04 * gain * 0.04 / trainer.beta - kl)
        seen.append(kl)
        assert 0.001 <= trainer.beta <= 1.0
    assert all(abs(each - 0.04) <= 0.2 * 0.04 for each in seen[60:])


def test_no_step_of_the_default_law_is_larger_than_its_rate():
    callback, trainer = bound()
    for kl in [0.0] * 20 + [4.0] * 20:
        before = trainer.beta
        tick(callback, kl=kl)
        assert abs(math.log(trainer.beta / before)) <= 0.1 + 1e-12
    assert trainer.beta != 0.04


def test_the_state_brings_the_weight_back():
    callback, _ = bound()
    for kl in [0.2] * 15:
        tick(callback, kl=kl)
    other, trainer = bound()
    other.load(callback.state(), "here")
    assert trainer.beta == callback.trainer.beta > 0.04
    assert tick(other, kl=0.3) == tick(callback, kl=0.3)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"target_kl": 0.1}, r"target_kl 0\.04 \(now 0\.1\); set it as it was"),
        ({"beta_max": 0.5}, r"beta_max 1\.0 \(now 0\.5\)"),
        ({"law": "driftcall", "kp": 1.0}, r"law log \(now driftcall\), kp None \(now 1\.0\)"),
    ],
)
def test_a_state_of_other_settings_is_refused(options, said):
    callback, _ = bound()
    other, trainer = bound(**options)
    with pytest.raises(ConfigError, match=said):
        other.load(callback.state(), "here")
    assert trainer.beta == 0.04


def test_the_callback_comes_before_the_reporters():
    callback, trainer = bound()
    assert trainer.callback_handler.callbacks == [callback, "reporter"]


def test_a_callback_without_a_trainer_refuses_to_begin():
    with pytest.raises(ConfigError, match=r"no trainer, so no beta to act on; use DriftCallGRPOTrainer, or call"):
        AdaptiveKLCallback().on_train_begin(None, None, None)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"kp": 2.0}, 'kp is 2.0; the law "log" has no gain'),
        ({"law": "pid"}, "law is 'pid'; it is one of log, driftcall"),
        ({"target_kl": 0.0}, "kl_target is 0.0"),
        ({"beta_min": 0.0}, "low is 0.0"),
        ({"beta_min": 2.0}, "low is 2.0 and high 1.0"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(options, said):
    with pytest.raises(ConfigError, match=said):
        AdaptiveKLCallback(**options)


@pytest.mark.parametrize("beta", [0.0, 2.0])
def test_control_begins_within_its_bounds(beta):
    with pytest.raises(ConfigError, match=rf"beta is {beta}; an adaptive weight begins within \[0.001, 1\], and above"):
        bound(beta)
