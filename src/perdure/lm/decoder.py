"""A cached decoder for Llama, Mistral, Qwen2 and Qwen3 models that spends its time in matrix products.

Keys and values live in one preallocated tensor [layer, key or value, slot, key head, position, E]. Rows are
packed: what is fed is one list of tokens without padding, and each row stands at its own position. The running
rows are the first slots, so that all products are over plain slices; a row that ceases to run trades places.
Shapes: B rows, N tokens of all rows, T tokens of one, S positions, V vocabulary, D width, H query heads, K key
heads, G query heads a key head, E width of a head.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from perdure.core.errors import Refused
from perdure.lm import fused, sharding

TOKENS_AT_ONCE = 8192
"""Tokens fed in one pass, which bounds the memory of a pass."""
STEP_OF_ROOM = 64
"""Positions by which a cache grows at least."""


class Engine:
    """A copy of a model's weights in `dtype` (by default the model's own), and the passes over it."""

    def __init__(self, model: Any, dtype: torch.dtype | None = None):
        self._model, self._dtype = model, dtype
        self.refresh()

    def refresh(self) -> None:
        """Copy the model's present weights; Refused where it has become one that the decoder does not know."""
        if reason := fused.unsupported(self._model):
            raise Refused(f"the fast sampler can no longer run this model: {reason}; use backend: transformers")
        embedding = self._model.get_input_embeddings().weight
        self.device, self.dtype = embedding.device, self._dtype or embedding.dtype
        self.shape = fused.shape(self._model)
        self.context = self.shape.context
        with sharding.gathered(self._model):
            self.weights = fused.pack(self._model, self.dtype)
        # Under the root as the squared length is, so that the norm is one hypotenuse.
        self._least = torch.tensor((self.shape.width * self.shape.epsilon) ** 0.5, device=self.device)
        self._turns = torch.empty(0, 0, dtype=torch.complex64, device=self.device)

    def cache(self, rows: int) -> "Cache":
        """An empty cache."""
        return Cache(self, rows)

    def turns(self, positions_N: torch.Tensor, most: int) -> torch.Tensor:
        """What each token's heads are multiplied by, [N, H + 2K, E / 2]; `most` bounds the positions.

        Queries and keys turn with the position; queries also carry the scale of the scores, and values stay.
        """
        if self._turns.shape[0] < most:
            angles = torch.arange(most + STEP_OF_ROOM, device=self.device)[:, None] * self.weights.frequencies
            self._turns = torch.polar(torch.ones_like(angles), angles)
        turn_N1E = self._turns[positions_N].unsqueeze(1)
        sizes = self.shape
        heads = turn_N1E.new_empty(len(positions_N), sizes.heads + 2 * sizes.key_heads, turn_N1E.shape[-1])
        heads[:, : sizes.heads] = turn_N1E * sizes.head_width**-0.5
        heads[:, sizes.heads : -sizes.key_heads] = turn_N1E
        heads[:, -sizes.key_heads :] = 1
        return heads

    def logits(self, x_BD: torch.Tensor) -> torch.Tensor:
        """The output layer."""
        return self.weights.head(self._normed(x_BD) * self.weights.gain)

    def heads(self, layer: fused.Layer, x_ND: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        """Queries, keys and values of one layer, rotated: [N, H + 2K, E] in fp32."""
        y = layer.qkv(self._normed(x_ND)).float()
        if layer.heads_gain is not None:
            y = self._normed_heads(y.view(len(y), -1, self.shape.head_width), layer.heads_gain)
        turned = torch.view_as_complex(y.view(*turns.shape, 2)) * turns
        return torch.view_as_real(turned).flatten(-2)

    def finish(self, layer: fused.Layer, x_ND: torch.Tensor, attended_ND: torch.Tensor) -> torch.Tensor:
        """The rest of a layer after its attention, in the place of `x_ND`."""
        x_ND = layer.out.add_to(x_ND, attended_ND.to(x_ND.dtype))
        gate_up = layer.gate_up(self._normed(x_ND))
        inner = self.shape.inner
        return layer.down.add_to(x_ND, functional.silu(gate_up[:, :inner]).mul_(gate_up[:, inner:]))

    def _normed(self, x_ND: torch.Tensor) -> torch.Tensor:
        """x / sqrt(|x|^2 + D epsilon): the root-mean-square norm up to a factor that the weights hold."""
        length_N1 = torch.linalg.vector_norm(x_ND, dim=-1, keepdim=True, dtype=torch.float32)
        return x_ND / torch.hypot(length_N1, self._least).to(x_ND.dtype)

    def _normed_heads(self, y_NHE: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
        """Qwen3's norm of each query and key head."""
        qk, values = y_NHE[:, : len(gain)], y_NHE[:, len(gain) :]
        return torch.cat([qk * torch.rsqrt(qk.square().mean(-1, keepdim=True) + self.shape.epsilon) * gain, values], 1)


class Cache:
    """Keys and values of rows; see lm.sampler.Cache."""

    def __init__(self, engine: Engine, rows: int):
        self._engine = engine
        self._row_at = list(range(rows))
        self._lengths = np.zeros(rows, np.int64)
        """Cached tokens of each slot."""
        self._running = 0
        # On the CPU half precision saves no time here, and full precision costs none.
        self._dtype = torch.float32 if engine.device.type == "cpu" else engine.dtype
        self._kv = self._empty(rows, 0)

    def arrange(self, rows: Sequence[int]) -> list[int]:
        """Trade slots until `rows` stand in the first ones."""
        wanted = set(rows)
        outside = [slot for slot in range(len(wanted), len(self._row_at)) if self._row_at[slot] in wanted]
        for slot in range(len(wanted)):
            if self._row_at[slot] not in wanted:
                self._trade(slot, outside.pop())
        self._running = len(wanted)
        return self._row_at[: self._running]

    def feed(self, ids: Sequence[Sequence[int]], room: int) -> torch.Tensor:
        """Append to each running row; see lm.sampler.Cache."""
        counts = np.array([len(each) for each in ids])
        self._reserve(int((self._lengths[: self._running] + counts).max()) + room)
        if (counts == 1).all():
            return self.step(torch.tensor([each[0] for each in ids], device=self._engine.device))
        chunks, first = [], 0
        while first < len(ids):
            last = first + max(1, int((counts[first:].cumsum() <= TOKENS_AT_ONCE).sum()))
            chunks.append(self._prefill(first, ids[first:last], counts[first:last]))
            first = last
        return torch.cat(chunks)

    def step(self, ids_B: torch.Tensor) -> torch.Tensor:
        """Append one token to each running row; see lm.sampler.Cache."""
        engine, sizes, rows = self._engine, self._engine.shape, self._running
        lengths = self._lengths[:rows]
        most = int(lengths.max()) + 1
        positions_B = torch.from_numpy(lengths.copy()).to(engine.device)
        places = self._places(torch.arange(rows, device=engine.device), positions_B)
        unseen = None if (lengths == most - 1).all() else self._unseen(positions_B, most)
        turns = engine.turns(positions_B, most)
        x_BD = functional.embedding(ids_B, engine.weights.embedding)
        for index, layer in enumerate(engine.weights.layers):
            heads = engine.heads(layer, x_BD, turns)
            keys, values = self._write(index, heads, places, most, slice(0, rows))
            queries = heads[:, : sizes.heads].reshape(rows * sizes.key_heads, -1, sizes.head_width)
            queries = queries.to(self._dtype)
            if unseen is None:
                scores = torch.bmm(queries, keys.transpose(1, 2))
            else:
                scores = torch.baddbmm(unseen, queries, keys.transpose(1, 2))
            x_BD = engine.finish(layer, x_BD, torch.bmm(scores.softmax(-1), values).view(rows, -1))
        lengths += 1
        return engine.logits(x_BD)

    def retire(self, position: int) -> None:
        """Trade places with the last running row."""
        self._running -= 1
        self._trade(position, self._running)

    def repeat(self, copies: int) -> None:
        """Each slot `copies` times."""
        self._kv = self._kv.repeat_interleave(copies, 2)
        self._lengths = self._lengths.repeat(copies)
        self._row_at = [row * copies + index for row in self._row_at for index in range(copies)]
        self._running = 0

    def keep(self, rows: Sequence[int]) -> None:
        """A smaller tensor with the slots of `rows`."""
        slots = [slot for slot, row in enumerate(self._row_at) if row in set(rows)]
        self._kv = self._kv[:, :, slots]
        self._lengths = self._lengths[slots]
        self._row_at = [self._row_at[slot] for slot in slots]
        self._running = 0

    def _prefill(self, first: int, ids: Sequence[Sequence[int]], counts: np.ndarray) -> torch.Tensor:
        """Append to the slots from `first` on, packed without padding; logits after the last token of each."""
        engine, sizes, device = self._engine, self._engine.shape, self._engine.device
        lengths = self._lengths[first : first + len(ids)]
        slots_N = torch.from_numpy(np.repeat(np.arange(len(ids)), counts)).to(device)
        within_N = torch.from_numpy(np.concatenate([np.arange(count) for count in counts])).to(device)
        positions_N = within_N + torch.from_numpy(lengths.copy()).to(device)[slots_N]
        most, longest = int((lengths + counts).max()), int(counts.max())
        places = self._places(slots_N + first, positions_N)
        turns = engine.turns(positions_N, most)
        seen = self._seen(lengths, longest, most) if lengths.any() else None
        x_ND = functional.embedding(torch.tensor(np.concatenate(ids), device=device), engine.weights.embedding)
        queries = torch.zeros(len(ids), longest, sizes.heads, sizes.head_width, dtype=self._dtype, device=device)
        for index, layer in enumerate(engine.weights.layers):
            heads = engine.heads(layer, x_ND, turns)
            keys, values = self._write(index, heads, places, most, slice(first, first + len(ids)))
            queries[slots_N, within_N] = heads[:, : sizes.heads].to(self._dtype)
            attended = _attention(queries, keys, values, seen)
            x_ND = engine.finish(layer, x_ND, attended[slots_N, within_N].flatten(1))
        lengths += counts
        return engine.logits(x_ND[torch.from_numpy(counts.cumsum() - 1).to(device)])

    def _write(
        self, layer: int, heads: torch.Tensor, places: torch.Tensor, most: int, slots: slice
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store new keys and values; returns all of `slots` up to position `most`, each [B * K, S, E]."""
        flat = self._kv[layer].view(-1, heads.shape[-1])
        flat.index_copy_(0, places, heads[:, self._engine.shape.heads :].reshape(-1, heads.shape[-1]).to(self._dtype))
        keys, values = self._kv[layer, :, slots, :, :most].flatten(1, 2)
        return keys, values

    def _places(self, slots_N: torch.Tensor, positions_N: torch.Tensor) -> torch.Tensor:
        """Where the keys and values of each token lie in a layer's flat [2 * B * K * S, E]."""
        _, _, slots, key_heads, room, _ = self._kv.shape
        first_N = slots_N * (key_heads * room) + positions_N
        key_K = torch.arange(key_heads, device=slots_N.device) * room
        both = torch.cat([key_K, key_K + slots * key_heads * room])
        return (first_N[:, None] + both).flatten()

    def _unseen(self, positions_B: torch.Tensor, most: int) -> torch.Tensor:
        """Added to scores [B * K, 1, S]: minus infinity beyond each row's position."""
        beyond_BS = torch.arange(most, device=positions_B.device) > positions_B[:, None]
        added_BS = torch.zeros(beyond_BS.shape, dtype=self._dtype, device=positions_B.device)
        added_BS.masked_fill_(beyond_BS, -torch.inf)
        return added_BS.repeat_interleave(self._engine.shape.key_heads, 0).unsqueeze(1)

    def _seen(self, lengths: np.ndarray, longest: int, most: int) -> torch.Tensor:
        """Whether the new token t of a row sees position s: [B, 1, T, S]."""
        device = self._engine.device
        last_BT = torch.from_numpy(lengths[:, None] + np.arange(longest)).to(device)
        return (torch.arange(most, device=device) <= last_BT[..., None]).unsqueeze(1)

    def _reserve(self, most: int) -> None:
        """Make room for rows of `most` tokens; a cache grows by half at least, so that growing stays cheap."""
        room = self._kv.shape[4]
        if most <= room:
            return
        room = min(max(most, room + room // 2), max(most, self._engine.context))
        grown = self._empty(len(self._row_at), -(-room // STEP_OF_ROOM) * STEP_OF_ROOM)
        grown[:, :, :, :, : self._kv.shape[4]] = self._kv
        self._kv = grown

    def _empty(self, rows: int, room: int) -> torch.Tensor:
        # Zeros, since what lies beyond a row's length is multiplied by an attention of 0, and must not be NaN.
        sizes = self._engine.shape
        return torch.zeros(
            (sizes.layers, 2, rows, sizes.key_heads, room, sizes.head_width),
            dtype=self._dtype,
            device=self._engine.device,
        )

    def _trade(self, one: int, other: int) -> None:
        if one == other:
            return
        pair, swapped = [one, other], [other, one]
        most = int(self._lengths[pair].max())
        self._kv[:, :, pair, :, :most] = self._kv[:, :, swapped, :, :most]
        self._lengths[pair] = self._lengths[swapped]
        self._row_at[one], self._row_at[other] = self._row_at[other], self._row_at[one]


def _attention(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, seen: torch.Tensor | None
) -> torch.Tensor:
    """Attention of queries [B, T, H, E], scaled already, over keys and values [B * K, S, E]: [B, T, H, E].

    `seen` [B, 1, T, S]; None where rows begin here, and token t sees the first t + 1.
    """
    rows, longest, heads, _ = queries.shape
    keys, values = (each.unflatten(0, (rows, -1)) for each in (keys, values))
    group = heads // keys.shape[1]
    if seen is None:
        q = queries.transpose(1, 2)
        out = functional.scaled_dot_product_attention(q, keys, values, is_causal=True, scale=1.0, enable_gqa=group > 1)
        return out.transpose(1, 2)
    # The query heads of a key head stand as further tokens, which saves repeating keys and values.
    q = queries.unflatten(2, (-1, group)).permute(0, 2, 3, 1, 4).flatten(2, 3)
    out = functional.scaled_dot_product_attention(q, keys, values, attn_mask=seen.repeat(1, 1, group, 1), scale=1.0)
    return out.unflatten(2, (group, longest)).permute(0, 3, 1, 2, 4).flatten(2, 3)
