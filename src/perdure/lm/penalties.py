"""What holds a language policy to where it stood: distances of parameters, and of distributions over tokens."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters of a model that training moves, by their own names."""
    return {name: each for name, each in model.named_parameters() if each.requires_grad}


def snapshot(parameters: Mapping[str, nn.Parameter], chosen: Callable[[str], bool] | None = None) -> dict[str, Tensor]:
    """Copies of the parameters whose names are chosen (all without `chosen`), cut off from every graph."""
    return {name: each.detach().clone() for name, each in parameters.items() if chosen is None or chosen(name)}


def pull(
    parameters: Mapping[str, nn.Parameter], anchor: Mapping[str, Tensor], precision: Mapping[str, Tensor] | None = None
) -> Tensor:
    """sum_i F_i (theta_i - anchor_i)^2 over the anchored parameters, fp32; F is 1 without `precision`."""
    terms: list[Tensor] = []
    for name, stood in anchor.items():
        squares = (parameters[name].float() - stood.float()).square()
        terms.append((squares if precision is None else precision[name] * squares).sum())
    return torch.stack(terms).sum() if terms else torch.zeros(())


def chosen_logprobs(model: nn.Module, ids_BT: Tensor, mask_BT: Tensor, temperature: float = 1.0) -> Tensor:
    """Log-probabilities [N, V] of the whole vocabulary at the N chosen tokens of a right-padded batch, fp32.

    Padding on the right needs no attention mask: no chosen token looks that way.
    """
    found: Any = model(input_ids=ids_BT, use_cache=False)
    rows_NV = found.logits[:, :-1][mask_BT[:, 1:]]
    return (rows_NV.float() / temperature).log_softmax(-1)


def frozen_logprobs(
    model: nn.Module, weights: Mapping[str, Tensor], ids_BT: Tensor, mask_BT: Tensor, temperature: float = 1.0
) -> Tensor:
    """`chosen_logprobs` of the model as it would be with other `weights`, by the names of its own; no gradient.

    Dropout is off: the distribution that is compared with is one fixed one.
    """
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            stood = _With(model, weights)
            return chosen_logprobs(stood, ids_BT, mask_BT, temperature)  # type: ignore[arg-type]
    finally:
        model.train(training)


def divergence(p_NV: Tensor, q_NV: Tensor) -> Tensor:
    """KL(p || q) in nats of each row of log-probabilities: [N]. A token that p excludes adds nothing."""
    return torch.where(p_NV > -torch.inf, p_NV.exp() * (p_NV - q_NV), 0.0).sum(-1)


class _With:
    """A model called with other weights."""

    def __init__(self, model: nn.Module, weights: Mapping[str, Tensor]):
        self._model, self._weights = model, dict(weights)

    def __call__(self, **inputs: Any) -> Any:
        return torch.func.functional_call(self._model, self._weights, args=(), kwargs=inputs)
