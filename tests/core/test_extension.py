import pytest

from perdure.core.errors import Refused
from perdure.core.extension import PHASES, Extension, check_extensions


class Penalty(Extension):
    def critic_loss(self, agent_state, state, batch, ctx):
        return 0.0


class Anchor(Extension):
    needs = frozenset({"boundary"})

    def post_update(self, agent_state, state, ctx):
        return agent_state, state

    def actor_loss(self, agent_state, state, batch, ctx):
        return 0.0


def test_an_extension_that_overrides_nothing_implements_no_phase():
    assert Extension().implemented_phases() == ()


def test_overridden_phases_are_listed_in_the_order_of_the_table():
    assert Anchor().implemented_phases() == ("actor_loss", "post_update")
    assert PHASES.index("actor_loss") < PHASES.index("post_update")


def test_needs_are_the_declared_ones_and_those_the_phases_imply():
    assert Anchor().all_needs() == {"boundary", "actor"}
    assert Penalty().all_needs() == {"critic"}


def test_extensions_whose_needs_are_met_pass():
    check_extensions([Penalty(), Anchor()], frozenset({"critic", "actor", "boundary"}), "ppo")


def test_every_offender_is_named_with_what_it_lacks():
    with pytest.raises(Refused) as caught:
        check_extensions([Penalty(), Anchor()], frozenset({"actor"}), "dqn")
    assert "extensions[0] (Penalty) needs critic, which dqn does not offer" in str(caught.value)
    assert "extensions[1] (Anchor) needs boundary; choose boundary_source oracle or detector" in str(caught.value)


def test_a_repeated_extension_is_refused():
    with pytest.raises(Refused, match=r"extensions\[1\] \(Penalty\) is there twice"):
        check_extensions([Penalty(), Penalty()], frozenset({"critic"}), "dqn")
