"""The layer that a replay computes: a short convolution into a gated delta rule, real but tiny, on the host.

A token's input depends on its id alone, so that equal tokens give equal inputs. All arithmetic is one token after the
other in float32, by operations that round the same wherever a prefill is cut: resumed and cold runs agree to the bit.
"""

from typing import NamedTuple

import numpy as np

from numba_ckpt._jit import host_loop, uint64
from numba_ckpt.models.gated_delta import GatedDeltaTokens, gated_delta
from numba_ckpt.models.short_conv import short_conv

__all__ = ["CHANNELS", "STATE_LEN", "STATE_SHAPE", "LayerModel", "LayerStates"]

CHANNELS = 8
"""Channels of the convolution."""
STATE_LEN = 3
"""Tokens of a convolution window: the width of 4, less the current token."""
STATE_SHAPE = (1, CHANNELS, CHANNELS)
"""Heads, key dim and value dim of a recurrent state."""


class LayerStates(NamedTuple):
    """What a pass leaves behind, float32.

    Attributes
    ----------
    final_windows : ndarray
        [N, STATE_LEN, CHANNELS], each row's last inputs.
    final_states : ndarray
        [N, *STATE_SHAPE], the recurrent state after each row.
    checkpoint_states : ndarray
        [checkpoints, *STATE_SHAPE], NaN where the offset is 0.
    """

    final_windows: np.ndarray
    final_states: np.ndarray
    checkpoint_states: np.ndarray


class LayerModel:
    """A convolution and a recurrence with seeded weights.

    Parameters
    ----------
    seed : int
        Seed of the weights and of the tokens' values.

    Examples
    --------
    >>> model = LayerModel(seed=0)
    >>> tokens = np.empty((600, CHANNELS), np.float32)
    >>> model.embed(np.arange(600), tokens)
    >>> whole = model.prefill(tokens, np.array([0, 600]))
    >>> half = model.prefill(tokens[:300], np.array([0, 300]))
    >>> rest = model.prefill(tokens[300:], np.array([0, 300]), half.final_windows, half.final_states)
    >>> bool((rest.final_states == whole.final_states).all())
    True
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        weight = np.random.default_rng(seed).uniform(-1.0, 1.0, (STATE_LEN + 1, CHANNELS))
        self._weight = weight.astype(np.float32)

    def embed(self, token_ids: np.ndarray, out: np.ndarray) -> None:
        """Write the inputs of integer [T] token ids; `out` is float32 [T, CHANNELS], in [-1, 1)."""
        _embed(token_ids, self._seed, out)

    def prefill(
        self,
        tokens: np.ndarray,
        query_start_loc: np.ndarray,
        initial_windows: np.ndarray | None = None,
        initial_states: np.ndarray | None = None,
        checkpoint_offsets: np.ndarray | None = None,
        checkpoint_rows: np.ndarray | None = None,
    ) -> LayerStates:
        """Run a batch of rows through the layer; the arguments are those of `short_conv` and `gated_delta`."""
        mixed = short_conv(tokens, self._weight, query_start_loc, initial_windows)
        projected = _projected(mixed.outputs[:, None, :])
        result = gated_delta(
            projected,
            query_start_loc,
            initial_states,
            checkpoint_offsets=checkpoint_offsets,
            checkpoint_rows=checkpoint_rows,
        )
        return LayerStates(mixed.final_windows, result.final_states, result.checkpoint_states)


def _projected(mixed: np.ndarray) -> GatedDeltaTokens:
    """Turn convolved tokens [T, 1, CHANNELS] into what the gated delta rule takes."""
    key, value, decay = (np.empty_like(mixed) for _ in range(3))
    beta = np.empty(mixed.shape[:2], np.float32)
    _project(mixed, key, value, decay, beta)
    return GatedDeltaTokens(mixed, key, value, decay, beta)


@host_loop
def _embed(token_ids: np.ndarray, seed: int, out: np.ndarray) -> None:
    """Mix (seed, token id) into 64 bits and give each channel eight of them."""
    for index in range(out.shape[0]):
        bits = uint64(token_ids[index])
        # splitmix64: the golden-ratio step and its finaliser.
        bits = (bits + uint64(seed) + uint64(1)) * uint64(0x9E3779B97F4A7C15)
        bits = (bits ^ (bits >> uint64(30))) * uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> uint64(27))) * uint64(0x94D049BB133111EB)
        bits = bits ^ (bits >> uint64(31))
        for channel in range(out.shape[1]):
            byte = (bits >> uint64(8 * channel)) & uint64(255)
            out[index, channel] = np.float32(byte) * np.float32(1 / 128) - np.float32(1)


@host_loop
def _project(mixed: np.ndarray, key: np.ndarray, value: np.ndarray, decay: np.ndarray, beta: np.ndarray) -> None:
    """Derive keys of length 1, values, decays just below 1 and small write strengths from the convolved tokens.

    A write with strength beta into one of C channels erases beta / C of the state. These are so small that a wrong bit
    is still seen tens of thousands of tokens later: a layer that forgets would hide what went wrong in earlier chunks.
    """
    channels = mixed.shape[2]
    for token in range(mixed.shape[0]):
        x = mixed[token, 0]
        norm = np.float32(1e-6)
        for channel in range(channels):
            norm += x[channel] * x[channel]
        scale = np.float32(1) / np.sqrt(norm)
        for channel in range(channels):
            key[token, 0, channel] = x[channel] * scale
            value[token, 0, channel] = x[channels - 1 - channel]
            # Quotients instead of exponentials: they round correctly, hence the same in every loop.
            decay[token, 0, channel] = np.float32(1) - np.float32(2**-14) / (np.float32(1) + abs(x[channel]))
        beta[token, 0] = np.float32(2**-9) * (np.float32(1) + x[0] / (np.float32(1) + abs(x[0])))
