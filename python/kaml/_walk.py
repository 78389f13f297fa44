"""Iterators over keys and records, of devices and of snapshots."""

import ctypes
from ctypes import byref
from typing import Any, Iterator, List

from . import _native as native
from ._native import call

#: Keys that are listed with one call.
LIST_KEYS = 1024
#: Records that an iterator reads with one call.
RANGE_RECORDS = 256


def listed(function: str, *where: Any) -> Iterator[bytes]:
    """All keys of a namespace without an order."""
    cursor = native.Cursor()
    while True:
        found = native.items(function, *where, byref(cursor), LIST_KEYS, keys_only=True)
        if not found:
            return
        yield from found


def walked(handle: native.RangeHandle, keys_only: bool) -> "Iterator[Any]":
    """What remains of a range."""
    try:
        while True:
            found = native.items("kaml_range_next", handle, RANGE_RECORDS, keys_only=keys_only)
            if not found:
                return
            yield from found
    finally:
        native.status("kaml_range_abandon", handle)


def namespace_infos(function: str, where: Any) -> List[native.NamespaceOut]:
    """The namespaces of a device or a snapshot."""
    room = 64
    while True:
        found, count = (native.NamespaceOut * room)(), ctypes.c_size_t()
        call(function, where, found, room, byref(count))
        if count.value <= room:
            return found[: count.value]
        room = count.value
