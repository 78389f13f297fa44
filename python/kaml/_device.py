"""Devices, their namespaces, and atomic batches."""

import ctypes
import enum
import os
from ctypes import byref, c_int64, c_size_t, c_uint32, c_uint64
from datetime import timedelta
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Tuple, Union

from . import _native as native
from ._changes import BackupReport, Changes, seconds
from ._errors import Error, Status
from ._native import CONSTANTS, Buffer, Key, call
from ._records import Records
from ._snapshot import Compression, DeviceSnapshot, IndexPlace, KeyKind, Namespace
from ._walk import listed, namespace_infos, walked

#: After how long a record expires: seconds, ``math.inf`` for never, or none for the time to live of its namespace.
ExpiresIn = Union[None, float, timedelta]
PLAIN_ACTIONS = ("KAML_PUT", "KAML_PUT_IF_ABSENT", "KAML_PUT_IF_PRESENT", "KAML_PUT_DELETE", "KAML_PUT_DELETE_IF_PRESENT")
COUNTER_ACTIONS = (CONSTANTS["KAML_ADD"], CONSTANTS["KAML_MAX"], CONSTANTS["KAML_MIN"])

#: Versions that one call returns; each is a read of the device.
HISTORY_VERSIONS = 16


class Durability(enum.IntEnum):
    """What an acknowledged Put survives."""

    #: As the device was created; ``POWER`` when creating.
    DEFAULT = CONSTANTS["KAML_DURABLE_DEFAULT"]
    #: The loss of power.
    POWER = CONSTANTS["KAML_DURABLE_POWER"]
    #: The end of the process, but not the loss of power; much faster.
    PROCESS = CONSTANTS["KAML_DURABLE_PROCESS"]


class MergePolicy(NamedTuple):
    """What is kept when old versions are dropped because space runs low. What snapshots see is always kept."""

    #: So many of the newest versions of each key.
    keep_last: int = 1
    #: Everything put in this many nanoseconds before; 0: no such rule.
    keep_for_ns: int = 0
    #: The newest version of each key among those that were put around the same time.
    keep_internal: bool = False


class Limits(NamedTuple):
    """What a device takes, in bytes."""

    value_bytes_max: int
    #: Where a large value counts little.
    batch_bytes_max: int


class Version(NamedTuple):
    """A version of a record."""

    #: Its place in the order of all changes of the device.
    sequence: int
    #: When it was put, in nanoseconds since 1970.
    time_ns: int
    #: The user version that it belongs to.
    user_version: int
    #: Bytes of its value.
    length: int
    #: The record was deleted then.
    deleted: bool
    #: A rollback hid it.
    hidden: bool


class Snapshot(NamedTuple):
    """A snapshot of a versioned namespace."""

    number: int
    #: When it was taken, in nanoseconds since 1970.
    time_ns: int


class SnapshotUsage(NamedTuple):
    """What open snapshots of a device keep."""

    #: Moments of which snapshots are open. Snapshots of one moment count once.
    open_count: int
    #: Moments whose snapshots expired since the device was opened.
    expired_count: int
    #: Bytes of overwritten and deleted records that are kept on flash, in whole chunks.
    kept_bytes: int
    #: Overwritten and deleted records that are kept, and keys that did not exist.
    entry_count: int
    #: Bytes of memory for them.
    memory_bytes: int


class MergeReport(NamedTuple):
    """What a merge did, or would do."""

    versions: int
    kept: int
    dropped: int
    dropped_bytes: int
    segments_read: int
    #: Not known in a dry run.
    segments_written: int


class DeviceInfo(NamedTuple):
    """What a device is."""

    #: Bytes of all pages.
    flash_bytes: int
    #: Data bytes of an erase block.
    block_bytes: int
    #: Bytes of the commit ring.
    ring_bytes: int
    #: Erase blocks.
    block_count: int
    channel_count: int
    #: Dies of all channels, which is the number of logs.
    die_count: int
    #: Bytes of a page.
    page_bytes: int
    #: Bytes of a chunk; records take whole chunks.
    chunk_bytes: int
    #: Bytes of the smallest durable write.
    sector_bytes: int
    #: ``POWER`` or ``PROCESS``, as it was opened.
    durability: Durability
    #: The last close was clean.
    was_clean: bool
    #: Journal entries that were replayed when it was opened.
    replayed_journal_entries: int
    #: Ring records that were replayed when it was opened.
    replayed_ring_records: int
    #: Its identity: 32 hexadecimal digits.
    uuid: str
    #: The medium in words, with its path and with what it has to do without.
    description: str


class Latency(NamedTuple):
    """Latencies of one kind of command since the device was opened, in nanoseconds; all 0 if there was none."""

    #: Commands.
    count: int
    mean_ns: float
    #: The median.
    p50_ns: int
    p90_ns: int
    p99_ns: int
    p999_ns: int
    #: The longest.
    max_ns: int


