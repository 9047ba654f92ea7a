"""How each number of a report is defined, in a sentence or two each (W, q, a and b are `metrics.Options`)."""

SIX = {
    "reward": (
        "Reward",
        "The mean score over all steps trained under a configuration, averaged over configurations. The score is the"
        " return of each finished episode, or the reward of each step where episodes never end. An episode that"
        " straddles a shift counts in neither segment.",
    ),
    "adaptation_speed": (
        "Adaptation speed",
        "1 − T/n, where T is the number of steps until the smoothed score first holds a = 90 % of its climb from the"
        " segment's head (first W steps) to its tail (last q = 20 %), and n is the segment's length. 1 is immediate.",
    ),
    "forgetting": (
        "Forgetting",
        "At the return to a configuration: the tail of the last earlier visit minus the head of this one, before"
        " anything is relearned. Above zero is loss. Undefined where no configuration comes back.",
    ),
    "recovery_time": (
        "Recovery time",
        "Steps after a shift until the smoothed score is back at b = 95 % of the level before the shift, counted from"
        " the deepest point, and stays there for W/2. A segment that ends first is censored and enters at its length.",
    ),
    "stability": (
        "Stability",
        "1 / (1 + CV) of the smoothed score after adaptation, where CV is its standard deviation over its mean."
        " 1 is perfectly steady.",
    ),
    "performance_gap": (
        "Performance gap",
        "The configuration's upper bound minus the reward earned there, averaged over configurations. Undefined where"
        " the world offers no bounds.",
    ),
}
"""Metric name -> (heading, definition), in the order of the protocol."""

OTHERS = (
    (
        "Smoothing",
        "A causal mean over W = one twentieth of the segment's steps, never across a shift.",
    ),
    (
        "Evaluation matrix",
        "Entry (i, j) is the mean return of the policy frozen after segment i in configuration j, over evaluation"
        " episodes and seeds; the first row is the untrained policy.",
    ),
    (
        "Forgetting (frozen policy)",
        "Continual World's: the mean over configurations of the entry just after training it minus its entry in the"
        " last row. It is measured without the noise of exploration and before any relearning.",
    ),
    (
        "Effective rank",
        "exp of the entropy of the normalised singular values of the last hidden activations (Roy and Vetterli 2007):"
        " how many directions the features really use.",
    ),
    (
        "Dormant units",
        "The share of hidden units whose mean absolute activation is at most 0.025 of their layer's mean (Sokar et"
        " al. 2023).",
    ),
    (
        "Intervals and comparisons",
        "95 % bootstrap intervals over seeds. Two arms are called separable where the interval of the probability of"
        " improvement excludes one half.",
    ),
)
