"""CPU seconds of a whole GRPO step, rollouts and update: perdure's group learner against TRL's GRPOTrainer.

    OMP_NUM_THREADS=1 PYTHONPATH=../src python language_step.py --size tiny
    OMP_NUM_THREADS=1 PYTHONPATH=../src python language_step.py --size smollm2 --model FOLDER --precision bf16

Needs TRL and peft beside perdure's own packages. The two train copies of one model in one process and take turns,
a step each, after one step of each to warm up. Both see prompts of the same tokens and sample the same number of
tokens, since no answer ends before the limit. TRL is tuned: no autocast, no gradient checkpointing, no reference
model, one iteration a generation, generation by transformers; what it does between steps (data loader, logs) is not
counted. Medians of process time, so that other programs matter little.
"""

import argparse
import dataclasses
import functools
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from perdure.core.records import RegimeSchedule, Segment
from perdure.lm import learner, loading
from perdure.lm.groups import GroupTraining
from perdure.lm.learner import GroupLearner
from perdure.lm.objectives.table import RECIPES
from perdure.lm.policy import LanguagePolicy
from perdure.lm.sampling import Sampling
from perdure.lm.step import Optimisation

LEARNING_RATE = 1e-5
ALIKE: dict[str, Any] = {
    "learning_rate": LEARNING_RATE,
    "lr_scheduler_type": "constant",
    "beta": 0.0,
    "bf16": False,
    "use_cpu": True,
    "gradient_checkpointing": False,
    "logging_strategy": "no",
    "save_strategy": "no",
    "report_to": "none",
    "disable_tqdm": True,
}
"""Arguments of every GRPOConfig: TRL's trainer does what perdure's learner does, and nothing beside it."""


class Setting(NamedTuple):
    """What a step consists of."""

    name: str
    model: str
    groups: int
    size: int
    answer: int
    """Tokens of every answer."""
    observation: Callable[[int], str]
    """The text of a prompt, of one length in tokens."""
    lora: loading.LoRA | None = None


def _pair(seed: int) -> str:
    first, second = divmod(seed % 100, 10)
    return f"sum {first} and {second} ="


def _story(seed: int) -> str:
    first, second = divmod(seed % 100, 10)
    facts = " ".join(f"The box number {each} holds {each} red balls and {9 - each} blue ones." for each in range(1, 5))
    return f"{facts} Tell me a short story about {first} red balls and {second} blue ones."


SETTINGS = {
    "tiny": Setting("tiny", loading.TINY, 8, 8, 32, _pair),
    "smollm2": Setting("smollm2", loading.SMOLLM2, 2, 4, 48, _story, loading.LoRA(target=("q_proj", "v_proj"))),
}


class Asks:
    """A world of one turn: a text by the seed, and the share of the answer's characters below "n" as reward."""

    def __init__(self, observation: Callable[[int], str]):
        self._observation = observation

    def reset(self, *, seed: int = 0, options: Any = None) -> tuple[str, dict[str, Any]]:
        """The text of `seed`."""
        return self._observation(seed), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """The end, with the reward."""
        return "", reward(action), True, False, {}

    def close(self) -> None:
        """Nothing is held."""


def reward(text: str) -> float:
    """The share of characters below "n"."""
    return float(np.mean([character < "n" for character in text])) if text else 0.0


class Ours:
    """Perdure's learner, whose answers have `tokens` tokens: `step()` plays and trains one update."""

    def __init__(self, made: GroupLearner, tokens: int):
        self.learner, self.tokens = made, tokens
        self.state = made.init((0,))
        self.schedule = RegimeSchedule((Segment("only", "only", 0, 10**6),))
        self.spent: dict[str, float] = {}
        learner.play = timed(learner.play, self.spent, "rollouts")
        backend = self.state[0].backend
        backend.update = timed(backend.update, self.spent, "update")

    def step(self) -> float:
        """CPU seconds of one update."""
        start = time.process_time()
        _, _, metrics = self.learner.advance(self.state, self.schedule, 1)
        cost = time.process_time() - start
        assert float(np.ravel(metrics["rollout/answer_tokens"])[0]) == self.tokens, "an answer ended early"
        return cost


def learner_of(setting: Setting, precision: str) -> GroupLearner:
    """Perdure's learner of a setting."""
    objective = RECIPES["dapo"]
    if precision == "bf16":  # The sampler rounds otherwise than the trainer, so that the ratios need the trainer's own.
        objective = dataclasses.replace(objective, old_logprobs="trainer", importance_cap=2.0)
    training = GroupTraining(objective=objective, optimisation=Optimisation(learning_rate=LEARNING_RATE), turns=1)
    return GroupLearner(
        training,
        functools.partial(policy_of, setting, precision),
        make_env=lambda lane: Asks(setting.observation),
        groups=setting.groups,
        group_size=setting.size,
    )


