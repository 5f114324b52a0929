"""What the benches compare with: the row-by-row list algorithm that serving engines run, written plainly."""


def ceil_div(a, b):
    return -(-a // b)


def checkpoint_position(num_tokens, unit, *, drop_eagle_block):
    if drop_eagle_block:
        return max(num_tokens // unit * unit - unit, 0)
    return max((num_tokens - 1) // unit * unit, 0)


def is_checkpoint_valid(
    *, query_start, query_end, checkpoint_position, hash_block_size, state_block_size, checkpoint_alignment
):
    if checkpoint_alignment is None or query_start % hash_block_size:
        return False
    initial_col = (query_start - 1) // state_block_size
    checkpoint_col = ceil_div(query_end, state_block_size) - 2
    return (
        checkpoint_col > initial_col
        and query_start + hash_block_size <= checkpoint_position
        and query_start < checkpoint_position < query_end
        and (checkpoint_position - query_start) % checkpoint_alignment == 0
    )


def plan(seq_lens, query_lens, geometry):
    """Offsets and columns of the rows, as two lists."""
    offsets, cols = [], []
    for seq_len, query_len in zip(seq_lens, query_lens, strict=True):
        query_start = seq_len - query_len
        position = checkpoint_position(
            seq_len, geometry.cache_hit_alignment_tokens, drop_eagle_block=geometry.drop_eagle_block
        )
        valid = is_checkpoint_valid(
            query_start=query_start,
            query_end=seq_len,
            checkpoint_position=position,
            hash_block_size=geometry.hash_block_size,
            state_block_size=geometry.state_block_size,
            checkpoint_alignment=geometry.checkpoint_alignment,
        )
        offsets.append(position - query_start if valid else 0)
        cols.append(ceil_div(seq_len, geometry.state_block_size) - 2 if valid else -1)
    return offsets, cols


def chunk_layout(num_computed_tokens, query_start_loc, chunk_size, checkpoint_offsets):
    """Chunk starts, rows, last chunks and checkpoint chunks, as four lists."""
    cu, rows, last, checkpoint = [0], [], [], []

    def add(row, num_tokens):
        cu.append(cu[-1] + num_tokens)
        rows.append(row)

    for row, computed in enumerate(num_computed_tokens):
        done, query_len, offset = 0, query_start_loc[row + 1] - query_start_loc[row], checkpoint_offsets[row]
        checkpoint.append(-1)
        for stop in (offset, query_len) if offset else (query_len,):
            if (computed + done) % chunk_size:
                num_tokens = min(chunk_size - (computed + done) % chunk_size, stop - done)
                add(row, num_tokens)
                done += num_tokens
            while done < stop:
                num_tokens = min(chunk_size, stop - done)
                add(row, num_tokens)
                done += num_tokens
            if stop == offset and checkpoint[-1] < 0:
                checkpoint[-1] = len(rows) - 1
        last.append(len(rows) - 1)
    return cu, rows, last, checkpoint
