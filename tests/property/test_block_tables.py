"""Gather, slot mapping and whole lives of block tables, against an oracle of plain lists."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from numba_ckpt.cache import BlockTables
from numba_ckpt.planning import TableGroup
from tests.kernels.lists import ListTables, written_entries


@st.composite
def table_groups(draw):
    part = draw(st.sampled_from([1, 2, 4]))
    num_parts, size = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    return TableGroup(
        part * num_parts,
        draw(st.integers(0, 4)),
        part,
        draw(st.none() | st.integers(1, 9)),
        size,
        draw(st.integers(0, size - 1)),
        draw(st.sampled_from([turn for turn in (1, 2, 4) if part % turn == 0])),
        draw(st.booleans()),
    )


@given(st.lists(table_groups(), min_size=1, max_size=3), st.data())
def test_a_life_of_block_tables(groups, data):
    num_rows, num_tokens = 3, 24
    tables = BlockTables(groups, num_rows, num_tokens, num_pool_blocks=2**20)
    lists = ListTables(groups, num_rows)
    for _ in range(data.draw(st.integers(1, 5))):
        for _ in range(data.draw(st.integers(0, 4))):
            row, overwrite = data.draw(st.integers(0, num_rows - 1)), data.draw(st.booleans())
            block_ids = [
                data.draw(st.lists(st.integers(0, 2**20 - 1), max_size=lists.room(group, row, overwrite)))
                for group in range(len(groups))
            ]
            tables.append_block_ids(row, block_ids, overwrite)
            lists.append(row, block_ids, overwrite)
        written_entries(tables)
        tables.apply_staged_writes()
        assert [table.tolist() for table in tables.tables] == lists.tables

        rows = data.draw(st.lists(st.integers(-1, num_rows - 1), max_size=num_rows))
        padded = data.draw(st.integers(len(rows), num_rows))
        computed = data.draw(st.none() | st.lists(st.integers(0, 60), min_size=num_rows, max_size=num_rows))
        gathered = tables.gather_block_tables(
            np.array(rows, np.int32), padded, None if computed is None else np.array(computed)
        )
        assert [table.tolist() for table in gathered] == lists.gather(rows, padded, computed)

        lens = data.draw(st.lists(st.integers(0, 6), min_size=len(rows), max_size=len(rows)))
        starts, positions = np.cumsum([0, *lens]), []
        for length in lens:
            first, run = data.draw(st.integers(-2, 50)), data.draw(st.booleans())
            positions += [first + step if run else data.draw(st.integers(-2, 70)) for step in range(length)]
        size = data.draw(st.integers(starts[-1], num_tokens))
        slots = tables.compute_slot_mappings(np.array(rows, np.int32), starts, np.array(positions, np.int64), size)
        assert slots.tolist() == lists.slots(rows, starts, positions, size)
