"""Real trainers of both routes that note what they are given and give, with models that speak at random or by heart."""

import functools

import numpy as np
import torch
from trl import GRPOConfig

from perdure.integrations import _rollout, trl
from perdure.lm.trajectory import Sampled, Stop
from perdure.worlds.concierge.world import Concierge

TERSE = functools.partial(Concierge, terse=True)


class Watched(trl.DriftCallGRPOTrainer):
    """Notes every batch of rows, every output, the beta of each loss, and the reports of each log."""

    def __init__(self, *args, **kwargs):
        self.batches, self.outputs, self.betas, self.reported = [], [], [], []
        super().__init__(*args, **kwargs)

    def _generate_and_score_completions(self, inputs):
        self.batches.append([dict(row) for row in inputs])
        output = super()._generate_and_score_completions(inputs)
        self.outputs.append(output)
        return output

    def _compute_loss(self, model, inputs):
        if model.training:
            self.betas.append(self.beta)
        return super()._compute_loss(model, inputs)


def variety(completion_ids, **_):
    """A reward that differs from answer to answer: the share of even tokens."""
    return [float(np.mean([token % 2 == 0 for token in ids])) for ids in completion_ids]


def adapter(tokenizer, env_factory=TERSE, **options):
    """Rows of stage 1 in English and Hinglish."""
    given = {
        "task_gen": trl.ConciergeTasks(env_factory),
        "env_factory": env_factory,
        "stage": 1,
        "stage_base_seed": 1_000_000,
        "language_weights": {"en": 0.5, "hinglish": 0.5},
        "tokenizer": tokenizer,
    }
    return trl.EpisodeDatasetAdapter(**(given | options))


def settings(folder, **options):
    """Settings for a CPU: groups of two, two groups a step."""
    defaults = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "per_device_eval_batch_size": 2,
        "num_generations": 2,
        "max_steps": 10,
        "max_completion_length": 24,
        "learning_rate": 0.02,
        "lr_scheduler_type": "constant",
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "bf16": False,
        "activation_checkpointing": False,
        "disable_tqdm": True,
        "log_level": "error",
        "beta": 0.04,
        "scale_rewards": "none",
        "seed": 1,
    }
    return GRPOConfig(**(defaults | options))


OWN = (
    "reward_funcs", "train_dataset", "eval_dataset", "callbacks", "peft_config", "environment_factory", "env_factory",
    "rollout_group_fn", "reward_fn_driftcall", "task_gen", "enable_adaptive_kl", "adaptive_kl_target", "adaptive_kl_kp",
    "adaptive_kl_beta_min", "adaptive_kl_beta_max", "adaptive_kl_law", "allow_improper",
)  # fmt: skip
"""Arguments of the trainer; what else `build` is given are settings."""


def build(route, model, tokenizer, folder, kind=Watched, **options):
    """A trainer of a route that learns something: world rewards and `variety`, the published law of beta."""
    own = {name: options.pop(name) for name in OWN if name in options}
    args = settings(folder, **options)
    given = {"reward_funcs": [variety], "adaptive_kl_law": "driftcall", "train_dataset": adapter(tokenizer)}
    if route == "tools":
        given |= {"environment_factory": tools}
    else:
        given |= {
            "rollout_group_fn": trl.JsonRollout.of(args, max_turn_tokens=8),
            "env_factory": TERSE,
            "reward_fn_driftcall": trl.driftcall_reward,
        }
    given |= own
    return kind(model, args=args, processing_class=tokenizer, **given)


tools = functools.partial(trl.DriftCallToolEnv, functools.partial(Concierge, protocol="native", terse=True))


class ToolOracle(Watched):
    """Calls the tools that the oracle calls: TRL's generation is replaced, its tool loop and its masks are not."""

    def _generate_single_turn(self, prompt_ids, images, multimodal_fields, num_generations, **_):
        if len(prompt_ids) == len(self.environments):
            self.speaking = list(range(len(prompt_ids)))
        rows, said = self.speaking, []
        for row in rows:
            environment = self.environments[row]
            call = None if environment.closed else environment.world.expert()
            said.append("Done.<|im_end|>" if call is None else f"<tool_call>\n{call}\n</tool_call><|im_end|>")
        self.speaking = [row for row, text in zip(rows, said, strict=True) if text.startswith("<tool_call>")]
        return [self.processing_class(text, add_special_tokens=False)["input_ids"] for text in said], None


class JsonOracle(_rollout.JsonRollout):
    """Writes the actions that the oracle takes: the sampler is replaced, worlds, tokens and masks are not."""

    def __call__(self, *, env_factory, **given):
        self.worlds = []

        def make():
            self.worlds.append(env_factory())
            return self.worlds[-1]

        return super().__call__(env_factory=make, **given)

    def _voice(self, model, tokenizer):
        speaking = ScriptedSampler(self.worlds, tokenizer)
        return super()._voice(model, tokenizer)._replace(sampler=speaking)


class ScriptedSampler:
    """A sampler and its only session."""

    def __init__(self, worlds, tokenizer):
        self.worlds, self.tokenizer = worlds, tokenizer

    def open(self, prompts, copies=1):
        self.lengths = [len(prompts[0])] * copies
        return self

    def keep(self, rows):
        pass

    def length(self, row):
        return self.lengths[row]

    def append(self, row, ids):
        self.lengths[row] += len(ids)

    def generate(self, rows, sampling, uniforms):
        said = [self.tokenizer(self.worlds[row].expert() + "<|im_end|>")["input_ids"] for row in rows]
        for row, ids in zip(rows, said, strict=True):
            self.append(row, ids)
        return [Sampled(ids, [-1.0] * len(ids), Stop.END) for ids in said]


def weights(trainer):
    """All parameters as one vector."""
    return torch.cat([each.detach().flatten() for each in trainer.model.parameters()])
