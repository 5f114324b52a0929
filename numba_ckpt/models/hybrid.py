"""A tiny hybrid language model, driven as an engine drives one: batches, block tables, checkpoints."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from numba_ckpt._check import check_array, check_int, refuse
from numba_ckpt.checkpoint import PrefillCheckpointMetadata
from numba_ckpt.errors import ArgumentTypeError
from numba_ckpt.models.attention import KvStore, causal_attention
from numba_ckpt.models.blocks import BlockShape, GatedDeltaBlock, Mamba2Block, RecurrentBlock
from numba_ckpt.models.dense import draw_weight, linear, rms_norm
from numba_ckpt.models.layer_states import LayerStates
from numba_ckpt.models.step import Step, make_step
from numba_ckpt.planning import BatchLayout

__all__ = ["HybridCaches", "HybridConfig", "HybridModel"]


@dataclass(frozen=True, slots=True)
class HybridConfig:
    """Sizes of a `HybridModel`.

    Parameters
    ----------
    state_block_size : int
        Tokens per block-table column.
    chunk_size : int
        Tokens per chunk of the Mamba2 scan.
    vocab_size : int
        Token ids are in [0, vocab_size).
    recurrent : BlockShape
        Sizes of the recurrent blocks; heads and value dim are those of attention, too.
    seed : int
        Seed of the weights.
    """

    state_block_size: int = 16
    chunk_size: int = 8
    vocab_size: int = 64
    recurrent: BlockShape = field(default_factory=lambda: BlockShape(hidden=12, heads=2, key_dim=4, value_dim=6))
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("state_block_size", "chunk_size", "vocab_size"):
            check_int(name, getattr(self, name), 1)
        if not isinstance(self.recurrent, BlockShape):
            got = type(self.recurrent).__name__
            refuse("recurrent", "a BlockShape", got, "make one from the sizes", ArgumentTypeError)


@dataclass(frozen=True, slots=True, eq=False)
class HybridCaches:
    """The memory of a step's requests.

    Parameters
    ----------
    states : sequence of LayerStates
        One pool per recurrent block, all addressed by the same block ids.
    kv_stores : sequence of KvStore
        One per row of the batch.
    """

    states: Sequence[LayerStates]
    kv_stores: Sequence[KvStore]


class HybridModel:
    """Gated delta rule, Mamba2 and attention, one residual block each, with seeded weights.

    Parameters
    ----------
    config : HybridConfig
        The sizes.

    Examples
    --------
    >>> model = HybridModel(HybridConfig())
    >>> caches = HybridCaches(model.new_states(num_blocks=2), [model.new_kv_store(8)])
    >>> batch = BatchLayout(np.array([5]), np.array([0, 5]), np.array([[1]], np.int32))
    >>> model.prefill(np.arange(5), batch, caches).shape
    (5, 12)
    """

    def __init__(self, config: HybridConfig) -> None:
        rng, shape = np.random.default_rng(config.seed), config.recurrent
        self.config = config
        self.blocks: tuple[RecurrentBlock, ...] = (GatedDeltaBlock(shape, rng), Mamba2Block(shape, rng))
        self._embedding = draw_weight(rng, config.vocab_size, shape.hidden) * np.float32(config.vocab_size**0.5)
        self._attend = draw_weight(rng, shape.hidden, 3 * shape.heads * shape.value_dim)
        self._combine = draw_weight(rng, shape.heads * shape.value_dim, shape.hidden)

    def new_states(self, num_blocks: int) -> list[LayerStates]:
        """Return one pool of `num_blocks` blocks per recurrent block, all NaN."""
        return [LayerStates(block.spec, num_blocks) for block in self.blocks]

    def new_kv_store(self, capacity: int) -> KvStore:
        """Return an empty store for a request of up to `capacity` tokens."""
        return KvStore(capacity, self.config.recurrent.heads, self.config.recurrent.value_dim)

    def prefill(
        self,
        token_ids: Any,
        batch: BatchLayout,
        caches: HybridCaches,
        checkpoint: PrefillCheckpointMetadata | None = None,
    ) -> np.ndarray:
        """Run one step, prefills and decodes alike, in one pass over all its tokens.

        Each row starts from the state in its running column (zeros where its sequence starts), leaves its running state
        in the running column after the step, and what `checkpoint` plans where it plans it.

        Parameters
        ----------
        token_ids : ndarray
            Integer [T], the rows' tokens one after the other.
        batch : BatchLayout
            The rows; a host block table.
        caches : HybridCaches
            State pools and the rows' key-value stores; both are written.
        checkpoint : PrefillCheckpointMetadata, optional
            From `PrefillCheckpointBuilder.build` for this batch.

        Returns
        -------
        ndarray
            float32 [T, hidden], the normalised residual stream.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            Token ids, lengths, stores or blocks do not fit.
        """
        step = make_step(batch, checkpoint, self.config.state_block_size, self.config.chunk_size)
        hidden = self._embed(token_ids, int(step.query_start_loc[-1]))
        self._check_caches(caches, step, np.asarray(batch.seq_lens_cpu))
        for block, states in zip(self.blocks, caches.states, strict=True):
            hidden = hidden + block(hidden, step, states)
        hidden = hidden + self._attention(hidden, step.query_start_loc, caches.kv_stores)
        return rms_norm(hidden)

    def _embed(self, token_ids: Any, num_tokens: int) -> np.ndarray:
        check_array("token_ids", token_ids, 1, "iu")
        if token_ids.size != num_tokens:
            refuse("token_ids", f"{num_tokens} tokens", token_ids.size, "pass the tokens that the batch counts")
        if ((token_ids < 0) | (token_ids >= self.config.vocab_size)).any():
            refuse("token_ids", f"ids in [0, {self.config.vocab_size})", token_ids.tolist(), "use this vocabulary")
        return self._embedding[token_ids]  # type: ignore[no-any-return]

    def _check_caches(self, caches: HybridCaches, step: Step, seq_lens: np.ndarray) -> None:
        """Refuse whatever a layer would trip over after another had written."""
        computed = (seq_lens - np.diff(step.query_start_loc)).tolist()
        stored = [store.num_tokens for store in caches.kv_stores]
        if stored != computed:
            refuse("kv_stores", f"{computed} tokens stored", stored, "pass one store per row, in batch order")
        for store, seq_len in zip(caches.kv_stores, seq_lens, strict=True):
            store.check_room(int(seq_len))
        if [pool.spec for pool in caches.states] != [block.spec for block in self.blocks]:
            refuse("states", f"the pools of {len(self.blocks)} blocks", len(caches.states), "make them with new_states")
        num_blocks = min(pool.num_blocks for pool in caches.states)
        used = np.concatenate([step.initial_blocks, step.targets.state_indices])
        if used.size and not 0 <= used.min() <= used.max() < num_blocks:
            refuse("block_table", f"block ids in [0, {num_blocks})", used.tolist(), "use the table of these pools")

    def _attention(self, hidden: np.ndarray, starts: np.ndarray, stores: Sequence[KvStore]) -> np.ndarray:
        shape = self.config.recurrent
        projected = linear(rms_norm(hidden), self._attend).reshape(-1, 3, shape.heads, shape.value_dim)
        for row, store in enumerate(stores):
            tokens = slice(starts[row], starts[row + 1])
            store.append(projected[tokens, 1], projected[tokens, 2])
        outputs = causal_attention(projected[:, 0], starts, stores)
        return linear(outputs.reshape(hidden.shape[0], -1), self._combine)
