"""TRL's GRPOTrainer for concierge episodes: rows reach the worlds, beta is controlled, a resume is exact.

Generation, masks, rewards, advantages and the loss are GRPOTrainer's own. What is added stands around them.
"""

import json
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from perdure.core.errors import ConfigError, DataError, told
from perdure.harness.directory import write_atomic
from perdure.integrations import _adaptive_kl, _checks, _groups
from perdure.integrations._adaptive_kl import DEFAULT_BETA_MAX, DEFAULT_BETA_MIN, DEFAULT_KP, AdaptiveKLCallback
from perdure.integrations._episodes import (
    BETA_KL,
    ConciergeTasks,
    EnvFactory,
    EpisodeOutcome,
    RewardFn,
    RolloutGroupFn,
    TaskGenerator,
)

if TYPE_CHECKING:
    from peft import PeftConfig

STATE = "driftcall_state.json"
"""What a checkpoint holds beside TRL's own files."""
MEASURES = ("r1", "r2", "r3", "r4", "efficiency", "penalty", "brier")


class DriftCallGRPOTrainer(GRPOTrainer):
    """A GRPOTrainer whose rows are episodes of a concierge world.

    Exactly one route: `environment_factory` (DriftCallToolEnv: native tool calls) or `rollout_group_fn` with
    `env_factory` and `reward_fn_driftcall` (JsonRollout, Concierge, driftcall_reward: JSON). `train_dataset` and
    `eval_dataset` are EpisodeDatasetAdapters, whose rows are then read in order, or Datasets made by them.

    With `enable_adaptive_kl` the weight `beta` is moved at each optimizer step until the KL divergence is
    `adaptive_kl_target` (BETA_KL where None); `adaptive_kl_kp` counts with adaptive_kl_law="driftcall" only. An
    AdaptiveKLCallback among `callbacks` takes the place of the one made from these arguments.

    Logged beside TRL's metrics: the fields of AdaptiveKLCallback, and episode/* (success, r1 to r4, efficiency,
    penalty, brier, turns, fault: means over episodes). `allow_improper` permits a scaling that makes the proper reward
    improper. Raises ConfigError and Refused, naming the argument, before the model is loaded.
    """

    def __init__(
        self,
        model: "str | PreTrainedModel",
        reward_funcs: Any = None,
        args: GRPOConfig | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        callbacks: list[TrainerCallback] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        quantization_config: Any = None,
        peft_config: "PeftConfig | None" = None,
        environment_factory: Callable[[], Any] | dict[str, Callable[[], Any]] | None = None,
        *,
        rollout_group_fn: RolloutGroupFn | None = None,
        env_factory: EnvFactory | None = None,
        reward_fn_driftcall: RewardFn | None = None,
        task_gen: TaskGenerator | None = None,
        enable_adaptive_kl: bool = True,
        adaptive_kl_target: float | None = None,
        adaptive_kl_kp: float = DEFAULT_KP,
        adaptive_kl_beta_min: float = DEFAULT_BETA_MIN,
        adaptive_kl_beta_max: float = DEFAULT_BETA_MAX,
        adaptive_kl_law: str = "log",
        allow_improper: bool = False,
    ):
        if args is None:
            raise ConfigError("args is missing; give a GRPOConfig with beta above 0 and scale_rewards='none'")
        _checks.refuse_routes(environment_factory, rollout_group_fn, env_factory, reward_fn_driftcall)
        _checks.refuse_settings(args, rollout_group_fn)
        if not allow_improper:
            _checks.refuse_improper(args, environment_factory or env_factory)
        self.rollout_group_fn, self.env_factory = rollout_group_fn, env_factory
        self.reward_fn_driftcall = reward_fn_driftcall
        self.adaptive_kl_callback = _given_controller(callbacks or [])
        if self.adaptive_kl_callback is None and enable_adaptive_kl:
            self.adaptive_kl_callback = _controller(
                adaptive_kl_target, adaptive_kl_kp, adaptive_kl_beta_min, adaptive_kl_beta_max, adaptive_kl_law
            )
        if self.adaptive_kl_callback is not None:
            self.adaptive_kl_callback.refuse_start(args.beta)
        self.task_gen = _task_generator(task_gen, env_factory, _checks.adapters(train_dataset, eval_dataset))
        ordered = bool(_checks.adapters(train_dataset))
        self._rows: Sequence[dict[str, Any]] = ()
        self._outcomes: Sequence[Any] = ()
        self._divergences: list[float] = []
        with warnings.catch_warnings():
            # Both routes are experimental in TRL; this module is bound to the release that has them.
            warnings.filterwarnings("ignore", "You are using '(rollout_func|environment_factory)'", UserWarning)
            super().__init__(
                model=model,
                reward_funcs=_groups.rewards(self, reward_funcs),
                args=args,
                train_dataset=_checks.converted(train_dataset, "train_dataset", _checks.groups_needed(args)),
                eval_dataset=_checks.converted(eval_dataset, "eval_dataset", None),
                processing_class=processing_class,
                callbacks=callbacks,
                optimizers=optimizers,
                quantization_config=quantization_config,
                peft_config=peft_config,
                rollout_func=None if rollout_group_fn is None else self._rollout,
                environment_factory=environment_factory,
            )
        if ordered:
            self.shuffle_dataset = False
        if self.adaptive_kl_callback is not None:
            self.adaptive_kl_callback.bind(self, each_step=True)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """TRL's own, with the rows at hand for the worlds, and the outcomes in the metrics."""
        if not inputs:
            raise ConfigError("a batch has no rows; the data set is empty")
        assert self.model is not None, "it is loaded"
        mode = "train" if self.model.training else "eval"
        self._rows, self._outcomes = inputs, ()
        output = super()._generate_and_score_completions(inputs)
        environments = self.environments or ()
        outcomes = [each.outcome for each in environments if hasattr(each, "outcome")] or self._outcomes
        self._note([each for each in outcomes if isinstance(each, EpisodeOutcome)], mode)
        return output

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """TRL's own; at the end of an optimizer step the controller answers the divergence of its micro-batches."""
        if self.adaptive_kl_callback is None:
            return super().training_step(model, inputs, num_items_in_batch)
        metrics = self._metrics["train"]
        before = len(metrics["kl"])
        loss = super().training_step(model, inputs, num_items_in_batch)
        self._divergences += metrics["kl"][before:]
        if self.accelerator.sync_gradients:
            found, self._divergences = self._divergences, []
            fields = self.adaptive_kl_callback.measured(sum(found) / len(found) if found else math.nan)
            for name, value in fields.items():
                metrics[name].append(value)
        return loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """TRL's own. Reporters put "train/" before a name by themselves, so only the history gets it here."""
        super().log(logs, start_time)
        entry = self.state.log_history[-1]
        fields = {name: entry.pop(name) for name in _adaptive_kl.FIELDS if name in entry}
        entry.update(_adaptive_kl.prefixed(fields))

    def _rollout(self, prompts: list[Any], trainer: GRPOTrainer) -> dict[str, Any]:
        """TRL's `rollout_func`: the groups of the rows at hand, one after the other."""
        played = _groups.played(self, self._rows)
        self._outcomes = played["episodes"]
        return played

    def _note(self, outcomes: list[EpisodeOutcome], mode: str) -> None:
        """Add the means over the episodes of all processes to the metrics."""
        table = [[float(each.success), *_measured(each), float(each.turns)] for each in outcomes if not each.fault]
        values = torch.tensor([*table], dtype=torch.float32).reshape(len(table), len(MEASURES) + 2)
        sums = [*values.sum(0).tolist(), len(table), float(len(outcomes) - len(table))]
        local = torch.tensor(sums, device=self.accelerator.device)
        totals = torch.as_tensor(self.accelerator.gather(local)).view(-1, len(sums)).sum(0).tolist()
        sound, faults = totals[-2:]
        if sound + faults == 0:
            return
        for name, total in zip(("success", *MEASURES, "turns"), totals, strict=False):
            self._metrics[mode][f"episode/{name}"].append(total / sound if sound else math.nan)
        self._metrics[mode]["episode/fault"].append(faults / (sound + faults))

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        if self.args.should_save:
            folder = Path(self._get_output_dir(trial=trial)) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
            pending = {name: [_written(value) for value in values] for name, values in self._metrics["train"].items()}
            callback = self.adaptive_kl_callback
            state = {
                "controller": None if callback is None else callback.state(),
                "first_row": _checks.first_row(self.train_dataset),
                "metrics": pending,
            }
            write_atomic(folder / STATE, json.dumps(state, allow_nan=False).encode())

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        path = Path(checkpoint) / STATE
        if not path.is_file():
            raise DataError(f"{path} is missing; the checkpoint was not written by DriftCallGRPOTrainer")
        self._refuse_between(checkpoint)
        try:
            state = json.loads(path.read_text())
            pending = {str(name): [_read(value) for value in values] for name, values in state["metrics"].items()}
            controller, first_row = state["controller"], state["first_row"]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{path} is damaged ({told(error)}); resume from an earlier checkpoint") from None
        if (controller is None) != (self.adaptive_kl_callback is None):
            raise ConfigError(f"enable_adaptive_kl is not what it was when {checkpoint} was written; set it as it was")
        if first_row != (now := _checks.first_row(self.train_dataset)):
            raise ConfigError(
                f"train_dataset begins with {now}, but with {first_row} when {checkpoint} was written; give the rows "
                "that it had"
            )
        self._metrics["train"].update(pending)
        if self.adaptive_kl_callback is not None:
            self.adaptive_kl_callback.load(controller, str(path))

    def _refuse_between(self, checkpoint: str) -> None:
        """DataError where completions were to serve further steps, which a resume cannot have."""
        done = self.state.global_step * self.args.gradient_accumulation_steps
        every = _checks.micro_batches_served(self.args)
        if done % every:
            raise DataError(
                f"{checkpoint} lies in the midst of completions that serve {every} micro-batches ({done} were done); "
                "resume from one between them, and set save_steps accordingly"
            )


