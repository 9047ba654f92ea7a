"""Any causal `transformers` model behind the sampler's cache interface, by its own forward pass.

Rows of one lane share a cache of the library: a column a fed token, with holes (masked for ever) where a row had
none. Models whose attention counts columns (sliding windows) or that have no columns (recurrent ones) get a
lane a row, which has no holes. Shapes: B rows, T tokens, S columns, V vocabulary.
"""

import copy
import inspect
from collections.abc import Sequence
from typing import Any

import torch

from perdure.core.errors import Refused
from perdure.lm import sharding


class Engine:
    """A model and how to run it; nothing is copied, so `refresh` has nothing to do.

    Refused for a model that is dealt to several processes, whose answers would have to be of one length.
    """

    def __init__(self, model: Any):
        if sharding.parts(model):
            raise Refused("backend transformers cannot sample from a sharded model; use one that backend fast knows")
        self.model = model
        self.context = context_length(model)
        self.device = model.get_input_embeddings().weight.device
        self.together = attends_to_everything(model.config)
        accepted = inspect.signature(getattr(model, "get_base_model", lambda: model)().forward).parameters
        self.selects = "logits_to_keep" in accepted
        self.positions = "position_ids" in accepted
        self.cached = "cache" if "cache" in accepted else "past_key_values"

    def cache(self, rows: int) -> "Cache":
        """An empty cache."""
        groups = [list(range(rows))] if self.together else [[row] for row in range(rows)]
        return Cache(self, [Lane(self, group) for group in groups])

    def refresh(self) -> None:
        """The model is run as it is."""


class Cache:
    """Lanes of rows; see lm.sampler.Cache."""

    def __init__(self, engine: Engine, lanes: list["Lane"]):
        self._engine, self._lanes = engine, lanes
        self._running: list[int] = []

    def arrange(self, rows: Sequence[int]) -> list[int]:
        """Any order will do."""
        self._running = list(rows)
        return list(rows)

    def feed(self, ids: Sequence[Sequence[int]], room: int) -> torch.Tensor:
        """Run each lane that has running rows once."""
        given = dict(zip(self._running, ids, strict=True))
        logits: dict[int, torch.Tensor] = {}
        for lane in self._lanes:
            mine = {row: given[row] for row in lane.rows if row in given}
            if mine:
                logits |= lane.feed(mine)
        return torch.stack([logits[row] for row in self._running])

    def step(self, ids_B: torch.Tensor) -> torch.Tensor:
        """One token a running row."""
        return self.feed([[token] for token in ids_B.tolist()], 0)

    def retire(self, position: int) -> None:
        """Its columns become holes from now on."""
        self._running[position] = self._running[-1]
        self._running.pop()

    def repeat(self, copies: int) -> None:
        """Copy the lanes of a row each, or widen the one of all rows."""
        self._lanes = [lane for each in self._lanes for lane in each.repeated(copies, self._engine.together)]

    def keep(self, rows: Sequence[int]) -> None:
        """Narrow each lane to what it keeps."""
        for lane in self._lanes:
            lane.keep([row for row in lane.rows if row in set(rows)])
        self._lanes = [lane for lane in self._lanes if lane.rows]
        self._running = []


