"""CPU seconds of a multi-turn GRPO step in the concierge world: perdure's group learner against TRL's rollout_func.

    OMP_NUM_THREADS=1 python concierge_step.py

Needs the extra `trl`. Both train copies of one random tiny model in one process and take turns, a step each, after
one step of each to warm up. The world is led by its oracle whatever the model says, so that errands have their usual
turns and vendors' answers; every answer has the same number of tokens. TRL's rollout function is what one writes with
TRL alone: a loop over turns around the trainer's own generation (`_generate_single_turn`, transformers), all rows of
the batch at once, tokens appended, the world's masked. Both see the same errands. Medians of process time.
"""

import argparse
from typing import Any

import torch
from language_step import ALIKE, LEARNING_RATE, Ours, in_turns, reward, show

from perdure.lm.chat import ChatTemplate
from perdure.lm.groups import GroupTraining
from perdure.lm.learner import GroupLearner
from perdure.lm.objectives.table import RECIPES
from perdure.lm.policy import LanguagePolicy
from perdure.lm.sampling import Sampling
from perdure.lm.step import Optimisation
from perdure.lm.tiny import tiny_model
from perdure.lm.tokens import byte_tokenizer
from perdure.worlds.concierge.world import Concierge

GROUPS, SIZE, ANSWER, TURNS, CONTEXT = 4, 8, 32, 12, 4096


class Led(Concierge):
    """Errands of one drift as the oracle runs them; the reward is that of the characters which the model says."""

    posed: list[int] = []  # noqa: RUF012 (one list for all)
    """The seeds of all errands, in their order."""

    def __init__(self):
        super().__init__({"stage": 2}, terse=True)

    @property
    def proper_reward(self) -> bool:
        """The reward is another one here."""
        return False

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """The errand of a seed, which is noted."""
        Led.posed += [] if seed is None else [seed]
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """The oracle's turn."""
        seen, _, over, truncated, info = super().step(self.expert())
        return seen, reward(str(action)), over, truncated, info


def learner_of() -> GroupLearner:
    """Perdure's learner."""
    optimisation = Optimisation(learning_rate=LEARNING_RATE)
    training = GroupTraining(objective=RECIPES["dr_grpo"], optimisation=optimisation, turns=TURNS)
    return GroupLearner(training, policy_of, make_env=lambda lane: Led(), groups=GROUPS, group_size=SIZE)


def policy_of(seed: int) -> LanguagePolicy:
    """The tiny model as a policy whose answers end only at the limit."""
    tokenizer = byte_tokenizer()
    model = tiny_model(tokenizer, context=CONTEXT, seed=seed)
    policy = LanguagePolicy(model, tokenizer, sampling=Sampling(max_new_tokens=ANSWER), parse_actions=False)
    policy.sampler.end = -1  # type: ignore[attr-defined]
    return policy


def rollout(trainer: Any, chat: ChatTemplate) -> dict[str, Any]:
    """TRL's rollout function: the errands just posed to the other side, a generation of all open rows a turn."""
    errands = Led.posed[-GROUPS * SIZE :]
    envs = [Led() for _ in errands]
    opened = [env.reset(seed=errand)[0] for env, errand in zip(envs, errands, strict=True)]
    prompts = [chat.prompt([{"role": "user", "content": text}]) for text in opened]
    said: list[list[int]] = [[] for _ in envs]
    masks: list[list[int]] = [[] for _ in envs]
    scores = [0.0] * len(envs)
    alive = list(range(len(envs)))
    while alive:
        made, _ = trainer._generate_single_turn([prompts[i] + said[i] for i in alive], None, {}, 1)
        following = []
        for i, ids in zip(alive, made, strict=True):
            said[i] += ids
            masks[i] += [1] * len(ids)
            seen, gained, over, _, _ = envs[i].step(chat.decode(ids))
            scores[i] += gained
            if not over:
                added = chat.following(seen, ended=False)
                said[i] += added
                masks[i] += [0] * len(added)
                following.append(i)
        alive = following
    return {"prompt_ids": prompts, "completion_ids": said, "env_mask": masks, "logprobs": None, "score": scores}


def trainer_of(steps: int, folder: str) -> Any:
    """TRL's trainer, tuned, on the same model."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    tokenizer = byte_tokenizer()
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    model = tiny_model(tokenizer, context=CONTEXT, seed=0)
    model.config.eos_token_id = model.generation_config.eos_token_id = None
    chat = ChatTemplate(tokenizer)
    config = GRPOConfig(
        output_dir=folder,
        per_device_train_batch_size=GROUPS * SIZE,
        num_generations=SIZE,
        max_completion_length=ANSWER,
        max_steps=steps,
        loss_type="dr_grpo",
        scale_rewards="none",
        shuffle_dataset=False,
        **ALIKE,
    )

    def judge(completions: list[Any], score: list[float], **_: Any) -> list[float]:
        return score

    trainer = GRPOTrainer(
        model=model,
        reward_funcs=judge,
        args=config,
        train_dataset=Dataset.from_dict({"prompt": [f"errand {each}" for each in range(steps * GROUPS)]}),
        processing_class=tokenizer,
        rollout_func=lambda prompts, trainer: rollout(trainer, chat),
    )
    trainer.generation_config.eos_token_id = None
    trainer.eos_token_ids = [-1]
    return trainer


def main() -> None:
    """Measure and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    mine, theirs = in_turns(Ours(learner_of(), ANSWER), trainer_of, arguments.steps)
    print(f"concierge, stage 2, terse, {GROUPS} x {SIZE} errands, answers of {ANSWER}, {len(mine)} steps of each\n")
    show(mine, theirs)


if __name__ == "__main__":
    main()
