"""Causal depthwise short convolution over a varlen batch.

The state that a prefix leaves behind is a window: its last ``width - 1`` *input* tokens, per channel.
"""

from typing import Any, NamedTuple

import numpy as np

from numba_ckpt._check import check_choice, refuse
from numba_ckpt._jit import host_loop, inlined_loop
from numba_ckpt.models._elementwise import silu
from numba_ckpt.models._varlen import check_floats, check_results, check_starts

__all__ = ["ShortConvResult", "short_conv"]


class ShortConvResult(NamedTuple):
    """What a short convolution leaves.

    Attributes
    ----------
    outputs : ndarray
        float32 [T, channels].
    final_windows : ndarray
        float32 [N, width - 1, channels], the last inputs of each row, oldest first; the initial window moves through a
        row shorter than that.
    """

    outputs: np.ndarray
    final_windows: np.ndarray


@host_loop
def _convolve(source, weight, activate, outputs):  # type: ignore[no-untyped-def]
    """Token t sees source[t : t + width]. Taps are added oldest first, so a resumed row rounds as a cold one does."""
    width, channels = weight.shape
    for token in range(outputs.shape[0]):
        output = outputs[token]
        for channel in range(channels):
            output[channel] = np.float32(0)
        for tap in range(width):
            for channel in range(channels):
                output[channel] += weight[tap, channel] * source[token + tap, channel]
        if activate:
            for channel in range(channels):
                output[channel] = silu(output[channel])


@inlined_loop
def _copy(destination, source):  # type: ignore[no-untyped-def]
    # Assigning slices instead makes numba compile the message of a wrong shape, for seconds.
    for token in range(source.shape[0]):
        for channel in range(source.shape[1]):
            destination[token, channel] = source[token, channel]


@host_loop
def _short_conv_host(tokens, weight, activate, starts, windows, outputs):  # type: ignore[no-untyped-def]
    """`windows` holds the initial windows on entry and the final ones on return."""
    state_len = weight.shape[0] - 1
    head = np.empty((2 * state_len, tokens.shape[1]), np.float32)
    for row in range(starts.size - 1):
        start, end = starts[row], starts[row + 1]
        # Only the first state_len tokens look back beyond the row: they read a joined copy of window and tokens.
        split = min(start + state_len, end)
        num_head = split - start
        _copy(head, windows[row])
        _copy(head[state_len:], tokens[start:split])
        _convolve(head, weight, activate, outputs[start:split])
        if split < end:
            _convolve(tokens[split - state_len : end], weight, activate, outputs[split:end])
            _copy(windows[row], tokens[end - state_len : end])
        else:
            _copy(windows[row], head[num_head : num_head + state_len])


def short_conv(
    tokens: Any,
    weight: Any,
    query_start_loc: Any,
    initial_windows: Any = None,
    *,
    activation: str = "none",
    out: ShortConvResult | None = None,
) -> ShortConvResult:
    """Convolve each row of a batch causally, each channel on its own.

    Parameters
    ----------
    tokens : ndarray
        float32 [T, channels], the rows one after the other; may be a column band of a wider projection.
    weight : ndarray
        float32 [width, channels], oldest tap first; tap-major, so that the loop over channels is the inner one.
    query_start_loc : sequence of int or ndarray
        [N+1], first token of each row and T at the end. Rows may be empty.
    initial_windows : ndarray, optional
        float32 [N, width - 1, channels], the inputs before each row's first token, oldest first. Zeros when None.
    activation : {"none", "silu"}
        Applied to the outputs.
    out : ShortConvResult, optional
        C-contiguous arrays to write instead of new ones.

    Returns
    -------
    ShortConvResult
        Outputs and the window that each row leaves.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        A shape, dtype or start does not fit; nothing is written then.

    Notes
    -----
    Bit-reproducible: a row cut anywhere, with the window carried over, gives the same bits as the row in one piece.
    The models of `gated_delta` and `mamba2_scan` put such a convolution before their recurrence, as Mamba did: A. Gu,
    T. Dao, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces" (2023).

    Examples
    --------
    >>> tokens, weight = np.float32([[1], [2], [3]]), np.float32([[10], [1]])
    >>> result = short_conv(tokens, weight, [0, 3])
    >>> result.outputs.ravel().tolist(), result.final_windows.ravel().tolist()
    ([1.0, 12.0, 23.0], [3.0])
    """
    tokens = check_floats("tokens", tokens, (None, None))
    num_tokens, channels = tokens.shape
    weight = check_floats("weight", weight, (None, channels))
    if weight.shape[0] == 0:
        refuse("weight", "at least one tap", "none", "pass [width, channels]")
    starts = check_starts(query_start_loc, num_tokens)
    window_shape = (starts.size - 1, weight.shape[0] - 1, channels)
    activate = check_choice("activation", activation, ("none", "silu")) == "silu"
    if initial_windows is not None:
        initial_windows = check_floats("initial_windows", initial_windows, window_shape)
    shapes, inputs = (tokens.shape, window_shape), {"tokens": tokens, "weight": weight}
    outputs, windows = check_results(out, ShortConvResult._fields, shapes, inputs)
    windows[:] = 0 if initial_windows is None else initial_windows
    _short_conv_host(tokens, weight, activate, starts, windows, outputs)
    return ShortConvResult(outputs, windows)
