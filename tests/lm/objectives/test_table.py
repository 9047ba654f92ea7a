"""Objectives by name: what they read, and that nothing set is without effect."""

import dataclasses
import re

import pytest

from perdure.core.component import make
from perdure.core.errors import ConfigError
from perdure.lm.objectives import kl
from perdure.lm.objectives.table import ADVANTAGES, AGGREGATIONS, CHOICES, LOSSES, RECIPES, Objective, options


def test_each_function_says_what_it_reads():
    assert options(LOSSES["ppo"]) == ("clip_low", "clip_high")
    assert options(LOSSES["reinforce"]) == ()
    assert options(ADVANTAGES["gae"]) == ("gamma", "lam")
    assert options(ADVANTAGES["grpo"]) == ("scale",)
    assert options(AGGREGATIONS["constant"]) == ("length",)


def test_every_option_of_every_function_is_a_field():
    fields = {each.name for each in dataclasses.fields(Objective)}
    for table in CHOICES.values():
        for function in table.values():
            assert set(options(function)) <= fields


def test_every_advantage_loss_and_aggregation_can_be_chosen():
    for advantage in ADVANTAGES:
        for loss in LOSSES:
            for aggregation in AGGREGATIONS:
                if loss == "sequence_mean" and aggregation != "sequence_mean":
                    continue
                length = 5 if aggregation == "constant" else None
                Objective(advantage, loss, aggregation, length=length)


SETTINGS = {
    "gamma": 0.9,
    "lam": 0.9,
    "scale": "batch",
    "clip_low": 0.1,
    "clip_high": 0.1,
    "ratio_bound": 4.0,
    "ratio_cap": 2.0,
    "temperature_positive": 1.5,
    "temperature_negative": 1.5,
    "length": 9,
}


@pytest.mark.parametrize("field", ["advantage", "loss", "aggregation"])
def test_an_option_is_taken_where_it_is_read_and_refused_where_it_is_not(field):
    base = {"advantage": "dr_grpo", "loss": "reinforce", "aggregation": "token_mean"}
    for name, function in CHOICES[field].items():
        chosen = base | {field: name}
        if name == "sequence_mean" and field == "loss":
            chosen["aggregation"] = "sequence_mean"
        if name == "constant":
            chosen["length"] = 3
        for option, value in SETTINGS.items():
            if option in options(function):
                assert Objective(**{**chosen, option: value}).given(field)[option] == value
            elif option != "length" or name != "constant":
                with pytest.raises(ConfigError, match=f"^{option} is set, but nothing of"):
                    Objective(**{**chosen, option: value})


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"advantage": "grp"}, "advantage is 'grp'; did you mean 'grpo'?"),
        ({"loss": "ppoo"}, "loss is 'ppoo'; did you mean"),
        ({"aggregation": "mean"}, "aggregation is 'mean'"),
        ({"loss": "sequence_mean"}, "aggregation must be sequence_mean"),
        ({"aggregation": "constant"}, "length is missing"),
        ({"aggregation": "constant", "length": 0}, "length is 0"),
        ({"standardise": True}, "standardise is set"),
        ({"value_coefficient": 1.0}, "value_coefficient is set"),
        ({"value_clip": 0.1}, "value_clip is set"),
        ({"advantage": "gae", "gamma": 1.1}, "gamma is 1.1"),
        ({"advantage": "gae", "value_clip": -1.0}, "value_clip is -1"),
        ({"clip_low": -0.1}, "clip_low is -0.1"),
        ({"clip_high": float("nan")}, "clip_high is nan"),
        ({"loss": "cispo", "ratio_cap": 0.0}, "ratio_cap is 0"),
        ({"scale": "rows"}, "scale is 'rows'"),
        ({"entropy_coefficient": -0.1}, "entropy_coefficient is -0.1"),
        ({"old_logprobs": "mine"}, "old_logprobs is 'mine'"),
        ({"importance_cap": 2.0}, "importance_cap has no effect"),
        ({"importance_cap": 0.5, "old_logprobs": "trainer"}, "importance_cap is 0.5"),
        ({"kl": "both"}, "kl is 'both'"),
        ({"kl": "loss"}, "kl_coefficient is 0"),
        ({"kl_coefficient": 0.1}, "kl_coefficient has no effect"),
        ({"kl_estimator": "k1"}, "kl_estimator has no effect"),
        ({"kl_importance": True}, "kl_importance has no effect"),
        ({"kl_target": 0.1}, "kl_target has no effect"),
        ({"kl": "reward", "kl_coefficient": 0.1, "kl_importance": True}, "kl_importance has no effect on a reward"),
        ({"kl": "loss", "kl_coefficient": 0.1, "kl_estimator": "k1"}, "kl_estimator k1 has no gradient"),
        ({"kl": "loss", "kl_coefficient": 0.1, "kl_estimator": "k4"}, "kl_estimator is 'k4'"),
        ({"kl": "loss", "kl_coefficient": 0.1, "kl_target": -1.0}, "kl_target is -1"),
        ({"kl": "loss", "kl_coefficient": 0.1, "kl_law": kl.Law(kind="log")}, "kl_law has no effect"),
    ],
)
def test_refusals(settings, complaint):
    with pytest.raises(ConfigError, match=re.escape(complaint)):
        Objective(**settings)


def test_a_document_makes_one_and_its_problems_name_the_key():
    made = make(Objective, {"advantage": "rloo", "loss": "reinforce"}, "algorithm.objective")
    assert made == Objective("rloo", "reinforce")
    with pytest.raises(ConfigError, match=r"^algorithm\.objective\.clip_low is set, but nothing"):
        make(Objective, {"loss": "reinforce", "clip_low": 0.1}, "algorithm.objective")
    with pytest.raises(ConfigError, match=r"objective\.clip_hi is not a key here; did you mean 'clip_high'"):
        make(Objective, {"clip_hi": 0.1}, "algorithm.objective")
    made = make(Objective, {"kl": "loss", "kl_coefficient": 0.1, "kl_target": 0.2, "kl_law": {"kind": "log"}}, "x")
    assert made.kl_law == kl.Law(kind="log")


def test_defaults_are_those_of_the_parts():
    assert Objective().default("loss", "clip_high") == 0.2
    assert Objective(clip_high=0.3).default("loss", "clip_high") == 0.3
    assert Objective(loss="reinforce").default("loss", "clip_high") is None
    assert Objective(loss="gspo", aggregation="sequence_mean").default("loss", "clip_low") == 3e-4


def test_estimator_and_controller():
    fixed = Objective(kl="loss", kl_coefficient=0.1)
    assert (fixed.estimator, type(fixed.controller())) == ("k3", kl.FixedKL)
    adaptive = Objective(kl="reward", kl_coefficient=0.1, kl_target=0.05)
    assert (adaptive.estimator, adaptive.controller().coefficient) == ("k1", 0.1)
    assert adaptive.controller().target == 0.05


def test_recipes_say_what_they_need():
    assert RECIPES["ppo"].needs_values
    assert not RECIPES["ppo"].needs_groups
    assert RECIPES["grpo"].needs_groups
    assert not RECIPES["reinforce"].needs_groups
    assert {each.advantage for each in RECIPES.values()} == set(ADVANTAGES)
