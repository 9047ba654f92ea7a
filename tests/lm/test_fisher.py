import math
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.errors import ConfigError, DataError, RunFailed
from perdure.lm import fisher_samples
from perdure.lm.fisher import (
    DEFAULT_SAMPLE_MIX,
    FisherDropout,
    FisherKind,
    FisherSample,
    ParameterScope,
    build_parameter_filter,
    estimate_fisher,
    normalised,
    select_fisher_samples,
    solved_edge,
)

IDS = [1, 5, 3, 7, 2, 5]
MASK = [False, False, True, True, False, True]


class Bigram(torch.nn.Module):
    """The next token's logits are a row of one table: Fisher information by hand."""

    def __init__(self, vocabulary=8):
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.table = torch.nn.Parameter(torch.randn(vocabulary, vocabulary, generator=generator))
        self.dropout = torch.nn.Dropout(0.5)

    def forward(self, input_ids, use_cache=False, output_hidden_states=False):
        class Found:
            logits = self.dropout(self.table[input_ids])
            hidden_states = (self.table[input_ids],)

        return Found


def by_hand(model, ids, mask):
    """The squared gradient of the chosen tokens' log-likelihood, by backward()."""
    logits = model(input_ids=torch.tensor([ids])).logits[0]
    total = sum(logits[t - 1].log_softmax(-1)[ids[t]] for t in range(1, len(ids)) if mask[t])
    return [
        None if each is None else each**2
        for each in torch.autograd.grad(total, list(model.parameters()), allow_unused=True)
    ]


# --- which samples -------------------------------------------------------------------------------------------------


def pool(count=100):
    """Equal numbers of each band, each sample its own reward and number."""
    rewards = [(0.95, 0.5, 0.0, -0.3)[number % 4] for number in range(count)]
    return list(range(count)), rewards


@pytest.mark.parametrize(
    ("budget", "counts"),
    [
        (10, [4, 3, 2, 1]),
        (15, [6, 4, 3, 2]),
        (1, [1] * 4),
        (4, [2, 1, 1, 1]),
        (5, [2, 2, 1, 1]),
        (9, [4, 3, 2, 1]),
        (19, [8, 6, 4, 2]),
    ],
)
def test_each_band_gets_its_rounded_share_and_at_least_one(budget, counts):
    pairs, rewards = pool()
    drawn = select_fisher_samples(pairs, rewards, max_samples=budget, rng=random.Random(0))
    found = [sum(pair % 4 == band for pair in drawn) for band in range(4)]
    assert found == counts
    assert len(set(drawn)) == len(drawn)


def test_only_the_stated_budgets_overshoot():
    pairs, rewards = pool(400)
    overshoot = {n: len(select_fisher_samples(pairs, rewards, max_samples=n)) - n for n in range(1, 51)}
    assert {n: over for n, over in overshoot.items() if over} == {
        1: 3, 2: 2, 3: 1, 4: 1, 5: 1, 9: 1, 19: 1, 29: 1, 39: 1, 49: 1,
    }  # fmt: skip
    exact = [len(select_fisher_samples(pairs, rewards, max_samples=n, truncate=True)) for n in range(1, 51)]
    assert exact == list(range(1, 51))


def test_what_a_band_lacks_is_drawn_from_the_whole_pool_with_repetition():
    drawn = select_fisher_samples(["a", "b"], [1.0, -1.0], max_samples=20, rng=random.Random(3))
    assert len(drawn) == 20
    assert set(drawn) == {"a", "b"}
    many = select_fisher_samples(["a", "b"], [1.0, -1.0], max_samples=4000, rng=random.Random(3)).count("a")
    assert abs(many - 2000) < 5 * math.sqrt(1000)


def test_band_edges():
    assert [fisher_samples.band_of(r) for r in (0.9, 0.899, 1e-9, 0.0, -0.0, -1e-9)] == [
        "solved", "positive_progress", "positive_progress", "valid_neutral", "valid_neutral", "random",
    ]  # fmt: skip
    assert solved_edge([0.1, 0.2]) == 0.9
    assert solved_edge([], edges="bounds", bounds=(-1.0, 0.5)) == pytest.approx(0.35)
    assert solved_edge([0.0, 0.1, 0.2, 0.3, math.nan], edges="quantile") == pytest.approx(0.27)
    assert solved_edge([0.0, -1.0], edges="quantile") == math.inf


