"""Floor 7: small reference layers of hybrid models, which prove that a stored checkpoint can be resumed.

`short_conv`, `gated_delta` and `mamba2_scan` are layers over plain arrays; `HybridModel` is a stack of them over paged
states, driven as an engine drives one.
"""

from numba_ckpt.models.attention import KvStore, causal_attention
from numba_ckpt.models.blocks import BlockShape
from numba_ckpt.models.gated_delta import GatedDeltaResult, GatedDeltaTokens, gated_delta
from numba_ckpt.models.hybrid import HybridCaches, HybridConfig, HybridModel
from numba_ckpt.models.layer_states import LayerStates, StateSpec
from numba_ckpt.models.mamba2 import Mamba2Result, Mamba2Tokens, mamba2_recurrence, mamba2_scan
from numba_ckpt.models.short_conv import ShortConvResult, short_conv

__all__ = [
    "BlockShape",
    "GatedDeltaResult",
    "GatedDeltaTokens",
    "HybridCaches",
    "HybridConfig",
    "HybridModel",
    "KvStore",
    "LayerStates",
    "Mamba2Result",
    "Mamba2Tokens",
    "ShortConvResult",
    "StateSpec",
    "causal_attention",
    "gated_delta",
    "mamba2_recurrence",
    "mamba2_scan",
    "short_conv",
]
