"""A worker that does what a step's records say and nothing else, over blocks that hold the text they stand for.

A state block holds the text that its state has seen; a slot of an attention block holds the text up to its token, since
keys and values depend on all of it. So what is wrong to read differs from what is right.
"""

from typing import NamedTuple

import numpy as np

from numba_ckpt.checkpoint import PrefillCheckpointBuilder
from numba_ckpt.planning import BatchLayout

GARBAGE = "garbage"


class Prompt(NamedTuple):
    """A prompt of characters with the outputs after it, and the salt of whoever sent it."""

    salt: str
    text: str
    output: str = ""

    def prefix(self, length):
        """What tells the first tokens, and the states and keys after them, from others."""
        return f"{self.salt}:{(self.text + self.output)[:length]}"


def tokens_of(text):
    return np.array([ord(character) for character in text], np.int32)


def visible_from(group, position):
    """First token that the token at `position` sees in an attention group."""
    if group.kind == "sliding_window":
        return max(position - group.window + 1, 0)
    return position // group.window * group.window if group.kind == "chunked_local" else 0


class ContentWorker:
    """Blocks, and the one who reads and writes them; checks whatever it reads.

    Attributes
    ----------
    content : dict of int to tuple
        For each block that was ever written (group, text) or (group, list of text).
    """

    def __init__(self, cache, key_of):
        self.cache, self.key_of = cache, key_of
        self.groups = cache.config.groups
        self.content = {}
        self.builders = {
            index: PrefillCheckpointBuilder(cache.config.geometry_of(group))
            for index, group in enumerate(self.groups)
            if group.kind == "state"
        }

    def execute(self, step, prompts, declined=frozenset(), fails=False):
        """Run a step, without the checkpoints of the requests in `declined`; returns the blocks read.

        A worker that fails leaves garbage in all of them.
        """
        chunks = step.reservations
        reads = [self._read(chunk, prompts[chunk.request.request_id]) for chunk in chunks]
        writes = [self.blocks_written(chunk) for chunk in chunks]
        for row, written in enumerate(writes):
            self._check_private(written)
            others = reads[:row] + reads[row + 1 :] + writes[:row] + writes[row + 1 :]
            assert written.isdisjoint(set().union(*others)), "a block of one row is another's too"
        self.check_lockstep(chunks)
        for chunk in chunks:
            prompt = prompts[chunk.request.request_id]
            for index, group in enumerate(self.groups):
                if group.kind == "state":
                    self._write_states(chunk, index, prompt, chunk.request.request_id in declined, fails)
                else:
                    self._write_tokens(chunk, index, prompt, fails)
        return set().union(*reads)

    def _plan(self, chunks):
        """(offset, column, block) of each row and state group, from the worker's own planner."""
        ends = np.array([chunk.end for chunk in chunks])
        starts = np.cumsum([0] + [chunk.end - chunk.start for chunk in chunks])
        plans = {}
        for index, builder in self.builders.items():
            table = np.full((len(chunks), max(chunk.request.table.shape[1] for chunk in chunks)), -7, np.int32)
            for row, chunk in zip(table, chunks, strict=True):
                row[: chunk.request.table.shape[1]] = chunk.request.table[index]
            metadata = builder.build(BatchLayout(ends, starts, table), range(len(chunks)))
            plans[index] = [(0, -1, 0)] * len(chunks)
            if metadata is not None:
                fields = metadata.offsets_cpu, metadata.block_cols, metadata.state_indices
                plans[index] = list(zip(*(field.tolist() for field in fields), strict=True))
        return plans

    def check_lockstep(self, chunks):
        """The worker's planner and the cache agree on every row; returns how many checkpoints the step has."""
        count = 0
        for index, plan in self._plan(chunks).items():
            for chunk, planned in zip(chunks, plan, strict=True):
                offset, col, block, initial, running, copied, skipped, _ = chunk.groups[index].tolist()
                if skipped:  # the planner finds no block there, and the exporter writes nothing
                    assert (offset, col, block) == (0, -1, 0)
                    assert planned[::2] == (skipped, 0)
                else:
                    assert planned == (offset, col, block)
                assert (offset > 0) == (block != 0)
                assert not offset or block not in (initial, running, copied)
                assert chunk.request.table[index, (chunk.end - 1) // self.groups[index].block_size] == running != 0
                count += offset > 0
        return count

    def _read(self, chunk, prompt):
        """Check all that the chunk reads, copies made first; returns the blocks."""
        blocks = set()
        for index, group in enumerate(self.groups):
            if group.kind == "state":
                _, _, _, initial, running, copied, _, _ = chunk.groups[index].tolist()
                assert (initial != 0) == (chunk.start > 0)
                assert not copied or copied == initial != running
                if initial:
                    assert self.content[initial] == (index, prompt.prefix(chunk.start))
                    blocks.add(initial)
                continue
            for position in range(visible_from(group, chunk.start), chunk.start):
                block = int(chunk.request.table[index, position // group.block_size])
                owner, slots = self.content[block]
                assert owner == index
                assert slots[position % group.block_size] == prompt.prefix(position + 1)
                blocks.add(block)
        return blocks

    def blocks_written(self, chunk):
        blocks = set()
        for index, group in enumerate(self.groups):
            if group.kind == "state":
                _, _, checkpoint, _, running, *_ = chunk.groups[index].tolist()
                row = chunk.request.table[index]
                after = (chunk.end - 1) // group.block_size + 1
                speculative = row[after : after + group.num_speculative_blocks].tolist()
                assert len(set(speculative) - {0}) == group.num_speculative_blocks
                blocks |= {checkpoint, running, *speculative} - {0}
            else:
                cols = slice(chunk.start // group.block_size, (chunk.end - 1) // group.block_size + 1)
                blocks |= set(chunk.request.table[index, cols].tolist())
        return blocks

    def _check_private(self, blocks):
        records = self.cache.pool.arrays.blocks[sorted(blocks)]
        assert 0 not in blocks
        assert (records["group"] < 0).all(), "a block that can be found is written"
        assert (records["ref_count"] == 1).all(), "a block that others hold is written"

    def _write_states(self, chunk, index, prompt, declines, fails):
        offset, _, checkpoint, _, running, *_ = chunk.groups[index].tolist()
        if offset and not declines:
            self._write_state(index, checkpoint, prompt, chunk.start + offset, fails)
        self._write_state(index, running, prompt, chunk.end, fails)

    def _write_state(self, index, block, prompt, length, fails):
        prefix = prompt.prefix(length)
        self.content[block] = index, GARBAGE if fails else prefix
        if (ledger := self.cache.ledger) is None:
            return
        if fails or length % self.cache.config.hash_block_size:
            ledger.forget(index, block)
        else:
            ledger.write(index, block, self.key_of(prefix), length)

    def _write_tokens(self, chunk, index, prompt, fails):
        size = self.groups[index].block_size
        for position in range(chunk.start, chunk.end):
            block = int(chunk.request.table[index, position // size])
            if self.content.get(block, (None, None))[0] != index:
                self.content[block] = index, [None] * size
            self.content[block][1][position % size] = GARBAGE if fails else prompt.prefix(position + 1)
