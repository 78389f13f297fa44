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

:meth:`Device.records` has the records of a namespace as a ``dict`` has them. ``kaml.aio`` is the same for ``asyncio``.

A wheel contains the shared library of the C API, ``libkaml.so.0``. The path in ``KAML_LIBRARY`` takes precedence; without
either, the library is searched where the system looks. Calls release the interpreter's lock, so threads run side by side.
"""

from ._changes import BackupReport, Change, ChangeKind, Changes, Commit, VersionCommand
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
    ValueDiffersError,
)
from ._native import Key, version
from ._records import Records
from ._snapshot import Compression, DeviceSnapshot, IndexPlace, KeyKind, Namespace
from ._store import Store, Transaction, WriteMode

__all__ = [
    "BackupReport",
    "Batch",
    "Change",
    "ChangeKind",
    "Changes",
    "CheckReport",
    "Commit",
    "Device",
    "DeviceInfo",
    "DeviceSnapshot",
    "Durability",
    "Error",
    "ExistsError",
    "Key",
    "Compression",
    "KeyKind",
    "Latency",
    "Limits",
    "IndexPlace",
    "MergePolicy",
    "MergeReport",
    "Namespace",
    "NoFileError",
    "NoPermissionError",
    "NotFoundError",
    "Records",
    "RetryableError",
    "Snapshot",
    "SnapshotTooOldError",
    "SnapshotUsage",
    "Statistics",
    "Status",
    "Store",
    "Transaction",
    "ValueDiffersError",
    "Version",
    "VersionCommand",
    "WriteMode",
    "version",
]
