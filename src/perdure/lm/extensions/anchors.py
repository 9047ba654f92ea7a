"""Penalties that hold a language policy to its first weights, to its last regime's, or to what it said then."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from perdure.core.component import component
from perdure.lm import forward, penalties
from perdure.lm.extensions.base import at_least, held
from perdure.lm.fisher import ParameterScope, build_parameter_filter
from perdure.lm.hooks import Hooks


@component
class _Pull:
    """A pull of the trained weights towards some that stood before."""

    strength: float = 1e-3
    parameter_scope: str = ParameterScope.ALL
    """lora_only, value_only, lora_and_value, all, or a regular expression."""

    name: ClassVar[str]
    at_start: ClassVar[bool]

    def __post_init__(self):
        at_least(self, strength=0)
        build_parameter_filter(self.parameter_scope)

    def build(self, policy: Any = None) -> "WeightAnchor":
        """The part itself."""
        return WeightAnchor(self.name, self.strength, self.parameter_scope, at_start=self.at_start)


@component
class L2Init(_Pull):
    """strength * sum ||theta - theta_0||^2, theta_0 the weights before the first step.

    Kumar et al., 2023, arXiv:2308.11958, equation 2.
    """

    name: ClassVar[str] = "l2_init"
    at_start: ClassVar[bool] = True


@component
class L2Anchor(_Pull):
    """strength * sum ||theta - theta*||^2, theta* the weights at the last shift; nothing before the first one."""

    needs_boundary: ClassVar[bool] = True
    name: ClassVar[str] = "l2_anchor"
    at_start: ClassVar[bool] = False


@component
class PreviousPolicy:
    """strength * E KL(pi || pi*) over the whole vocabulary, pi* the policy at the last shift; nothing before it.

    The mean is over the chosen tokens of the rows under way, as in Distral (Teh et al., 2017, arXiv:1707.04175)
    with the last regime's policy in place of a shared one. It costs one forward pass more without, and one with,
    gradients, and a copy of the trainable weights.
    """

    needs_boundary: ClassVar[bool] = True

    strength: float = 0.1
    rows: int = 32
    """Rows of the minibatch that the mean is over, its first ones, which bounds the memory."""

    def __post_init__(self):
        at_least(self, strength=0, rows=1)

    def build(self, policy: Any = None) -> "PolicyAnchor":
        """The part itself."""
        return PolicyAnchor(self)


class WeightAnchor(Hooks):
    """A squared distance from weights that stood at the start, or at the last shift."""

    def __init__(self, name: str, strength: float, scope: str, *, at_start: bool):
        self.name, self.strength, self.scope, self.at_start = name, strength, scope, at_start
        self.anchor: dict[str, Tensor] = {}
        self._found: dict[str, float] = {}

    def begin(self, backend: Any) -> None:
        """Take the first weights, or see at least that there is something to hold."""
        parameters = held(backend, self.scope)
        if self.at_start:
            self.anchor = penalties.snapshot(parameters)

    def shift(self, backend: Any, shift: Mapping[str, Any]) -> None:
        """Take the weights of the regime that ends."""
        if not self.at_start:
            self.anchor = penalties.snapshot(held(backend, self.scope))

    def penalty(self, backend: Any) -> Tensor | None:
        """The distance so far."""
        if not self.anchor:
            return None
        penalty = self.strength * penalties.pull(backend.named_parameters(), self.anchor)
        self._found = {"penalty": penalty.detach().item()}
        return penalty

    def metrics(self) -> Mapping[str, float]:
        """The last penalty."""
        return self._found

    def state(self) -> dict[str, Any]:
        """The weights that it holds to."""
        return {"anchor": dict(self.anchor)}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take up what `state` gave."""
        self.anchor = dict(state["anchor"])


class PolicyAnchor(Hooks):
    """The divergence from the policy of the last shift, kept as its trainable weights."""

    name = "previous_policy"

    def __init__(self, config: PreviousPolicy):
        self.config = config
        self.weights: dict[str, Tensor] = {}
        self._found: dict[str, float] = {}

    def shift(self, backend: Any, shift: Mapping[str, Any]) -> None:
        """Take the policy of the regime that ends."""
        model = backend.policy.model
        self.weights = penalties.snapshot({name: each for name, each in model.named_parameters() if each.requires_grad})

    def penalty(self, backend: Any) -> Tensor | None:
        """The mean divergence on the rows of this step."""
        if not self.weights:
            return None
        divergence = self.divergence(backend)
        self._found = {"kl": divergence.detach().item()}
        return self.config.strength * divergence

    def divergence(self, backend: Any) -> Tensor:
        """KL(pi || pi*) in nats a token."""
        policy = backend.policy
        padded = forward.pad(backend.minibatch.rows[: self.config.rows], policy.chat.pad_id)
        ids_BT, mask_BT = padded.ids_BT.to(policy.model.device), padded.mask_BT.to(policy.model.device)
        temperature = policy.sampling.temperature
        stood_NV = penalties.frozen_logprobs(policy.model, self.weights, ids_BT, mask_BT, temperature)
        now_NV = penalties.chosen_logprobs(policy.model, ids_BT, mask_BT, temperature)
        return penalties.divergence(now_NV, stood_NV).mean() if len(now_NV) else torch.zeros(())

    def metrics(self) -> Mapping[str, float]:
        """The last divergence, nats a token."""
        return self._found

    def state(self) -> dict[str, Any]:
        """The weights of the policy that it holds to."""
        return {"weights": dict(self.weights)}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take up what `state` gave."""
        self.weights = dict(state["weights"])
