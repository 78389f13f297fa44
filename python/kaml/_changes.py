"""The change stream of a device, and what a backup has."""

import ctypes
import enum
import math
import time
from ctypes import byref
from typing import TYPE_CHECKING, NamedTuple, Optional, Tuple

from . import _native as native
from ._native import CONSTANTS, call

if TYPE_CHECKING:
    from ._device import Device

#: The longest call of the library: so soon Ctrl-C is noticed.
WAIT_MS = 100


class ChangeKind(enum.IntEnum):
    """What a change is."""

    #: One that this version of the package does not have.
    UNKNOWN = 0
    #: A namespace exists; ``key`` is its name.
    NAMESPACE = CONSTANTS["KAML_CHANGE_NAMESPACE"]
    #: A namespace was deleted; ``key`` is its name.
    NAMESPACE_DELETED = CONSTANTS["KAML_CHANGE_NAMESPACE_DELETED"]
    #: A record was stored.
    PUT = CONSTANTS["KAML_CHANGE_PUT"]
    #: A key was deleted, whether it existed or not.
    DELETE = CONSTANTS["KAML_CHANGE_DELETE"]
    #: The keys from ``key`` to ``value`` were deleted; none means no bound.
    DELETE_RANGE = CONSTANTS["KAML_CHANGE_DELETE_RANGE"]
    #: A version was stored; its value is none if it states that the key is deleted.
    VERSION = CONSTANTS["KAML_CHANGE_VERSION"]
    #: A command on the user versions of a namespace; ``command`` is what it does.
    VERSION_COMMAND = CONSTANTS["KAML_CHANGE_VERSION_COMMAND"]


class VersionCommand(enum.IntEnum):
    """What a command on user versions does."""

    #: One that this version of the package does not have.
    UNKNOWN = 0
    #: A snapshot was taken.
    SNAPSHOT = CONSTANTS["KAML_COMMAND_SNAPSHOT"]
    #: The namespace was returned to its state in ``snapshot``.
    ROLL_BACK = CONSTANTS["KAML_COMMAND_ROLL_BACK"]
    #: ``snapshot`` was forgotten.
    FORGET = CONSTANTS["KAML_COMMAND_FORGET"]
    #: ``snapshot`` and all before it were forgotten.
    FORGET_THROUGH = CONSTANTS["KAML_COMMAND_FORGET_THROUGH"]


class Change(NamedTuple):
    """A change that was committed."""

    kind: ChangeKind
    #: The number of its namespace.
    namespace_id: int
    key: Optional[bytes]
    value: Optional[bytes]
    #: When the record expires, in seconds since 1970; ``math.inf`` if it does not.
    expires_at: float
    #: The number in the order of all versions; 0 without versions.
    sequence: int
    #: When a version was put, in nanoseconds since 1970; else 0.
    time_ns: int
    #: The user version that a version belongs to.
    user_version: int
    #: A deleted range does not contain ``key``.
    start_excluded: bool
    #: A deleted range contains ``value``.
    stop_included: bool
    #: What a command on user versions does; none for other changes.
    command: Optional[VersionCommand] = None
    #: The snapshot that a command on user versions is about; 0 for one that is taken, whose number ``Device.snapshots`` has.
    snapshot: int = 0


class Commit(NamedTuple):
    """What was committed together."""

    #: The position after it: ``Device.changes(since=position)`` continues here.
    position: bytes
    changes: Tuple[Change, ...]


class BackupReport(NamedTuple):
    """What is in a backup."""

    namespace_count: int
    #: Records and units of blocks.
    record_count: int
    version_count: int
    #: Keys that were deleted since the backup that it adds to.
    deleted_count: int
    #: Bytes of the file.
    bytes: int
    #: It adds to an earlier backup.
    incremental: bool


class Changes(native.Owner):
    """The commits of a device, in their order: an iterator, to be closed by a ``with`` block. ``position`` is the one after the last commit that it has
    returned."""

    _CLOSE = "kaml_changes_close"

    def __init__(self, device: "Device", since: Optional[bytes], timeout: Optional[float]) -> None:
        place = None
        if since is not None:
            if len(since) != native.POSITION_BYTES:
                raise ValueError(f"a position has {native.POSITION_BYTES} bytes, not {len(since)}")
            place = native.Position((ctypes.c_uint8 * native.POSITION_BYTES)(*since))
        handle = native.ChangesHandle()
        self._timeout = math.inf if timeout is None else timeout
        # What the library has returned and the caller has not got: an interruption in between loses none of it.
        self._found, self._count, self._place = native.ChangeList(), ctypes.c_size_t(), native.Position()
        #: The position after the last commit that was returned.
        self.position = since if since is not None else device.position()
        if place is None:
            place = native.Position((ctypes.c_uint8 * native.POSITION_BYTES)(*self.position))
        self._device = device  # which is not to go before
        self._own(handle)
        call("kaml_changes_open", device._handle, byref(place), byref(handle))

    def close(self) -> None:
        """Closes the reader. Closing it again does nothing."""
        self._close()

    def __enter__(self) -> "Changes":
        return self

    def __iter__(self) -> "Changes":
        return self

    def __next__(self) -> Commit:
        commit = self.next(self._timeout)
        if commit is None:
            raise StopIteration
        return commit

    def next(self, timeout: float = 0) -> Optional[Commit]:
        """The next commit; none if nothing is committed within so many seconds."""
        end = time.monotonic() + timeout
        while self._count.value == 0:
            left_ms = max(0, min(WAIT_MS, (end - time.monotonic()) * 1000))
            where = byref(self._found), byref(self._count), byref(self._place)
            call("kaml_changes_next", self._handle, int(left_ms), *where)
            if self._count.value == 0 and time.monotonic() >= end:
                return None
        changes = tuple(_change(self._found[at]) for at in range(self._count.value))
        commit = Commit(bytes(self._place.bytes), changes)
        self.position, self._found = commit.position, native.ChangeList()
        self._count.value = 0
        return commit


def _change(found: native.ChangeOut) -> Change:
    kind = ChangeKind(found.kind) if found.kind in ChangeKind.__members__.values() else ChangeKind.UNKNOWN
    command = None
    if kind == ChangeKind.VERSION_COMMAND:
        known = found.command in VersionCommand.__members__.values()
        command = VersionCommand(found.command) if known else VersionCommand.UNKNOWN
    return Change(
        kind,
        found.namespace_id,
        _bytes(found.key, found.key_length),
        _bytes(found.value, found.value_length),
        seconds(found.expires_at_ms),
        found.sequence,
        found.time_ns,
        found.user_version,
        bool(found.flags & CONSTANTS["KAML_RANGE_FROM_EXCLUDED"]),
        bool(found.flags & CONSTANTS["KAML_RANGE_TO_INCLUDED"]),
        command,
        found.snapshot,
    )


def _bytes(pointer: Optional[int], length: int) -> Optional[bytes]:
    return None if pointer is None else ctypes.string_at(pointer, length)


def seconds(milliseconds: int) -> float:
    """A time of the library in seconds."""
    return math.inf if milliseconds == native.NEVER else milliseconds / 1000
