"""Where exporters take tokens and states from."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from numba_ckpt._array import Array, backend_of
from numba_ckpt._check import check_array, check_mirror, check_shape, describe, refuse
from numba_ckpt.errors import ArgumentTypeError

__all__ = ["ConvInput", "InitialConvState", "RecurrentInput"]


@dataclass(frozen=True, slots=True, eq=False)
class InitialConvState:
    """The convolution window before each row's first token, for checkpoints closer to it than the window is long.

    Parameters
    ----------
    states : ndarray or cupy.ndarray
        Windows in the layout and dtype of the conv cache, at least `state_len` slots; often the conv cache itself.
    indices : ndarray or cupy.ndarray
        Integer [R], entry of `states` of each row.
    has_initial_state : ndarray or cupy.ndarray, optional
        bool [R]; False where the sequence starts with this query, so that missing taps are zeros. By default every row
        has an initial window.

    Raises
    ------
    ArgumentError, ArgumentTypeError, BackendMixError
        Wrong dimensions or dtypes, or arrays of different devices.

    Examples
    --------
    >>> windows = np.zeros((8, 4, 3), np.float32)
    >>> initial = InitialConvState(windows, np.array([5, 0]), np.array([True, False]))  # row 1 starts a sequence
    >>> initial.indices.tolist()
    [5, 0]
    """

    states: Array
    indices: Array
    has_initial_state: Array = None

    def __post_init__(self) -> None:
        backend_of(states=self.states, indices=self.indices, has_initial_state=self.has_initial_state)
        check_array("initial.states", self.states, 3)
        check_array("initial.indices", self.indices, 1, "i")
        if self.has_initial_state is not None:
            check_array("initial.has_initial_state", self.has_initial_state, 1, "b")
            shape = tuple(self.indices.shape)
            check_shape("initial.has_initial_state", self.has_initial_state, shape, "pass one flag for each row")


@dataclass(frozen=True, slots=True, eq=False)
class ConvInput:
    """The convolution's input tokens of one layer and step.

    Parameters
    ----------
    tokens : ndarray or cupy.ndarray
        [T, channels], any strides (a column band of a wider projection; the transpose of a [channels, T] array).
    query_start_loc : ndarray or cupy.ndarray
        Integer [R+1], cumulative tokens of the exported rows (not of other rows of a mixed batch).
    token_indices : ndarray or cupy.ndarray, optional
        Integer [batch tokens], row of `tokens` that holds each batch token.
    initial : InitialConvState, optional
        Windows before the rows' first tokens. Without it, an offset shorter than the window is refused.
    query_start_loc_cpu : ndarray, optional
        Host mirror; on a device it is what offsets and rows are checked by.

    Examples
    --------
    >>> source = ConvInput(np.zeros((10, 4), np.float32), np.array([0, 6, 10]))
    >>> source.num_rows
    2
    """

    tokens: Array
    query_start_loc: Array
    token_indices: Array = None
    initial: InitialConvState | None = None
    query_start_loc_cpu: np.ndarray | None = None

    def __post_init__(self) -> None:
        backend = backend_of(tokens=self.tokens, query_start_loc=self.query_start_loc, token_indices=self.token_indices)
        check_array("tokens", self.tokens, 2)
        check_array("query_start_loc", self.query_start_loc, 1, "i")
        if self.num_rows < 0:
            refuse("query_start_loc", "rows + 1 entries", "none", "it begins with the first row's start")
        if self.token_indices is not None:
            check_array("token_indices", self.token_indices, 1, "i")
        if backend.is_host:
            object.__setattr__(self, "query_start_loc_cpu", self.query_start_loc)
        elif self.query_start_loc_cpu is not None:
            check_mirror("query_start_loc", self.query_start_loc_cpu, self.query_start_loc)
        if self.initial is not None and not isinstance(self.initial, InitialConvState):
            got = type(self.initial).__name__
            refuse("initial", "an InitialConvState or None", got, "say which window each row has", ArgumentTypeError)
        if self.initial is not None:
            check_shape("initial.indices", self.initial.indices, (self.num_rows,), "pass one entry for each row")

    @property
    def num_rows(self) -> int:
        """Rows of the exported batch."""
        return int(self.query_start_loc.shape[0]) - 1

    @property
    def num_tokens(self) -> int:
        """Tokens of the packed batch."""
        mapped: Any = self.tokens if self.token_indices is None else self.token_indices
        return int(mapped.shape[0])


@dataclass(frozen=True, slots=True, eq=False)
class RecurrentInput:
    r"""States that the recurrent kernel handed out.

    Parameters
    ----------
    states : ndarray or cupy.ndarray
        [S, \*state_shape], each state contiguous.
    rows : ndarray or cupy.ndarray, optional
        Integer [K], entry of `states` for each checkpoint; by default checkpoint k takes entry k.
    orientation : str
        Label of the state's axes; must equal the cache's.

    Examples
    --------
    >>> RecurrentInput(np.zeros((2, 4, 8), np.float32)).rows is None
    True
    """

    states: Array
    rows: Array = None
    orientation: str = ""

    def __post_init__(self) -> None:
        backend_of(states=self.states, rows=self.rows)
        if getattr(self.states, "ndim", 0) < 2:
            expected, do = "at least 2 dimensions, sources first", "pass the buffer that the recurrent kernel filled"
            refuse("recurrent.states", expected, describe(self.states), do, ArgumentTypeError)
        if self.rows is not None:
            check_array("recurrent.rows", self.rows, 1, "i")
