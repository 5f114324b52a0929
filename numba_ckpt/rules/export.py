"""Which checkpoint is written, and which token or initial tap each slot of its convolution window holds.

The window of a checkpoint at `offset` is the `state_len` tokens before it. A row's initial window continues it to the
left, so one signed number, relative to the query's first token, names every slot's source::

    initial window               | the row's tokens
    tap  -3     -2     -1        |  0      1      2      3
               [----- window of offset 2, state_len 4 ---->|
    slot                0 1         2      3
"""

from numba_ckpt._jit import int64, rule
from numba_ckpt.rules.checkpoint import NO_OFFSET, NULL_BLOCK_ID


@rule
def conv_tap(slot: int, offset: int, state_len: int) -> int:
    """Return the token that window slot `slot` holds, relative to the query's first token.

    Negative taps lie in the row's initial window, at its slot ``state_len + tap``.

    Parameters
    ----------
    slot : int
        0 to state_len - 1, oldest first.
    offset : int
        Tokens from the query start to the checkpoint.
    state_len : int
        Slots of the window: convolution width minus one.

    Examples
    --------
    >>> [conv_tap(slot, 2, 3) for slot in range(3)]
    [-1, 0, 1]
    """
    return int64(offset) - int64(state_len) + int64(slot)


@rule
def is_written(offset: int, state_index: int) -> bool:
    """Say whether an exporter writes this checkpoint: it has an offset and a block that is not the null block.

    Parameters
    ----------
    offset : int
        Tokens from the query start to the checkpoint; 0 means none.
    state_index : int
        Block id; 0 (the null block) and negative ids (padding) are never written.

    Examples
    --------
    >>> [bool(is_written(offset, block)) for offset, block in ((16, 5), (0, 5), (16, 0), (16, -1))]
    [True, False, False, False]
    """
    return (offset > NO_OFFSET) & (state_index > NULL_BLOCK_ID)


@rule
def is_inside(index: int, size: int) -> bool:
    """Say whether `index` is in [0, size).

    Parameters
    ----------
    index, size : int
        Any int64.

    Examples
    --------
    >>> bool(is_inside(4, 5)), bool(is_inside(5, 5)), bool(is_inside(-1, 5))
    (True, False, False)
    """
    return (int64(index) >= 0) & (int64(index) < int64(size))


@rule
def fits_int32(block: int) -> bool:
    """Say whether a block id can be handed on as int32; negative ones are padding of a table, which exporters skip.

    Parameters
    ----------
    block : int
        An id of a block table.

    Examples
    --------
    >>> bool(fits_int32(-1)), bool(fits_int32(2**31 - 1)), bool(fits_int32(2**31))
    (True, True, False)
    """
    return (int64(block) >= -(2**31)) & (int64(block) < 2**31)


@rule
def global_index(block: int, block_size: int, thread: int) -> int:
    """Return a thread's index in its grid in 64 bits; ``cuda.grid`` wraps beyond 2^31 threads.

    Parameters
    ----------
    block, block_size, thread : int
        ``blockIdx``, ``blockDim`` and ``threadIdx`` of one axis.

    Examples
    --------
    >>> global_index(22121215, 256, 255)
    5663031295
    """
    return int64(block) * int64(block_size) + int64(thread)
