"""Runs a kernel: whole grids at once, one basic block at a time.

Each thread has a place of its own in the code. Of all threads that can run, those at the earliest basic block run it
together; so threads that took different branches meet again where their paths do, and any control flow is right. A
thread at a barrier stays there until all of its block that have not ended are there too.
"""

import functools
from collections.abc import Iterator, Sequence

import numpy as np

from tests.ptx.interpreter.errors import DeadlockError, LaunchError, RunawayError
from tests.ptx.interpreter.instructions import Step, decode
from tests.ptx.interpreter.memory import Memory
from tests.ptx.interpreter.program import Kernel
from tests.ptx.interpreter.threads import NOT_WAITING, Launch, Threads

__all__ = ["MAX_STEPS", "run"]

MAX_STEPS = 1_000_000
"""Basic blocks that a batch of threads may run: far beyond any test of ours."""
_MAX_THREADS = 65_536


def run(
    kernel: Kernel, grid: Sequence[int], block: Sequence[int], arguments: Sequence[int | bytes], memory: Memory
) -> set[int]:
    """Run a kernel on the host, and check everything it does.

    Parameters
    ----------
    kernel : Kernel
        From `parse`.
    grid, block : sequence of int
        Blocks of the grid and threads of a block, x first, one to three numbers each.
    arguments : sequence of int or bytes
        A number for each parameter, bytes for a struct; pointers are addresses of `memory`.
    memory : Memory
        What the kernel may use, changed in place. Its ledger holds this launch's loads and stores afterwards.

    Returns
    -------
    set of int
        Basic blocks that some thread ran.

    Raises
    ------
    PtxError
        See `errors.py`. What was stored until then stays.

    Examples
    --------
    >>> kernel = parse_kernel(".entry k(.param .u64 p) { .reg .b64 %rd<2>; .reg .b32 %r<2>;"
    ...                       "ld.param.u64 %rd1, [p]; mov.u32 %r1, %ntid.x; st.global.u32 [%rd1], %r1; ret; }")
    >>> memory, word = Memory(), np.zeros(4, np.uint8)
    >>> reached = run(kernel, [1], [32], [memory.declare("word", word).base], memory)
    >>> reached, word.tolist()
    ({0}, [32, 0, 0, 0])
    """
    steps = _decoded(kernel)
    memory.ledger.clear()
    launch = Launch(kernel, _three(grid), _three(block), _packed(kernel, arguments), memory)
    if (size := int(np.prod(launch.block))) > kernel.max_threads:
        raise LaunchError(f"{kernel.name}: expected at most {kernel.max_threads} threads in a block, got {size}")
    num_blocks, per_batch = int(np.prod(launch.grid)), max(_MAX_THREADS // size, 1)
    reached: set[int] = set()
    with np.errstate(all="ignore"):  # a GPU has no floating-point exceptions
        for first in range(0, num_blocks, per_batch):
            reached |= _run_threads(steps, Threads(launch, range(first, min(first + per_batch, num_blocks))))
    memory.ledger.check(memory.locate)
    return reached


@functools.lru_cache(maxsize=256)
def _decoded(kernel: Kernel) -> list[list[Step]]:
    return [[decode(instruction, kernel.labels) for instruction in block] for block in kernel.blocks]


def _three(shape: Sequence[int]) -> tuple[int, int, int]:
    x, y, z = (*shape, 1, 1)[:3]
    return int(x), int(y), int(z)


def _packed(kernel: Kernel, arguments: Sequence[int | bytes]) -> dict[str, bytes]:
    if len(arguments) != len(kernel.parameters):
        raise LaunchError(f"{kernel.name}: expected {len(kernel.parameters)} arguments, got {len(arguments)}")
    packed = {}
    for (name, size), value in zip(kernel.parameters, arguments, strict=True):
        packed[name] = value if isinstance(value, bytes) else (value % 2 ** (8 * size)).to_bytes(size, "little")
        if len(packed[name]) != size:
            raise LaunchError(f"{name}: expected {size} bytes, got {len(packed[name])}")
    return packed


def _run_threads(steps: list[list[Step]], threads: Threads) -> set[int]:
    reached = set()
    for number, position in enumerate(_schedule(threads, len(steps))):
        if number >= MAX_STEPS:
            raise RunawayError(f"{threads.launch.kernel.name} still runs after {MAX_STEPS} basic blocks")
        reached.add(position)
        threads.position[threads.lanes] = position + 1
        for step in steps[position]:
            step(threads)
    return reached


def _schedule(threads: Threads, end: int) -> Iterator[int]:
    """Select the threads that run next, and yield the block that they run; until all have ended."""
    while True:
        free = np.where(threads.waiting == NOT_WAITING, threads.position, end)
        position = int(free.min())
        if position < end:
            chosen = free == position
            threads.lanes = slice(None) if chosen.all() else np.flatnonzero(chosen)
            yield position
        elif (threads.waiting != NOT_WAITING).any():
            _open_barriers(threads)
        else:
            return


def _open_barriers(threads: Threads) -> None:
    """Let threads go on; called when all that have not ended wait."""
    for block in np.unique(threads.block[threads.waiting != NOT_WAITING]):
        lanes = np.flatnonzero((threads.block == block) & (threads.waiting != NOT_WAITING))
        if len(barriers := np.unique(threads.waiting[lanes])) > 1:
            names = ", ".join(map(str, barriers))
            raise DeadlockError(f"{threads.launch.kernel.name}: threads of block {block} wait at barriers {names}")
        threads.waiting[lanes] = NOT_WAITING
        threads.epoch[threads.block == block] += 1
