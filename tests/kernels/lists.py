"""Block tables made of plain lists: an oracle that uses neither the rules nor the package's arrays."""


def written_entries(tables):
    """Return the table entries that staged writes go to; no two to one, for a device applies them in any order."""
    entries = []
    for group, row, col, size, *_ in tables._staged.take(tables.num_blocks_cpu)[0].tolist():
        num_parts = tables.layout.groups[group].num_parts
        entries += [(group, row, col + part) for part in range(size * num_parts)]
    assert len(set(entries)) == len(entries)
    return entries


class ListTables:
    def __init__(self, groups, num_rows):
        self.groups = groups
        self.tables = [[[0] * group.num_cols for _ in range(num_rows)] for group in groups]
        self.used = [[0] * num_rows for _ in groups]
        self.gathered = [[[0] * group.num_cols for _ in range(num_rows)] for group in groups]

    def room(self, group, row, overwrite):
        used = 0 if overwrite else self.used[group][row]
        return (self.groups[group].num_cols - used) // self.groups[group].num_parts

    def append(self, row, block_ids, overwrite):
        for group, ids in enumerate(block_ids):
            parts = self.groups[group].num_parts
            at = 0 if overwrite else self.used[group][row]
            for block in ids:
                for part in range(parts):
                    self.tables[group][row][at] = block * parts + part
                    at += 1
            self.used[group][row] = at

    def gather(self, rows, num_rows, computed):
        for group, sizes in enumerate(self.groups):
            for line, held in enumerate(self.gathered[group]):
                row = rows[line] if line < len(rows) else -1
                if row < 0:
                    held[:] = [0] * len(held)
                    continue
                for col in range(self.used[group][row]):
                    last = (col + 1) * sizes.kernel_block_size * sizes.cp_size - 1
                    window = sizes.sliding_window
                    seen = computed is None or window is None or last > computed[row] - window
                    held[col] = self.tables[group][row][col] if seen else 0
        return [[list(line) for line in table[:num_rows]] for table in self.gathered]

    def slots(self, rows, starts, positions, size):
        slots = [[-1] * size for _ in self.groups]
        for group, sizes in enumerate(self.groups):
            for request, row in enumerate(rows):
                for token in range(starts[request], starts[request + 1]):
                    if row >= 0 and sizes.has_slots:
                        slots[group][token] = self._slot(group, row, positions[token])
        return slots

    def _slot(self, group, row, position):
        sizes = self.groups[group]
        held = self.used[group][row] * sizes.kernel_block_size * sizes.cp_size
        if not 0 <= position < held:
            return -1
        # Deal the row's tokens out one by one, as the ranks do.
        dealt = [[] for _ in range(sizes.cp_size)]
        for token in range(position + 1):
            dealt[token // sizes.cp_interleave % sizes.cp_size].append(token)
        mine = dealt[sizes.cp_rank]
        if not mine or mine[-1] != position:
            return -1
        col, offset = divmod(len(mine) - 1, sizes.kernel_block_size)
        return self.tables[group][row][col] * sizes.kernel_block_size + offset
