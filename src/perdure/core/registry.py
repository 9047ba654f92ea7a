"""Names to import paths: the only link from a document to an implementation.

Listing and checking names imports nothing; a name is resolved when it is first used.
Plug-ins add names through `register` or through an entry point in the group
`perdure.<family>` (for example `[project.entry-points."perdure.agents"]`).
"""

import functools
from importlib import import_module, metadata
from typing import Any

from perdure.core.errors import MissingExtra, PerdureError, UnknownName, nearest

FAMILIES = (
    "agents",
    "extensions",
    "experts",
    "trainers",
    "language_extensions",
    "worlds",
    "text_worlds",
    "regimes",
    "rewards",
    "detectors",
)

_TABLES: dict[str, dict[str, str]] = {
    "agents": {
        "apo": "perdure.agents.apo:APO",
        "asac": "perdure.agents.asac:ASAC",
        "avg": "perdure.agents.avg:AVG",
        "dqn": "perdure.agents.dqn:DQN",
        "ppo": "perdure.agents.ppo:PPO",
        "pqn": "perdure.agents.pqn:PQN",
        "redq": "perdure.agents.redq:REDQ",
        "sac": "perdure.agents.sac:SAC",
        "td3": "perdure.agents.td3:TD3",
    },
    "extensions": {
        "agem": "perdure.extensions.rehearsal:AGEM",
        "bellman_pretrain": "perdure.extensions.pretrain:BellmanPretrain",
        "bias_vore_decomposition": "perdure.extensions.instrumentation:BiasVoreDecomposition",
        "bias_vore_penalty": "perdure.extensions.instrumentation:BiasVorePenalty",
        "cal_ql": "perdure.extensions.offline:CalQL",
        "churn": "perdure.extensions.behaviour:Churn",
        "clear": "perdure.extensions.rehearsal:CLEAR",
        "cloning_pretrain": "perdure.extensions.pretrain:CloningPretrain",
        "conditioning_metrics": "perdure.extensions.instrumentation:ConditioningMetrics",
        "conservative_q": "perdure.extensions.offline:ConservativeQ",
        "continual_backprop": "perdure.extensions.renewal:ContinualBackprop",
        "critic_blend": "perdure.extensions.target_mods:CriticBlend",
        "diagnostics": "perdure.extensions.diagnostics:Diagnostics",
        "edge_exploration": "perdure.extensions.exploration:EDGEExploration",
        "ewc": "perdure.extensions.consolidation:EWC",
        "expert_value_metrics": "perdure.extensions.expert:ExpertValueMetrics",
        "gail": "perdure.extensions.adversarial:AdversarialReward",
        "ibrl": "perdure.extensions.target_mods:IBRL",
        "imitation_loss": "perdure.extensions.expert:ImitationLoss",
        "jsrl_curriculum": "perdure.extensions.expert:JSRLCurriculum",
        "kernel_repulsion": "perdure.extensions.ensemble:KernelRepulsion",
        "l2_init": "perdure.extensions.regularisation:L2Init",
        "lcb_gated_bootstrap": "perdure.extensions.target_mods:LCBGatedBootstrap",
        "mas": "perdure.extensions.consolidation:MAS",
        "mc_pretrain": "perdure.extensions.pretrain:MCPretrain",
        "mc_variance_correction": "perdure.extensions.target_mods:MCVarianceCorrection",
        "online_bc": "perdure.extensions.expert:OnlineBC",
        "online_ewc": "perdure.extensions.consolidation:OnlineEWC",
        "packnet": "perdure.extensions.packnet:PackNet",
        "parseval": "perdure.extensions.regularisation:ParsevalPenalty",
        "phi_refresh": "perdure.extensions.pretrain:PhiRefresh",
        "plasticity_injection": "perdure.extensions.injection:PlasticityInjection",
        "policy_consolidation": "perdure.extensions.behaviour:PolicyConsolidation",
        "previous_policy": "perdure.extensions.behaviour:PreviousPolicy",
        "prior_data": "perdure.extensions.prior_data:PriorData",
        "redo": "perdure.extensions.resets:ReDo",
        "reset_moments": "perdure.extensions.renewal:ResetMoments",
        "residual_policy": "perdure.extensions.expert:ResidualPolicy",
        "reward_centering": "perdure.extensions.centering:RewardCentering",
        "shrink_perturb": "perdure.extensions.resets:ShrinkPerturb",
        "spectral": "perdure.extensions.regularisation:SpectralPenalty",
        "synaptic_intelligence": "perdure.extensions.consolidation:SynapticIntelligence",
        "target_bc": "perdure.extensions.offline:TargetBC",
        "upgd": "perdure.extensions.renewal:UPGD",
        "value_box": "perdure.extensions.target_mods:ValueBox",
        "wasserstein_init": "perdure.extensions.regularisation:WassersteinInit",
    },
    "experts": {
        "pid": "perdure.rl.experts:PID",
        "run": "perdure.frozen:FrozenPolicy",
        "perdure/acrobot": "perdure.worlds.pure.experts:AcrobotExpert",
        "perdure/cartpole": "perdure.worlds.pure.experts:CartPoleExpert",
        "perdure/mountain_car": "perdure.worlds.pure.experts:MountainCarExpert",
        "perdure/mountain_car_continuous": "perdure.worlds.pure.experts:MountainCarContinuousExpert",
        "perdure/pendulum": "perdure.worlds.pure.experts:PendulumExpert",
    },
    "trainers": {
        "lm/ewc": "perdure.trainers.ewc:EWCBackend",
        "lm/grpo": "perdure.trainers.groups:GRPO",
        "lm/her": "perdure.trainers.her:HERBackend",
        "lm/lcm": "perdure.trainers.lcm:LCMBackend",
        "lm/ppo": "perdure.trainers.ppo:PPOBackend",
        "lm/reinforce": "perdure.trainers.groups:REINFORCE",
        "lm/rloo": "perdure.trainers.groups:RLOO",
    },
    "language_extensions": {
        "clear": "perdure.lm.extensions.rehearsal:CLEAR",
        "ewc": "perdure.lm.extensions.consolidation:EWC",
        "hindsight": "perdure.lm.extensions.hindsight:Hindsight",
        "l2_anchor": "perdure.lm.extensions.anchors:L2Anchor",
        "l2_init": "perdure.lm.extensions.anchors:L2Init",
        "latent_context": "perdure.lm.extensions.latent_context:LatentContext",
        "previous_policy": "perdure.lm.extensions.anchors:PreviousPolicy",
        "prompt_replay": "perdure.lm.extensions.prompts:PromptReplay",
    },
    "text_worlds": {
        "perdure/arithmetic": "perdure.worlds.text.arithmetic:Arithmetic",
        "perdure/concierge": "perdure.worlds.concierge.world:Concierge",
        "perdure/orders": "perdure.worlds.text.orders:Orders",
    },
    "worlds": {
        "perdure/acrobot": "perdure.worlds.pure.acrobot:Acrobot",
        "perdure/cartpole": "perdure.worlds.pure.cartpole:CartPole",
        "perdure/mountain_car": "perdure.worlds.pure.mountain_car:MountainCar",
        "perdure/mountain_car_continuous": "perdure.worlds.pure.mountain_car:MountainCarContinuous",
        "perdure/pendulum": "perdure.worlds.pure.pendulum:Pendulum",
        "perdure/probe_constant": "perdure.worlds.probes:ConstantValue",
        "perdure/probe_observation": "perdure.worlds.probes:ValueFromObservation",
        "perdure/probe_discount": "perdure.worlds.probes:DiscountedStep",
        "perdure/probe_action": "perdure.worlds.probes:ActionValue",
        "perdure/probe_policy": "perdure.worlds.probes:ActionFromObservation",
    },
    "regimes": {
        "canonical": "perdure.regimes.providers:Canonical",
        "constant": "perdure.regimes.providers:Constant",
        "drift": "perdure.regimes.providers:Drift",
        "environment": "perdure.regimes.providers:Environment",
        "random": "perdure.regimes.providers:Random",
        "replay": "perdure.regimes.providers:Replay",
        "schedule": "perdure.regimes.providers:Schedule",
    },
    "rewards": {
        name: f"perdure.rewards.components:{target}"
        for name, target in {
            "action_validity": "ActionValidity",
            "constant": "Constant",
            "cost": "Cost",
            "env_scalar": "EnvScalar",
            "episode_completion": "EpisodeCompletion",
            "exploration": "Exploration",
            "expression": "Expression",
            "failure_event": "FailureEvent",
            "ledger_delta": "LedgerDelta",
            "ledger_level": "LedgerLevel",
            "sla": "ServiceLevel",
            "throughput": "Throughput",
            "verifier_pass": "VerifierPass",
        }.items()
    },
    "detectors": {
        "cusum": "perdure.regimes.detectors:Cusum",
        "page_hinkley": "perdure.regimes.detectors:PageHinkley",
    },
}


