"""How the next token is drawn: inverse of the cumulative distribution at a given uniform number.

Shapes: B rows, V vocabulary.
"""

import math

import torch

from perdure.core.component import component
from perdure.core.errors import ConfigError, Refused


@component
class Sampling:
    """The distribution an answer is drawn from, and where the answer stops."""

    temperature: float = 1.0
    """Divides the logits; above 0 (`greedy` is the limit at 0)."""
    top_k: int = 0
    """Only the k likeliest tokens, ties by position in the sort; 0 for all."""
    top_p: float = 1.0
    """Only the likeliest tokens that together reach this probability, the one that reaches it included."""
    max_new_tokens: int = 64
    stop: tuple[str, ...] = ()
    """Texts that end the answer once they stand in it; the tokens that complete one are kept."""
    stop_json: bool = False
    """End the answer once it holds an acceptable JSON object (core.jsontext.first_object)."""
    greedy: bool = False
    """Take the likeliest token; log-probabilities are then those of temperature 1 without truncation."""

    def __post_init__(self) -> None:
        if not (self.temperature > 0 and math.isfinite(self.temperature)):
            raise ConfigError(f"temperature is {self.temperature}; it must be above 0 (use greedy: true for the limit)")
        if self.top_k < 0:
            raise ConfigError(f"top_k is {self.top_k}; it must be 0 (off) or more")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p is {self.top_p}; it must be above 0 and at most 1")
        if self.max_new_tokens < 1:
            raise ConfigError(f"max_new_tokens is {self.max_new_tokens}; it must be at least 1")
        if not all(self.stop):
            raise ConfigError("stop holds an empty text, which would end every answer at once; remove it")


def refuse_untrainable(sampling: Sampling, *, own: bool, key: str, remedy: str) -> None:
    """Refused for greedy answers, and for a cut distribution whose probabilities the ratios could not use.

    `own`: ratios start from the sampler's own log-probabilities, because `key` is "sampler"; with `key` set to
    `remedy` they are the trainer's.
    """
    if sampling.greedy:
        raise Refused("sampling.greedy is true while training; a policy that never varies learns nothing")
    cut = {"top_k": sampling.top_k > 0, "top_p": sampling.top_p < 1}
    for name in (name for name, on in cut.items() if on and own):
        raise Refused(
            f"sampling.{name} cuts the distribution, but {key} is sampler; take the trainer's "
            f"log-probabilities ({key}: {remedy}), or sample from the whole distribution"
        )


def draw(logits_BV: torch.Tensor, uniforms_B: torch.Tensor, sampling: Sampling) -> tuple[torch.Tensor, torch.Tensor]:
    """A token of each row and its log-probability: (ids_B, logprobs_B).

    The token is the first whose cumulative probability exceeds the uniform number in [0, 1); tokens stand in
    the order of their ids, or of falling probability where top_k or top_p cuts. A row with a logit that is NaN
    gets the log-probability NaN.
    """
    logits_BV = logits_BV.float()
    if sampling.greedy:
        ids_B = logits_BV.argmax(-1)
        chosen_B = logits_BV.gather(-1, ids_B[:, None]).squeeze(-1)
        return ids_B, chosen_B - logits_BV.logsumexp(-1)
    if sampling.temperature != 1:
        logits_BV = logits_BV / sampling.temperature
    if not sampling.top_k and sampling.top_p == 1:
        return _inverse(logits_BV.softmax(-1), uniforms_B)
    probabilities_BK, order_BK = _truncated(logits_BV, sampling)
    ranks_B, logprobs_B = _inverse(probabilities_BK, uniforms_B)
    return order_BK.gather(-1, ranks_B[:, None]).squeeze(-1), logprobs_B


def _truncated(logits_BV: torch.Tensor, sampling: Sampling) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities of the tokens that remain, in falling order, and their ids."""
    vocabulary = logits_BV.shape[-1]
    if 0 < sampling.top_k < vocabulary:
        logits_BK, order_BK = logits_BV.topk(sampling.top_k)
    else:
        logits_BK, order_BK = logits_BV.sort(descending=True, stable=True)
    probabilities_BK = logits_BK.softmax(-1)
    if sampling.top_p < 1:
        before_BK = probabilities_BK.cumsum(-1) - probabilities_BK
        before_BK[:, 0] = 0  # Rounding must not take the likeliest token away.
        probabilities_BK = probabilities_BK.masked_fill(before_BK >= sampling.top_p, 0)
        probabilities_BK = probabilities_BK / probabilities_BK.sum(-1, keepdim=True)
    return probabilities_BK, order_BK


def _inverse(probabilities_BV: torch.Tensor, uniforms_B: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Invert the cumulative distribution; probabilities may sum to 1 only up to rounding."""
    cumulative_BV = probabilities_BV.cumsum(-1)
    total_B1 = cumulative_BV[:, -1:]
    # Strictly below the total, the first larger entry exists and has a probability above 0.
    below_B1 = torch.nextafter(total_B1, torch.zeros_like(total_B1))
    target_B1 = torch.minimum((uniforms_B[:, None] * total_B1).to(total_B1.dtype), below_B1)
    ids_B1 = torch.searchsorted(cumulative_BV, target_B1, right=True).clamp_(max=probabilities_BV.shape[-1] - 1)
    return ids_B1.squeeze(-1), probabilities_BV.gather(-1, ids_B1).log_().squeeze(-1)