class Lane:
    """Rows that run through the model together, over one cache of the library."""

    def __init__(self, engine: Engine, rows: list[int]):
        from transformers import DynamicCache

        self._engine, self.rows = engine, rows
        self._cache = DynamicCache(config=engine.model.config)
        self._mask_BS = torch.zeros(len(rows), 0, dtype=torch.long, device=engine.device)
        self._lengths = dict.fromkeys(rows, 0)

    def feed(self, given: dict[int, Sequence[int]]) -> dict[int, torch.Tensor]:
        """Logits after the last of the tokens of each row in `given`; the lane's other rows are fed holes."""
        most = max(map(len, given.values()))
        ids_BT = torch.zeros(len(self.rows), most, dtype=torch.long)
        real_BT = torch.zeros_like(ids_BT)
        for index, row in enumerate(self.rows):
            new = given.get(row, ())
            ids_BT[index, : len(new)] = torch.tensor(new, dtype=torch.long)
            real_BT[index, : len(new)] = 1
        starts_B = torch.tensor([self._lengths[row] for row in self.rows])
        # A hole sees itself while it is computed, so that no row of attention weights is empty and NaN.
        seen_BS = torch.cat([self._mask_BS, torch.ones_like(real_BT).to(self._mask_BS)], 1)
        last = {row: len(new) - 1 for row, new in given.items()}
        columns = sorted(set(last.values()))
        logits_BCV = self._run(ids_BT, starts_B, seen_BS, columns)
        self._mask_BS = torch.cat([self._mask_BS, real_BT.to(self._mask_BS)], 1)
        for row, new in given.items():
            self._lengths[row] += len(new)
        return {row: logits_BCV[self.rows.index(row), columns.index(last[row])] for row in given}

    def repeated(self, copies: int, together: bool) -> list["Lane"]:
        """The lanes of `copies` rows for each of this one's."""
        if not together:
            clones = [copy.deepcopy(self._without_model()) for _ in range(copies)]
            for index, clone in enumerate(clones):
                clone._engine = self._engine
                clone._renumber([self.rows[0] * copies + index])
            return clones
        if self._mask_BS.shape[1]:
            self._cache.batch_repeat_interleave(copies)
        self._mask_BS = self._mask_BS.repeat_interleave(copies, 0)
        self._renumber([row * copies + index for row in self.rows for index in range(copies)])
        return [self]

    def keep(self, rows: list[int]) -> None:
        """Only `rows`, in the lane's order."""
        indices = torch.tensor([self.rows.index(row) for row in rows], dtype=torch.long, device=self._engine.device)
        if self._mask_BS.shape[1] and len(rows) < len(self.rows):
            self._cache.batch_select_indices(indices)
        self._mask_BS = self._mask_BS[indices]
        self.rows, self._lengths = rows, {row: self._lengths[row] for row in rows}

    def _run(
        self, ids_BT: torch.Tensor, starts_B: torch.Tensor, seen_BS: torch.Tensor, columns: list[int]
    ) -> torch.Tensor:
        """Logits [B, len(columns), V] at `columns` of the new tokens."""
        engine = self._engine
        options: dict[str, Any] = {}
        if engine.positions:
            positions_BT = starts_B[:, None] + torch.arange(ids_BT.shape[1])
            options["position_ids"] = positions_BT.clamp(max=engine.context - 1).to(engine.device)
        if engine.selects:
            alone = columns == [ids_BT.shape[1] - 1]
            options["logits_to_keep"] = 1 if alone else torch.tensor(columns, device=engine.device)
        options |= {"attention_mask": seen_BS, engine.cached: self._cache, "use_cache": True}
        training = [module for module in engine.model.modules() if module.training]
        try:
            for module in training:
                module.training = False  # No dropout while sampling.
            output = engine.model(input_ids=ids_BT.to(engine.device), **options)
        finally:
            for module in training:
                module.training = True
        return output.logits if engine.selects else output.logits[:, columns]

    def _without_model(self) -> "Lane":
        clone = copy.copy(self)
        del clone._engine
        return clone

    def _renumber(self, rows: list[int]) -> None:
        copies = len(rows) // len(self.rows)
        self._lengths = {row: self._lengths[self.rows[index // copies]] for index, row in enumerate(rows)}
        self.rows = rows


def context_length(model: Any) -> int:
    """The most tokens a row of `model` may have."""
    return int(getattr(model.config, "max_position_embeddings", None) or 2**31 - 1)


def attends_to_everything(config: Any) -> bool:
    """Whether every layer is attention over all that came before."""
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        return all(kind == "full_attention" for kind in kinds)
    return getattr(config, "sliding_window", None) is None and hasattr(config, "num_attention_heads")
