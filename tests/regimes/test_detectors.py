import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.errors import ConfigError
from perdure.regimes.detectors import Cusum, Delays, PageHinkley, delays

DETECTORS = [PageHinkley(threshold=20.0, tolerance=0.5), Cusum()]


def alarms(detector, signal, xp=np):
    """Steps at which a scalar signal raises an alarm."""
    state, found = detector.start(xp), []
    for step, x in enumerate(signal):
        state, alarm = detector.step(xp, state, x)
        if alarm:
            found.append(step)
    return found


def noise(*levels, length=300, seed=0):
    """Unit noise around each level in turn."""
    generator = np.random.default_rng(seed)
    return np.concatenate([generator.normal(level, 1, length) for level in levels]).astype(np.float32)


def test_page_hinkley_follows_its_equation():
    # Mean 0 over three zeros, then ones: means 1/4, 2/5, 3/6; sums .75, .75 + .6, .75 + .6 + .5.
    detector = PageHinkley(threshold=1.8, tolerance=0.0, warm_up=2)
    assert alarms(detector, [0, 0, 0, 1, 1, 1]) == [5]
    assert alarms(PageHinkley(threshold=1.9, tolerance=0.0, warm_up=2), [0, 0, 0, 1, 1, 1]) == []


def test_cusum_follows_its_equation():
    # Before each 2 stand mean 0 and deviation sqrt(2), then 2/3 and sqrt(7/3), then 1 and sqrt(2):
    # z = sqrt(2/3) sqrt(2), sqrt(3/4) (4/3) / sqrt(7/3), sqrt(4/5) / sqrt(2); sums .6547, .9106, 1.0431.
    signal = [-1, 1, 2, 2, 2]
    assert alarms(Cusum(threshold=0.90, slack=0.5, warm_up=2), signal) == [3]
    assert alarms(Cusum(threshold=0.92, slack=0.5, warm_up=2), signal) == [4]
    assert alarms(Cusum(threshold=1.04, slack=0.5, warm_up=2), signal) == [4]
    assert alarms(Cusum(threshold=1.05, slack=0.5, warm_up=2), signal) == []


@pytest.mark.parametrize("detector", DETECTORS)
def test_a_shift_is_found_soon_and_once(detector):
    found = alarms(detector, noise(0, 4))
    assert len(found) == 1
    assert 300 <= found[0] < 320


@pytest.mark.parametrize("detector", DETECTORS)
def test_each_of_several_shifts_is_found_since_an_alarm_starts_anew(detector):
    result = delays(alarms(detector, noise(0, 4, 0, 4)), [300, 600, 900])
    assert result.missed == 0
    assert result.false_alarms == 0
    assert max(result.delays) < 30


@pytest.mark.parametrize("kind", [PageHinkley, Cusum])
@pytest.mark.parametrize(
    ("sides", "levels", "count"), [("rise", (0, 4), 1), ("rise", (0, -4), 0), ("fall", (0, -4), 1)]
)
def test_one_sided_detectors_find_their_side_only(kind, sides, levels, count):
    fields = {"threshold": 20.0, "tolerance": 0.5} if kind is PageHinkley else {}
    assert len(alarms(kind(sides=sides, **fields), noise(*levels))) == count


@pytest.mark.parametrize("detector", DETECTORS)
@given(value=st.floats(-1e4, 1e4, width=32))
def test_a_constant_signal_never_alarms(detector, value):
    assert alarms(detector, [value] * 100) == []


def test_false_alarms_are_rare_in_unit_noise():
    generator = np.random.default_rng(0)
    for detector in DETECTORS:
        state, count = detector.start(np, (200,)), 0
        for x in generator.normal(size=(1000, 200)):
            state, alarm = detector.step(np, state, x)
            count += alarm.sum()
        assert count <= 2, detector


@pytest.mark.parametrize("kind", [PageHinkley, Cusum])
@given(signal=st.lists(st.integers(-100, 100), max_size=60), warm_up=st.integers(2, 20))
def test_no_alarm_falls_into_a_warm_up(kind, signal, warm_up):
    found = alarms(kind(threshold=0.5, warm_up=warm_up), signal)
    gaps = np.diff([-1, *found])
    assert np.all(gaps > warm_up)


def test_a_shift_in_the_scale_of_the_signal_does_not_change_what_cusum_finds():
    signal = noise(0, 4)
    assert alarms(Cusum(), signal) == alarms(Cusum(), 1024 * signal) == alarms(Cusum(), signal / 1024)


@pytest.mark.parametrize("detector", DETECTORS)
def test_values_that_are_not_finite_are_no_observations(detector):
    signal = noise(0, 4)
    sparse = np.full(3 * len(signal), np.nan, np.float32)
    sparse[::3] = signal
    sparse[1::3] = np.inf
    assert [step // 3 for step in alarms(detector, sparse)] == alarms(detector, signal)


@pytest.mark.parametrize("detector", DETECTORS)
def test_lanes_are_independent_of_each_other(detector):
    signals = np.stack([noise(0, 4, seed=seed) for seed in range(6)]).reshape(2, 3, 600)
    state, together = detector.start(np, (2, 3)), []
    for step in range(600):
        state, alarm = detector.step(np, state, signals[..., step])
        together.append(alarm)
    together = np.stack(together, axis=-1)
    for lane in np.ndindex(2, 3):
        assert np.flatnonzero(together[lane]).tolist() == alarms(detector, signals[lane])


@pytest.mark.parametrize("detector", DETECTORS)
def test_a_compiled_loop_finds_what_the_host_finds(detector):
    signal = np.stack([noise(0, 4, 0, seed=seed) for seed in range(4)], axis=1)
    signal[5::7, 2] = np.nan
    final, compiled = jax.jit(
        lambda xs: jax.lax.scan(lambda state, x: detector.step(jnp, state, x), detector.start(jnp, (4,)), xs)
    )(signal)
    state, found = detector.start(np, (4,)), []
    for x in signal:
        state, alarm = detector.step(np, state, x)
        found.append(alarm)
    np.testing.assert_array_equal(np.stack(found), compiled)
    for here, there in zip(state, final, strict=True):
        np.testing.assert_allclose(here, there, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("detector", DETECTORS)
def test_the_state_keeps_its_shapes_and_types(detector):
    start = detector.start(np, (3,))
    after, alarm = detector.step(np, start, np.zeros(3))
    assert [(array.shape, array.dtype) for array in after] == [(array.shape, array.dtype) for array in start]
    assert (alarm.shape, alarm.dtype) == ((3,), bool)


@pytest.mark.parametrize("kind", [PageHinkley, Cusum])
@pytest.mark.parametrize(
    ("fields", "message"),
    [({"threshold": 0.0}, "threshold is 0.0"), ({"threshold": float("nan")}, "threshold"), ({"warm_up": 1}, "warm_up")],
)
def test_a_detector_that_cannot_work_is_refused(kind, fields, message):
    with pytest.raises(ConfigError, match=message):
        kind(**fields)


def test_delays_tell_detections_false_alarms_and_misses_apart():
    found = delays([5, 12, 19, 45], [10, 20, 40])
    assert found == Delays(delays=(2, None, 5), false_alarms=2, missed=1)


def test_an_alarm_on_the_boundary_itself_has_no_delay():
    assert delays([10], [10]) == Delays((0,), 0, 0)


def test_without_boundaries_every_alarm_is_false():
    assert delays([3, 4], []) == Delays((), 2, 0)
