"""Namespaces, and snapshots of all of them."""

import enum
from ctypes import byref, c_uint64
from typing import TYPE_CHECKING, Any, Iterator, List, NamedTuple, Optional, Tuple

from . import _native as native
from ._native import CONSTANTS, Key, call
from ._walk import listed, namespace_infos, walked

if TYPE_CHECKING:
    from ._device import Device


class KeyKind(enum.IntEnum):
    """Keys that a namespace takes."""

    #: 1 to 16 bytes.
    BYTES = CONSTANTS["KAML_KEYS_BYTES"]
    #: Exactly 8 bytes: numbers. They take less memory.
    U64 = CONSTANTS["KAML_KEYS_U64"]
    #: 1 to 1024 bytes, in no order.
    ANY = CONSTANTS["KAML_KEYS_ANY"]
    #: 1 to 1024 bytes, in the order of their bytes: the namespace is read by ranges.
    ORDERED = CONSTANTS["KAML_KEYS_ORDERED"]


class IndexPlace(enum.IntEnum):
    """Where the index of a namespace is."""

    #: Every key with its address in memory, 10 to 30 bytes for each.
    MEMORY = CONSTANTS["KAML_INDEX_MEMORY"]
    #: About two bytes of memory for each stored record. For keys of at most 16 bytes; without order, expiry, compression and counters.
    FLASH = CONSTANTS["KAML_INDEX_FLASH"]


class Compression(enum.IntEnum):
    """How the values of a namespace are stored, where that saves room."""

    #: As they are.
    NONE = CONSTANTS["KAML_COMPRESSION_NONE"]
    #: LZ4: fast, for values with repetitions.
    LZ4 = CONSTANTS["KAML_COMPRESSION_LZ4"]
    #: Zstandard: smaller, in more time.
    ZSTD = CONSTANTS["KAML_COMPRESSION_ZSTD"]


class Namespace(NamedTuple):
    """A namespace of a device."""

    id: int
    name: str


class DeviceSnapshot(native.Owner):
    """All namespaces of records of a device as of one moment, to be read only. Any thread may call it at any time. Leaving its ``with`` block
    closes it; closing the device does, too.

    Writers never wait for it. It keeps what is overwritten and deleted meanwhile. When that is in the way, the oldest snapshot expires, and
    reads through it raise ``SnapshotTooOldError``. Namespaces of versions and of blocks cannot be read through it (``BAD_ARGUMENT``); one that was
    created later or deleted since is ``UNKNOWN_NAMESPACE``."""

    _CLOSE = "kaml_snapshot_close"

    def __init__(self, handle: native.SnapshotHandle, device: "Device") -> None:
        self._device = device  # which is not to go before
        self._own(handle)

    def close(self) -> None:
        """Closes the snapshot. Iterators over it can be read to their end. Closing it again does nothing."""
        self._close()

    def __enter__(self) -> "DeviceSnapshot":
        return self

    def namespaces(self) -> List[Namespace]:
        """The namespaces that existed, in the order of their ids, also those that cannot be read through a snapshot."""
        return [Namespace(info.namespace_id, info.name.decode()) for info in self._infos()]

    def _infos(self) -> List[native.NamespaceOut]:
        return namespace_infos("kaml_snapshot_namespaces", self._handle)

    def get(self, namespace: Namespace, key: Key) -> Optional[bytes]:
        """Reads a value as it was; none if the key did not exist."""
        return native.value("kaml_snapshot_get", self._handle, native.id_of(namespace), *native.key_in(key))

    def exists(self, namespace: Namespace, key: Key) -> bool:
        """Whether a key existed. Reads no flash."""
        return native.is_there("kaml_snapshot_exists", self._handle, native.id_of(namespace), *native.key_in(key))

    def keys(self, namespace: Namespace) -> Iterator[bytes]:
        """All keys that a namespace had, each exactly once: of an ordered one in their order, of others in no order that means anything."""
        number = native.id_of(namespace)
        if any(info.namespace_id == number and info.keys == KeyKind.ORDERED for info in self._infos()):
            yield from self.range(namespace, keys_only=True)
        else:
            yield from listed("kaml_snapshot_list_keys", self._handle, number)

    def range(
        self,
        namespace: Namespace,
        start: Optional[Key] = None,
        stop: Optional[Key] = None,
        *,
        reverse: bool = False,
        keys_only: bool = False,
        start_excluded: bool = False,
        stop_included: bool = False,
    ) -> "Iterator[Any]":
        """The records that an ordered namespace had from the key ``start`` to the key ``stop``. Otherwise as ``Device.range``."""
        handle = native.RangeHandle()
        bounds = native.range_in(start, stop, reverse, keys_only, start_excluded, stop_included)
        call("kaml_snapshot_range_open", self._handle, native.id_of(namespace), *bounds, byref(handle))
        return self._walked(handle, keys_only)

    def prefix(
        self, namespace: Namespace, prefix: Key, *, reverse: bool = False, keys_only: bool = False
    ) -> "Iterator[Any]":
        """The records that an ordered namespace had whose keys begin with a prefix, as ``range`` has them."""
        handle = native.RangeHandle()
        flags = native.range_in(None, None, reverse, keys_only)[-1]
        where = self._handle, native.id_of(namespace)
        call("kaml_snapshot_prefix_open", *where, *native.key_in(prefix), flags, byref(handle))
        return self._walked(handle, keys_only)

    def _walked(self, handle: native.RangeHandle, keys_only: bool) -> "Iterator[Any]":
        yield from walked(handle, keys_only)  # with the snapshot, and its device

    def first(self, namespace: Namespace) -> Optional[Tuple[bytes, bytes]]:
        """The record with the least key that an ordered namespace had; none if it had none."""
        return native.item("kaml_snapshot_first", self._handle, native.id_of(namespace))

    def last(self, namespace: Namespace) -> Optional[Tuple[bytes, bytes]]:
        """The record with the greatest key that an ordered namespace had; none if it had none."""
        return native.item("kaml_snapshot_last", self._handle, native.id_of(namespace))

    def count(self, namespace: Namespace, start: Optional[Key] = None, stop: Optional[Key] = None) -> int:
        """How many keys from ``start`` to ``stop`` an ordered namespace had. Reads no flash."""
        found = c_uint64()
        bounds = native.range_in(start, stop)
        call("kaml_snapshot_count", self._handle, native.id_of(namespace), *bounds, byref(found))
        return found.value
