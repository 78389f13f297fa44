"""Pages of a cache on a device: whole values of some hundred KiB to some MiB under text keys, the least recently used of which make room.

Lives here:       what is stored of a page, the order of use, and what leaves.
Lives elsewhere:  the interfaces of the programs that use it (``lmcache``, ``sglang``).

Two namespaces belong to a cache: ``NAME`` has the pages, ``NAME.use`` has the length and the last use of each. One Put stores a page
and its use, so a crash leaves both or none. Uses by readers are stored together every ``USES_EVERY`` seconds and at the end: after a crash some
pages are taken for older than they are, and nothing else is wrong.
"""

import ctypes
import os
import struct
import threading
import time
from collections import OrderedDict
from ctypes import byref, c_size_t
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Union

from . import _native as native
from ._device import Batch, Device, Durability
from ._errors import Error, Status
from ._snapshot import KeyKind

#: Seconds between two times that uses by readers are stored.
USES_EVERY = 10.0
#: Records of a batch that stores uses or deletes pages.
BATCH_RECORDS = 512
#: So many times a Put on a full device makes room and tries again.
ROOM_TRIES = 4
#: Of a use: length of the page in bytes, and seconds since 1970 of its last use.
USE = struct.Struct("<QQ")
#: ``KAML_PUT`` of ``kaml.h``: store the record whatever there is.
PUT = native.CONSTANTS["KAML_PUT"]


class Usage(NamedTuple):
    """What a cache has."""

    pages: int
    #: Bytes of all pages.
    bytes: int
    #: What they may have together; 0 if only the device is the limit.
    bytes_max: int


class _Use(NamedTuple):
    length: int
    seconds: int