def make_driftcall_grpo_trainer_cls(base_cls: type[GRPOTrainer] | None = None) -> type[DriftCallGRPOTrainer]:
    """DriftCallGRPOTrainer, over another GRPOTrainer class where one is given.

    A class made here has no name to be imported by; to have one, write `class Mine(DriftCallGRPOTrainer, Base)`.
    ConfigError for a class that is no GRPOTrainer.
    """
    if base_cls is None or issubclass(DriftCallGRPOTrainer, base_cls):
        return DriftCallGRPOTrainer
    if not issubclass(base_cls, GRPOTrainer):
        raise ConfigError(f"base_cls is {base_cls.__name__}, which is no trl.GRPOTrainer; give a subclass of it")
    if issubclass(base_cls, DriftCallGRPOTrainer):
        return base_cls
    return type(DriftCallGRPOTrainer.__name__, (DriftCallGRPOTrainer, base_cls), {})


def driftcall_grpo_trainer_methods() -> tuple[str, ...]:
    """The methods in which the original module's trainer differs from GRPOTrainer."""
    return ("__init__", "_generate_and_score_completions")


def _given_controller(callbacks: Sequence[TrainerCallback]) -> AdaptiveKLCallback | None:
    """The one among the callbacks, if any; ConfigError for several, which would work against each other."""
    found = [each for each in callbacks if isinstance(each, AdaptiveKLCallback)]
    if len(found) > 1:
        raise ConfigError(f"callbacks has {len(found)} AdaptiveKLCallbacks; beta has one controller")
    return found[0] if found else None


