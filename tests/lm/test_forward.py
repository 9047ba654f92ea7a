"""Scores of given tokens against a loop over prefixes; padding, masks, gradients."""

import math

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from perdure.core.errors import ConfigError  # noqa: E402
from perdure.lm import forward  # noqa: E402
from perdure.lm.tiny import tiny_model  # noqa: E402
from perdure.lm.trajectory import Sampled, Stop, Trajectory  # noqa: E402

PAD = 19
ROWS = [[3, 1, 4, 1, 5, 9, 2], [6, 5, 3], [8]]


@pytest.fixture
def model():
    return tiny_model(20, width=16, layers=2, heads=2, kv_heads=1, context=32)


def stacked(rows, width=7, fill=PAD):
    ids = torch.full((len(rows), width), fill)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = torch.tensor(row)
    return ids, torch.tensor([len(row) for row in rows])


def by_prefixes(model, row, temperature):
    """Log-probability and entropy of each token, one forward pass a prefix, and the hidden state before each."""
    found = []
    with torch.no_grad():
        for t in range(1, len(row) + 1):
            output = model(torch.tensor([row[:t]]), output_hidden_states=True)
            logprobs = (output.logits[0, -1].double() / temperature).log_softmax(-1)
            chosen = float(logprobs[row[t]]) if t < len(row) else math.nan
            found.append((chosen, float(-(logprobs.exp() * logprobs).sum()), output.hidden_states[-1][0, -1]))
    return found


@pytest.mark.parametrize("temperature", [1.0, 0.7, 2.0])
def test_scores_are_those_of_every_prefix_alone(model, temperature):
    head = torch.nn.Linear(16, 1)
    ids, lengths = stacked(ROWS)
    scores = forward.score(model, ids, lengths, temperature=temperature, value_head=head, entropy=True)
    scores = forward.Scores(*(each.detach() for each in scores))
    head.requires_grad_(False)
    for index, row in enumerate(ROWS):
        expected = by_prefixes(model, row, temperature)
        for t in range(ids.shape[1]):
            here = [scores.logprobs_BT[index, t], scores.entropy_BT[index, t], scores.values_BT[index, t]]
            if not 0 < t < len(row):
                assert [float(each) for each in here] == [0, 0, 0]
                continue
            chosen, entropy, hidden = expected[t - 1]
            assert [float(each) for each in here] == pytest.approx([chosen, entropy, float(head(hidden))], abs=1e-5)
        assert float(scores.final_values_B[index]) == pytest.approx(float(head(expected[-1][2])), abs=1e-5)


def test_only_asked_tokens_meet_the_vocabulary(model):
    ids, lengths = stacked(ROWS)
    where = torch.zeros_like(ids, dtype=torch.bool)
    where[0, [0, 2, 6]] = where[1, [2, 5]] = where[2, 0] = True
    sizes = []
    handle = model.lm_head.register_forward_hook(lambda module, inputs, output: sizes.append(output.shape))
    part = forward.score(model, ids, lengths, where_BT=where).logprobs_BT
    handle.remove()
    assert sizes == [(3, 20)]  # The first of a row and what lies beyond its length are no questions.
    whole = forward.score(model, ids, lengths).logprobs_BT
    real = where & (torch.arange(7) > 0) & (torch.arange(7) < lengths[:, None])
    torch.testing.assert_close(part, torch.where(real, whole, torch.zeros(())))


def test_a_row_alone_scores_as_in_the_batch_with_its_gradient(model):
    def gradient(rows, width):
        model.zero_grad()
        forward.score(model, *stacked(rows, width)).logprobs_BT.sum().backward()
        return torch.cat([each.grad.flatten() for each in model.parameters()])

    together = gradient(ROWS, 12)
    torch.testing.assert_close(together, gradient(ROWS[:1], 7) + gradient(ROWS[1:2], 3), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("fill", [PAD, -100, 10_000])
def test_nothing_leaks_out_of_padding(model, fill):
    with torch.no_grad():
        model.get_input_embeddings().weight[PAD] = math.nan
        model.lm_head.weight = torch.nn.Parameter(torch.randn(20, 16))
    head = torch.nn.Linear(16, 1)
    scores = forward.score(model, *stacked(ROWS[:2], fill=fill), value_head=head, entropy=True)
    total = scores.logprobs_BT.sum() + scores.entropy_BT.sum() + scores.values_BT.sum() + scores.final_values_B.sum()
    total.backward()
    assert total.detach().isfinite()
    assert all(each.grad.isfinite().all() for each in [*model.parameters(), *head.parameters()])


def test_forbidden_tokens_have_no_entropy_and_no_nan_gradient(model):
    model.lm_head = torch.nn.Linear(16, 20)
    with torch.no_grad():
        model.lm_head.bias[7] = -math.inf
    scores = forward.score(model, *stacked(ROWS[:1]), entropy=True)
    (scores.entropy_BT.sum() + scores.logprobs_BT.sum()).backward()
    assert scores.entropy_BT.detach().isfinite().all()
    assert model.lm_head.weight.grad.isfinite().all()


def test_the_model_is_left_without_hooks(model):
    with pytest.raises(ConfigError, match="temperature is 0"):
        forward.score(model, *stacked(ROWS), temperature=0.0)
    forward.score(model, *stacked(ROWS))
    assert not model.lm_head._forward_pre_hooks


def test_trajectories_are_stacked_with_what_they_know():
    long, short = Trajectory(), Trajectory()
    long.observe([5, 6])
    long.answer(Sampled([7, 8], [-0.5, -0.25], Stop.LENGTH))
    short.observe([9])
    short.answer(Sampled([1], [-2.0], Stop.END))
    padded = forward.pad([long, short], PAD)
    assert padded.ids_BT.tolist() == [[5, 6, 7, 8], [9, 1, PAD, PAD]]
    assert padded.mask_BT.tolist() == [[False, False, True, True], [False, True, False, False]]
    assert padded.logprobs_BT.tolist() == [[0, 0, -0.5, -0.25], [0, -2, 0, 0]]
    assert padded.lengths_B.tolist() == [4, 2]
    with pytest.raises(ConfigError, match="trajectory 1 of 2 has no tokens"):
        forward.pad([long, Trajectory()], PAD)
