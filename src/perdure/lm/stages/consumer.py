"""What of a document reads a trained context encoder: lm/lcm itself, or the extension latent_context."""

from collections.abc import Mapping, Sequence
from typing import Any

from perdure.core.errors import ConfigError

LCM, EXTENSION = "lm/lcm", "latent_context"


class Consumer:
    """The part of an `algorithm` section (plain values) that reads an encoder; ConfigError where there is none."""

    def __init__(self, algorithm: Mapping[str, Any]):
        self._algorithm = algorithm
        extensions: Sequence[Any] = algorithm.get("extensions") or ()
        places = [number for number, each in enumerate(extensions) if each.get("name") == EXTENSION]
        self._place = places[0] if places and algorithm["name"] != LCM else None
        if self._place is None and algorithm["name"] != LCM:
            raise ConfigError(
                f"stages.lcm is given, but nothing of the document reads an encoder; set algorithm.name to {LCM}, or "
                f"add the extension {EXTENSION}, or leave the stage out"
            )
        if self.kwargs.get("warmup"):
            raise ConfigError(f"{self.place}.warmup is given beside stages.lcm, which trains one; keep one of them")

    @property
    def place(self) -> str:
        """Where its keys stand in the document."""
        return "algorithm.kwargs" if self._place is None else f"algorithm.extensions[{self._place}].kwargs"

    @property
    def kwargs(self) -> dict[str, Any]:
        """Its keys."""
        part = self._algorithm if self._place is None else self._algorithm["extensions"][self._place]
        return dict(part.get("kwargs") or {})

    @property
    def origins(self) -> bool:
        """Whether a regime that repeats an earlier one is learned as that one."""
        return bool(self.kwargs.get("origins", self.kwargs.get("preset") != "reference"))

    @property
    def shaping(self) -> dict[str, Any]:
        """The keys that say how its encoder is built."""
        return {key: self.kwargs[key] for key in ("encoder", "hash_mode", "preset") if key in self.kwargs}

    def warmed(self, folder: str, labels: Sequence[str]) -> dict[str, Any]:
        """The `algorithm` section with the encoder of `folder`, which tells `labels` apart, as its warm-up."""
        kwargs = {**self.kwargs, "warmup": folder, "labels": list(labels)}
        if self._place is None:
            return {**self._algorithm, "kwargs": kwargs}
        extensions = list(self._algorithm["extensions"])
        extensions[self._place] = {**extensions[self._place], "kwargs": kwargs}
        return {**self._algorithm, "extensions": extensions}

    def encoder(self, labels: Sequence[str], seed: int) -> Any:
        """A fresh encoder as it will be read: of the same shape and labels."""
        from perdure.core.component import make
        from perdure.lm.context import EncoderShape, RegimeContextEncoder, reference_shape

        kwargs = self.kwargs
        shape = reference_shape() if kwargs.get("preset") == "reference" else EncoderShape()
        mode = {"hash_mode": kwargs["hash_mode"]} if kwargs.get("hash_mode") is not None else {}
        given = {**vars(shape), **(kwargs.get("encoder") or {}), **mode}
        return RegimeContextEncoder(make(EncoderShape, given, f"{self.place}.encoder"), tuple(labels), seed=seed)