class Pages:
    """A cache on a device. Any thread may call any method."""

    def __init__(
        self,
        path: "Union[str, os.PathLike[str]]",
        name: str,
        *,
        capacity: int = 0,
        bytes_max: int = 0,
        age_max: float = 0,
        durability: "Union[Durability, str]" = Durability.POWER,
    ) -> None:
        """Opens the device ``path``, or creates it with ``capacity`` bytes, and the cache ``name`` on it. ``bytes_max`` limits the bytes of all pages;
        0: the device is full. Pages that nobody used for ``age_max`` seconds leave; 0: they remain."""
        if bytes_max < 0 or age_max < 0:
            raise ValueError(f"bytes_max and age_max are 0 or more, not {bytes_max} and {age_max}")
        if isinstance(durability, str):
            durability = Durability[durability.upper()]
        self._bytes_max, self._age_max = int(bytes_max), float(age_max)
        self._lock = threading.Lock()
        #: The least recently used page is the first.
        self._uses: "OrderedDict[bytes, _Use]" = OrderedDict()
        self._bytes = 0
        #: Bytes of pages that are being stored.
        self._reserved = 0
        self._unsaved: Dict[bytes, _Use] = {}
        self._saved_at = time.monotonic()
        self._device = Device.open_or_create(path, int(capacity), durability=durability)
        try:
            self._pages = self._device.ensure_namespace(name, KeyKind.ANY)
            self._use = self._device.ensure_namespace(f"{name}.use", KeyKind.ORDERED)
            found = [(key, _Use(*USE.unpack(use))) for key, use in self._device.range(self._use)]
        except BaseException:
            self._device.close()
            raise
        self._uses.update(sorted(found, key=lambda page: page[1].seconds))
        self._bytes = sum(use.length for use in self._uses.values())
        self._delete(self._leaving())

    def close(self) -> None:
        """Stores the uses and closes the device. Closing it again does nothing."""
        try:
            self._save_uses()
        except Error as failure:
            if failure.status != Status.BAD_HANDLE:
                raise
        finally:
            self._device.close()

    def usage(self) -> Usage:
        """What the cache has, pages of earlier processes among it."""
        with self._lock:
            return Usage(len(self._uses), self._bytes, self._bytes_max)

    def exists(self, key: str) -> bool:
        """Whether there is a page. Reads no flash."""
        name = key.encode()
        with self._lock:
            use = self._uses.get(name)
            return use is not None and not self._is_old(use)

    def load(self, key: str, buffer: native.Buffer) -> bool:
        """Reads a page into a buffer of just its length. False if there is no page, or one of another length."""
        name, view = key.encode(), memoryview(buffer)
        with self._lock:
            use = self._uses.get(name)
        if use is None or use.length != view.nbytes or self._is_old(use):
            return False
        if self._device.get_into(self._pages, name, view) != view.nbytes:
            with self._lock:
                self._forget(name)  # it left while another thread stored it
            return False
        used = _Use(use.length, int(time.time()))
        with self._lock:
            if name in self._uses:
                self._uses[name] = used
                self._uses.move_to_end(name)
                self._unsaved[name] = used
            is_due = time.monotonic() - self._saved_at > USES_EVERY
        if is_due:
            self._save_uses()
        return True

    def store(self, key: str, page: native.Buffer) -> None:
        """Stores a page, or replaces it; durable when it returns. The least recently used pages leave if there is no room."""
        name, view = key.encode(), memoryview(page)
        if self._bytes_max and view.nbytes > self._bytes_max:
            raise Error(Status.BAD_ARGUMENT, f"a page of {view.nbytes} bytes in a cache of {self._bytes_max}; raise bytes_max")
        with self._lock:
            self._reserved += view.nbytes
        try:
            self._delete(self._leaving())
            self._put_somehow(name, view)
        finally:
            with self._lock:
                self._reserved -= view.nbytes

    def delete(self, keys: Iterable[str]) -> List[bool]:
        """Deletes pages; whether each was there."""
        names = [key.encode() for key in keys]
        with self._lock:
            present = [self._forget(name) for name in names]
        self._delete([name for name, was_there in zip(names, present) if was_there])
        return present

    def clear(self) -> None:
        """Deletes all pages."""
        with self._lock:
            names = list(self._uses)
            present = [name for name in names if self._forget(name)]
        self._delete(present)

    def _put_somehow(self, name: bytes, view: memoryview) -> None:
        for _ in range(ROOM_TRIES):
            try:
                return self._put(name, view)
            except Error as failure:
                if failure.status != Status.FULL:
                    raise
                leaving = self._oldest(max(4 * view.nbytes, self._bytes // 64))
                if not leaving:
                    raise
                self._delete(leaving)
        self._put(name, view)

    def _put(self, name: bytes, view: memoryview) -> None:
        used = _Use(view.nbytes, int(time.time()))
        page, length = native.shared_in(view)
        use = USE.pack(*used)
        records = native.records_in([(self._pages.id, PUT, name, b""), (self._use.id, PUT, name, use)])
        records[0].value, records[0].value_length = ctypes.cast(page, ctypes.c_void_p).value, length
        native.call("kaml_put", self._device._handle, records, len(records))
        with self._lock:
            self._forget(name)
            self._uses[name] = used
            self._bytes += used.length

    def _forget(self, name: bytes) -> bool:
        use = self._uses.pop(name, None)
        self._unsaved.pop(name, None)
        self._bytes -= use.length if use else 0
        return use is not None

    def _is_old(self, use: _Use) -> bool:
        return self._age_max > 0 and use.seconds + self._age_max < time.time()

    def _leaving(self) -> List[bytes]:
        """Pages that are too old, or that leave for those that are being stored. They are forgotten, and have to be deleted."""
        leaving: List[bytes] = []
        with self._lock:
            while self._uses:
                name, use = next(iter(self._uses.items()))
                is_over = self._bytes_max > 0 and self._bytes + self._reserved > self._bytes_max
                if not is_over and not self._is_old(use):
                    break
                self._forget(name)
                leaving.append(name)
        return leaving

    def _oldest(self, length: int) -> List[bytes]:
        """The least recently used pages of so many bytes together."""
        leaving: List[bytes] = []
        with self._lock:
            while self._uses and length > 0:
                name, use = next(iter(self._uses.items()))
                length -= use.length
                self._forget(name)
                leaving.append(name)
        return leaving

    def _delete(self, names: List[bytes]) -> None:
        for begin in range(0, len(names), BATCH_RECORDS):
            batch = Batch()
            for name in names[begin : begin + BATCH_RECORDS]:
                batch.delete(self._pages, name).delete(self._use, name)
            self._device.write(batch)

    def _save_uses(self) -> None:
        with self._lock:
            unsaved, self._unsaved = self._unsaved, {}
            self._saved_at = time.monotonic()
        names = list(unsaved)
        for begin in range(0, len(names), BATCH_RECORDS):
            batch = Batch()
            for name in names[begin : begin + BATCH_RECORDS]:
                batch.put_if_present(self._use, name, USE.pack(*unsaved[name]))
            try:
                self._device.write(batch)
            except Error as failure:
                # A page that left meanwhile refuses the batch, and a full device does. These uses are lost, which makes pages older.
                if failure.status not in (Status.NOT_FOUND, Status.FULL):
                    raise
