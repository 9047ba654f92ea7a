"""Policy losses a token: what lowers the probability of bad answers and raises that of good ones.

Each takes log-probabilities under the policy in training and under the one that acted, advantages and the mask of
trainable tokens, all [B, T], and returns [B, T], 0 outside the mask. The keyword arguments of a loss are the options
it reads. Masked positions may hold anything, NaN too: neither values nor gradients see them. Written to be minimised.
"""

import torch

from perdure.core.errors import ConfigError

Tensor = torch.Tensor


def reinforce(logprobs_BT: Tensor, old_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """-A log p: the policy gradient itself (Williams 1992); the acting policy plays no part."""
    logprobs_BT, advantages_BT = _masked(mask_BT, logprobs_BT, advantages_BT)
    return -advantages_BT * logprobs_BT


def ppo(
    logprobs_BT: Tensor,
    old_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> Tensor:
    """-min(ratio A, clip(ratio, 1 - clip_low, 1 + clip_high) A), a ratio a token.

    Schulman et al. 2017 (arXiv 1707.06347), eq. 7; a clip_high above clip_low is DAPO's (arXiv 2503.14476).
    """
    log_ratio_BT, advantages_BT = _log_ratio(logprobs_BT, old_BT, mask_BT), _masked(mask_BT, advantages_BT)[0]
    return _clipped(log_ratio_BT.exp(), advantages_BT, clip_low, clip_high)


def dual_clip(
    logprobs_BT: Tensor,
    old_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    ratio_bound: float = 3.0,
) -> Tensor:
    """`ppo` whose loss of a bad token is at most ratio_bound |A|, however much likelier the token has become.

    Ye et al. 2020 (arXiv 1912.09729), eq. 5; ratio_bound > 1 + clip_high.
    """
    if ratio_bound <= 1 + clip_high:
        raise ConfigError(f"ratio_bound is {ratio_bound}; it must lie above 1 + clip_high = {1 + clip_high:g}")
    log_ratio_BT, advantages_BT = _log_ratio(logprobs_BT, old_BT, mask_BT), _masked(mask_BT, advantages_BT)[0]
    clipped_BT = _clipped(log_ratio_BT.exp(), advantages_BT, clip_low, clip_high)
    return torch.where(advantages_BT < 0, torch.minimum(clipped_BT, -ratio_bound * advantages_BT), clipped_BT)


def sequence_mean(
    logprobs_BT: Tensor,
    old_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> Tensor:
    """`ppo` with one ratio a sequence, the exponential of the mean log-ratio of its trainable tokens.

    That one value stands at each trainable token of the sequence, so that its mean over them is the value itself.
    """
    ratio_B1 = _mean_over_tokens(_log_ratio(logprobs_BT, old_BT, mask_BT), mask_BT).exp()
    advantages_BT = _masked(mask_BT, advantages_BT)[0]
    return _clipped(ratio_B1.expand_as(advantages_BT), advantages_BT, clip_low, clip_high)


def gspo(
    logprobs_BT: Tensor,
    old_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    *,
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
) -> Tensor:
    """`ppo` with the value of the sequence's mean ratio at every token, and each token's own gradient.

    Zheng et al. 2025 (arXiv 2507.18071), eq. 13-14 (GSPO-token): sg[s] p / sg[p]. Where all tokens of a sequence have
    one advantage, value and gradient are those of GSPO itself.
    """
    log_ratio_BT = _log_ratio(logprobs_BT, old_BT, mask_BT)
    mean_B1 = _mean_over_tokens(log_ratio_BT, mask_BT).detach()
    ratio_BT = (mean_B1 + log_ratio_BT - log_ratio_BT.detach()).exp()
    return _clipped(ratio_BT, _masked(mask_BT, advantages_BT)[0], clip_low, clip_high)


def cispo(
    logprobs_BT: Tensor, old_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor, *, ratio_cap: float = 5.0
) -> Tensor:
    """-sg[min(ratio, ratio_cap)] A log p: ratios are weights, cut at ratio_cap, and no token loses its gradient.

    MiniMax 2025 (arXiv 2506.13585), eq. 4-5, with no lower bound, as in the paper's runs. ratio_cap is the bound
    itself (1 + the paper's epsilon_high).
    """
    weight_BT = _log_ratio(logprobs_BT, old_BT, mask_BT).exp().clamp(max=ratio_cap).detach()
    logprobs_BT, advantages_BT = _masked(mask_BT, logprobs_BT, advantages_BT)
    return -weight_BT * advantages_BT * logprobs_BT


def sapo(
    logprobs_BT: Tensor,
    old_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    *,
    temperature_positive: float = 1.0,
    temperature_negative: float = 1.05,
) -> Tensor:
    """-(4 / t) sigmoid(t (ratio - 1)) A: a smooth gate in the place of a clip, steeper (t) for bad tokens.

    Soft Adaptive Policy Optimization, 2025 (arXiv 2511.20347). At ratio 1 its gradient is the policy gradient; both
    temperatures are positive.
    """
    for name, value in (("temperature_positive", temperature_positive), ("temperature_negative", temperature_negative)):
        if value <= 0:
            raise ConfigError(f"{name} is {value}; it must be positive")
    ratio_BT, advantages_BT = _log_ratio(logprobs_BT, old_BT, mask_BT).exp(), _masked(mask_BT, advantages_BT)[0]
    t_BT = torch.where(advantages_BT > 0, temperature_positive, temperature_negative).to(ratio_BT.dtype)
    return -(4 / t_BT) * torch.sigmoid(t_BT * (ratio_BT - 1)) * advantages_BT


def value_loss(
    values_BT: Tensor, returns_BT: Tensor, mask_BT: Tensor, *, old_values_BT: Tensor | None = None, clip: float = 0.0
) -> Tensor:
    """Half the squared error of the critic, a token; with `clip` > 0 the larger one of it and that of a clipped value.

    The clipped value is the acting critic's `old_values_BT`, moved by at most `clip` towards the new one
    (Schulman's PPO code; Engstrom et al. 2020, arXiv 2005.12729).
    """
    values_BT, returns_BT = _masked(mask_BT, values_BT, returns_BT)
    error_BT = (values_BT - returns_BT).square()
    if clip > 0:
        if old_values_BT is None:
            raise ConfigError("value_clip needs the acting critic's values; give old_values_BT")
        (old_BT,) = _masked(mask_BT, old_values_BT)
        held_BT = old_BT + (values_BT - old_BT).clamp(-clip, clip)
        error_BT = torch.maximum(error_BT, (held_BT - returns_BT).square())
    return 0.5 * error_BT


def ratio_sums(
    logprobs_BT: Tensor,
    old_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    *,
    clip_low: float | None = None,
    clip_high: float | None = None,
) -> dict[str, Tensor]:
    """What `ratio_metrics` needs of one micro-batch: sums over trainable tokens, and the largest ratio. No gradient."""
    with torch.no_grad():
        log_ratio_BT = _log_ratio(logprobs_BT, old_BT, mask_BT).double()
        ratio_BT = log_ratio_BT.exp()
        (advantages_BT,) = _masked(mask_BT, advantages_BT)
        sums = {
            "tokens": mask_BT.sum().double(),
            "ratio": torch.where(mask_BT, ratio_BT, 0).sum(),
            "ratio_squared": torch.where(mask_BT, ratio_BT.square(), 0).sum(),
            "kl": (ratio_BT - 1 - log_ratio_BT).sum(),
            "largest_ratio": torch.where(mask_BT, ratio_BT, 0).max(),
        }
        if clip_low is not None:
            sums["low"] = ((ratio_BT < 1 - clip_low) & (advantages_BT < 0)).sum().double()
        if clip_high is not None:
            sums["high"] = ((ratio_BT > 1 + clip_high) & (advantages_BT > 0)).sum().double()
    return sums


def ratio_metrics(sums: dict[str, float]) -> dict[str, float]:
    """Of sums added up over a batch (largest_ratio: the maximum).

    policy/ratio_mean, policy/ratio_max; policy/approximate_kl: mean of ratio - 1 - log ratio (nats a token);
    policy/effective_sample_size: (sum r)^2 / (n sum r^2), 1 where nothing has moved; policy/clip_fraction_low and
    _high: share of trainable tokens at which a token's ratio lies past the clip and the advantage pulls further.
    """
    tokens = max(sums["tokens"], 1.0)
    metrics = {
        "policy/ratio_mean": sums["ratio"] / tokens,
        "policy/ratio_max": sums["largest_ratio"],
        "policy/approximate_kl": sums["kl"] / tokens,
        "policy/effective_sample_size": sums["ratio"] ** 2 / max(tokens * sums["ratio_squared"], 1e-300),
    }
    for side in ("low", "high"):
        if side in sums:
            metrics[f"policy/clip_fraction_{side}"] = sums[side] / tokens
    return metrics


def _masked(mask_BT: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors with 0 outside the mask; [B] spreads over tokens. `where`, since NaN times 0 is NaN."""
    spread = (each[:, None].expand(mask_BT.shape) if each.dim() == 1 else each for each in tensors)
    return tuple(torch.where(mask_BT, each, torch.zeros((), dtype=each.dtype, device=each.device)) for each in spread)


def _log_ratio(logprobs_BT: Tensor, old_BT: Tensor, mask_BT: Tensor) -> Tensor:
    logprobs_BT, old_BT = _masked(mask_BT, logprobs_BT, old_BT)
    return logprobs_BT - old_BT.detach()


def _mean_over_tokens(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """[B, 1]: the mean of each sequence over its trainable tokens; 0 without any."""
    return values_BT.sum(-1, keepdim=True) / mask_BT.sum(-1, keepdim=True).clamp(min=1)


def _clipped(ratio_BT: Tensor, advantages_BT: Tensor, clip_low: float, clip_high: float) -> Tensor:
    """Minus the smaller of two gains; where the advantage is 0 (masked tokens too) it is 0."""
    return -torch.minimum(ratio_BT * advantages_BT, ratio_BT.clamp(1 - clip_low, 1 + clip_high) * advantages_BT)
