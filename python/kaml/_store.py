"""Stores: a cache of records over a device, with serializable transactions."""

import ctypes
import enum
import time
from ctypes import byref
from typing import TYPE_CHECKING, Any, Callable, Iterable, List, Optional, Tuple, TypeVar

from . import _native as native
from ._errors import Error, RetryableError, Status
from ._native import CONSTANTS, Buffer, Key, call
from ._records import Records
from ._snapshot import DeviceSnapshot

if TYPE_CHECKING:
    from ._device import Device, ExpiresIn, Namespace

T = TypeVar("T")

#: How often a transaction is run again that waited too long for a lock: a wait that its body itself keeps is in vain each time.
TIMEOUT_RETRIES_MAX = 2
#: Seconds before a transaction is run again the second time; doubled each time up to 64 times as long.
RETRY_PAUSE_S = 20e-6
#: All records of a range.
LIMIT_NONE = (1 << 8 * ctypes.sizeof(ctypes.c_size_t)) - 1


class WriteMode(enum.IntEnum):
    """When a plain put is durable."""

    #: When it returns.
    THROUGH = CONSTANTS["KAML_WRITE_THROUGH"]
    #: At the next flush.
    BACK = CONSTANTS["KAML_WRITE_BACK"]


class Store(native.Owner):
    """A cache of records over a device. While it is open, records of the device are changed through it alone. Any thread
    may call it at any time. Leaving its ``with`` block closes it."""

    _CLOSE = "kaml_store_close"

    def __init__(
        self,
        device: "Device",
        cache_bytes: int,
        *,
        write_mode: WriteMode = WriteMode.THROUGH,
        records_per_lock: int = 1,
        early_release: bool = False,
        durability_delay_ms: float = 0,
        lock_timeout_ms: int = 2000,
        transactions_max: int = 1024,
    ) -> None:
        options = native.StoreOptions(
            struct_size=ctypes.sizeof(native.StoreOptions),
            write_mode=write_mode,
            records_per_lock=records_per_lock,
            early_release=early_release,
            durability_delay_us=round(durability_delay_ms * 1000),
            lock_timeout_ms=lock_timeout_ms,
            transactions_max=transactions_max,
        )
        handle = native.StoreHandle()
        self._device = device  # which is not to go before
        self._own(handle)
        native.close_abandoned()
        call("kaml_store_open", device._handle, cache_bytes, byref(options), byref(handle))

    def close(self) -> None:
        """Flushes the store and closes it. Closing it again does nothing."""
        self._close()

    def __enter__(self) -> "Store":
        return self

    def flush(self) -> None:
        """Makes everything durable that was put or committed before."""
        call("kaml_store_flush", self._handle)

    def acknowledge_lost(self) -> int:
        """Acknowledges that commits with a durability delay were lost (``COMMITS_LOST``); returns their number."""
        count = ctypes.c_uint64()
        call("kaml_store_acknowledge_lost", self._handle, byref(count))
        return count.value

    def get(self, namespace: "Namespace", key: Key) -> Optional[bytes]:
        """Reads a value through the cache; none if the key does not exist."""
        return native.value("kaml_store_get", self._handle, native.id_of(namespace), *native.key_in(key))

    def get_many(self, namespace: "Namespace", keys: "Iterable[Key]") -> "List[Optional[bytes]]":
        """Reads the values of many keys, in their order; none for those that do not exist. What must be read from the medium is read at the same time.
        It also fills the cache: what it reads from the medium is cached."""
        return native.values("kaml_store_get_many", self._handle, native.id_of(namespace), keys)

    def exists(self, namespace: "Namespace", key: Key) -> bool:
        """Whether a key exists. Reads no flash, except in a versioned namespace."""
        return native.is_there("kaml_store_exists", self._handle, native.id_of(namespace), *native.key_in(key))

    def put(self, namespace: "Namespace", key: Key, value: Buffer, *, expires_in: "ExpiresIn" = None) -> None:
        """Stores a record; durable as the write mode specifies. With ``expires_in``, as in :meth:`Device.put`, it is durable when this returns; the cache
        keeps no value that can expire."""
        record = self._handle, native.id_of(namespace), *native.key_in(key), *native.value_in(value)
        if expires_in is None:
            call("kaml_store_put", *record)
        else:
            call("kaml_store_put_expiring", *record, native.time_to_live(expires_in))

    def add(self, namespace: "Namespace", key: Key, number: int = 1) -> int:
        """Adds to a counter in a transaction of its own, and returns it as it is afterwards; see :meth:`Device.add`."""
        record = self._handle, native.id_of(namespace), *native.key_in(key)
        return native.counter("kaml_store_add", *record, native.number_in(number))

    def compare_and_set(
        self, namespace: "Namespace", key: Key, expected: Optional[Buffer], value: Optional[Buffer]
    ) -> None:
        """As :meth:`Device.compare_and_set`, in a transaction of its own."""
        values = *native.perhaps_in(expected), *native.perhaps_in(value)
        call("kaml_store_compare_and_set", self._handle, native.id_of(namespace), *native.key_in(key), *values)

    def delete(self, namespace: "Namespace", key: Key) -> None:
        """Deletes a record, whether it exists or not; durable as the write mode specifies."""
        call("kaml_store_delete", self._handle, native.id_of(namespace), *native.key_in(key))

    def _delete_existing(self, namespace: "Namespace", key: Key) -> None:
        self.run(lambda txn: txn.delete(namespace, key))

    def _flushed(self) -> "Device":
        self.flush()
        return self._device

    def range(
        self,
        namespace: "Namespace",
        start: Optional[Key] = None,
        stop: Optional[Key] = None,
        *,
        limit: int = LIMIT_NONE,
        reverse: bool = False,
        keys_only: bool = False,
        start_excluded: bool = False,
        stop_included: bool = False,
    ) -> "List[Any]":
        """The records of an ordered namespace from the key ``start`` to the key ``stop``, as of one moment, at most ``limit``: unflushed ones are among
        them. Otherwise as ``Device.range``; all of them are in memory at once, so a long range is read in parts."""
        bounds = native.range_in(start, stop, reverse, keys_only, start_excluded, stop_included)
        where = self._handle, native.id_of(namespace)
        return native.items("kaml_store_range", *where, *bounds, limit, keys_only=keys_only)

    def prefix(
        self,
        namespace: "Namespace",
        prefix: Key,
        *,
        limit: int = LIMIT_NONE,
        reverse: bool = False,
        keys_only: bool = False,
    ) -> "List[Any]":
        """The records whose keys begin with a prefix, as ``range`` has them."""
        return self.range(
            namespace, *native.prefix_range(prefix), limit=limit, reverse=reverse, keys_only=keys_only
        )

    def records(self, namespace: "Namespace") -> Records:
        """The records of a namespace as a ``dict`` has them, through the cache. To list or count all keys it flushes the store first."""
        return Records(self, namespace)

    def read_only(self) -> DeviceSnapshot:
        """Begins a transaction that only reads, for a ``with`` block: a snapshot of what is durable. It takes no locks, waits for nobody, and is
        never aborted. It shows every commit that has returned, except with a ``durability_delay_ms``, and every put in write-through mode;
        ``flush`` makes the others durable. It can be read after the store was closed."""
        handle = native.SnapshotHandle()
        snapshot = DeviceSnapshot(handle, self._device)
        call("kaml_store_read_only", self._handle, byref(handle))
        return snapshot

    def transaction(self) -> "Transaction":
        """Begins a transaction, for a ``with`` block: it commits at the end, and aborts if the block raises."""
        return Transaction(self)

    def run(self, body: "Callable[[Transaction], T]", retries_max: int = 100) -> T:
        """Runs ``body`` in a transaction and commits it; runs it again after a deadlock, and twice after waiting too long for a
        lock. The body uses its transaction alone: a ``put`` of a record that this has locked waits for it in vain."""
        timeouts = 0
        for tries in range(retries_max + 1):
            try:
                with self.transaction() as txn:
                    return body(txn)
            except RetryableError as error:
                if tries == retries_max or timeouts == TIMEOUT_RETRIES_MAX:
                    raise
                timeouts += error.status == Status.LOCK_TIMEOUT
                if tries > 0:
                    time.sleep(RETRY_PAUSE_S * 2 ** min(tries, 6))
        raise AssertionError("the last try returns or raises")


