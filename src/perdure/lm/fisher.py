"""How much each parameter of a language policy matters: the diagonal Fisher information, and what it is measured on.

For a sample x with chosen tokens y_1..y_T the empirical form is the squared gradient of sum_t log p(y_t | ...), one
sample at a time, averaged over samples (Kirkpatrick et al., 2017, arXiv:1612.00796). It takes the data for draws of
the model, which makes it crude (van de Ven, 2025, arXiv:2502.11756); two forms that do not stand beside it.
"""

import contextlib
import enum
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from perdure.core.errors import ConfigError, RunFailed, nearest
from perdure.lm.fisher_samples import DEFAULT_SAMPLE_MIX, BandEdges, band_of, select_fisher_samples, solved_edge

__all__ = [
    "DEFAULT_SAMPLE_MIX",
    "BandEdges",
    "EWCMode",
    "FisherDropout",
    "FisherKind",
    "FisherSample",
    "ParameterScope",
    "band_of",
    "build_parameter_filter",
    "estimate_fisher",
    "normalised",
    "select_fisher_samples",
    "solved_edge",
]

CLIP_QUANTILE = 0.99
"""Share of a tensor's positive entries that clipping leaves as they are."""


class ParameterScope(enum.StrEnum):
    """Which parameters are held; any other text is a regular expression, searched for in a parameter's name."""

    LORA_ONLY = "lora_only"
    VALUE_ONLY = "value_only"
    LORA_AND_VALUE = "lora_and_value"
    ALL = "all"


class FisherDropout(enum.StrEnum):
    """The model's mode while the Fisher information is measured."""

    DISABLED = "disabled"
    """Evaluation: no dropout."""
    REFERENCE = "reference"
    """Training, as the published code has it: dropout is live."""


class EWCMode(enum.StrEnum):
    """What becomes of an old anchor at a new shift."""

    ONLINE = "online"
    """F <- gamma F + F_new, one anchor, the newest (Schwarz et al., 2018, arXiv:1805.06370)."""
    MULTI_SNAPSHOT = "multi_snapshot"
    """All are kept, the oldest leaves first; the penalties are summed."""


class FisherKind(enum.StrEnum):
    """Which tokens the log-likelihood is of."""

    EMPIRICAL = "empirical"
    """The tokens of the sample: (sum_t grad log p(y_t))^2."""
    SAMPLED = "sampled"
    """At each chosen position a token drawn from the model: (sum_t grad log p(y'_t))^2."""
    EXACT_TOPK = "exact_topk"
    """sum_t sum_y p(y) (grad log p(y))^2 over the `topk` likeliest tokens; exact where that is the vocabulary.

    It costs `topk` backward passes a token.
    """


class FisherSample(NamedTuple):
    """Token ids, and True where the policy chose the token."""

    ids: Sequence[int]
    mask: Sequence[bool]


def build_parameter_filter(scope: ParameterScope | str, names: Iterable[str] | None = None) -> Callable[[str], bool]:
    """Whether a parameter, by its name, is in `scope`: PEFT's adapters are named lora_, TRL's value heads v_head.

    A scope that is none of `ParameterScope` is a regular expression, searched for anywhere in a name. Raises
    ConfigError for a malformed one, and where `names` are given and none of them is in the scope.
    """
    chosen = _filter(scope)
    if names is not None:
        known = list(names)
        if not any(chosen(name) for name in known):
            some = ", ".join(known[:8]) or "none is trainable"
            raise ConfigError(f"parameter_scope {str(scope)!r} matches no parameter; trainable ones are: {some}")
    return chosen


def _filter(scope: ParameterScope | str) -> Callable[[str], bool]:
    lora = lambda name: "lora_" in name
    value = lambda name: "v_head" in name or "value_head" in name
    by_scope: dict[str, Callable[[str], bool]] = {
        ParameterScope.LORA_ONLY: lora,
        ParameterScope.VALUE_ONLY: value,
        ParameterScope.LORA_AND_VALUE: lambda name: lora(name) or value(name),
        ParameterScope.ALL: lambda name: True,
    }
    if str(scope) in by_scope:
        return by_scope[str(scope)]
    try:
        pattern = re.compile(str(scope))
    except re.error as error:
        raise ConfigError(
            f"parameter_scope {str(scope)!r} is neither a scope nor a regular expression ({error}); "
            f"{nearest(str(scope), map(str, by_scope))}"
        ) from None
    return lambda name: pattern.search(name) is not None


