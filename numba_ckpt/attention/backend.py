"""What an attention backend, its metadata builder and a layer have to offer; a user writes a backend in 20 lines."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from numba_ckpt._array import Array
from numba_ckpt._check import check_int
from numba_ckpt.cache import EngineConfig, KVCacheSpec

__all__ = [
    "AttentionBackend",
    "AttentionCGSupport",
    "AttentionCGSupportInfo",
    "AttentionLayer",
    "MetadataBuilder",
    "MultipleOf",
]


class AttentionCGSupport(IntEnum):
    """Which batches a backend can be captured for in a CUDA graph; a larger value includes the smaller ones.

    Attributes
    ----------
    NEVER
        None: it waits for the device, or its launches depend on the batch.
    UNIFORM_SINGLE_TOKEN_DECODE
        Batches in which every request computes one token.
    UNIFORM_BATCH
        Batches in which every request computes the same number of tokens (drafts to verify).
    ALWAYS
        Any batch, prefills among decodes too.
    """

    NEVER = 0
    UNIFORM_SINGLE_TOKEN_DECODE = 1
    UNIFORM_BATCH = 2
    ALWAYS = 3


@dataclass(frozen=True)
class AttentionCGSupportInfo:
    """The weakest support among a model's backends, and whose it is.

    Attributes
    ----------
    min_cg_support : AttentionCGSupport
        What every backend supports.
    min_cg_attn_backend : str or None
        Name of the first backend that supports no more than that; None while nothing narrowed it.

    Examples
    --------
    >>> info = AttentionCGSupportInfo().narrow(AttentionCGSupport.UNIFORM_BATCH, "Paged")
    >>> info.narrow(AttentionCGSupport.ALWAYS, "Recurrent").min_cg_attn_backend
    'Paged'
    """

    min_cg_support: AttentionCGSupport = AttentionCGSupport.ALWAYS
    min_cg_attn_backend: str | None = None

    def narrow(self, support: AttentionCGSupport, backend: str | None) -> "AttentionCGSupportInfo":
        """Return an info tightened to `support` of `backend` if that is weaker, else this one."""
        if support < self.min_cg_support:
            return AttentionCGSupportInfo(AttentionCGSupport(support), backend)
        return self


@dataclass(frozen=True)
class MultipleOf:
    """A constraint on kernel block sizes: any multiple of `base` tokens.

    Examples
    --------
    >>> MultipleOf(16).allows(528), MultipleOf(16).allows(24)
    (True, False)
    """

    base: int

    def __post_init__(self) -> None:
        check_int("MultipleOf.base", self.base, 1)

    def allows(self, block_size: int) -> bool:
        """Say whether blocks of `block_size` tokens satisfy the constraint."""
        return block_size % self.base == 0

    def __str__(self) -> str:
        return f"multiples of {self.base}"


class MetadataBuilder(ABC):
    """Makes what the layers of one attention group read in a step.

    One per group and micro-batch, made once; micro-batches build concurrently.

    Parameters
    ----------
    spec : KVCacheSpec
        The group's spec.
    layer_names : sequence of str
        The group's layers, in order.
    config : EngineConfig
        Limits, cache, speculation and parallelism.
    kernel_block_size : int, optional
        Tokens in a block of the group's block tables; None where the group has no block table.
    num_heads : int
        Query heads of each layer on this rank; 0 for layers without any.

    Attributes
    ----------
    supports_update_block_table : bool
        Whether `update_block_table` may stand in for a second `build` of the same batch.
    has_check : bool
        Whether the class has a `check` of its own; found out when it is defined.
    num_workspace_bytes : int
        Scratch memory it needs, in bytes; 0 for none. All builders share the largest.
    """

    supports_update_block_table: ClassVar[bool] = False
    has_check: ClassVar[bool] = False
    num_workspace_bytes: int = 0
    workspace: Array | None = None

    def __init__(
        self,
        spec: KVCacheSpec,
        layer_names: Sequence[str],
        config: EngineConfig,
        kernel_block_size: int | None = None,
        num_heads: int = 0,
    ) -> None:
        self.spec = spec
        self.layer_names = tuple(layer_names)
        self.config = config
        self.kernel_block_size = kernel_block_size
        self.num_heads = num_heads

    def check(self, common: Any, **extra: Any) -> None:  # noqa: B027  (most builders refuse nothing)
        """Refuse what `build` would refuse, and change nothing; asked of all builders before the first one builds.

        A builder that keeps buffers for layers to read should have it, and so should one whose `build` may refuse.
        """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.has_check = cls.check is not MetadataBuilder.check

    @abstractmethod
    def build(self, common: Any, common_prefix_len: int = 0, **extra: Any) -> Any:
        """Make the metadata of a step from its `CommonAttentionMetadata`.

        `common_prefix_len` tokens are the same in all requests; `extra` is what the model adds for its own builders.
        """

    def build_for_cudagraph_capture(self, common: Any) -> Any:
        """Make the metadata of a dummy step whose launches are captured; by default as in any step."""
        return self.build(common)

    def get_cudagraph_support(self) -> AttentionCGSupport:
        """Return what can be captured, once it is known which code path runs; nothing unless a backend says so."""
        return AttentionCGSupport.NEVER

    def update_block_table(self, metadata: Any, block_table: Array, slot_mapping: Array) -> Any:
        """Return `metadata` of the same batch for another group with an equal spec."""
        raise NotImplementedError(f"{type(self).__name__} does not set supports_update_block_table")

    def get_workspace_buffer(self) -> Array:
        """Allocate `num_workspace_bytes` for all builders to share; NumPy bytes unless a backend overrides it."""
        return np.empty(self.num_workspace_bytes, np.uint8)

    def set_workspace_buffer(self, buffer: Array) -> None:
        """Take the shared workspace, of at least `num_workspace_bytes`."""
        self.workspace = buffer


class AttentionBackend(ABC):
    """A way to run attention (or a recurrent layer); a class that is never instantiated.

    Attributes
    ----------
    name : str
        Said in messages and reports; the class's name unless it is set.

    Examples
    --------
    >>> class SlotsBuilder(MetadataBuilder):
    ...     def build(self, common, common_prefix_len=0, **extra):
    ...         return common.slot_mapping
    ...
    ...     def get_cudagraph_support(self):
    ...         return AttentionCGSupport.ALWAYS
    >>> class Slots(AttentionBackend):
    ...     @classmethod
    ...     def builder_class(cls):
    ...         return SlotsBuilder
    ...
    ...     @classmethod
    ...     def supported_kernel_block_sizes(cls):
    ...         return (16, MultipleOf(32))
    >>> Slots.name
    'Slots'
    """

    name: ClassVar[str]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" not in cls.__dict__:
            cls.name = cls.__name__

    @classmethod
    @abstractmethod
    def builder_class(cls) -> type[MetadataBuilder]:
        """Return the class of its metadata builders."""

    @classmethod
    def supported_kernel_block_sizes(cls) -> tuple[int | MultipleOf, ...]:
        """Return the block sizes that its kernels read, in tokens; any by default."""
        return (MultipleOf(1),)

    @classmethod
    def customize_spec(cls, spec: KVCacheSpec) -> KVCacheSpec:
        """Return the cache spec that it wants instead of a layer's own."""
        return spec

    @classmethod
    def supports_device_cpu_query_lens_mismatch(cls) -> bool:
        """Say whether query lengths on the host may be upper bounds of those on the device."""
        return True


@runtime_checkable
class AttentionLayer(Protocol):
    """A layer as the plumbing sees it; layers are passed as a mapping by name, in the order in which they run.

    Attributes
    ----------
    kv_sharing_target_layer_name : str or None
        The layer whose cache this one reads, if it has none of its own.
    num_heads : int
        Query heads on this rank; 0 for a layer without any.
    """

    kv_sharing_target_layer_name: str | None
    num_heads: int

    def get_kv_cache_spec(self, config: EngineConfig) -> KVCacheSpec | None:
        """Return its cache spec, or None if it needs no cache."""

    def get_attn_backend(self) -> type[AttentionBackend]:
        """Return its backend."""

    def bind_kv_cache(self, cache: Any) -> None:
        """Keep the view of its cache, or the tuple of its states; None is handed over to take it back."""