def register(family: str, name: str, target: str) -> None:
    """Add `name` -> "module:attribute" to a family; a name that is taken is refused."""
    table = names(family)
    if name in table:
        raise PerdureError(f"{family} {name!r} is already registered as {table[name]}; choose another name")
    module, _, attribute = target.partition(":")
    if not module or not attribute:
        raise PerdureError(f"{family} {name!r}: target {target!r} must read 'package.module:Attribute'")
    _TABLES[family][name] = target


def names(family: str) -> dict[str, str]:
    """Every name of a family with its import path, plug-ins included; imports nothing of theirs."""
    if family not in _TABLES:
        raise UnknownName(f"registry family {family!r} does not exist; {nearest(family, FAMILIES)}")
    return {**_plugins(family), **_TABLES[family]}


def check(family: str, name: str, place: str) -> None:
    """Raise UnknownName, naming `place` and the nearest name, unless `name` is registered."""
    table = names(family)
    if name not in table:
        raise UnknownName(f"{place} is {name!r}, which is not a registered name; {nearest(name, table)}")


def resolve(family: str, name: str, place: str | None = None) -> Any:
    """The class or function behind a name, imported now."""
    check(family, name, place or family)
    return load(names(family)[name], place or f"{family} {name!r}")


def load(target: str, place: str) -> Any:
    """Import "package.module:attribute"; a missing module or attribute names `place`."""
    module_name, _, attribute = target.partition(":")
    try:
        module = import_module(module_name)
    except MissingExtra:
        raise
    except ImportError as error:
        raise UnknownName(
            f"{place}: cannot import {module_name!r} ({error}); check the path and what is installed"
        ) from error
    if not attribute or not hasattr(module, attribute):
        public = [name for name in vars(module) if not name.startswith("_")]
        raise UnknownName(f"{place}: module {module_name!r} has no {attribute!r}; {nearest(attribute, public)}")
    return getattr(module, attribute)


@functools.cache
def _plugins(family: str) -> dict[str, str]:
    return {entry.name: entry.value for entry in metadata.entry_points(group=f"perdure.{family}")}
