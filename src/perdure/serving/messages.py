"""What clients send and receive, as OpenEnv's models: actions, observations, and what a reset may ask for."""

from typing import Annotated, Any, Literal, Self

from openenv.core.env_server.types import Action, Observation
from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from perdure.core.jsontext import SEARCHED
from perdure.worlds.concierge import protocol, records
from perdure.worlds.concierge.records import MAX_TURNS

MOST_SEED = 2**53 - 1
"""The largest whole number that every JSON reader takes exactly."""
Language = Literal["hi", "ta", "kn", "en", "hinglish"]
ActionType = Literal["tool_call", "speak", "clarify", "probe_schema", "report_drift", "submit", "abort"]
Share = Annotated[float, Field(ge=0, le=1)]


class ConciergeAction(Action):
    """One turn: `text` as a model said it, which the server's protocol reads, or the fields of an action.

    What does not have this schema is refused and costs nothing. What has it and still is no action (text without one,
    fields that its type does not take, a tool that there is not) costs the turn.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    text: str | None = Field(None, max_length=SEARCHED, description="An answer as a model gives it.")
    action_type: ActionType | None = None
    tool_name: str | None = Field(None, max_length=64, description="A tool, or for probe_schema a vendor.")
    tool_args: dict[str, Any] | None = None
    message: str | None = Field(None, max_length=protocol.MOST_MESSAGE, description="Words to the user.")
    confidence: Share | None = Field(None, description="Of submit: the probability of having got it right.")
    rationale: str | None = Field(None, max_length=protocol.MOST_RATIONALE)
    domain: str | None = Field(None, max_length=64, description="Of report_drift: whose contract changed.")
    kind: Literal["schema", "policy", "tnc", "pricing", "auth"] | None = None

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        fields = self._fields()
        if (self.text is None) == (self.action_type is None) or (self.text is not None and fields):
            raise PydanticCustomError("one_form", "give text alone, or action_type with its fields")
        return self

    def said(self) -> str | records.Action:
        """What the world is told."""
        return self.text if self.text is not None else records.Action(**self._fields())

    def _fields(self) -> dict[str, Any]:
        return {name: value for name in records.Action._fields if (value := getattr(self, name)) is not None}


class ConciergeObservation(Observation):
    """What the agent sees of a turn. At the end, metadata holds what the reward is made of."""

    text: str = Field(description="The turn in words: the user's, a vendor's answer, what was wrong, turns left.")
    turn: int = Field(ge=0, description="Turns taken.")
    budget_remaining: int = Field(ge=0, description="Turns left.")


class ConciergeOpening(ConciergeObservation):
    """What the agent sees before its first turn."""

    tools: list[dict[str, Any]] = Field(description="The tools as published: functions with JSON Schemas.")


class ResetOptions(BaseModel):
    """What a reset may ask for: a lane by `seed`, or a task by `split` and `index`; neither draws a seed."""

    model_config = ConfigDict(extra="forbid", strict=True)

    seed: int | None = Field(None, ge=0, le=MOST_SEED)
    episode_id: str | None = Field(None, min_length=1, max_length=255)
    split: Literal["train", "validation", "probe"] | None = None
    index: int | None = Field(None, ge=0, le=MOST_SEED)
    stage: int | None = Field(None, ge=1, le=max(MAX_TURNS))
    language_weights: dict[Language, Share] | None = None

    @model_validator(mode="after")
    def _one_task(self) -> Self:
        if (self.split is None) != (self.index is None):
            raise PydanticCustomError("one_task", "split and index go together")
        if self.split is not None and (self.seed is not None or self.stage is not None):
            raise PydanticCustomError("one_task", "a task of a split has its own seed and stage; leave them out")
        weights = self.language_weights
        if weights is not None and abs(sum(weights.values()) - 1) > 1e-6:
            raise PydanticCustomError("weights", "language_weights must sum to 1")
        return self

    def regime(self) -> dict[str, float]:
        """The world's parameters that it sets."""
        weights = {f"language_{name}": weight for name, weight in (self.language_weights or {}).items()}
        return weights if self.stage is None else {"stage": self.stage, **weights}