class Statistics(NamedTuple):
    """The state of a device, and what it has done since it was opened."""

    #: Bytes that may be live: records in whole chunks.
    capacity_bytes: int
    #: Bytes of them that are: records and versions that are kept.
    live_bytes: int
    #: Bytes that may still become live.
    free_bytes: int
    #: Bytes of memory of all loaded indexes.
    index_bytes: int
    #: Bytes of memory of frames and write buffers, at most.
    buffer_bytes_max: int
    #: Bytes of values that were put.
    host_bytes: int
    #: Bytes of records that were put, in whole chunks, headers included.
    record_bytes: int
    #: Bytes of records that garbage collection moved, in whole chunks.
    relocated_bytes: int
    #: Bytes left empty at the end of program units and blocks.
    padded_bytes: int
    #: Bytes written to the commit ring.
    ring_bytes: int
    #: Bytes programmed into pages, metadata included.
    page_bytes: int
    #: Bytes programmed into OOB areas.
    oob_bytes: int
    #: Bytes of journal, snapshots of indexes and roots.
    metadata_bytes: int
    #: Bytes read from the medium for gets.
    read_bytes: int
    #: Reads of the medium for gets.
    read_count: int
    #: Values put.
    put_count: int
    #: Deletes.
    delete_count: int
    #: Gets that have completed.
    get_count: int
    #: Blocks erased.
    erase_count: int
    #: Programs that failed.
    program_failures: int
    #: Damaged records that garbage collection came across.
    damaged_records: int
    #: Nanoseconds that opening took.
    open_ns: int
    #: ``page_bytes`` for each of ``host_bytes``; 0 before the first.
    write_amplification: float
    #: Erases of a block since the device was created, the mean of all blocks.
    erase_mean: float
    #: Of the block with the fewest.
    erase_min: int
    #: Of the block with the most.
    erase_max: int
    #: Erase blocks.
    block_count: int
    #: Blocks that are free or about to be.
    free_blocks: int
    #: Blocks that are never used again.
    bad_blocks: int
    #: A write failed and stopped the device: it takes no more changes (``STOPPED``).
    stopped: bool
    #: Of puts and deletes, one for each batch.
    put_latency: Latency
    #: Of gets.
    get_latency: Latency
    #: Records of each namespace, or versions of all its records.
    record_counts: Dict[Namespace, int]


class CheckReport(NamedTuple):
    """What a check found."""

    #: Blocks that were read.
    blocks: int
    #: Records that are whole.
    records: int
    #: Versions that are whole, of namespaces that keep them.
    versions: int
    #: Bytes of all these values.
    value_bytes: int
    #: A sentence for each problem; none for a device in order.
    problems: Tuple[str, ...]


class Batch:
    """Records that are stored all together or not at all. Later records of one key win over earlier ones; conditions are
    judged by the state before the batch. In a versioned namespace they read flash."""

    def __init__(self) -> None:
        self._records: List[Tuple[int, int, bytes, bytes]] = []
        #: By their places: the number, and after how many milliseconds the record expires.
        self._more: Dict[int, Tuple[int, int]] = {}

    def _add(
        self,
        action: str,
        namespace: Namespace,
        key: Key,
        value: Buffer = b"",
        number: Optional[int] = None,
        expires_in: ExpiresIn = None,
    ) -> "Batch":
        data = native.key_bytes(key), native.value_bytes(value)
        if number is not None or expires_in is not None or action not in PLAIN_ACTIONS:
            self._more[len(self._records)] = native.number_in(number or 0), native.time_to_live(expires_in)
        self._records.append((native.id_of(namespace), CONSTANTS[action], *data))
        return self

    def put(self, namespace: Namespace, key: Key, value: Buffer, *, expires_in: ExpiresIn = None) -> "Batch":
        """Stores a value, which expires as with :meth:`Device.put`."""
        return self._add("KAML_PUT", namespace, key, value, expires_in=expires_in)

    def add(self, namespace: Namespace, key: Key, number: int = 1, *, expires_in: ExpiresIn = None) -> "Batch":
        """Adds to a counter, as :meth:`Device.add` does. A counter that exists keeps the time at which it expires, unless ``expires_in`` is given."""
        return self._add("KAML_ADD", namespace, key, number=number, expires_in=expires_in)

    def max(self, namespace: Namespace, key: Key, number: int) -> "Batch":
        """Stores the larger of a counter and a number."""
        return self._add("KAML_MAX", namespace, key, number=number)

    def min(self, namespace: Namespace, key: Key, number: int) -> "Batch":
        """Stores the smaller of a counter and a number."""
        return self._add("KAML_MIN", namespace, key, number=number)

    def expect(self, namespace: Namespace, key: Key, value: Optional[Buffer]) -> "Batch":
        """Lets the whole batch fail with ``ValueDiffersError`` unless a key had this value before it; none: unless it did not exist."""
        if value is None:
            return self._add("KAML_EXPECT_ABSENT", namespace, key)
        return self._add("KAML_EXPECT", namespace, key, value)

    def put_if_absent(self, namespace: Namespace, key: Key, value: Buffer) -> "Batch":
        """Stores a value if the key does not exist; else the whole batch fails with ``ExistsError``."""
        return self._add("KAML_PUT_IF_ABSENT", namespace, key, value)

    def put_if_present(self, namespace: Namespace, key: Key, value: Buffer) -> "Batch":
        """Stores a value if the key exists; else the whole batch fails with ``NotFoundError``."""
        return self._add("KAML_PUT_IF_PRESENT", namespace, key, value)

    def delete(self, namespace: Namespace, key: Key) -> "Batch":
        """Deletes a key, whether it exists or not."""
        return self._add("KAML_PUT_DELETE", namespace, key)

    def delete_if_present(self, namespace: Namespace, key: Key) -> "Batch":
        """Deletes a key that exists; else the whole batch fails with ``NotFoundError``."""
        return self._add("KAML_PUT_DELETE_IF_PRESENT", namespace, key)

    def __len__(self) -> int:
        return len(self._records)

    def _write(self, handle: native.DeviceHandle) -> Optional[List[int]]:
        if not self._more:
            records = native.records_in(self._records)
            call("kaml_put", handle, records, len(records))
            return None
        operations = native.records_in(self._records, native.Operation)
        for at, (number, ttl) in self._more.items():
            operations[at].number, operations[at].time_to_live_ms = number, ttl
        counters = (c_int64 * len(operations))()
        call("kaml_write", handle, operations, len(operations), counters)
        return [counters[at] for at, record in enumerate(self._records) if record[1] in COUNTER_ACTIONS] or None


