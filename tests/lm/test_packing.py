"""Trajectories as padded tensors, and their cutting into micro-batches."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import torch

from perdure.core.errors import ConfigError
from perdure.lm import packing
from perdure.lm.trajectory import Sampled, Stop, Trajectory


def trajectory(prompt, *answers):
    made = Trajectory()
    made.observe([5] * prompt)
    for length in answers:
        made.answer(Sampled([3] * length, [-0.5] * length, Stop.END))
        made.observe([6])
    return made


def test_everything_of_a_trajectory_stands_in_its_row():
    batch = packing.pack(
        [trajectory(2, 1, 2), trajectory(1, 1)], 0, advantages=[np.arange(7), [9, 8, 7]], values=[np.ones(7), [2] * 3]
    )
    assert batch.ids_BT.tolist() == [[5, 5, 3, 6, 3, 3, 6], [5, 3, 6, 0, 0, 0, 0]]
    assert batch.lengths_B.tolist() == [7, 3]
    assert batch.mask_BT.int().tolist() == [[0, 0, 1, 0, 1, 1, 0], [0, 1, 0, 0, 0, 0, 0]]
    assert batch.turns_BT.tolist() == [[-1, -1, 0, -1, 1, 1, -1], [-1, 0, -1, -1, -1, -1, -1]]
    assert batch.sampler_BT.tolist() == [[0, 0, -0.5, 0, -0.5, -0.5, 0], [0, -0.5, 0, 0, 0, 0, 0]]
    assert batch.old_BT is batch.sampler_BT
    assert batch.advantages_BT.tolist() == [[0, 1, 2, 3, 4, 5, 6], [9, 8, 7, 0, 0, 0, 0]]
    assert batch.old_values_BT.tolist() == [[1] * 7, [2, 2, 2, 0, 0, 0, 0]]
    assert batch.returns_BT is None


def test_take_keeps_rows_together_and_cuts_padding():
    batch = packing.pack(
        [trajectory(2, 1, 2), trajectory(1, 1), trajectory(2, 1)], 0, advantages=[[1] * 7, [2] * 3, [3] * 4]
    )
    part = packing.take(batch, [2, 1])
    assert part.ids_BT.tolist() == [[5, 5, 3, 6], [5, 3, 6, 0]]
    assert part.lengths_B.tolist() == [4, 3]
    assert part.advantages_BT.tolist() == [[3, 3, 3, 3], [2, 2, 2, 0]]
    assert part.reference_BT is None
    assert packing.take(batch, []).ids_BT.shape == (0, 0)


@hypothesis.given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.integers(1, 100))
def test_a_plan_holds_every_row_once_within_its_budget(lengths, tokens):
    parts = packing.plan(lengths, tokens)
    assert sorted(row for part in parts for row in part) == list(range(len(lengths)))
    assert all(len(part) == 1 or len(part) * max(lengths[row] for row in part) <= tokens for part in parts)
    flat = [lengths[row] for part in parts for row in part]
    assert flat == sorted(lengths, reverse=True)


def test_a_plan_fills_micro_batches():
    assert packing.plan([2, 8, 2, 4, 3], 8) == [[1], [3, 4], [0, 2]]


ROWS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 12)), min_size=1, max_size=20)


@hypothesis.given(ROWS, st.integers(1, 100))
def test_a_plan_of_shared_prompts_holds_every_row_once_and_is_no_more_to_compute(rows, tokens):
    cuts = [5, 1, 9, 3]
    lengths = [cuts[number] + rest for number, rest in rows]
    firsts = list(dict.fromkeys(number for number, _ in rows))
    found = packing.Prompts([firsts.index(number) for number, _ in rows], [cuts[number] for number, _ in rows])
    parts = packing.plan(lengths, tokens, found)
    assert sorted(row for part in parts for row in part) == list(range(len(rows)))
    assert all(len(part) == 1 or packing.computed(part, lengths, found) <= tokens for part in parts)
    cost = sum(packing.computed(part, lengths, found) for part in parts)
    assert cost <= sum(len(part) * max(lengths[row] for row in part) for part in packing.plan(lengths, tokens))


def test_tokens_of_a_pass_are_counted_with_their_padding():
    shared = packing.Prompts([0, 0, 1], [6, 6, 2])
    assert packing.computed([0, 1], [9, 8, 7], None) == 18
    assert packing.computed([0, 1], [9, 8, 7], shared) == 6 + 2 * 3
    assert packing.computed([0, 1, 2], [9, 8, 7], shared) == 3 * 9
    assert packing.computed([0, 1, 2], [9, 8, 5], shared) == 2 * 6 + 3 * 3
    assert packing.shares([0, 1], [9, 8, 7], shared)
    assert not packing.shares([2], [9, 8, 7], shared)


def test_prompts_end_before_the_first_trained_token_and_before_the_last_one():
    ids = torch.tensor([[1, 2, 3, 4], [1, 2, 9, 9], [1, 2, 3, 0], [1, 3, 3, 3], [7, 0, 0, 0], [1, 2, 3, 4]])
    trained = torch.tensor([[0, 0, 1, 1], [0, 0, 1, 0], [0, 0, 0, 0], [0, 0, 1, 1], [1, 0, 0, 0], [1, 0, 1, 0]]).bool()
    found = packing.prompts(ids, torch.tensor([4, 4, 3, 4, 1, 4]), trained)
    assert found == packing.Prompts([0, 0, 0, 1, 2, 0], [2, 2, 2, 2, 0, 2])


@hypothesis.given(st.lists(st.integers(1, 12), min_size=1, max_size=12), st.integers(1, 40))
def test_results_come_back_in_the_order_of_the_rows(lengths, tokens):
    rows = packing.plan(lengths, tokens)
    whole = torch.zeros(len(lengths), max(lengths))
    for row, length in enumerate(lengths):
        whole[row, :length] = torch.arange(length) + 100 * (row + 1)
    parts = [whole[part][:, : max(lengths[row] for row in part)] for part in rows]
    found = packing.restored(parts, rows, max(lengths))
    assert torch.equal(found, whole)
    for row, values in enumerate(packing.unpadded(found, torch.tensor(lengths))):
        assert values.tolist() == whole[row, : lengths[row]].tolist()


def test_refusals():
    with pytest.raises(ConfigError, match="no trajectories"):
        packing.pack([], 0)
    with pytest.raises(ConfigError, match="trajectory 1 has no tokens"):
        packing.pack([trajectory(1, 1), Trajectory()], 0)
    with pytest.raises(ConfigError, match="trajectory 0 begins with a trainable token"):
        packing.pack([trajectory(0, 1)], 0)
    with pytest.raises(ConfigError, match="advantages of trajectory 0 are 2 for 3 tokens"):
        packing.pack([trajectory(1, 1)], 0, advantages=[[1, 2]])
    with pytest.raises(ConfigError, match="returns are given for 2 of 1"):
        packing.pack([trajectory(1, 1)], 0, returns=[[1, 2, 3]] * 2)
    with pytest.raises(ConfigError, match="tokens_per_micro_batch is 0"):
        packing.plan([1], 0)