def estimate_fisher(
    model: torch.nn.Module,
    parameters: Mapping[str, torch.nn.Parameter],
    samples: Sequence[FisherSample],
    *,
    kind: FisherKind = FisherKind.EMPIRICAL,
    dropout: FisherDropout = FisherDropout.DISABLED,
    topk: int = 8,
    temperature: float = 1.0,
    value_head: torch.nn.Module | None = None,
    generator: torch.Generator | None = None,
) -> dict[str, torch.Tensor]:
    """The diagonal Fisher information of `parameters`, averaged over `samples`, fp32; neither clipped nor normalised.

    A sample that stands twice counts twice. `temperature` is the sampler's, which divides the logits. With `value_head`
    its parameters among `parameters` have the Fisher information of V ~ N(V, 1), sum_t (dV_t)^2 over the states before
    chosen tokens; without it theirs is 0, since no token's likelihood depends on them. Raises RunFailed where no
    sample has a chosen token after its first one, or where the result is not finite or 0 everywhere.
    """
    usable = [sample for sample in samples if any(sample.mask[1:])]
    if not usable:
        raise RunFailed(f"no Fisher information: none of {len(samples)} samples holds a token that the policy chose")
    fisher = {name: torch.zeros_like(each, dtype=torch.float32) for name, each in parameters.items()}
    heads = _names_of(value_head, parameters)
    with _mode(model, training=FisherDropout(dropout) == FisherDropout.REFERENCE):
        for sample in usable:
            logprobs_TV, hidden_TD = _chosen_rows(model, sample, temperature, hidden=bool(heads))
            targets = [position for position in range(1, len(sample.ids)) if sample.mask[position]]
            taken_T = torch.tensor([sample.ids[position] for position in targets], device=logprobs_TV.device)
            for weight, likelihood in _likelihoods(logprobs_TV, taken_T, FisherKind(kind), topk, generator):
                _add_squares(fisher, parameters, likelihood, weight / len(usable))
            if value_head is not None and heads:
                values_T = value_head(hidden_TD).reshape(-1)
                for value in values_T:
                    _add_squares(fisher, {name: parameters[name] for name in heads}, value, 1 / len(usable))
    _check(fisher)
    return fisher


def normalised(fisher: Mapping[str, torch.Tensor], quantile: float = CLIP_QUANTILE) -> dict[str, torch.Tensor]:
    """Each tensor cut off at the `quantile` of its positive entries and divided by its greatest one: within [0, 1].

    Entries that are 0 (embeddings of tokens that never occurred) would otherwise push the quantile to 0.
    """
    result: dict[str, torch.Tensor] = {}
    for name, each in fisher.items():
        positive = each[each > 0]
        if not len(positive):
            result[name] = each.clone()
            continue
        rank = min(max(round(quantile * len(positive)), 1), len(positive))
        greatest = positive.kthvalue(rank).values
        result[name] = each.clamp(max=greatest) / greatest
    return result


def _chosen_rows(
    model: torch.nn.Module, sample: FisherSample, temperature: float, *, hidden: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Log-probabilities [T, V] at the chosen tokens, and the last hidden state [T, D] before each, detached."""
    ids_1T = torch.tensor([list(sample.ids)], device=next(model.parameters()).device)
    found: Any = model(input_ids=ids_1T, use_cache=False, output_hidden_states=hidden)
    before = [position - 1 for position in range(1, len(sample.ids)) if sample.mask[position]]
    rows_TV = (found.logits[0, before].float() / temperature).log_softmax(-1)
    return rows_TV, found.hidden_states[-1][0, before].detach().float() if hidden else None


def _likelihoods(
    logprobs_TV: torch.Tensor,
    taken_T: torch.Tensor,
    kind: FisherKind,
    topk: int,
    generator: torch.Generator | None,
) -> Iterator[tuple[float, torch.Tensor]]:
    """Pairs of weight and log-likelihood whose weighted squared gradients make up one sample's Fisher information."""
    if kind == FisherKind.EMPIRICAL:
        yield 1.0, logprobs_TV.gather(1, taken_T[:, None]).sum()
    elif kind == FisherKind.SAMPLED:
        drawn_T1 = torch.multinomial(logprobs_TV.detach().exp().cpu(), 1, generator=generator)
        yield 1.0, logprobs_TV.gather(1, drawn_T1.to(logprobs_TV.device)).sum()
    else:
        _, likeliest_TK = logprobs_TV.detach().topk(min(topk, logprobs_TV.shape[1]), dim=1)
        for row_V, tokens_K in zip(logprobs_TV, likeliest_TK, strict=True):
            for token in tokens_K:
                yield float(row_V[token].detach().exp()), row_V[token]


def _add_squares(
    fisher: dict[str, torch.Tensor],
    parameters: Mapping[str, torch.nn.Parameter],
    likelihood: torch.Tensor,
    weight: float,
) -> None:
    gradients = torch.autograd.grad(likelihood, list(parameters.values()), retain_graph=True, allow_unused=True)
    for name, gradient in zip(parameters, gradients, strict=True):
        if gradient is not None:
            fisher[name] += weight * gradient.detach().float().square()


def _check(fisher: Mapping[str, torch.Tensor]) -> None:
    if not fisher:
        raise RunFailed("the Fisher information is empty: no parameter is held; widen parameter_scope")
    broken = [name for name, each in fisher.items() if not bool(torch.isfinite(each).all())]
    if broken:
        raise RunFailed(f"the Fisher information of {broken[0]} is not finite; lower the learning rate")
    if not any(bool(each.any()) for each in fisher.values()):
        raise RunFailed(
            "the Fisher information is 0 everywhere, so that no parameter would be held: the samples' likelihood does "
            "not depend on any parameter in scope; change parameter_scope, or value_fisher for a value head"
        )


def _names_of(head: torch.nn.Module | None, parameters: Mapping[str, torch.nn.Parameter]) -> list[str]:
    own = {id(each) for each in head.parameters()} if head is not None else set[int]()
    return [name for name, each in parameters.items() if id(each) in own]


@contextlib.contextmanager
def _mode(model: torch.nn.Module, *, training: bool) -> Iterator[None]:
    """The model in one mode, and afterwards in the one it had."""
    before = model.training
    model.train(training)
    try:
        yield
    finally:
        model.train(before)
