"""Floor 7: small reference layers of hybrid models, which prove that a stored checkpoint can be resumed."""

from numba_ckpt.models.gated_delta import GatedDeltaResult, GatedDeltaTokens, gated_delta
from numba_ckpt.models.mamba2 import Mamba2Result, Mamba2Tokens, mamba2_recurrence, mamba2_scan
from numba_ckpt.models.short_conv import ShortConvResult, short_conv

__all__ = [
    "GatedDeltaResult",
    "GatedDeltaTokens",
    "Mamba2Result",
    "Mamba2Tokens",
    "ShortConvResult",
    "gated_delta",
    "mamba2_recurrence",
    "mamba2_scan",
    "short_conv",
]
