"""What a trainer of concierge episodes refuses before anything is loaded, each with its reason."""

import math
from typing import Any

from datasets import Dataset, IterableDataset

from perdure.core import capabilities
from perdure.core.errors import ConfigError, Refused
from perdure.integrations import _dataset
from perdure.integrations._dataset import EpisodeDatasetAdapter
from perdure.integrations._rollout import JsonRollout


def refuse_routes(environment_factory: Any, rollout_group_fn: Any, env_factory: Any, reward_fn_driftcall: Any) -> None:
    """ConfigError unless exactly one route is given, with all that belongs to it."""
    if (environment_factory is None) == (rollout_group_fn is None):
        both = "both are" if rollout_group_fn is not None else "neither is"
        raise ConfigError(
            f"environment_factory and rollout_group_fn: {both} given; give exactly one, environment_factory for models "
            "that call tools, rollout_group_fn for those that write JSON"
        )
    parts = {"env_factory": env_factory, "reward_fn_driftcall": reward_fn_driftcall}
    if rollout_group_fn is not None:
        for name in (name for name, part in parts.items() if part is None):
            raise ConfigError(f"rollout_group_fn is given without {name}; give both")
    for name in (name for name, part in parts.items() if part is not None and environment_factory is not None):
        raise ConfigError(
            f"{name} is given beside environment_factory, whose environments are the worlds and say the reward "
            f"themselves; leave {name} out"
        )


def refuse_settings(args: Any, rollout_group_fn: Any) -> None:
    """ConfigError for what would lose columns, tokens or exactness without a word."""
    if args.remove_unused_columns:
        raise ConfigError("remove_unused_columns is True; it removes the seeds of the episodes: leave it off")
    every, accumulated = micro_batches_served(args), args.gradient_accumulation_steps
    if args.save_strategy == "steps" and args.save_steps >= 1 and (int(args.save_steps) * accumulated) % every:
        least = every // math.gcd(every, accumulated)
        raise ConfigError(
            f"save_steps is {args.save_steps}, in the midst of completions that serve {every} micro-batches; a resume "
            f"would throw them away: save at multiples of {least} steps"
        )
    if rollout_group_fn is None:
        return
    for name in ("use_vllm", "use_transformers_continuous_batching"):
        if getattr(args, name):
            raise ConfigError(f"{name} is True, but rollout_group_fn generates by itself; use environment_factory")
    if isinstance(rollout_group_fn, JsonRollout):
        sampling = rollout_group_fn.sampling
        for name in ("temperature", "top_k", "top_p"):
            if getattr(sampling, name) != getattr(args, name):
                raise ConfigError(
                    f"{name} is {getattr(sampling, name)} in rollout_group_fn and {getattr(args, name)} in args; what "
                    "samples must be what is trained: JsonRollout.of(args)"
                )


def refuse_improper(args: Any, factories: Any) -> None:
    """Refused where advantages are divided by a group's deviation and a world's reward is the proper one."""
    grouped = args.scale_rewards == "group" or args.multi_objective_aggregation == "normalize_then_sum"
    made = [each() for each in (factories.values() if isinstance(factories, dict) else [factories])]
    worlds = [getattr(each, "world", each) for each in made]
    if grouped and any(capabilities.capability(world, "proper_reward") for world in worlds):
        raise Refused(
            "scale_rewards is 'group' (TRL's default) and the reward is the proper profile: dividing by a group's "
            "standard deviation makes over- and understated confidence pay, whatever the reward; set "
            "scale_rewards='none' (or 'batch') with multi_objective_aggregation='sum_then_normalize', or "
            "allow_improper=True"
        )


def micro_batches_served(args: Any) -> int:
    """Micro-batches that one generation of completions is for."""
    return args.steps_per_generation * args.num_iterations


def groups_needed(args: Any) -> int | None:
    """Rows that `max_steps` steps read, each the start of one group; None where max_steps sets no end."""
    if args.max_steps <= 0:
        return None
    micro_batches = args.max_steps * args.gradient_accumulation_steps
    rounds = math.ceil(micro_batches / micro_batches_served(args))
    return rounds * (args.generation_batch_size // args.num_generations)


def converted(dataset: Any, place: str, rows: int | None) -> Any:
    """A data set that TRL takes: an adapter as its rows (`rows` of them where it has no number of its own)."""
    if isinstance(dataset, EpisodeDatasetAdapter):
        if dataset.steps is None and rows is None:
            raise ConfigError(f"{place} has no end; give the adapter steps" + (", or max_steps" * (place[0] == "t")))
        return dataset.to_dataset(rows if dataset.steps is None else None)
    if isinstance(dataset, dict):
        return {name: converted(each, f"{place}[{name!r}]", rows) for name, each in dataset.items()}
    if isinstance(dataset, Dataset):
        missing = [name for name in _dataset.COLUMNS if name not in dataset.column_names]
        if missing:
            raise ConfigError(
                f"{place} lacks {', '.join(missing)}; make it with EpisodeDatasetAdapter.to_dataset() (several are put "
                "together by datasets.concatenate_datasets)"
            )
    elif dataset is not None and not isinstance(dataset, IterableDataset):
        raise ConfigError(f"{place} is a {type(dataset).__name__}; give an EpisodeDatasetAdapter or a datasets.Dataset")
    return dataset


def adapters(*given: Any) -> list[EpisodeDatasetAdapter]:
    """Those of the data sets that are adapters, also within mappings."""
    found = [each for one in given for each in (one.values() if isinstance(one, dict) else [one])]
    return [each for each in found if isinstance(each, EpisodeDatasetAdapter)]


def first_row(dataset: Any) -> dict[str, Any] | None:
    """What determines the first episode of a data set, as JSON values; None for a stream."""
    if not isinstance(dataset, Dataset):
        return None
    row = dataset[0]
    return {name: row[name] for name in _dataset.COLUMNS if name != "prompt"}
