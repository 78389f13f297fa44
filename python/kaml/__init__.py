"""KAML, a key-value SSD in software, for Python.

>>> import kaml
>>> with kaml.Device.in_memory(64 << 20) as device:
...     users = device.create_namespace("users")
...     device.write(kaml.Batch().put(users, "ada", b"Ada Lovelace").put(users, "alan", b"Alan Turing"))
...     with kaml.Store(device, 8 << 20) as store, store.transaction() as txn:
...         name = txn.read_for_update(users, "ada")
...         txn.update(users, "ada", name + b", Countess")
...     device.get(users, "ada")
b'Ada Lovelace, Countess'

It calls the shared library of the C API, ``libkaml.so.0``, which it searches at the path in ``KAML_LIBRARY``, and
otherwise where the system looks. Calls leave the interpreter's lock, so threads run side by side.
"""

from ._device import (
    Batch,
    CheckReport,
    Device,
    DeviceInfo,
    Durability,
    Latency,
    Limits,
    MergePolicy,
    MergeReport,
    Snapshot,
    SnapshotUsage,
    Statistics,
    Version,
)
from ._errors import (
    Error,
    ExistsError,
    NoFileError,
    NoPermissionError,
    NotFoundError,
    RetryableError,
    SnapshotTooOldError,
    Status,
)
from ._native import Key, version
from ._snapshot import DeviceSnapshot, KeyKind, Namespace
from ._store import Store, Transaction, WriteMode

__all__ = [
    "Batch",
    "CheckReport",
    "Device",
    "DeviceInfo",
    "DeviceSnapshot",
    "Durability",
    "Error",
    "ExistsError",
    "Key",
    "KeyKind",
    "Latency",
    "Limits",
    "MergePolicy",
    "MergeReport",
    "Namespace",
    "NoFileError",
    "NoPermissionError",
    "NotFoundError",
    "RetryableError",
    "Snapshot",
    "SnapshotTooOldError",
    "SnapshotUsage",
    "Statistics",
    "Status",
    "Store",
    "Transaction",
    "Version",
    "WriteMode",
    "version",
]
