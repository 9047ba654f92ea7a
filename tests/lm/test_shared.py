"""Rows that share a prompt score as they do alone, gradients included, and cost less."""

import copy

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from perdure.core.errors import Refused  # noqa: E402
from perdure.lm import forward, packing, shared  # noqa: E402
from perdure.lm.tiny import tiny_model  # noqa: E402

VOCABULARY = 24
PROMPTS = [[3, 1, 4, 1, 5, 9], [2, 7, 1], [6]]
ROWS = [(0, [5, 3, 5]), (0, [8]), (1, [9, 7, 9, 3]), (0, [2, 3]), (1, [8, 4]), (2, [6, 2, 6, 4, 3])]
KINDS = {
    "Llama": {},
    "Qwen3": {"head_dim": 4},
    "Gemma": {"head_dim": 4},
    "GPTNeoX": {},
    "OPT": {"ffn_dim": 24, "word_embed_proj_dim": 16},
    "StableLm": {},
    "Mixtral": {"num_local_experts": 2},
}


@pytest.fixture
def model():
    return tiny_model(VOCABULARY, width=16, layers=2, heads=4, kv_heads=2, context=32)


def built(kind, **options):
    """A tiny model of one of the library's kinds, whose context the longest row fills."""
    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 9,
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    config = getattr(transformers, f"{kind}Config")(**sizes | options)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return getattr(transformers, f"{kind}ForCausalLM")(config).eval()


def batch(rows=ROWS):
    """Padded ids, lengths and what is trained: all after the prompt but the second token of each rest."""
    whole = [PROMPTS[number] + rest for number, rest in rows]
    ids = torch.full((len(rows), max(map(len, whole))), -100)
    trained = torch.zeros_like(ids, dtype=torch.bool)
    for row, (tokens, (number, rest)) in enumerate(zip(whole, rows, strict=True)):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        trained[row, len(PROMPTS[number]) : len(tokens)] = torch.tensor([at != 1 for at in range(len(rest))])
    return ids, torch.tensor([len(tokens) for tokens in whole]), trained


def measured(model, **options):
    """Scores of the batch under a head and entropies, the gradient of a mixture, and the tokens that were computed."""
    ids, lengths, trained = batch()
    head = torch.nn.Linear(model.config.hidden_size, 1)
    torch.nn.init.constant_(head.weight, 0.3)
    torch.nn.init.zeros_(head.bias)
    sizes = []
    handle = model.get_input_embeddings().register_forward_hook(lambda _m, inputs, _o: sizes.append(inputs[0].shape))
    scores = forward.score(model, ids, lengths, where_BT=trained, value_head=head, entropy=True, **options)
    handle.remove()
    model.zero_grad()
    mixed = [each * torch.arange(each.numel()).view_as(each).cos() for each in scores]
    sum(each.sum() for each in mixed).backward()
    gradients = {name: each.grad for name, each in model.named_parameters() if each.grad is not None}
    return [each.detach() for each in scores], gradients, sizes


def alone(model):
    """The same model, each of whose rows computes its own prompt."""
    found = copy.deepcopy(model)
    found.config._attn_implementation = "eager"
    return found


def compare(model, other):
    scores, gradients, (size,) = measured(model, temperature=0.8)
    expected, wanted, (whole,) = measured(other, temperature=0.8)
    assert (size, whole) == ((1, 3 * 6 + 6 * 5), (6, 9))
    for found, exact in zip(scores, expected, strict=True):
        torch.testing.assert_close(found, exact, atol=1e-5, rtol=0)
    assert gradients.keys() == wanted.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, wanted[name], atol=1e-5, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_share_a_prompt_score_as_they_do_alone(kind):
    model = built(kind, **KINDS[kind])
    assert shared.can(model)
    compare(model, alone(model))


def test_adapters_are_trained_alike(model):
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    adapted = get_peft_model(model, config)
    assert shared.can(adapted)
    compare(adapted, alone(adapted))


def test_no_row_sees_another(model):
    ids, lengths, trained = batch()
    before = forward.score(model, ids, lengths, where_BT=trained).logprobs_BT
    ids[0, 6:] = 11
    after = forward.score(model, ids, lengths, where_BT=trained).logprobs_BT
    torch.testing.assert_close(after[1:], before[1:])
    assert not torch.allclose(after[0], before[0])


def test_rows_are_computed_whole_where_little_would_be_saved(model):
    ids, lengths, trained = batch([(0, [5, 3, 5]), (1, [8, 4])])
    found = packing.prompts(ids, lengths, trained)
    assert found == packing.Prompts([0, 1], [6, 3])
    assert shared.layout(ids, lengths, found) is None


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("Mistral", {"sliding_window": 4}),
        ("Gemma2", {"head_dim": 4}),
        ("Mamba", {}),
        ("Doge", {}),
        ("Llama", {"attn_implementation": "eager"}),
    ],
)
def test_models_that_attend_otherwise_compute_every_row(kind, options):
    model = built(kind, **options)
    assert not shared.can(model)
    assert forward.score(model, *batch()[:2], where_BT=batch()[2]).logprobs_BT.isfinite().all()


def test_nothing_is_shared_that_is_computed_again_on_the_way_back(model):
    model.activation_checkpointing_enable()
    assert not shared.can(model)


class Mixing(torch.nn.Module):
    """A layer that looks at earlier tokens without attention."""

    def forward(self, hidden_states, **_):
        return hidden_states.cumsum(1), None


def test_a_layer_that_does_not_attend_is_refused_and_the_model_left_as_it_was(model):
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    known = set(ALL_ATTENTION_FUNCTIONS)
    model.model.layers[1].self_attn = Mixing()
    ids, lengths, trained = batch()
    with pytest.raises(Refused, match="attends in 1 of 2 layers"):
        forward.score(model, ids, lengths, where_BT=trained)
    assert model.config._attn_implementation == "sdpa"
    assert set(ALL_ATTENTION_FUNCTIONS) == known
    assert not model.lm_head._forward_pre_hooks


def test_micro_batches_keep_rows_of_a_prompt_together(model):
    ids, lengths, trained = batch()
    whole = packing.Batch(ids, lengths, trained, *[torch.zeros(ids.shape)] * 4)
    # 15 + 11 + 6 tokens are computed; by length, 12 + 14 + 12 would be.
    assert forward.plan(model, whole, 18) == [[0, 3, 1], [2, 4], [5]]
    assert forward.plan(alone(model), whole, 18) == [[0, 3], [1, 2], [5, 4]]