class Device(native.Owner):
    """A device of records. Any thread may call it at any time. Leaving its ``with`` block closes it.

    After ``os.fork`` it belongs to the parent, and is not open in the child. If the parent is killed, the device remains locked until the
    child ends or executes another program: start processes with ``subprocess`` or the ``spawn`` method of ``multiprocessing``."""

    _CLOSE = "kaml_close"

    def __init__(self, handle: native.DeviceHandle) -> None:
        self._own(handle)

    @classmethod
    def create(
        cls,
        path: "Union[str, os.PathLike[str]]",
        capacity: int = 0,
        *,
        durability: Durability = Durability.POWER,
        force: bool = False,
        prewrite: bool = False,
        grow_up_to: Optional[int] = None,
        die_count: int = 0,
    ) -> "Device":
        """Creates a device of ``capacity`` bytes on a file, which is made, or on a block device, and opens it. Without a
        capacity it takes the whole of a block device; a file then takes up to 353 MiB and grows by itself. ``force``
        formats over what exists; ``prewrite`` writes every block once now, so later puts are faster. With ``grow_up_to``
        the file grows by itself when it runs low on space, to so many bytes at most. ``die_count`` is the number of its dies, each of which has
        a log (:meth:`set_logs`)."""
        given = _growth(grow_up_to)
        options = _create_options(durability=durability, force=force, prewrite=prewrite, die_count=die_count, **given)
        handle = native.DeviceHandle()
        device = cls(handle)
        native.call_with_path("kaml_create", path, capacity, byref(options), byref(handle))
        return device

    @classmethod
    def open_or_create(
        cls,
        path: "Union[str, os.PathLike[str]]",
        capacity: int = 0,
        *,
        durability: Durability = Durability.POWER,
        prewrite: bool = False,
        grow_up_to: Optional[int] = None,
        die_count: int = 0,
    ) -> "Device":
        """Opens a device, or creates it with ``capacity`` bytes first, as :meth:`create` does, if its file does not exist
        or is empty. A device that exists keeps its capacity and its options."""
        given = _growth(grow_up_to)
        options = _create_options(durability=durability, prewrite=prewrite, die_count=die_count, **given)
        handle = native.DeviceHandle()
        device = cls(handle)
        native.call_with_path("kaml_open_or_create", path, capacity, byref(options), byref(handle))
        return device

    @classmethod
    def in_memory(cls, capacity: int, *, die_count: int = 0) -> "Device":
        """Creates a device in memory, gone when it is closed: for tests."""
        handle = native.DeviceHandle()
        device = cls(handle)
        call("kaml_create_in_memory", capacity, byref(_create_options(die_count=die_count)), byref(handle))
        return device

    @classmethod
    def open(
        cls,
        path: "Union[str, os.PathLike[str]]",
        *,
        durability: Durability = Durability.DEFAULT,
        read_only: bool = False,
    ) -> "Device":
        """Opens a device. After a crash this brings back exactly what was acknowledged."""
        options = native.OpenOptions(
            struct_size=ctypes.sizeof(native.OpenOptions), durability=durability, read_only=read_only
        )
        handle = native.DeviceHandle()
        device = cls(handle)
        native.call_with_path("kaml_open", path, byref(options), byref(handle))
        return device

    def close(self) -> None:
        """Closes the device, so it opens quickly the next time. Closing it again does nothing."""
        self._close()

    def __enter__(self) -> "Device":
        return self

    @property
    def limits(self) -> Limits:
        """The largest value and the most one Put takes."""
        value, batch = c_uint64(), c_uint64()
        call("kaml_limits", self._handle, byref(value), byref(batch))
        return Limits(value.value, batch.value)

    # --- the device itself -----------------------------------------------------------------------------------------

    def info(self) -> DeviceInfo:
        """What the device is."""
        found = native.DeviceInfoOut(struct_size=ctypes.sizeof(native.DeviceInfoOut))
        call("kaml_info", self._handle, byref(found))
        info = DeviceInfo(*native.values_of(found, DeviceInfo._fields))
        return info._replace(durability=Durability(found.durability), was_clean=bool(found.was_clean))

    def statistics(self) -> Statistics:
        """The state of the device, and what it has done since it was opened. It looks at every block: ask once a second, not
        once a put."""
        found = native.StatisticsOut(struct_size=ctypes.sizeof(native.StatisticsOut))
        call("kaml_statistics", self._handle, byref(found))
        statistics = Statistics(*native.values_of(found, Statistics._fields[:-1]), record_counts=self._record_counts())
        put, get = (Latency(*native.values_of(one, Latency._fields)) for one in (found.put_latency, found.get_latency))
        return statistics._replace(stopped=bool(found.stopped), put_latency=put, get_latency=get)

    def check(self, progress: "Optional[Callable[[int, int], object]]" = None) -> CheckReport:
        """Reads everything that is durable and checks it. Problems raise no exceptions; the report lists them. Others can continue
        meanwhile; what they change while it is being read is not judged. ``progress`` receives the numbers of blocks done and of all blocks;
        whatever it raises ends the check and is raised."""
        problems: List[str] = []

        def hear(done: int, total: int, problem: Optional[bytes]) -> None:
            if problem is not None:
                problems.append(problem.decode(errors="replace"))
            elif progress is not None:
                progress(done, total)

        found = native.CheckOut(struct_size=ctypes.sizeof(native.CheckOut))
        with native.Hearing(native.CheckCallback, hear) as callback:
            call("kaml_check", self._handle, callback, None, byref(found))
        return CheckReport(*native.values_of(found, CheckReport._fields[:-1]), problems=tuple(problems))

    def resize(self, capacity: int) -> int:
        """Makes the device larger or smaller, while others read and write. Returns the bytes that it takes: as many whole erase blocks as fit."""
        taken = c_uint64()
        call("kaml_resize", self._handle, capacity, byref(taken))
        return taken.value

    # --- backups and changes -----------------------------------------------------------------------------------------

    def backup(
        self,
        path: "Union[str, os.PathLike[str]]",
        since: "Union[None, str, os.PathLike[str]]" = None,
        progress: "Optional[Callable[[int, int], object]]" = None,
    ) -> BackupReport:
        """Writes all that is on the device now to a file, while others read and write; with ``since``, the path of an earlier backup, what has changed
        since that. The file gets its name when it is whole and durable, and replaces what had that name. A store over the device is flushed first.

        ``progress`` receives the bytes of the device that are done and those in all, at least once for each megabyte of the file. An exception that it raises
        ends the backup and is raised, and so does Ctrl-C. There is no new file then."""
        found = native.BackupOut(struct_size=ctypes.sizeof(native.BackupOut))
        where = self._handle, native.path_bytes(path), None if since is None else native.path_bytes(since)
        with native.Hearing(native.BackupCallback, progress or _continue) as callback:
            call("kaml_backup_with_progress", *where, callback, None, byref(found))
        return _backup_report(found)

    @staticmethod
    def verify_backup(path: "Union[str, os.PathLike[str]]") -> BackupReport:
        """Reads a backup and checks all of it; ``CORRUPT`` if it is damaged or ends early."""
        found = native.BackupOut(struct_size=ctypes.sizeof(native.BackupOut))
        native.call_with_path("kaml_backup_verify", path, byref(found))
        return _backup_report(found)

    @staticmethod
    def restore(
        backups: "Iterable[Union[str, os.PathLike[str]]]",
        path: "Union[str, os.PathLike[str]]",
        capacity: int = 0,
        *,
        durability: Durability = Durability.POWER,
        force: bool = False,
        progress: "Optional[Callable[[int, int], object]]" = None,
    ) -> None:
        """Makes a device of a full backup, and of incremental ones in their order. Open it afterwards. Without a capacity it is as large as the one that was
        backed up. The file gets its name when it is whole; over contents this needs ``force``.

        ``progress`` receives the bytes of the backups that are read and those in all. An exception that it raises ends the restore and is raised, and so does
        Ctrl-C. A file that did not exist is removed then; other contents cannot be opened until a restore over them ends."""
        if isinstance(backups, (str, bytes, os.PathLike)):
            raise TypeError("backups is a list of paths")
        paths = [native.path_bytes(backup) for backup in backups]
        options = _create_options(durability=durability, force=force)
        array = (ctypes.c_char_p * len(paths))(*paths)
        where = array, len(paths), native.path_bytes(path), capacity, byref(options)
        with native.Hearing(native.BackupCallback, progress or _continue) as callback:
            call("kaml_restore_with_progress", *where, callback, None)

    def position(self) -> bytes:
        """The position after everything that is durable now; :meth:`changes` since it yields what is committed later."""
        found = native.Position()
        call("kaml_position_now", self._handle, byref(found))
        return bytes(found.bytes)

    def changes(self, since: Optional[bytes] = None, timeout: Optional[float] = None) -> Changes:
        """What is committed from now on, or was after a position, in the order of the commits, each exactly one time: an iterator for a ``with`` block. It waits for
        the next commit, and ends when there is none for ``timeout`` seconds. The first commit describes the namespaces. Store ``position`` of a commit
        to continue after it. ``SnapshotTooOldError`` if the changes are not on the device any more, which keeps as many as its commit ring has bytes.

        >>> with Device.in_memory(64 << 20) as device:
        ...     users = device.create_namespace("users")
        ...     with device.changes(timeout=0) as commits:
        ...         device.put(users, "ada", b"1")
        ...         [(change.kind.name, change.key) for commit in commits for change in commit.changes]
        [('NAMESPACE', b'users'), ('PUT', b'ada')]
        """
        return Changes(self, since, timeout)

    # --- namespaces ------------------------------------------------------------------------------------------------

    def create_namespace(
        self,
        name: str,
        keys: KeyKind = KeyKind.BYTES,
        versioned: bool = False,
        version_buffer_bytes: int = 0,
        merge_when_low: Optional[MergePolicy] = None,
        compression: Compression = Compression.NONE,
        *,
        expires_in: ExpiresIn = None,
        index: IndexPlace = IndexPlace.MEMORY,
        logs: Iterable[int] = (),
    ) -> Namespace:
        """Creates a namespace, which keeps every version of every record if it is ``versioned``; durable when it
        returns. Without ``merge_when_low`` no version is ever dropped by itself. Values of records without versions are
        stored with ``compression`` where that saves room; a read returns them as they were put. Records expire ``expires_in`` seconds after they are put,
        unless a put requests something else. ``index`` is for namespaces with more keys than memory has room for.
        ``logs`` are the numbers of those that it appends to, as :meth:`set_logs` has them; none: all.

        >>> with Device.in_memory(64 << 20) as device:
        ...     pages = device.create_namespace("pages", compression=Compression.ZSTD)
        ...     device.put(pages, "home", b"<p>The same words again. " * 100)
        ...     len(device.get(pages, "home"))
        2500
        """
        policy = merge_when_low or MergePolicy(keep_last=0)
        log_array, log_count = native.logs_in(logs)
        options = native.NamespaceOptions(
            struct_size=ctypes.sizeof(native.NamespaceOptions),
            keys=keys,
            log_count=log_count,
            logs=log_array,
            versioned=versioned,
            index_place=index,
            version_buffer_bytes=version_buffer_bytes,
            merge_when_low=merge_when_low is not None,
            keep_last=policy.keep_last,
            keep_for_ns=policy.keep_for_ns,
            keep_internal=policy.keep_internal,
            compression=compression,
            time_to_live_ms=native.time_to_live(expires_in),
        )
        found = c_uint32()
        call("kaml_create_namespace", self._handle, native.name_bytes(name), byref(options), byref(found))
        return Namespace(found.value, name)

    def ensure_namespace(
        self,
        name: str,
        keys: KeyKind = KeyKind.BYTES,
        versioned: bool = False,
        version_buffer_bytes: int = 0,
        merge_when_low: Optional[MergePolicy] = None,
        compression: Compression = Compression.NONE,
        *,
        expires_in: ExpiresIn = None,
        index: IndexPlace = IndexPlace.MEMORY,
        logs: Iterable[int] = (),
    ) -> Namespace:
        """Finds a namespace by its name, or creates it with these options, as :meth:`create_namespace` does. One that exists
        keeps its options; ``BAD_ARGUMENT`` if it takes other keys than ``keys``, or if ``versioned`` differs."""
        while True:
            for info in self._namespace_infos():
                if info.name.decode() == name:
                    return _as_requested(info, keys, versioned or index == IndexPlace.FLASH)
            try:
                what = keys, versioned, version_buffer_bytes, merge_when_low, compression
                return self.create_namespace(name, *what, expires_in=expires_in, index=index, logs=logs)
            except Error as failure:
                if failure.status != Status.NAMESPACE_EXISTS:
                    raise  # else another thread was quicker

    def namespace(self, name: str) -> Namespace:
        """Finds a namespace by its name."""
        found = c_uint32()
        call("kaml_namespace", self._handle, native.name_bytes(name), byref(found))
        return Namespace(found.value, name)

    def namespaces(self) -> List[Namespace]:
        """All namespaces in the order of their ids."""
        return list(self._record_counts())

    def _record_counts(self) -> Dict[Namespace, int]:
        told = self._namespace_infos()
        return {Namespace(info.namespace_id, info.name.decode()): info.record_count for info in told}

    def _record_count(self, namespace: Namespace) -> int:
        for info in self._namespace_infos():
            if info.namespace_id == native.id_of(namespace):
                # Of a versioned namespace the device counts versions.
                return sum(1 for _ in self.keys(namespace)) if info.versioned else info.record_count
        raise Error(Status.UNKNOWN_NAMESPACE, f"there is no namespace {namespace.name!r} any more")

    def _kinds(self) -> Dict[int, int]:
        return {info.namespace_id: info.keys for info in self._namespace_infos()}

    def _namespace_infos(self) -> List[native.NamespaceOut]:
        return namespace_infos("kaml_namespaces", self._handle)

    def records(self, namespace: Namespace) -> Records:
        """The records of a namespace as a ``dict`` has them: ``records[key] = value`` is durable when it returns.

        >>> with Device.in_memory(64 << 20) as device:
        ...     users = device.records(device.ensure_namespace("users"))
        ...     users["ada"] = b"Ada Lovelace"
        ...     users["ada"], "alan" in users, len(users)
        (b'Ada Lovelace', False, 1)
        """
        return Records(self, namespace)

    def logs(self, namespace: Namespace) -> List[int]:
        """The logs that a namespace appends to, in their order; none: all logs of the device."""
        room = 64
        while True:
            found, count = (c_uint32 * room)(), c_size_t()
            call("kaml_logs", self._handle, native.id_of(namespace), found, room, byref(count))
            if count.value <= room:
                return found[: count.value]
            room = count.value

    def set_logs(self, namespace: Namespace, logs: Iterable[int]) -> None:
        """Has a namespace append to these logs from now on, while it is in use; none: to all. Durable when it returns. A device has one log for each die
        (``info().die_count``), numbered from 0. Records that are stored already remain in their logs until they are overwritten or collected.

        >>> with Device.in_memory(64 << 20, die_count=2) as device:
        ...     users = device.create_namespace("users", logs=[0, 1])
        ...     device.set_logs(users, [1])
        ...     device.logs(users)
        [1]
        """
        call("kaml_set_logs", self._handle, native.id_of(namespace), *native.logs_in(logs))

    def delete_namespace(self, namespace: Namespace) -> None:
        """Deletes a namespace with everything in it; durable when it returns."""
        call("kaml_delete_namespace", self._handle, native.id_of(namespace))

    # --- records ---------------------------------------------------------------------------------------------------

    def get(self, namespace: Namespace, key: Key) -> Optional[bytes]:
        """Reads a value; none if the key does not exist."""
        return native.value("kaml_get", self._handle, native.id_of(namespace), *native.key_in(key))

    def get_many(self, namespace: Namespace, keys: Iterable[Key]) -> List[Optional[bytes]]:
        """Reads the values of many keys, in their order; none for those that do not exist. What must be read from the medium is read at the same time.
        The values are not of one moment; those of an ``open_snapshot`` are."""
        return native.values("kaml_get_many", self._handle, native.id_of(namespace), keys)

    def get_into(self, namespace: Namespace, key: Key, buffer: "Union[bytearray, memoryview]") -> Optional[int]:
        """Reads a value into a buffer, without a copy in between, and returns its length; none if the key does not exist. A buffer that is too
        short does not change: ``BUFFER_TOO_SMALL``.

        >>> with Device.in_memory(64 << 20) as device:
        ...     pages, buffer = device.create_namespace("pages"), bytearray(4096)
        ...     device.put(pages, "first", b"some bytes")
        ...     length = device.get_into(pages, "first", buffer)
        ...     bytes(buffer[:length])
        b'some bytes'
        """
        arguments = self._handle, native.id_of(namespace), *native.key_in(key)
        return native.value_into("kaml_get_into", buffer, *arguments)

    def exists(self, namespace: Namespace, key: Key) -> bool:
        """Whether a key exists. Reads no flash, except in a versioned namespace."""
        return native.is_there("kaml_exists", self._handle, native.id_of(namespace), *native.key_in(key))

    def put(self, namespace: Namespace, key: Key, value: Buffer, *, expires_in: ExpiresIn = None) -> None:
        """Stores a record; durable when it returns. It expires after ``expires_in``, seconds or a ``timedelta``: from then on nobody sees it, and its
        room is released by itself. ``math.inf``: it never does; none: after the time to live of its namespace.

        >>> with Device.in_memory(64 << 20) as device:
        ...     sessions = device.create_namespace("sessions", expires_in=3600)
        ...     device.put(sessions, "ada", b"an hour")
        ...     device.put(sessions, "grace", b"a minute", expires_in=60)
        ...     device.expiry(sessions, "grace") < device.expiry(sessions, "ada")
        True
        """
        record = self._handle, native.id_of(namespace), *native.key_in(key), *native.value_in(value)
        if expires_in is None:
            call("kaml_put_one", *record)
        else:
            call("kaml_put_expiring", *record, native.time_to_live(expires_in))

    def expiry(self, namespace: Namespace, key: Key) -> Optional[float]:
        """When the record of a key expires, in seconds since 1970 by the clock of the device; ``math.inf`` if it never does, none if the key does not exist."""
        found = c_uint64()
        record = self._handle, native.id_of(namespace), *native.key_in(key)
        return seconds(found.value) if native.is_there("kaml_expiry", *record, byref(found)) else None

    def set_time_to_live(self, namespace: Namespace, expires_in: ExpiresIn) -> None:
        """Records that are put from now on expire after so many seconds, unless a put requests something else; none: they do not. Refused (``IN_USE``)
        while a store is open over the device."""
        call("kaml_set_time_to_live", self._handle, native.id_of(namespace), native.time_to_live(expires_in))

    def add(self, namespace: Namespace, key: Key, number: int = 1) -> int:
        """Adds to a counter without reading it, and returns it as it is afterwards; durable when it returns. A counter is a value of 8 bytes, a signed number of
        64 bits, little-endian. A key that does not exist counts as 0. Many threads can change the same counter at a time.

        >>> with Device.in_memory(64 << 20) as device:
        ...     stats = device.create_namespace("stats")
        ...     device.add(stats, "visits", 5), device.add(stats, "visits")
        (5, 6)
        """
        record = self._handle, native.id_of(namespace), *native.key_in(key)
        return native.counter("kaml_add", *record, native.number_in(number))

    def compare_and_set(self, namespace: Namespace, key: Key, expected: Optional[Buffer], value: Optional[Buffer]) -> None:
        """Stores a value, or deletes the key if it is none, provided that the key has the ``expected`` value, or does not exist if that is none; else
        ``ValueDiffersError``. Durable when it returns."""
        values = *native.perhaps_in(expected), *native.perhaps_in(value)
        call("kaml_compare_and_set", self._handle, native.id_of(namespace), *native.key_in(key), *values)

    def delete(self, namespace: Namespace, key: Key) -> None:
        """Deletes a record, whether it exists or not; durable when it returns."""
        call("kaml_delete", self._handle, native.id_of(namespace), *native.key_in(key))

    def _delete_existing(self, namespace: Namespace, key: Key) -> None:
        self.write(Batch().delete_if_present(namespace, key))

    def _flushed(self) -> "Device":
        return self

    def write(self, batch: Batch) -> Optional[List[int]]:
        """Stores a batch, all or nothing; durable when it returns. Returns the counters after each of its operations on counters, in their order;
        none if it has no such operations."""
        if not isinstance(batch, Batch):
            raise TypeError(f"expected a Batch, not {type(batch).__name__}")
        return batch._write(self._handle)

    def keys(self, namespace: Namespace) -> Iterator[bytes]:
        """All keys of a namespace: of an ordered one in their order, of others in no order that means anything. Every key that exists all
        the time is listed exactly once. A number is ``int.from_bytes(key, "big")``."""
        if self._kinds().get(native.id_of(namespace)) == KeyKind.ORDERED:
            yield from self.range(namespace, keys_only=True)
            return
        yield from listed("kaml_list_keys", self._handle, native.id_of(namespace))

    # --- ranges ----------------------------------------------------------------------------------------------------

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
        """The records of an ordered namespace from the key ``start`` to the key ``stop``, in the order of their keys, as pairs of key and value; or
        the keys alone (``keys_only``), for which no value is read. ``start`` belongs to the range and ``stop`` does not, unless the flags change
        that; none is no bound. ``reverse`` begins at the end.

        The iterator shows the records as they are when its first one is read, whatever is put or deleted meanwhile. Unflushed records of a store are
        not among them. It ends with ``BAD_HANDLE`` if the device is closed before.

        >>> with Device.in_memory(64 << 20) as device:
        ...     pages = device.create_namespace("pages", KeyKind.ORDERED)
        ...     for name in ("about", "blog/2025/a title of some length", "blog/2026"):
        ...         device.put(pages, name, name.upper().encode())
        ...     [key for key, value in device.range(pages, "b")]
        ...     list(device.prefix(pages, "blog/2025", keys_only=True))
        ...     device.last(pages)
        [b'blog/2025/a title of some length', b'blog/2026']
        [b'blog/2025/a title of some length']
        (b'blog/2026', b'BLOG/2026')
        """
        handle = native.RangeHandle()
        bounds = native.range_in(start, stop, reverse, keys_only, start_excluded, stop_included)
        call("kaml_range_open", self._handle, native.id_of(namespace), *bounds, byref(handle))
        return self._walked(handle, keys_only)

    def prefix(
        self, namespace: Namespace, prefix: Key, *, reverse: bool = False, keys_only: bool = False
    ) -> "Iterator[Any]":
        """The records of an ordered namespace whose keys begin with a prefix, as ``range`` has them."""
        handle = native.RangeHandle()
        flags = native.range_in(None, None, reverse, keys_only)[-1]
        call("kaml_prefix_open", self._handle, native.id_of(namespace), *native.key_in(prefix), flags, byref(handle))
        return self._walked(handle, keys_only)

    def _walked(self, handle: native.RangeHandle, keys_only: bool) -> "Iterator[Any]":
        yield from walked(handle, keys_only)  # with the device, which is not to go before

    def first(self, namespace: Namespace) -> Optional[Tuple[bytes, bytes]]:
        """The record with the least key of an ordered namespace; none if it has none."""
        return native.item("kaml_first", self._handle, native.id_of(namespace))

    def last(self, namespace: Namespace) -> Optional[Tuple[bytes, bytes]]:
        """The record with the greatest key of an ordered namespace; none if it has none."""
        return native.item("kaml_last", self._handle, native.id_of(namespace))

    def count(self, namespace: Namespace, start: Optional[Key] = None, stop: Optional[Key] = None) -> int:
        """How many keys from ``start`` to ``stop`` an ordered namespace has. Reads no flash; takes a second for some 50 million."""
        return self._number("kaml_count", namespace, start, stop)

    def estimate(self, namespace: Namespace, start: Optional[Key] = None, stop: Optional[Key] = None) -> int:
        """About how many keys from ``start`` to ``stop`` an ordered namespace has, in the time of two look-ups."""
        return self._number("kaml_estimate", namespace, start, stop)

    def delete_range(self, namespace: Namespace, start: Optional[Key] = None, stop: Optional[Key] = None) -> int:
        """Deletes the records of an ordered namespace from ``start`` to ``stop``; durable when it returns. Returns how many there were. Refused
        (``IN_USE``) while a store is open over the device."""
        return self._number("kaml_delete_range", namespace, start, stop)

    def _number(self, function: str, namespace: Namespace, start: Optional[Key], stop: Optional[Key]) -> int:
        found = c_uint64()
        call(function, self._handle, native.id_of(namespace), *native.range_in(start, stop), byref(found))
        return found.value

    # --- snapshots -------------------------------------------------------------------------------------------------

    def open_snapshot(self) -> DeviceSnapshot:
        """Opens a snapshot of all namespaces of records, for a ``with`` block: what is durable now, to be read whatever is put or deleted
        meanwhile. Unflushed records of a store are not in it. ``snapshot`` takes a durable one of a versioned namespace.

        >>> with Device.in_memory(64 << 20) as device:
        ...     users = device.create_namespace("users")
        ...     device.put(users, "ada", b"before")
        ...     with device.open_snapshot() as snapshot:
        ...         device.put(users, "ada", b"after")
        ...         snapshot.get(users, "ada"), device.get(users, "ada")
        (b'before', b'after')
        """
        handle = native.SnapshotHandle()
        snapshot = DeviceSnapshot(handle, self)
        call("kaml_snapshot_open", self._handle, byref(handle))
        return snapshot

    def snapshot_usage(self) -> SnapshotUsage:
        """What open snapshots keep, those of iterators included."""
        found = native.SnapshotUsageOut(struct_size=ctypes.sizeof(native.SnapshotUsageOut))
        call("kaml_snapshot_usage", self._handle, byref(found))
        return SnapshotUsage(*native.values_of(found, SnapshotUsage._fields))

    def limit_snapshot_memory(self, bytes_max: int) -> None:
        """Sets the memory that open snapshots take for what is overwritten and deleted meanwhile; 512 MiB by default, at some 160 bytes a
        record. Beyond it the oldest expire."""
        call("kaml_limit_snapshot_memory", self._handle, bytes_max)

    # --- versions --------------------------------------------------------------------------------------------------

    def get_as_of(self, namespace: Namespace, snapshot: int, key: Key) -> Optional[bytes]:
        """Reads a value as a snapshot sees it; none if the key did not exist."""
        return native.value("kaml_get_as_of", self._handle, native.id_of(namespace), snapshot, *native.key_in(key))

    def get_back(self, namespace: Namespace, changes: int, key: Key) -> Optional[bytes]:
        """Reads a value as it was so many changes of its key ago; none if it did not exist."""
        return native.value("kaml_get_back", self._handle, native.id_of(namespace), changes, *native.key_in(key))

    def history(self, namespace: Namespace, key: Key) -> Iterator[Version]:
        """The versions of a key, newest first: all that are kept, those that a rollback hid included. They are read as they are
        requested; versions put meanwhile are not among them. ``itertools.islice`` takes the first of them."""
        cursor, count, found = native.Cursor(), c_size_t(), (native.VersionOut * HISTORY_VERSIONS)()
        record = (native.id_of(namespace), *native.key_in(key))
        while True:
            call("kaml_history", self._handle, *record, byref(cursor), found, HISTORY_VERSIONS, byref(count))
            if count.value == 0:
                return
            for v in found[: count.value]:
                yield Version(v.sequence, v.time_ns, v.user_version, v.value_length, bool(v.deleted), bool(v.hidden))

    def snapshot(self, namespace: Namespace) -> int:
        """Takes a snapshot and returns its number; durable when it returns. A store over the device is flushed first."""
        number = c_uint32()
        call("kaml_snapshot", self._handle, native.id_of(namespace), byref(number))
        return number.value

    def snapshots(self, namespace: Namespace) -> List[Snapshot]:
        """All snapshots of a namespace, oldest first."""
        room = 64
        while True:
            found, count = (native.SnapshotOut * room)(), c_size_t()
            call("kaml_snapshots", self._handle, native.id_of(namespace), found, room, byref(count))
            if count.value <= room:
                return [Snapshot(info.snapshot, info.time_ns) for info in found[: count.value]]
            room = count.value

    def forget_snapshot(self, namespace: Namespace, snapshot: int) -> None:
        """Forgets a snapshot: the next merge drops what only it sees."""
        call("kaml_forget_snapshot", self._handle, native.id_of(namespace), snapshot)

    def roll_back(self, namespace: Namespace, snapshot: int) -> int:
        """Returns a namespace to its state in a snapshot. Returns the number of a new snapshot of the state before: rolling back
        to that one undoes it. Refused (``IN_USE``) while a store is open over the device."""
        before = c_uint32()
        call("kaml_roll_back", self._handle, native.id_of(namespace), snapshot, byref(before))
        return before.value

    def undo(self, namespace: Namespace, key: Key, changes: int = 1) -> None:
        """Undoes the last changes of a key; durable when it returns. Refused (``IN_USE``) while a store is open over the
        device."""
        call("kaml_undo", self._handle, native.id_of(namespace), *native.key_in(key), changes)

    def merge(
        self,
        namespace: Namespace,
        keep_last: int = 1,
        keep_since_ns: int = 0,
        keep_snapshots: bool = True,
        keep_internal: bool = False,
        dry_run: bool = False,
        progress: "Optional[Callable[[int, int], object]]" = None,
    ) -> MergeReport:
        """Drops the versions that no rule keeps. Without ``keep_snapshots`` all snapshots are forgotten. ``progress``
        receives the numbers of rows done and of all rows, many times in each row. An exception that it raises ends the merge and is raised. A later
        merge continues."""
        rules = native.RetentionIn(
            struct_size=ctypes.sizeof(native.RetentionIn),
            keep_since_ns=keep_since_ns,
            keep_last=keep_last,
            keep_snapshots=keep_snapshots,
            keep_internal=keep_internal,
            dry_run=dry_run,
        )
        report = native.MergeOut()
        with native.Hearing(native.MergeCallback, progress or _continue) as callback:
            where = self._handle, native.id_of(namespace)
            call("kaml_merge_with_progress", *where, byref(rules), callback, None, byref(report))
        return MergeReport(*native.values_of(report, MergeReport._fields))


