"""perdure: train agents in worlds that keep changing; measure what they learned, forgot and can still learn.

    from perdure import SAC, train

    run = train(SAC(), "perdure/pendulum", total_steps=20_000)
    print(run.scores)

Names are imported when they are first used, so `import perdure` loads nothing heavy.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "perdure.agents.apo": ("APO",),
    "perdure.agents.asac": ("ASAC",),
    "perdure.agents.avg": ("AVG",),
    "perdure.agents.dqn": ("DQN",),
    "perdure.agents.ppo": ("PPO",),
    "perdure.agents.pqn": ("PQN",),
    "perdure.agents.redq": ("REDQ",),
    "perdure.agents.sac": ("SAC",),
    "perdure.agents.td3": ("TD3",),
    "perdure.build": ("evaluate_run", "run_experiment", "trace_path_for"),
    "perdure.core.capabilities": (
        "DescribesRuns",
        "capability",
        "describe_run",
        "record_from_info",
        "regime_from_info",
        "regime_origin_from_info",
    ),
    "perdure.core.errors": ("PerdureError",),
    "perdure.core.extension": ("Extension",),
    "perdure.core.protocols": ("Algorithm", "Learner", "Policy", "World"),
    "perdure.core.records": ("RegimeSchedule", "RolloutWindow", "Segment", "Spec", "Transition"),
    "perdure.core.registry": ("register",),
    "perdure.extensions.adversarial": ("AdversarialReward",),
    "perdure.extensions.behaviour": ("Churn", "PolicyConsolidation", "PreviousPolicy"),
    "perdure.extensions.centering": ("RewardCentering",),
    "perdure.extensions.consolidation": ("EWC", "MAS", "OnlineEWC", "SynapticIntelligence"),
    "perdure.extensions.diagnostics": ("Diagnostics",),
    "perdure.extensions.ensemble": ("KernelRepulsion",),
    "perdure.extensions.expert": (
        "ExpertValueMetrics",
        "ImitationLoss",
        "JSRLCurriculum",
        "OnlineBC",
        "ResidualPolicy",
    ),
    "perdure.extensions.exploration": ("EDGEExploration",),
    "perdure.extensions.injection": ("PlasticityInjection",),
    "perdure.extensions.instrumentation": ("BiasVoreDecomposition", "BiasVorePenalty", "ConditioningMetrics"),
    "perdure.extensions.offline": ("CalQL", "ConservativeQ", "TargetBC"),
    "perdure.extensions.packnet": ("PackNet",),
    "perdure.extensions.pretrain": ("BellmanPretrain", "CloningPretrain", "MCPretrain", "PhiRefresh"),
    "perdure.extensions.prior_data": ("PriorData",),
    "perdure.extensions.regularisation": ("L2Init", "ParsevalPenalty", "SpectralPenalty", "WassersteinInit"),
    "perdure.extensions.rehearsal": ("AGEM", "CLEAR"),
    "perdure.extensions.renewal": ("ContinualBackprop", "ResetMoments", "UPGD"),
    "perdure.extensions.resets": ("ReDo", "ShrinkPerturb"),
    "perdure.extensions.target_mods": ("CriticBlend", "IBRL", "LCBGatedBootstrap", "MCVarianceCorrection", "ValueBox"),
    "perdure.frozen": ("FrozenPolicy",),
    "perdure.rl.experts": ("PID",),
    "perdure.worlds.pure.experts": (
        "AcrobotExpert",
        "CartPoleExpert",
        "MountainCarContinuousExpert",
        "MountainCarExpert",
        "PendulumExpert",
    ),
    "perdure.harness.collector": ("RolloutCollector",),
    "perdure.harness.config": (
        "AlgorithmConfig",
        "EnvironmentConfig",
        "ExperimentConfig",
        "PolicyConfig",
        "RegimeConfig",
        "RewardConfig",
        "RolloutConfig",
        "RunConfig",
    ),
    "perdure.harness.export": ("export_bundle",),
    "perdure.harness.job": ("RunResult",),
    "perdure.harness.runs": ("find_runs", "load_run"),
    "perdure.harness.sweep": ("SEED", "SweepConfig", "expand_sweep", "merge"),
    "perdure.lm.context": ("CANONICAL_REGIMES", "RegimeContextEncoder", "consistency_loss", "regime_description"),
    "perdure.lm.factory": ("language_policy",),
    "perdure.lm.features": ("HashMode", "state_features"),
    "perdure.lm.fisher_samples": ("DEFAULT_SAMPLE_MIX", "select_fisher_samples"),
    "perdure.lm.hindsight": ("HERBuffer", "RelabelStrategy", "relabel_episode"),
    "perdure.lm.policy": ("LanguagePolicy",),
    "perdure.lm.token_slice": ("ActionTokens", "action_token_start"),
    "perdure.lm.value_head": ("ValueHead",),
    "perdure.metrics.advantages": ("GAEMode", "compute_gae", "episode_lengths_from"),
    "perdure.metrics.plasticity": ("effective_rank_entropy", "stable_rank"),
    "perdure.metrics.six": ("six_metrics",),
    "perdure.metrics.summary": ("summarise",),
    "perdure.report.page": ("write_report",),
    "perdure.rl.dataset": ("TransitionDataset", "concatenate"),
    "perdure.rl.feeds": ("Epochs", "Latest", "Prioritised", "Replay"),
    "perdure.rl.optim": ("Adam", "RAdam", "RMSProp"),
    "perdure.rl.recording": ("from_minari", "record"),
    "perdure.rl.reservoir": ("Reservoir",),
    "perdure.trainers.ewc": ("EWCBackend", "EWCMode", "FisherDropout", "ParameterScope", "build_parameter_filter"),
    "perdure.trainers.groups": ("GRPO", "REINFORCE", "RLOO"),
    "perdure.trainers.lcm": ("LCMBackend",),
    "perdure.trainers.ppo": ("OldPolicyPass", "PPOBackend", "RatioMode", "TokenBatch"),
    "perdure.simple": ("Trained", "load_policy", "train"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'perdure' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
