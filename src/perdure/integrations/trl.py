"""DriftCall's trainer on TRL: concierge episodes as data, two routes of rollouts, an adaptive KL weight.

    from trl import GRPOConfig
    from perdure.integrations.trl import ConciergeTasks, DriftCallGRPOTrainer, DriftCallToolEnv, EpisodeDatasetAdapter

Needs the extra `trl`: pip install 'perdure[trl]'. What is here, and what it owes the module it supersedes, stands in
docs/trl.md.
"""

from perdure.integrations import _required  # noqa: F401 (refuses to load without the extra)
from perdure.integrations._adaptive_kl import (
    DEFAULT_BETA_MAX,
    DEFAULT_BETA_MIN,
    DEFAULT_KP,
    AdaptiveKLCallback,
)
from perdure.integrations._dataset import AdapterRecord, EpisodeDatasetAdapter
from perdure.integrations._environment import DriftCallToolEnv
from perdure.integrations._episodes import (
    BETA_KL,
    PINNED_SYSTEM_PROMPT,
    ConciergeTasks,
    EnvFactory,
    EpisodeOutcome,
    EpisodeSampler,
    GoalSpec,
    LanguageCode,
    RewardFn,
    RolloutGroupFn,
    TaskGenerator,
    render_initial_prompt,
)
from perdure.integrations._rollout import JsonRollout, driftcall_reward
from perdure.integrations._trainer import (
    DriftCallGRPOTrainer,
    driftcall_grpo_trainer_methods,
    make_driftcall_grpo_trainer_cls,
)

__all__ = [
    "BETA_KL",
    "DEFAULT_BETA_MAX",
    "DEFAULT_BETA_MIN",
    "DEFAULT_KP",
    "PINNED_SYSTEM_PROMPT",
    "AdapterRecord",
    "AdaptiveKLCallback",
    "ConciergeTasks",
    "DriftCallGRPOTrainer",
    "DriftCallToolEnv",
    "EnvFactory",
    "EpisodeDatasetAdapter",
    "EpisodeOutcome",
    "EpisodeSampler",
    "GoalSpec",
    "JsonRollout",
    "LanguageCode",
    "RewardFn",
    "RolloutGroupFn",
    "TaskGenerator",
    "driftcall_grpo_trainer_methods",
    "driftcall_reward",
    "make_driftcall_grpo_trainer_cls",
    "render_initial_prompt",
]
