import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perdure.core.errors import ConfigError
from perdure.rl import triggers
from perdure.rl.phases import Clock, Context


def context(before, now, shift=False):
    clock = lambda updates: Clock(jnp.int32(0), jnp.int32(updates), jnp.int32(1_000))
    return Context(None, {}, 1, clock(now), shift=jnp.array(shift), previous=clock(before))


@pytest.mark.parametrize(("before", "now", "due"), [(0, 9, False), (9, 10, True), (10, 19, False), (4, 44, True)])
def test_an_interval_is_due_when_it_is_crossed(before, now, due):
    assert bool(triggers.due(context(before, now, shift=True), "interval", 10)) == due


@pytest.mark.parametrize("shift", [False, True])
def test_a_shift_is_due_when_it_was_told(shift):
    assert bool(triggers.due(context(0, 100, shift), "shift", 10)) == shift


def test_waiting_for_shifts_needs_a_source_of_them():
    assert triggers.needs("shift") == {"boundary"}
    assert not triggers.needs("interval")


def test_only_the_seeds_that_ask_are_changed():
    change = lambda x: {"a": x["a"] + 1}
    run = jax.vmap(lambda when, x: triggers.once(when, change, {"a": x}))
    np.testing.assert_array_equal(run(jnp.array([True, False, True]), jnp.zeros(3))["a"], [1, 0, 1])


def test_nothing_is_computed_unless_a_seed_asks():
    calls = []

    def change(x):
        jax.debug.callback(lambda: calls.append(1))
        return x + 1

    run = jax.jit(jax.vmap(lambda when: triggers.once(when, change, jnp.zeros(()))))
    run(jnp.zeros(2, bool)).block_until_ready()
    jax.effects_barrier()
    assert not calls
    run(jnp.array([False, True])).block_until_ready()
    jax.effects_barrier()
    assert calls


@pytest.mark.parametrize(
    ("trigger", "interval", "says"), [("never", 1, "trigger is 'never'"), ("interval", 0, "interval is 0")]
)
def test_triggers_out_of_range_are_refused(trigger, interval, says):
    with pytest.raises(ConfigError, match=says):
        triggers.check(trigger, interval)
