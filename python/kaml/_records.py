"""Records of a namespace, as a ``dict`` has them."""

from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Iterator, Tuple, Union

from ._errors import NotFoundError
from ._native import Buffer, Key, key_bytes

if TYPE_CHECKING:
    from ._device import Device
    from ._snapshot import Namespace
    from ._store import Store

    _Records = MutableMapping[Key, bytes]
else:
    _Records = MutableMapping


class Records(_Records):
    """The records of a namespace, as a ``dict`` has them: made by :meth:`Device.records` and :meth:`Store.records`.

    Keys are what ``get`` takes; those that it lists are ``bytes``, in order if the namespace is ordered. A change is durable as a ``put``
    of the same device or store is. Each method is one or more calls of it, and other threads can change records between two of them:
    ``setdefault`` and ``pop`` of two threads can both find the old state. Use a :class:`Batch` or a transaction where that matters.
    """

    def __init__(self, owner: "Union[Device, Store]", namespace: "Namespace") -> None:
        self._owner = owner
        self.namespace = namespace

    def __getitem__(self, key: Key) -> bytes:
        found = self._owner.get(self.namespace, key)
        if found is None:
            raise KeyError(key)
        return found

    def __setitem__(self, key: Key, value: Buffer) -> None:
        self._owner.put(self.namespace, key, value)

    def __delitem__(self, key: Key) -> None:
        try:
            self._owner._delete_existing(self.namespace, key)
        except NotFoundError:
            raise KeyError(key) from None

    def __contains__(self, key: object) -> bool:
        return isinstance(key, (bytes, str, int)) and self._owner.exists(self.namespace, key)

    def __iter__(self) -> Iterator[bytes]:
        return self._owner._flushed().keys(self.namespace)

    def __len__(self) -> int:
        return self._owner._flushed()._record_count(self.namespace)

    def __repr__(self) -> str:
        return f"Records({type(self._owner).__name__}, {self.namespace.name!r})"

    def prefix(self, prefix: Key) -> Iterator[Tuple[bytes, bytes]]:
        """The records of an ordered namespace whose keys begin with a prefix, as pairs of key and value in order."""
        key_bytes(prefix)  # a wrong type raises here, not where the iterator is used
        return iter(self._owner.prefix(self.namespace, prefix))
