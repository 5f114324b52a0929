"""Where each number of a group of block tables stands in the one array that describes all groups to compiled code.

One array crosses into compiled code faster than nine, and a kernel that serves all groups indexes it by group.
"""

TABLE_START = 0
"""Index of the table's first entry in the shared memory."""
TABLE_COLS = 1
"""Entries per row."""
TABLE_BLOCK_SIZE = 2
"""Tokens per entry, on one rank."""
TABLE_PARTS = 3
"""Entries per block of the pool."""
TABLE_WINDOW = 4
"""Sliding window in tokens, or `NO_WINDOW`."""
TABLE_CP_SIZE = 5
"""Context-parallel ranks that share the group's tokens."""
TABLE_CP_RANK = 6
"""This rank."""
TABLE_CP_INTERLEAVE = 7
"""Consecutive tokens of one rank."""
TABLE_HAS_SLOTS = 8
"""1 if the group stores tokens by slot, else 0."""
NUM_TABLE_PARAMS = 9
"""Numbers per group."""