def policy_of(setting: Setting, precision: str, seed: int) -> LanguagePolicy:
    """The model, adapted where the setting says so, as a policy whose answers end only at the limit."""
    loaded = loading.load(setting.model)
    model = loaded.model.to(torch.bfloat16 if precision == "bf16" else torch.float32)
    if setting.lora is not None:
        model = loading.adapted(model, setting.lora, seed)
    sampling = Sampling(max_new_tokens=setting.answer)
    policy = LanguagePolicy(model, loaded.tokenizer, sampling=sampling, parse_actions=False)
    policy.sampler.end = -1  # type: ignore[attr-defined]
    return policy


def timed(function: Callable[..., Any], spent: dict[str, float], name: str) -> Callable[..., Any]:
    """The function, which notes the CPU seconds of its last call."""

    @functools.wraps(function)
    def measured(*arguments: Any, **options: Any) -> Any:
        start = time.process_time()
        try:
            return function(*arguments, **options)
        finally:
            spent[name] = time.process_time() - start

    return measured


def trainer_of(setting: Setting, precision: str, prompts: list[str], steps: int, folder: str) -> Any:
    """TRL's trainer, tuned, on the same model."""
    import peft
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    loaded = loading.load(setting.model)
    loaded.tokenizer.model_input_names = ["input_ids", "attention_mask"]
    model = loaded.model.to(torch.bfloat16 if precision == "bf16" else torch.float32)
    model.config.eos_token_id = model.generation_config.eos_token_id = None
    adapter = setting.lora and peft.LoraConfig(
        r=setting.lora.r,
        lora_alpha=int(setting.lora.alpha),
        target_modules=list(setting.lora.target),
        task_type="CAUSAL_LM",
    )
    rows = setting.groups * setting.size
    config = GRPOConfig(
        output_dir=folder,
        per_device_train_batch_size=rows,
        num_generations=setting.size,
        max_completion_length=setting.answer,
        max_steps=steps,
        num_iterations=1,
        **ALIKE,
    )

    def judge(completions: list[str], **_: Any) -> list[float]:
        return [reward(text) for text in completions]

    trainer = GRPOTrainer(
        model=model,
        reward_funcs=judge,
        args=config,
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        processing_class=loaded.tokenizer,
        peft_config=adapter,
    )
    trainer.generation_config.eos_token_id = None
    trainer.eos_token_ids = [-1]
    return trainer


def compare(setting: Setting, precision: str, steps: int) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
    """Costs of each step of ours and of TRL's by part: step, rollouts, update."""
    ours = Ours(learner_of(setting, precision), setting.answer)
    chat = ours.state[0].backend.policy.chat
    ids = [chat.prompt([{"role": "user", "content": setting.observation(seed)}]) for seed in range(64)]
    prompts = [chat.tokenizer.decode(each) for each in ids]
    assert [chat.tokenizer(each)["input_ids"] for each in prompts] == ids, "TRL would see other tokens"
    print(f"prompts of {sorted({len(each) for each in ids})} tokens, answers of {setting.answer}", flush=True)
    return in_turns(ours, functools.partial(trainer_of, setting, precision, prompts), steps)


def in_turns(
    ours: Ours, make_trainer: Callable[[int, str], Any], steps: int
) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
    """Costs of `steps` steps of ours and of the trainer `make_trainer(steps, folder)`, after one of each to warm up."""
    from transformers import TrainerCallback

    mine: list[dict[str, float]] = []
    theirs: list[dict[str, float]] = []
    spent: dict[str, float] = {}

    class Turns(TrainerCallback):
        def on_train_begin(self, *_: Any, model: Any, **__: Any) -> None:
            # The trainer has just given the model its tokenizer's end again.
            model.config.eos_token_id = model.generation_config.eos_token_id = None

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            mine.append({"step": ours.step(), **ours.spent})
            self.start = time.process_time()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            whole = time.process_time() - self.start
            theirs.append({"step": whole, "rollouts": spent["rollouts"], "update": whole - spent["rollouts"]})

    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(steps + 1, folder)
        trainer._generate_and_score_completions = timed(trainer._generate_and_score_completions, spent, "rollouts")
        trainer.add_callback(Turns())
        trainer.train()
    return mine[1:], theirs[1:]


def show(mine: list[dict[str, float]], theirs: list[dict[str, float]]) -> None:
    """Print a Markdown table of medians and ratios."""
    print("| part | perdure, CPU-s | TRL | ratio | range of ratios |\n|---|---|---|---|---|")
    for part in ("rollouts", "update", "step"):
        ours, other = [each[part] for each in mine], [each[part] for each in theirs]
        ratios = [a / b for a, b in zip(ours, other, strict=True)]
        a, b = statistics.median(ours), statistics.median(other)
        print(f"| {part} | {a:.3f} | {b:.3f} | {a / b:.2f} | {min(ratios):.2f} to {max(ratios):.2f} |")


def main() -> None:
    """Measure and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SETTINGS, default="tiny")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--model", help="a folder with the model, where its package is not installed")
    parser.add_argument("--steps", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    setting = SETTINGS[arguments.size]
    setting = setting._replace(model=arguments.model or setting.model)
    mine, theirs = compare(setting, arguments.precision, arguments.steps)
    print(f"{setting.name}, {arguments.precision}, {setting.groups} x {setting.size}, {len(mine)} steps of each\n")
    show(mine, theirs)


if __name__ == "__main__":
    main()
