import numpy as np
import pytest

from perdure.rl import schedule as schedules


def level_at(tiny, plan, steps):
    task, _ = schedules.at(schedules.traced(plan, tiny.Clockwork()), np.asarray(steps))
    return np.asarray(task.level)


def test_the_task_changes_exactly_at_the_step(tiny):
    plan = tiny.schedule((10, 1.0), (5, 2.0), (5, 3.0))
    found = level_at(tiny, plan, np.arange(20))
    np.testing.assert_array_equal(found, [1.0] * 10 + [2.0] * 5 + [3.0] * 5)


def test_a_drift_moves_on_a_line_and_reaches_its_end(tiny):
    plan = tiny.schedule((10, 1.0), (10, 2.0, 4.0), (10, 4.0))
    np.testing.assert_allclose(level_at(tiny, plan, [9, 10, 15, 19, 20]), [1.0, 2.0, 3.0, 3.8, 4.0], rtol=1e-6)


def test_a_drift_to_the_end_of_the_run_has_its_own_length(tiny):
    plan = tiny.schedule((10, 1.0), (10, 2.0, 4.0))
    np.testing.assert_allclose(level_at(tiny, plan, [15]), [3.0], rtol=1e-6)


def test_the_last_task_holds_beyond_the_end(tiny):
    np.testing.assert_array_equal(level_at(tiny, tiny.schedule((10, 1.0), (5, 2.0)), [15, 10**6]), [2.0, 2.0])


@pytest.mark.parametrize(("count", "padded"), [(1, 1), (2, 2), (3, 4), (5, 8), (8, 8)])
def test_schedules_are_padded_to_a_power_of_two(tiny, count, padded):
    traced = schedules.traced(tiny.schedule(*[(10, float(n)) for n in range(count)]), tiny.Clockwork())
    assert traced.start.shape == (padded,)
    np.testing.assert_array_equal(
        level_at(tiny, tiny.schedule(*[(10, float(n)) for n in range(count)]), [count * 10 - 1]), [count - 1]
    )


def test_weights_follow_the_regime_and_its_origin(tiny):
    plan = tiny.schedule((10, 1.0), (10, 1.0))
    weights = lambda name, origin: (1.0, 2.0) if (name, origin) == ("s0", "s0") else (3.0, 4.0)
    _, found = schedules.at(schedules.traced(plan, tiny.Clockwork(), weights), np.array([9, 10]))
    np.testing.assert_array_equal(found, [[1.0, 2.0], [3.0, 4.0]])
