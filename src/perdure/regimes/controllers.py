"""Controllers: they make a host environment's physics follow the regime in force.

An environment that offers the capability `set_regime(params)` is asked to do it itself. For any
other Gymnasium environment the physics attributes of the unwrapped object are set. Parameters that
a regime does not name go back to what the environment had before it was first touched.
"""

import weakref
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from perdure.core.capabilities import capability
from perdure.core.errors import ConfigError, nearest
from perdure.core.records import Params


class Controller(Protocol):
    """Something that makes an environment follow the parameters of a regime."""

    def check(self, env: Any, params: Params, place: str) -> None:
        """Raise ConfigError, naming `place`, if `env` cannot follow `params`; changes nothing."""
        ...

    def apply(self, env: Any, params: Params | None) -> None:
        """Put `params` in force from the next step on, keeping the state; None or {} is the world as it comes."""
        ...


def controller_for(env: Any) -> Controller:
    """The controller that suits an environment."""
    return CapabilityController() if capability(env, "set_regime") is not None else AttributeController()


class CapabilityController:
    """Hands the parameters to the environment's own `set_regime`, which knows what they mean."""

    def check(self, env: Any, params: Params, place: str) -> None:
        """Only numbers are checked here; names are the environment's own, which may offer `check_regime(params)`."""
        for name, value in params.items():
            _finite(value, f"{place}.{name}")
        own = capability(env, "check_regime")
        if own is not None:
            try:
                own(dict(params))
            except ConfigError as error:
                raise ConfigError(f"{place}: {error}") from None

    def apply(self, env: Any, params: Params | None) -> None:
        """Call `env.set_regime(params)`; an empty mapping means the world as it comes."""
        capability(env, "set_regime")(dict(params or {}))


class Physics(NamedTuple):
    """What may be changed in one class of Gymnasium environments."""

    names: Mapping[str, tuple[str, Callable[[float], Any]]]
    """Document name -> attribute and what is stored there."""
    derive: Callable[[Any], None] = lambda env: None
    """Recomputes the attributes that the environment's constructor worked out from others."""
    derived: tuple[str, ...] = ()
    fixed: Mapping[str, str] = {}
    """Names one would look for, with the reason why they cannot be changed."""


class AttributeController:
    """Sets physics attributes on the unwrapped environment, by document name or by attribute name.

    Document names are those of the pure worlds of the same name (`pole_length` is the full length,
    twice Gymnasium's `length`); any other environment is addressed by its attributes, which must
    exist and be numbers.
    """

    def __init__(self):
        self._originals: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()

    def check(self, env: Any, params: Params, place: str) -> None:
        """Raise ConfigError for an attribute that does not exist, is derived, fixed or no number, or given twice."""
        self._values(env.unwrapped, params, place)

    def apply(self, env: Any, params: Params | None) -> None:
        """Restore what earlier regimes changed, then set `params` and the constants derived from them."""
        target = env.unwrapped
        values = self._values(target, params or {}, "params")
        originals = self._originals.setdefault(target, {})
        for attribute in values:
            originals.setdefault(attribute, getattr(target, attribute))
        for attribute, value in {**originals, **values}.items():
            setattr(target, attribute, value)
        _physics(target).derive(target)

    def _values(self, target: Any, params: Params, place: str) -> dict[str, Any]:
        physics = _physics(target)
        values: dict[str, Any] = {}
        for name, value in params.items():
            _finite(value, f"{place}.{name}")
            attribute, stored = physics.names.get(name, (name, _as_is))
            _refuse_unsettable(target, physics, name, attribute, place)
            if attribute in values:
                raise ConfigError(f"{place}.{name} sets {attribute!r}, which another name sets too; keep one of them")
            values[attribute] = stored(value)
        return values


def _refuse_unsettable(target: Any, physics: Physics, name: str, attribute: str, place: str) -> None:
    kind = type(target).__name__
    if name in physics.fixed:
        raise ConfigError(f"{place}.{name}: {physics.fixed[name]}; choose one of {', '.join(sorted(physics.names))}")
    if attribute in physics.derived:
        raise ConfigError(f"{place}.{name} is worked out by {kind} from other constants; set those instead")
    if not hasattr(target, attribute):
        raise ConfigError(f"{place}.{name} is no attribute of {kind}; {nearest(name, _settable(target, physics))}")
    found = getattr(target, attribute)
    if name not in physics.names and not _is_number(found):
        hint = nearest(name, _settable(target, physics))
        raise ConfigError(f"{place}.{name} is a {type(found).__name__} of {kind}, not a number; {hint}")


def _settable(target: Any, physics: Physics) -> set[str]:
    return {*physics.names, *_numbers(target)} - set(physics.derived)


def _numbers(target: Any) -> list[str]:
    """Public attributes that hold a number, on the object or its classes."""
    names = {*vars(target), *(name for cls in type(target).__mro__ for name in vars(cls))}
    public = [name for name in names if not name.startswith("_") and not _is_property(target, name)]
    return [name for name in public if _is_number(getattr(target, name))]


def _is_property(target: Any, name: str) -> bool:
    return isinstance(getattr(type(target), name, None), property)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def _finite(value: Any, place: str) -> None:
    if not _is_number(value) or not np.isfinite(value):
        raise ConfigError(f"{place} is {value!r}; give a finite number")


def _physics(target: Any) -> Physics:
    """The table of the nearest known class, so that a subclass of CartPole is still a CartPole."""
    return next((_PHYSICS[cls.__name__] for cls in type(target).__mro__ if cls.__name__ in _PHYSICS), Physics({}))


def _as_is(value: float) -> float:
    return value


def _half(value: float) -> float:
    return value / 2


def _both_ways(value: float) -> list[float]:
    return [-value, 0.0, value]


def _derive_cartpole(env: Any) -> None:
    env.total_mass = env.masspole + env.masscart
    env.polemass_length = env.masspole * env.length


_PHYSICS: Mapping[str, Physics] = {
    "CartPoleEnv": Physics(
        names={
            "gravity": ("gravity", _as_is),
            "cart_mass": ("masscart", _as_is),
            "pole_mass": ("masspole", _as_is),
            "pole_length": ("length", _half),
            "force": ("force_mag", _as_is),
        },
        derive=_derive_cartpole,
        derived=("total_mass", "polemass_length"),
    ),
    "PendulumEnv": Physics(
        names={
            "gravity": ("g", _as_is),
            "mass": ("m", _as_is),
            "length": ("l", _as_is),
            "max_torque": ("max_torque", _as_is),
        }
    ),
    "AcrobotEnv": Physics(
        names={
            "link_length_1": ("LINK_LENGTH_1", _as_is),
            "link_mass_1": ("LINK_MASS_1", _as_is),
            "link_mass_2": ("LINK_MASS_2", _as_is),
            "link_com_1": ("LINK_COM_POS_1", _as_is),
            "link_com_2": ("LINK_COM_POS_2", _as_is),
            "link_moi": ("LINK_MOI", _as_is),
            "torque": ("AVAIL_TORQUE", _both_ways),
        },
        fixed={
            "gravity": "Gymnasium's Acrobot has 9.8 in its equations",
            "link_length_2": "the second link's length enters no equation of Acrobot",
        },
    ),
    "MountainCarEnv": Physics(names={"force": ("force", _as_is), "gravity": ("gravity", _as_is)}),
    "Continuous_MountainCarEnv": Physics(
        names={"power": ("power", _as_is)},
        fixed={"gravity": "Gymnasium's continuous mountain car has 0.0025 in its equations"},
    ),
}
