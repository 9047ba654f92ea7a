"""Muon: its iteration, one step by hand and against torch's own, which parameters it moves, its checkpoints."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from perdure.core.errors import ConfigError  # noqa: E402
from perdure.lm import checkpoint  # noqa: E402
from perdure.lm.muon import Muon, hidden_matrices, orthogonal  # noqa: E402
from perdure.lm.step import Optimisation, Stepper  # noqa: E402
from perdure.lm.tiny import tiny_model  # noqa: E402


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(8, 8), (6, 20), (20, 6)])
def test_singular_values_are_drawn_near_one_and_directions_kept(shape):
    matrix = drawn(*shape)
    found = orthogonal(matrix)
    values = torch.linalg.svdvals(found)
    assert found.shape == matrix.shape
    assert values.max() < 1.3
    if shape[0] != shape[1]:  # A square random matrix has singular values near 0, which stay small.
        assert values.min() > 0.6
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    assert torch.allclose(left.T @ found @ right.T, torch.diag(torch.diagonal(left.T @ found @ right.T)), atol=1e-4)


def test_the_scale_of_the_gradient_does_not_matter_and_zero_stays_zero():
    matrix = drawn(4, 9)
    assert torch.allclose(orthogonal(matrix), orthogonal(1e4 * matrix), atol=1e-5)
    assert torch.equal(orthogonal(torch.zeros(3, 5)), torch.zeros(3, 5))


def linear(rows, columns):
    model = torch.nn.Sequential(torch.nn.Linear(columns, rows, bias=False))
    with torch.no_grad():
        model[0].weight.copy_(drawn(rows, columns))
    return model


def test_two_steps_by_hand():
    model, data = linear(2, 3), drawn(5, 3, seed=1)
    settings = Optimisation(optimizer="muon", learning_rate=0.1, weight_decay=0.5, max_grad_norm=0.0)
    stepper = Stepper(model, settings)
    weight, momentum = model[0].weight.detach().clone(), torch.zeros(2, 3)
    for _ in range(2):
        gradient = 2 * weight @ data.T @ data
        momentum = 0.95 * momentum + gradient
        weight = 0.95 * weight - 0.1 * 0.2 * 3**0.5 * orthogonal(gradient + 0.95 * momentum)
        stepper.step([lambda: model(data).square().sum()])
        assert torch.allclose(model[0].weight, weight, atol=1e-5)


def test_it_equals_torchs_own_up_to_its_half_precision():
    if not hasattr(torch.optim, "Muon"):
        pytest.skip("torch.optim.Muon came with 2.9")
    ours, theirs, data = linear(16, 24), linear(16, 24), drawn(40, 24, seed=1)
    stepper = Stepper(ours, Optimisation(optimizer="muon", learning_rate=0.02, max_grad_norm=0.0))
    other = torch.optim.Muon(theirs.parameters(), lr=0.02, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
    for _ in range(3):
        stepper.step([lambda: (ours(data) - 1).square().mean()])
        other.zero_grad()
        (theirs(data) - 1).square().mean().backward()
        other.step()
    before = linear(16, 24)[0].weight.detach()
    moved, likewise = (model[0].weight.detach() - before for model in (ours, theirs))
    assert torch.nn.functional.cosine_similarity(moved.flatten(), likewise.flatten(), dim=0) > 0.98
    assert float(moved.norm() / likewise.norm()) == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_embeddings_output_norms_and_biases_are_left_to_adamw(architecture):
    model = tiny_model(40, width=16, layers=1, heads=2, architecture=architecture)
    found = hidden_matrices(model)
    inside = {name for name, each in model.named_parameters() if id(each) in found}
    parts = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"]
    parts += ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
    assert inside == {f"model.layers.0.{part}.weight" for part in parts}


def stepped(model, stepper, steps):
    ids = torch.arange(12).reshape(2, 6)
    for _ in range(steps):
        stepper.step([lambda: model(input_ids=ids, labels=ids).loss])


def test_a_checkpoint_goes_on_bit_for_bit(tmp_path):
    settings = Optimisation(optimizer="muon", learning_rate=0.01)
    models = [tiny_model(20, width=8, layers=1, heads=2, seed=seed) for seed in (0, 1)]
    steppers = [Stepper(model, settings) for model in models]
    stepped(models[0], steppers[0], 3)
    checkpoint.save(tmp_path, model=models[0], optimizer=steppers[0].optimizer)
    checkpoint.load(tmp_path, model=models[1], optimizer=steppers[1].optimizer)
    for model, stepper in zip(models, steppers, strict=True):
        stepped(model, stepper, 2)
    one, other = (dict(model.named_parameters()) for model in models)
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_an_adapter_alone_has_matrices_alone():
    model = linear(2, 3)
    assert [group["orthogonal"] for group in Stepper(model, Optimisation(optimizer="muon")).optimizer.param_groups] == [
        True
    ]
    assert isinstance(Stepper(model, Optimisation(optimizer="muon")).optimizer, Muon)


def test_an_unknown_optimizer_is_refused():
    with pytest.raises(ConfigError, match="'sgd'; it is one of adamw, muon"):
        Optimisation(optimizer="sgd")
