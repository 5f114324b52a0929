"""Zero whole blocks of all layers, in one launch: what the last owner left must not be read by the next."""

from numba_ckpt._array import Array, DeviceBackend, backend_of
from numba_ckpt._check import check_array
from numba_ckpt._jit import address_of, cuda, host_loop, kernel, strided
from numba_ckpt.kernels._launch import launch_grid, num_run_threads
from numba_ckpt.kernels._runs import zero_run
from numba_ckpt.kernels.block_pieces import BlockPieces, check_block_ids
from numba_ckpt.rules import global_index, is_inside, is_pool_block

__all__ = ["zero_blocks"]


@host_loop
def _zero_blocks_host(words, pieces, num_blocks, block_ids):  # type: ignore[no-untyped-def]
    for k in range(block_ids.size):
        if is_pool_block(block_ids[k], num_blocks):
            for piece in range(pieces.shape[0]):
                start = global_index(block_ids[k], pieces[piece, 1], pieces[piece, 0])
                words[start : start + pieces[piece, 2]] = 0


@kernel
def _zero_blocks_kernel(words, pieces, num_blocks, block_ids):  # type: ignore[no-untyped-def]
    first = global_index(cuda.blockIdx.x, cuda.blockDim.x, cuda.threadIdx.x)
    step = global_index(cuda.gridDim.x, cuda.blockDim.x, 0)
    for k in strided(cuda.blockIdx.y, block_ids.size, cuda.gridDim.y):
        for piece in strided(cuda.blockIdx.z, pieces.shape[0], cuda.gridDim.z):
            start, size = global_index(block_ids[k], pieces[piece, 1], pieces[piece, 0]), pieces[piece, 2]
            if is_pool_block(block_ids[k], num_blocks) & is_inside(start + size - 1, words.size):
                zero_run(address_of(words, (start,)), size, words.itemsize, first, step)


def zero_blocks(blocks: BlockPieces, block_ids: Array) -> None:
    """Zero blocks that are about to get a new owner; the null block is left alone.

    Parameters
    ----------
    blocks : BlockPieces
        Where the bytes of every block lie. Written.
    block_ids : ndarray or cupy.ndarray
        int32 or int64 [K], in any order.

    Raises
    ------
    ArgumentError, ArgumentTypeError, BackendMixError
        A wrong dtype or shape, arrays of different devices; on a host also an id outside the pool.

    Notes
    -----
    On a device: one launch on the current stream, no synchronisation; an id outside the pool is left out.

    Examples
    --------
    >>> import numpy as np
    >>> memory = np.ones(12, np.uint8)  # four blocks, of two bytes in the first half and one in the second
    >>> blocks = BlockPieces(memory, np.array([[0, 2, 2], [8, 1, 1]]), num_blocks=4, max_words=2)
    >>> zero_blocks(blocks, np.array([3, 1, 0]))
    >>> memory.tolist()
    [1, 1, 0, 0, 1, 1, 0, 0, 1, 0, 1, 0]
    """
    check_array("block_ids", block_ids, 1, "iu")
    backend = backend_of(words=blocks.words, pieces=blocks.pieces, block_ids=block_ids)
    arguments = blocks.words, blocks.pieces, blocks.num_blocks, block_ids
    if isinstance(backend, DeviceBackend):
        num_threads = num_run_threads(blocks.max_words, blocks.words.itemsize)
        shape = blocks.pieces.shape[0], block_ids.size, num_threads
        launch_grid(backend, _zero_blocks_kernel, shape, arguments)
    else:
        check_block_ids("block_ids", block_ids, blocks.num_blocks)
        _zero_blocks_host(*arguments)