def _controller(target: float | None, kp: float, beta_min: float, beta_max: float, law: str) -> AdaptiveKLCallback:
    """The controller that the trainer's own arguments describe."""
    if law == "log" and kp != DEFAULT_KP:
        raise ConfigError(f'adaptive_kl_kp is {kp}; the law "log" has no gain: set adaptive_kl_law="driftcall"')
    target = BETA_KL if target is None else target
    gain = kp if law == "driftcall" else None
    return AdaptiveKLCallback(target, kp=gain, beta_min=beta_min, beta_max=beta_max, law=law)


def _task_generator(given: TaskGenerator | None, env_factory: EnvFactory | None, adapters: Sequence[Any]) -> Any:
    """The one generator of goals; ConfigError where there are several. None where only environments need it."""
    known = [*([] if given is None else [given]), *(each.task_gen for each in adapters)]
    if any(each != known[0] for each in known[1:]):
        raise ConfigError("task_gen: data sets and trainer have different ones; give one to all of them")
    if known:
        return known[0]
    return None if env_factory is None else ConciergeTasks(env_factory)


def _measured(outcome: EpisodeOutcome) -> list[float]:
    measures: Mapping[str, float] = outcome.components
    return [float(measures.get(name, 0.0)) for name in MEASURES]


def _written(value: float) -> float | None:
    return None if math.isnan(value) else value


def _read(value: float | None) -> float:
    return math.nan if value is None else float(value)
