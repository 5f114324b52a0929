"""Frozen records that check themselves, and load from a mapping or JSON with errors that name the key."""

import json
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from typing import Any, Self, get_type_hints

from numba_ckpt._check import check_int, refuse
from numba_ckpt.errors import ArgumentError, ArgumentTypeError

__all__ = ["Record"]


class Record:
    """Base of frozen dataclasses that load from a mapping; a field whose type is a record may be a mapping itself.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Window(Record):
    ...     size: int = 4
    >>> Window.from_json('{"size": 8}')
    Window(size=8)
    """

    __slots__ = ()

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Any]) -> Self:
        """Make a record of a mapping from field names to values.

        Parameters
        ----------
        mapping : mapping
            One entry per field; fields with a default may be left out. Lists stand for tuples.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            An unknown or missing key, or a wrong value; the message begins with the key's dotted path.
        """
        if not isinstance(mapping, Mapping):
            do = "pass a mapping from field names to values"
            refuse(cls.__name__, "a mapping", type(mapping).__name__, do, ArgumentTypeError)
        known = {field.name: field for field in fields(cls) if field.init}  # type: ignore[arg-type]
        _check_keys(mapping, known)
        hints = get_type_hints(cls)
        return cls(**{key: _load(key, hints[key], value) for key, value in mapping.items()})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Make a record of a JSON object; see `from_dict`."""
        try:
            mapping = json.loads(text)
        except (TypeError, ValueError) as cause:
            raise ArgumentError(f"{cls.__name__}: expected a JSON object, got {cause}; check its syntax") from cause
        return cls.from_dict(mapping)

    def _check_ints(self, low: int, *names: str) -> None:
        for name in names:
            object.__setattr__(self, name, check_int(name, getattr(self, name), low))

    def _check_optional_ints(self, low: int, *names: str) -> None:
        self._check_ints(low, *(name for name in names if getattr(self, name) is not None))


def _check_keys(mapping: Mapping[str, Any], known: Mapping[str, Field[Any]]) -> None:
    for key in mapping:
        if key not in known:
            refuse(str(key), "one of the keys " + ", ".join(known), "an unknown key", "check its spelling")
    for key, field in known.items():
        if key not in mapping and field.default is MISSING and field.default_factory is MISSING:
            refuse(key, "a value", "no such key", "add it")


def _load(key: str, kind: Any, value: Any) -> Any:
    if not (isinstance(kind, type) and issubclass(kind, Record)) or isinstance(value, kind):
        return _as_tuple(value)
    if not isinstance(value, Mapping):
        refuse(key, "a mapping", repr(value), f"give the fields of {kind.__name__}", ArgumentTypeError)
    try:
        return kind.from_dict(value)
    except ArgumentError as error:
        raise type(error)(f"{key}.{error}") from None


def _as_tuple(value: Any) -> Any:
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value