def _as_requested(info: native.NamespaceOut, keys: KeyKind, versioned: bool) -> Namespace:
    name = info.name.decode()
    found = KeyKind(info.keys), bool(info.versioned)
    if info.blocks or found != (KeyKind(keys), versioned):
        kind = "blocks" if info.blocks else f"keys={found[0].name}, versioned={found[1]}"
        wanted = f"keys={KeyKind(keys).name}, versioned={versioned}"
        message = f"the namespace {name!r} has {kind}, not {wanted}; use another name, or open it with `namespace`"
        raise Error(Status.BAD_ARGUMENT, message)
    return Namespace(info.namespace_id, name)


def _continue(done: int, total: int) -> None:
    """A progress that nobody sees. Python notices Ctrl-C in it."""


def _backup_report(found: native.BackupOut) -> BackupReport:
    report = BackupReport(*native.values_of(found, BackupReport._fields))
    return report._replace(incremental=bool(report.incremental))


def _growth(grow_up_to: Optional[int]) -> Dict[str, int]:
    return {} if grow_up_to is None else {"grows": 1, "grow_up_to_bytes": grow_up_to}


def _create_options(**fields: int) -> native.CreateOptions:
    return native.CreateOptions(struct_size=ctypes.sizeof(native.CreateOptions), **fields)