class Transaction(native.Owner):
    """A transaction of a store. It is for one thread at a time."""

    _CLOSE = "kaml_txn_free"

    def __init__(self, store: Store) -> None:
        handle = native.TxnHandle()
        self._ended = False
        self._store = store  # which is not to go before
        self._own(handle)
        call("kaml_txn_begin", store._handle, byref(handle))

    def expect(self, records: "Iterable[Tuple[Namespace, Key]]") -> None:
        """Reports which records the transaction is going to use, as pairs of namespace and key. Those that the cache has not are read from the
        device together, before anything is locked. It changes no result; a record that cannot be read raises when it is used."""
        named = [(native.id_of(namespace), 0, native.key_bytes(key), b"") for namespace, key in records]
        call("kaml_txn_expect", self._handle, native.records_in(named), len(named))

    def read(self, namespace: "Namespace", key: Key) -> Optional[bytes]:
        """Reads a record, or that there is none: nobody changes it until the transaction ends."""
        return native.value("kaml_txn_read", self._handle, native.id_of(namespace), *native.key_in(key))

    def read_for_update(self, namespace: "Namespace", key: Key) -> Optional[bytes]:
        """Reads a record that is going to be changed: nobody else reads it for that either."""
        return native.value("kaml_txn_read_for_update", self._handle, native.id_of(namespace), *native.key_in(key))

    def range(
        self,
        namespace: "Namespace",
        start: Optional[Key] = None,
        stop: Optional[Key] = None,
        *,
        limit: int = LIMIT_NONE,
        reverse: bool = False,
        keys_only: bool = False,
        start_excluded: bool = False,
        stop_included: bool = False,
    ) -> "List[Any]":
        """The records of an ordered namespace from the key ``start`` to the key ``stop``, at most ``limit``, with what this transaction has changed
        itself. Nobody adds a record to what was read, or changes or deletes one of it, until the transaction ends."""
        bounds = native.range_in(start, stop, reverse, keys_only, start_excluded, stop_included)
        where = self._handle, native.id_of(namespace)
        return native.items("kaml_txn_range", *where, *bounds, limit, keys_only=keys_only)

    def range_for_update(
        self,
        namespace: "Namespace",
        start: Optional[Key] = None,
        stop: Optional[Key] = None,
        *,
        limit: int = LIMIT_NONE,
        reverse: bool = False,
        keys_only: bool = False,
        start_excluded: bool = False,
        stop_included: bool = False,
    ) -> "List[Any]":
        """As :meth:`range`, of records that are going to be changed: nobody else reads them for that. With a ``limit`` of 1 two transactions never take
        the same first record, or with ``reverse`` the same last one.

        >>> from kaml import Device, KeyKind, Store
        >>> with Device.in_memory(64 << 20) as device, Store(device, 8 << 20) as store:
        ...     jobs = device.create_namespace("jobs", KeyKind.ORDERED)
        ...     store.put(jobs, "0001-mail", b"to ada")
        ...     with store.transaction() as txn:
        ...         for key, job in txn.range_for_update(jobs, limit=1):
        ...             txn.delete(jobs, key)
        ...             print(key, job)
        b'0001-mail' b'to ada'
        """
        bounds = native.range_in(start, stop, reverse, keys_only, start_excluded, stop_included)
        where = self._handle, native.id_of(namespace)
        return native.items("kaml_txn_range_for_update", *where, *bounds, limit, keys_only=keys_only)

    def prefix(
        self,
        namespace: "Namespace",
        prefix: Key,
        *,
        limit: int = LIMIT_NONE,
        reverse: bool = False,
        keys_only: bool = False,
    ) -> "List[Any]":
        """The records whose keys begin with a prefix, as ``range`` has them."""
        return self.range(
            namespace, *native.prefix_range(prefix), limit=limit, reverse=reverse, keys_only=keys_only
        )

    def update(self, namespace: "Namespace", key: Key, value: Buffer) -> None:
        """Changes a record that exists; else ``NotFoundError``."""
        call("kaml_txn_update", self._handle, native.id_of(namespace), *native.key_in(key), *native.value_in(value))

    def insert(self, namespace: "Namespace", key: Key, value: Buffer) -> None:
        """Stores a record that does not exist; else ``ExistsError``."""
        call("kaml_txn_insert", self._handle, native.id_of(namespace), *native.key_in(key), *native.value_in(value))

    def upsert(self, namespace: "Namespace", key: Key, value: Buffer, *, expires_in: "ExpiresIn" = None) -> None:
        """Stores a record, whether it exists or not. ``expires_in`` is as in :meth:`Device.put`, and begins with the commit."""
        record = self._handle, native.id_of(namespace), *native.key_in(key), *native.value_in(value)
        if expires_in is None:
            call("kaml_txn_upsert", *record)
        else:
            call("kaml_txn_upsert_expiring", *record, native.time_to_live(expires_in))

    def add(self, namespace: "Namespace", key: Key, number: int = 1) -> int:
        """Adds to a counter, which is read and locked, and returns it as it is afterwards. It keeps the time at which it expires."""
        record = self._handle, native.id_of(namespace), *native.key_in(key)
        return native.counter("kaml_txn_add", *record, native.number_in(number))

    def delete(self, namespace: "Namespace", key: Key) -> None:
        """Deletes a record that exists; else ``NotFoundError``."""
        call("kaml_txn_delete", self._handle, native.id_of(namespace), *native.key_in(key))

    def commit(self) -> None:
        """Makes all changes durable, together; with the store's ``durability_delay_ms`` soon, not at once. The end of a ``with``
        block does it."""
        self._ended = True
        call("kaml_txn_commit", self._handle)

    def commit_durable(self) -> None:
        """As ``commit``, and waits until the changes are durable whatever the store's delay is."""
        self._ended = True
        call("kaml_txn_commit_durable", self._handle)

    def abort(self) -> None:
        """Abandons all changes. The ``with`` block can continue, and ends without a commit."""
        self._ended = True
        call("kaml_txn_abort", self._handle)

    def close(self) -> None:
        """Releases the transaction, and aborts it if it is active. Closing it again does nothing."""
        try:
            self._close()
        except Error as error:
            if error.status != Status.BAD_STATE:
                raise
            self.abort()
            self._close()

    def __enter__(self) -> "Transaction":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None and not self._ended:
                self.commit()  # raises if a deadlock has aborted it and the block continued nevertheless
        finally:
            self.close()
