"""Values that are made when somebody first looks at them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Made(Sequence[T]):
    """A sequence."""

    def __init__(self, make: Callable[[], Sequence[T]]) -> None:
        self._make = make

    @cached_property
    def _items(self) -> Sequence[T]:
        return self._make()

    def __getitem__(self, place: Any) -> Any:
        return self._items[place]

    def __iter__(self) -> Iterator[T]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)


class Later(Generic[T]):
    """A field of a dataclass: a value, or a function that makes it. Readers see the value."""

    def __init__(self, default: T) -> None:
        self._default = default

    def __set_name__(self, owner: type[Any], name: str) -> None:
        self._name = name

    def __get__(self, owner: Any, kind: type[Any] | None = None) -> T:
        if owner is None:
            return self._default
        values = vars(owner)
        if callable(values[self._name]):
            values[self._name] = values[self._name]()
        value: T = values[self._name]
        return value

    def __set__(self, owner: Any, value: T | Callable[[], T]) -> None:
        vars(owner)[self._name] = value