def test_missing_rewards_are_left_out_and_nothing_is_refused():
    drawn = select_fisher_samples(["a", "b"], [math.nan, 0.5], max_samples=5)
    assert set(drawn) == {"b"}
    with pytest.raises(DataError, match="no sample"):
        select_fisher_samples(["a"], [math.nan], max_samples=5)
    with pytest.raises(DataError, match="2 samples and 1 rewards"):
        select_fisher_samples(["a", "b"], [1.0], max_samples=5)
    with pytest.raises(ConfigError, match="max_samples is 0"):
        select_fisher_samples(["a"], [1.0], max_samples=0)
    with pytest.raises(ConfigError, match="did you mean 'solved'"):
        select_fisher_samples(["a"], [1.0], max_samples=1, mix={"solvd": 1.0})
    with pytest.raises(ConfigError, match=r"is 1\.5"):
        select_fisher_samples(["a"], [1.0], max_samples=1, mix={"solved": 1.5})
    with pytest.raises(ConfigError, match="bounds are None"):
        solved_edge([1.0], edges="bounds")


def test_the_default_mix_cannot_be_changed():
    assert dict(DEFAULT_SAMPLE_MIX) == {"solved": 0.4, "positive_progress": 0.3, "valid_neutral": 0.2, "random": 0.1}
    with pytest.raises(TypeError):
        DEFAULT_SAMPLE_MIX["solved"] = 1.0


@given(st.lists(st.floats(-2, 2), min_size=1, max_size=30), st.integers(1, 60), st.integers(0, 5))
def test_draws_are_samples_and_repeat_with_their_generator(rewards, budget, seed):
    pairs = list(range(len(rewards)))
    first, second = (
        select_fisher_samples(pairs, rewards, max_samples=budget, rng=random.Random(seed)) for _ in range(2)
    )
    assert first == second
    assert set(first) <= set(pairs)
    assert budget <= len(first) <= budget + 3


# --- which parameters ----------------------------------------------------------------------------------------------

NAMES = ["model.q.lora_A.default.weight", "model.q.weight", "v_head.summary.weight"]


@pytest.mark.parametrize(
    ("scope", "chosen"),
    [
        ("lora_only", NAMES[:1]),
        (ParameterScope.VALUE_ONLY, NAMES[2:]),
        ("lora_and_value", [NAMES[0], NAMES[2]]),
        ("all", NAMES),
        (r"q\.weight$", NAMES[1:2]),
    ],
)
def test_scopes_go_by_names(scope, chosen):
    wanted = build_parameter_filter(scope, NAMES)
    assert [name for name in NAMES if wanted(name)] == chosen


def test_a_scope_that_matches_nothing_is_refused():
    with pytest.raises(ConfigError, match=r"'lora_only' matches no parameter; trainable ones are: model\.q\.weight"):
        build_parameter_filter("lora_only", NAMES[1:2])
    with pytest.raises(ConfigError, match=r"neither a scope nor a regular expression .*did you mean 'lora_only'"):
        build_parameter_filter("lora_only(")


# --- the information itself ----------------------------------------------------------------------------------------


def test_the_empirical_form_is_the_mean_of_squared_gradients_of_each_sample():
    model = Bigram().eval()
    others = [FisherSample([0, 1, 4], [False, True, True]), FisherSample(IDS, MASK), FisherSample(IDS, MASK)]
    found = estimate_fisher(model, dict(model.named_parameters()), others)["table"]
    singles = [by_hand(model, each.ids, each.mask)[0] for each in others]
    assert torch.allclose(found, sum(singles) / 3, atol=1e-7)
    at_once = (sum(single.sqrt() for single in singles) / 3) ** 2
    assert not torch.allclose(found, at_once, atol=1e-3)


def test_a_transformers_fisher_is_that_of_an_independent_computation(letters):
    policy = letters.policy()
    samples = [
        FisherSample([3, 8, 200, 9, 257], [False, False, True, True, True]),
        FisherSample([1, 2, 3], [False, True, True]),
    ]
    parameters = dict(policy.model.named_parameters())
    found = estimate_fisher(policy.model, parameters, samples)
    singles = [by_hand(policy.model, each.ids, each.mask) for each in samples]
    for number, name in enumerate(parameters):
        expected = (singles[0][number] + singles[1][number]) / 2
        assert torch.allclose(found[name], expected, rtol=1e-4, atol=1e-9), name


def exact_by_hand(model, ids, mask):
    """sum_t sum_y p(y) (e_y - p)^2 in the row of the token before t."""
    expected = torch.zeros_like(model.table)
    for t in range(1, len(ids)):
        if mask[t]:
            p = model.table[ids[t - 1]].detach().softmax(-1)
            expected[ids[t - 1]] += p * (1 - p)
    return expected


