"""Windows of answers to scripted observations, for backends that need no world, and stand-ins for backends."""

from types import SimpleNamespace

from perdure.core.records import RolloutWindow, Transition
from perdure.lm import forward
from perdure.lm.batch import TokenBatch
from perdure.lm.conversation import Recorded
from perdure.lm.trajectory import Sampled, Stop


def window(backend, count=8, start=0, turns=2, reward=lambda step, action: 0.5, ask=lambda step: f"q{step % 3}"):
    """`count` steps of lane 0 in episodes of `turns`, answered by the backend's policy."""
    found = []
    for step in range(start, start + count):
        observation = ask(step)
        action = backend.policy.act(observation)
        ended = (step + 1) % turns == 0
        seen = Transition(
            step=step,
            observation=observation,
            action=action,
            reward=reward(step, action),
            terminated=ended,
            truncated=False,
            next_observation=ask(step + 1),
            info={"achieved_goal": step},
        )
        backend.policy.record(seen)
        if ended:
            backend.policy.begin_episode(0)
        found.append(seen)
    return RolloutWindow(found)


def shift(ending="baseline", starting="edi_spike"):
    return {
        "ending": ending, "ending_origin": ending.removesuffix("_revisit"), "starting": starting,
        "starting_origin": starting, "step": 8, "source": "oracle",
    }  # fmt: skip


def row(prompt, answer, reward=1.0, logprobs=None, **options):
    """A conversation of one answer."""
    found = Recorded(terminated=True, **options)
    found.observe(prompt)
    found.answer(Sampled(list(answer), logprobs or [-1.0] * len(answer), Stop.END)).reward = reward
    return found


class Plain:
    """What hooks may use of a backend: a policy, its parameters, the rows of a step, scores."""

    def __init__(self, policy, critic=True):
        self.policy, self.critic, self.minibatch = policy, critic, None
        self.settings = SimpleNamespace(value_coef=0.5)

    def named_parameters(self):
        found = {name: each for name, each in self.policy.model.named_parameters() if each.requires_grad}
        head = {f"v_head.{name}": each for name, each in self.policy.value_head.named_parameters()}
        return {**found, **head} if self.critic else found

    def score(self, batch: TokenBatch):
        padded = forward.pad(batch.rows, self.policy.chat.pad_id)
        head = self.policy.value_head if self.critic else None
        return forward.score(
            self.policy.model, padded.ids_BT, padded.lengths_B, value_head=head, where_BT=padded.mask_BT
        )
