"""The optimiser step: gradients summed over micro-batches and processes, clipped as one, refused if not finite.

A loss is a sum of parts whose denominators are the whole update's, so that how rows are cut into micro-batches, or
dealt to processes (torch.distributed), changes nothing but rounding. Hand out the bare module, or one that torch's
fully_shard (FSDP2) has dealt: gradients are summed here, not averaged by a wrapper.
"""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import distributed

from perdure.core.component import component
from perdure.core.errors import ConfigError, DataError, Refused, RunFailed
from perdure.lm import sharding
from perdure.lm.muon import Muon, hidden_matrices

Tensor = torch.Tensor

SCHEDULES = ("constant", "linear", "cosine")
OPTIMIZERS = ("adamw", "muon")


@component
class Optimisation:
    """The optimiser and what surrounds it."""

    optimizer: str = "adamw"
    """adamw (Loshchilov & Hutter 2019, arXiv 1711.05101); muon (lm.muon) trains from scratch in fewer steps."""
    learning_rate: float = 1e-5
    value_learning_rate: float | None = None
    """Of the value head; None: the policy's."""
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    """The largest norm of the gradient of policy and critic together; 0 does not bound it."""
    schedule: str = "constant"
    """constant; linear or cosine: down to 0 at total_steps."""
    warmup_steps: int = 0
    """Optimiser steps over which the rate rises linearly; the first takes 1 / warmup_steps of it."""
    hold_steps: int = 0
    """Steps that it then stays there before it falls (Hu et al. 2024, arXiv 2404.06395, section 4)."""
    total_steps: int | None = None
    tokens_per_micro_batch: int = 4096
    """Tokens of one forward and backward pass, padding included."""
    bf16: bool = False
    """Passes run under bfloat16 autocast; weights, moments and the loss stay in fp32."""

    def __post_init__(self) -> None:
        for name in ("learning_rate", "value_learning_rate", "epsilon"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"{name} is {value}; it must be positive")
        for name in ("weight_decay", "max_grad_norm", "warmup_steps", "hold_steps"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 0")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ConfigError(f"betas are {self.betas}; they lie from 0 up to 1, which is excluded")
        if self.optimizer not in OPTIMIZERS:
            raise ConfigError(f"optimizer is {self.optimizer!r}; it is one of {', '.join(OPTIMIZERS)}")
        if self.schedule not in SCHEDULES:
            raise ConfigError(f"schedule is {self.schedule!r}; it is one of {', '.join(SCHEDULES)}")
        if (self.schedule == "constant") != (self.total_steps is None):
            raise ConfigError(
                f"total_steps is {self.total_steps} with schedule {self.schedule!r}; it is the step at "
                "which a linear or cosine schedule ends, and has no effect on a constant one"
            )
        if self.schedule == "constant" and self.hold_steps:
            raise ConfigError(
                f"hold_steps is {self.hold_steps} with schedule 'constant', which never falls; leave it out, or set "
                "schedule: linear or cosine"
            )
        if self.total_steps is not None and self.total_steps <= self._falls_from:
            raise ConfigError(
                f"total_steps is {self.total_steps}; it must lie beyond warmup_steps and hold_steps "
                f"({self.warmup_steps} + {self.hold_steps})"
            )
        if self.tokens_per_micro_batch < 1:
            raise ConfigError(f"tokens_per_micro_batch is {self.tokens_per_micro_batch}; it must be positive")

    @property
    def _falls_from(self) -> int:
        return self.warmup_steps + self.hold_steps

    def share(self, step: int) -> float:
        """The share of the learning rate that optimiser step `step` (from 0) takes."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        if self.total_steps is None:
            return 1.0
        progress = min(max(step - self._falls_from, 0) / (self.total_steps - self._falls_from), 1.0)
        return 1 - progress if self.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * progress))


class Stepper:
    """Moves the trainable parameters (requires_grad) of a model, its value head and any others.

    `seed` drives dropout: the passes of a step see torch's generators seeded from (seed, step, process), and leave
    them as they were, so that a resumed run draws what an unbroken one draws. `steps` counts optimiser steps.
    ConfigError without a trainable parameter, or for a module wrapped for data parallelism.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        settings: Optimisation | None = None,
        *,
        value_head: torch.nn.Module | None = None,
        others: Iterable[torch.nn.Parameter] = (),
        seed: int = 0,
    ):
        self.settings = Optimisation() if settings is None else settings
        self.seed, self.steps = seed, 0
        if isinstance(model, torch.nn.parallel.DistributedDataParallel):
            raise ConfigError("model is wrapped in DistributedDataParallel; hand out the module itself (model.module)")
        self.named = _trainable(model, value_head, others)
        if not self.named:
            raise ConfigError("no parameter is trainable; set requires_grad on some, or attach an adapter")
        self._sharded = model if sharding.add_up(model) else None
        self.optimizer = self._optimizer(model)

    def _optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        settings = self.settings
        muon = settings.optimizer == "muon"
        if muon and self._sharded is not None:
            raise Refused("muon turns whole matrices, and a sharded model has parts of them; use adamw")
        matrices = hidden_matrices(model) if muon else set[int]()
        rates = {False: settings.learning_rate, True: settings.value_learning_rate or settings.learning_rate}
        groups = dict[tuple[bool, ...], dict[str, Any]]()
        for name, parameter in self.named.items():
            # The kinds of parameters that no group mixes; one fused step takes no dealt ones beside whole ones.
            kind = (id(parameter) not in matrices, name.startswith("value_head."), not sharding.is_dealt(parameter))
            rate = rates[kind[1]]
            group = groups.setdefault(kind, {"params": [], "lr": rate, "rate": rate, "orthogonal": not kind[0]})
            group["params"].append(parameter)
        kwargs: dict[str, Any] = {"betas": settings.betas, "eps": settings.epsilon, "fused": True}
        kwargs["weight_decay"] = settings.weight_decay
        ordered = [groups[kind] for kind in sorted(groups)]
        return Muon(ordered, **kwargs) if muon else torch.optim.AdamW(ordered, **kwargs)

    def step(
        self, losses: Iterable[Callable[[], Tensor]], penalties: Sequence[Callable[[], Tensor | None]] = ()
    ) -> dict[str, float]:
        """One optimiser step on the sum of `losses`, each called and sent backward in turn, and of `penalties`.

        Every process calls it once with its own losses (perhaps none) and all penalties, which count once.
        Returns step/loss, step/gradient_norm (before clipping), step/learning_rate and step/penalty. RunFailed, with
        all weights and moments as they were, where loss or gradient is not finite.
        """
        self.optimizer.zero_grad(set_to_none=True)
        share = self.settings.share(self.steps)
        with self._passes():
            loss = _backward(self._even(list(losses)), 1.0)
            penalty = _backward([lambda each=each: self._allowed(each()) for each in penalties], 1.0 / world_size())
        loss, penalty = summed([loss, penalty])
        _sum_gradients(self.named.values())
        norm = self._clip(loss + penalty)
        for group in self.optimizer.param_groups:
            group["lr"] = group["rate"] * share
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.steps += 1
        rate = self.settings.learning_rate * share
        return {"step/loss": loss, "step/penalty": penalty, "step/gradient_norm": norm, "step/learning_rate": rate}

    def _even(self, losses: list[Callable[[], Tensor]]) -> list[Callable[[], Tensor]]:
        """As many passes as the process with the most has, where each pass of a sharded model is one of all."""
        model = self._sharded
        if model is None:
            return losses
        most = int(summed([len(losses)], largest=True)[0])
        return [*losses, *[lambda: sharding.idle(model)] * (most - len(losses))]

    def _allowed(self, penalty: Tensor | None) -> Tensor | None:
        """Refused for a sharded model: the gradient of weights themselves is not summed, as that of passes is."""
        if penalty is not None and self._sharded is not None:
            raise Refused("penalties on the weights of a sharded model are not supported; train it without them")
        return penalty

    def _clip(self, loss: float) -> float:
        gradients = [parameter.grad for parameter in self.named.values() if parameter.grad is not None]
        if not gradients:
            raise RunFailed(f"optimiser step {self.steps}: the loss reaches no trainable parameter; check its masks")
        norm = sharding.norm(gradients)
        if not (math.isfinite(loss) and bool(torch.isfinite(norm))):
            raise RunFailed(self._complaint(loss))
        if self.settings.max_grad_norm:
            scale = (self.settings.max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
            for gradient in gradients:
                sharding.local(gradient).mul_(scale)
        return float(norm)

    def _complaint(self, loss: float) -> str:
        """What was not finite; gradients are dropped, so that none of it can reach a weight."""
        broken = [
            n for n, p in self.named.items() if p.grad is not None and not bool(sharding.local(p.grad).isfinite().all())
        ]
        self.optimizer.zero_grad(set_to_none=True)
        named = broken[0] if broken else "all parameters together"
        what = f"the loss is {loss}" if not math.isfinite(loss) else f"the gradient of {named} is not finite"
        return (
            f"optimiser step {self.steps}: {what}; no weight was changed. Lower the learning rate, or look for "
            "infinite rewards and log-probabilities"
        )

    @contextlib.contextmanager
    def _passes(self) -> Iterator[None]:
        """Seeded generators, and bfloat16 where asked for."""
        device = next(iter(self.named.values())).device.type
        devices = [] if device == "cpu" else list(range(torch.cuda.device_count()))
        drawn = np.random.SeedSequence([self.seed, self.steps, rank()]).generate_state(1, np.uint64)[0]
        with torch.random.fork_rng(devices), torch.autocast(device, torch.bfloat16, enabled=self.settings.bf16):
            torch.manual_seed(int(drawn) >> 1)
            yield

    def state_dict(self) -> dict[str, Any]:
        """What changes beside weights and moments (lm.checkpoint keeps those)."""
        return {"steps": self.steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up what `state_dict` gave."""
        if set(state) != {"steps"}:
            raise DataError(f"the state of a Stepper holds {sorted(state)}; expected steps")
        self.steps = int(state["steps"])


def rank() -> int:
    """This process's number among those that train together; 0 alone."""
    return distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0


def world_size() -> int:
    """How many processes train together; 1 alone."""
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def dealt(rows: Sequence[int] | np.ndarray) -> list[int]:
    """This process's share of rows that all hold, in the rows' own order, which keeps those of a group together."""
    return np.array_split(np.sort(rows), world_size())[rank()].tolist()


def summed(numbers: Sequence[float], *, largest: bool = False) -> list[float]:
    """The numbers added up (or the largest of each) over all processes."""
    if world_size() == 1:
        return list(numbers)
    device = "cuda" if distributed.get_backend() == "nccl" else "cpu"
    pooled = torch.tensor(list(numbers), dtype=torch.float64, device=device)
    distributed.all_reduce(pooled, distributed.ReduceOp.MAX if largest else distributed.ReduceOp.SUM)
    return pooled.tolist()


def _trainable(
    model: torch.nn.Module, value_head: torch.nn.Module | None, others: Iterable[torch.nn.Parameter]
) -> dict[str, torch.nn.Parameter]:
    """By name: model.*, value_head.*, others.N; a parameter that stands in two places once."""
    named = {f"model.{name}": parameter for name, parameter in model.named_parameters()}
    if value_head is not None:
        named |= {f"value_head.{name}": parameter for name, parameter in value_head.named_parameters()}
    named |= {f"others.{number}": parameter for number, parameter in enumerate(others)}
    seen: set[int] = set()
    return {
        name: parameter
        for name, parameter in named.items()
        if parameter.requires_grad and not (id(parameter) in seen or seen.add(id(parameter)))
    }


def _backward(losses: Iterable[Callable[[], Tensor | None]], weight: float) -> float:
    """Gradients of `weight` times each loss, one after the other; their weighted sum."""
    total = 0.0
    for loss in losses:
        value = loss()
        if value is not None:
            value = value * weight
            total += float(value.detach())
            if value.requires_grad:
                value.backward()
    return total


def _sum_gradients(parameters: Iterable[torch.nn.Parameter]) -> None:
    """Sum the gradients over processes; one that is missing here counts as 0, and dealt ones are summed already."""
    if world_size() == 1:
        return
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        if not sharding.is_dealt(parameter.grad):
            distributed.all_reduce(parameter.grad)
