"""Group learners: GRPO and RLOO compare the episodes of one start, REINFORCE all episodes of an update."""

from typing import ClassVar

from perdure.core.component import component
from perdure.lm.groups import GroupTraining
from perdure.lm.objectives.table import RECIPES, Objective


@component
class GRPO(GroupTraining):
    """Group relative policy optimisation (Shao et al. 2024, arXiv 2402.03300).

    Its relatives differ in `objective` alone; `recipe` names them: dr_grpo, dapo, gspo, cispo, sapo and maxrl.
    """


@component
class RLOO(GroupTraining):
    """REINFORCE with the mean of the group's others as baseline (Ahmadian et al. 2024, arXiv 2402.14740)."""

    objective: Objective = RECIPES["rloo"]


@component
class REINFORCE(GroupTraining):
    """REINFORCE++: returns standardised over the whole update (Hu et al. 2025, arXiv 2501.03262).

    Groups may be of one episode, so that any text world will do, also one that never ends and cannot be copied.
    """

    objective: Objective = RECIPES["reinforce"]

    default_group_size: ClassVar[int] = 1