def test_the_exact_form_sums_over_the_vocabulary():
    model = Bigram().eval()
    find = lambda k: estimate_fisher(
        model, dict(model.named_parameters()), [FisherSample(IDS, MASK)], kind=FisherKind.EXACT_TOPK, topk=k
    )["table"]
    assert torch.allclose(find(8), exact_by_hand(model, IDS, MASK), atol=1e-6)
    assert torch.allclose(find(99), find(8))
    assert (find(3) < find(8) + 1e-7).all()
    assert find(3).sum() < find(8).sum()


def test_the_sampled_form_is_the_exact_one_on_average():
    model = Bigram().eval()
    ids, mask = [0, 1, 2, 3], [False, True, True, True]  # Every row once, so that no cross terms are left.
    generator = torch.Generator().manual_seed(0)
    samples = [FisherSample(ids, mask)] * 3000
    found = estimate_fisher(
        model, dict(model.named_parameters()), samples, kind=FisherKind.SAMPLED, generator=generator
    )
    expected = exact_by_hand(model, ids, mask)
    assert (found["table"] - expected).abs().max() < 5 * 0.5 / math.sqrt(3000)
    assert torch.equal(found["table"][4:], torch.zeros(4, 8))


def test_the_value_head_has_the_information_of_a_gaussian():
    model, head = Bigram().eval(), torch.nn.Linear(8, 1)
    parameters = {**dict(model.named_parameters()), **{f"v_head.{n}": p for n, p in head.named_parameters()}}
    samples = [FisherSample(IDS, MASK)]
    found = estimate_fisher(model, parameters, samples, value_head=head)
    hidden = model.table[torch.tensor([IDS[t - 1] for t in range(1, 6) if MASK[t]])].detach()
    assert torch.allclose(found["v_head.weight"][0], (hidden**2).sum(0), rtol=1e-5)
    assert found["v_head.bias"].item() == 3
    without = estimate_fisher(model, parameters, samples)
    assert not without["v_head.weight"].any()
    assert torch.equal(without["table"], found["table"])


def test_dropout_is_off_unless_the_reference_asks_for_it():
    model = Bigram().train()
    parameters, samples = dict(model.named_parameters()), [FisherSample(IDS, MASK)]
    quiet = estimate_fisher(model, parameters, samples)["table"]
    assert model.training
    torch.manual_seed(0)
    loud = estimate_fisher(model, parameters, samples, dropout=FisherDropout.REFERENCE)["table"]
    assert torch.allclose(quiet, by_hand(model.eval(), IDS, MASK)[0], atol=1e-6)
    assert not torch.allclose(quiet, loud, atol=1e-3)


def test_the_samplers_temperature_divides_the_logits():
    model, half = Bigram().eval(), Bigram().eval()
    with torch.no_grad():
        half.table.mul_(0.5)
    found = estimate_fisher(model, dict(model.named_parameters()), [FisherSample(IDS, MASK)], temperature=2.0)
    assert torch.allclose(4 * found["table"], by_hand(half, IDS, MASK)[0], atol=1e-6)


def test_nothing_to_measure_raises():
    model = Bigram()
    with pytest.raises(RunFailed, match="none of 1 samples"):
        estimate_fisher(model, dict(model.named_parameters()), [FisherSample([1, 2], [True, False])])
    with pytest.raises(RunFailed, match="none of 0 samples"):
        estimate_fisher(model, dict(model.named_parameters()), [])
    head = torch.nn.Linear(8, 1)
    with pytest.raises(RunFailed, match="0 everywhere"):
        estimate_fisher(model, {"v_head.weight": head.weight}, [FisherSample(IDS, MASK)])
    with torch.no_grad():
        model.table[3] = math.nan
    with pytest.raises(RunFailed, match="of table is not finite"):
        estimate_fisher(model, dict(model.named_parameters()), [FisherSample(IDS, MASK)])


def test_each_tensor_is_clipped_at_its_quantile_and_divided_by_its_greatest_entry():
    values = torch.arange(1.0, 201.0).flip(0)
    found = normalised({"a": values, "b": torch.tensor([0.0, 4.0, 2.0]), "none": torch.zeros(3)})
    assert torch.equal(found["a"], values.clamp(max=198) / 198)
    assert torch.equal(found["b"], torch.tensor([0.0, 1.0, 0.5]))
    assert not found["none"].any()
    sparse = torch.zeros(10_000)
    sparse[:5] = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    assert normalised({"s": sparse})["s"][:5].tolist() == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
