"""What the tests of this folder watch: what JAX traces and compiles, and what stands in a program and in code."""

import ast
import contextlib
import re
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from perdure.core.component import component
from perdure.rl import loop
from perdure.rl import schedule as schedules
from perdure.rl import state as states

SOURCES = Path(__file__).parents[2] / "src" / "perdure"
TRACED = "jaxpr_trace_duration"
COMPILED = "jaxpr_to_mlir_module_duration"


@contextlib.contextmanager
def heard(ending):
    """The functions for which JAX tells of an event while the block runs."""
    functions = []

    def listen(name, seconds, **known):
        if name.endswith(ending):
            functions.append(known.get("fun_name"))

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield functions
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


@component
class Always:
    """An expert of the clockwork that does the same always; 4 of its box is .5 to an agent."""

    def __call__(self, obs):
        return jnp.full((*obs.shape[:-1], 1), 4.0)


def begun(trainer, tiny, data=()):
    """Shapes of the state before the first step of one seed, and of the schedule."""
    plan = schedules.traced(tiny.STILL, trainer.world)
    numbers = states.numbers((0,), trainer.n_envs)
    return jax.eval_shape(partial(loop.init, trainer), numbers, plan, data), plan


def program(made, tiny):
    """The traced program of a learner."""
    trainer, data = made.trainer, made.data
    state, plan = begun(trainer, tiny, data)
    return jax.make_jaxpr(partial(loop.advance, trainer))(state, plan, np.int32(1), np.int32(1), data)


def code_words(path):
    """Every word of a module's code: identifiers, imports, and the words of its texts, docstrings aside."""
    found = set()
    tree = ast.parse(path.read_text())
    documents = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        texts = [getattr(node, name, None) for name in ("id", "attr", "arg", "name", "module")]
        if isinstance(node, ast.Constant) and id(node) not in documents:
            texts.append(node.value)
        for text in texts:
            found.update(re.findall(r"\w+", text) if isinstance(text, str) else ())
    return found
