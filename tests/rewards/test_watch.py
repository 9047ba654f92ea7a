import numpy as np

from perdure.rewards.spec import RewardSpec
from perdure.rewards.watch import ConstantWatch

SPEC = RewardSpec.from_document(
    {"components": [{"name": "throughput"}, {"name": "constant"}, {"name": "episode_completion"}, {"name": "cost"}]}
)


def raw(throughput, cost=0.0):
    return {"throughput": throughput, "constant": 1.0, "episode_completion": 0.0, "cost": cost}


def test_a_component_that_stays_constant_is_reported_once():
    watch = ConstantWatch(SPEC, steps=3)
    messages = [watch.observe(raw(0.5, cost=step)) for step in range(10)]
    assert messages[2] == ["reward component throughput was 0.5 for 3 steps; is its key ever written?"]
    assert [index for index, found in enumerate(messages) if found] == [2]


def test_a_change_starts_the_count_anew():
    watch = ConstantWatch(SPEC, steps=3)
    found = [bool(watch.observe(raw(x, cost=step))) for step, x in enumerate([0, 0, 1, 1, 1, 0, 0, 0])]
    assert found == [False, False, False, False, True, False, False, True]


def test_terms_that_are_constant_by_nature_are_not_watched():
    watch = ConstantWatch(SPEC, steps=2)
    assert all(not watch.observe(raw(float(step), cost=float(step))) for step in range(20))


def test_lanes_that_differ_are_no_constant():
    watch = ConstantWatch(SPEC, steps=2)
    lanes = [raw(np.array([0.0, 1.0]), cost=np.array([step, step])) for step in range(6)]
    assert all(not watch.observe(values) for values in lanes)
    assert watch.observe(raw(np.zeros(2), cost=9.0)) == []
    assert len(watch.observe(raw(np.zeros(2), cost=10.0))) == 1
