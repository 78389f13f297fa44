"""The shared library: its structures, its functions, and calling them.

Every declaration here is compared with ``kaml.h`` by ``tests/test_header.py``.
"""

import ctypes
import datetime
import math
import operator
import os
import sys
import warnings
from ctypes import (
    CFUNCTYPE,
    POINTER,
    byref,
    c_bool,
    c_char,
    c_char_p,
    c_double,
    c_int,
    c_int64,
    c_size_t,
    c_uint8,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any, Callable, Iterable, Optional, Union

from ._errors import Error, Status, error

#: Keys have 1 to 16 bytes, or 1 to 1024 where the namespace takes ``KeyKind.ANY`` or ``KeyKind.ORDERED``. Text is taken as UTF-8; a number, also one of numpy, as 8 bytes, big-endian, as ``KeyKind.U64``
#: requires.
Key = Union[bytes, str, int]
#: What a value may be.
Buffer = Union[bytes, bytearray, memoryview]

VERSION_MAJOR = 0
KEY_BYTES_MAX = 16
LONG_KEY_BYTES_MAX = 1024
NAME_BYTES = 256
UUID_BYTES = 33
DESCRIPTION_BYTES = 1024
POSITION_BYTES = 32
#: A time to live, or a time, that never comes: ``KAML_NEVER``.
NEVER = 2**64 - 1


def unsigned(value: Any, kind: Any, what: str) -> int:
    """A number, if it fits: ctypes would take it modulo 2^n without an error."""
    number, bits = operator.index(value), 8 * ctypes.sizeof(kind)
    if not 0 <= number < 1 << bits:
        raise OverflowError(f"{what}: {number} is not in 0..2^{bits}")
    return number


#: What is checked by ``unsigned``.
UNSIGNED = (c_size_t, c_uint8, c_uint32, c_uint64)


class Struct(ctypes.Structure):
    """A structure of ``kaml.h``."""

    def __init__(self, **fields: Any) -> None:
        kinds = dict(self._fields_)
        for name, value in fields.items():
            if kinds[name] in UNSIGNED:
                fields[name] = unsigned(value, kinds[name], name)
        super().__init__(**fields)


class CreateOptions(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("durability", c_uint32),
        ("force", c_uint32),
        ("prewrite", c_uint32),
        ("die_count", c_uint32),
        ("block_bytes", c_uint64),
        ("ring_bytes", c_uint64),
        ("chunk_bytes", c_uint32),
        ("grows", c_uint32),
        ("grow_up_to_bytes", c_uint64),
    ]


class OpenOptions(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("durability", c_uint32),
        ("read_only", c_uint32),
        ("no_io_uring", c_uint32),
        ("no_direct", c_uint32),
    ]


class NamespaceOptions(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("keys", c_uint32),
        ("log_count", c_uint32),
        ("logs", POINTER(c_uint32)),
        ("versioned", c_uint32),
        ("index_place", c_uint32),
        ("version_buffer_bytes", c_uint64),
        ("merge_when_low", c_uint32),
        ("keep_last", c_uint32),
        ("keep_for_ns", c_uint64),
        ("keep_internal", c_uint32),
        ("compression", c_uint32),
        ("time_to_live_ms", c_uint64),
    ]


class NamespaceOut(Struct):
    _fields_ = [
        ("record_count", c_uint64),
        ("namespace_id", c_uint32),
        ("keys", c_uint32),
        ("versioned", c_uint32),
        ("blocks", c_uint32),
        ("name", c_char * NAME_BYTES),
    ]


class KeyOut(Struct):
    _fields_ = [("bytes", c_uint8 * KEY_BYTES_MAX), ("length", c_uint32)]


class Item(Struct):
    _fields_ = [
        ("key", c_void_p),
        ("key_length", c_size_t),
        ("value", c_void_p),
        ("value_length", c_size_t),
    ]


class Record(Struct):
    _fields_ = [
        ("namespace_id", c_uint32),
        ("action", c_uint32),
        ("key", c_void_p),
        ("key_length", c_size_t),
        ("value", c_void_p),
        ("value_length", c_size_t),
    ]


class Operation(Struct):
    _fields_ = [*Record._fields_, ("number", c_int64), ("time_to_live_ms", c_uint64), ("expires_at_ms", c_uint64)]


class BackupOut(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("namespace_count", c_uint64),
        ("record_count", c_uint64),
        ("version_count", c_uint64),
        ("deleted_count", c_uint64),
        ("bytes", c_uint64),
        ("incremental", c_uint32),
        ("reserved", c_uint32),
    ]


class Position(Struct):
    _fields_ = [("bytes", c_uint8 * POSITION_BYTES)]

    def __init__(self, *bytes_of: Any) -> None:
        ctypes.Structure.__init__(self, *bytes_of)


class ChangeOut(Struct):
    _fields_ = [
        ("kind", c_uint32),
        ("namespace_id", c_uint32),
        ("key", c_void_p),
        ("key_length", c_size_t),
        ("value", c_void_p),
        ("value_length", c_size_t),
        ("expires_at_ms", c_uint64),
        ("sequence", c_uint64),
        ("time_ns", c_uint64),
        ("user_version", c_uint32),
        ("flags", c_uint32),
        ("command", c_uint32),
        ("snapshot", c_uint32),
    ]


class ChangesHandle(Struct):
    _fields_ = [("id", c_uint64)]


class Cursor(Struct):
    _fields_ = [("state", c_uint32), ("place", c_uint8 * 24)]


class VersionOut(Struct):
    _fields_ = [
        ("sequence", c_uint64),
        ("time_ns", c_uint64),
        ("user_version", c_uint32),
        ("value_length", c_uint32),
        ("deleted", c_uint32),
        ("hidden", c_uint32),
    ]


class SnapshotOut(Struct):
    _fields_ = [("time_ns", c_uint64), ("snapshot", c_uint32), ("reserved", c_uint32)]


class RetentionIn(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("keep_since_ns", c_uint64),
        ("keep_last", c_uint32),
        ("keep_snapshots", c_uint32),
        ("keep_internal", c_uint32),
        ("dry_run", c_uint32),
    ]


class MergeOut(Struct):
    _fields_ = [
        ("versions", c_uint64),
        ("kept", c_uint64),
        ("dropped", c_uint64),
        ("dropped_bytes", c_uint64),
        ("segments_read", c_uint64),
        ("segments_written", c_uint64),
    ]


class DeviceInfoOut(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("flash_bytes", c_uint64),
        ("block_bytes", c_uint64),
        ("ring_bytes", c_uint64),
        ("block_count", c_uint32),
        ("channel_count", c_uint32),
        ("die_count", c_uint32),
        ("page_bytes", c_uint32),
        ("chunk_bytes", c_uint32),
        ("sector_bytes", c_uint32),
        ("durability", c_uint32),
        ("was_clean", c_uint32),
        ("replayed_journal_entries", c_uint64),
        ("replayed_ring_records", c_uint64),
        ("uuid", c_char * UUID_BYTES),
        ("description", c_char * DESCRIPTION_BYTES),
    ]


class LatencyOut(Struct):
    _fields_ = [
        ("count", c_uint64),
        ("mean_ns", c_double),
        ("p50_ns", c_uint64),
        ("p90_ns", c_uint64),
        ("p99_ns", c_uint64),
        ("p999_ns", c_uint64),
        ("max_ns", c_uint64),
    ]


class StatisticsOut(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("capacity_bytes", c_uint64),
        ("live_bytes", c_uint64),
        ("free_bytes", c_uint64),
        ("index_bytes", c_uint64),
        ("buffer_bytes_max", c_uint64),
        ("host_bytes", c_uint64),
        ("record_bytes", c_uint64),
        ("relocated_bytes", c_uint64),
        ("padded_bytes", c_uint64),
        ("ring_bytes", c_uint64),
        ("page_bytes", c_uint64),
        ("oob_bytes", c_uint64),
        ("metadata_bytes", c_uint64),
        ("read_bytes", c_uint64),
        ("read_count", c_uint64),
        ("put_count", c_uint64),
        ("delete_count", c_uint64),
        ("get_count", c_uint64),
        ("erase_count", c_uint64),
        ("program_failures", c_uint64),
        ("damaged_records", c_uint64),
        ("open_ns", c_uint64),
        ("write_amplification", c_double),
        ("erase_mean", c_double),
        ("erase_min", c_uint32),
        ("erase_max", c_uint32),
        ("block_count", c_uint32),
        ("free_blocks", c_uint32),
        ("bad_blocks", c_uint32),
        ("stopped", c_uint32),
        ("put_latency", LatencyOut),
        ("get_latency", LatencyOut),
    ]


class CheckOut(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("blocks", c_uint64),
        ("records", c_uint64),
        ("versions", c_uint64),
        ("value_bytes", c_uint64),
        ("problem_count", c_uint64),
    ]


CheckCallback = CFUNCTYPE(c_int, c_void_p, c_uint64, c_uint64, c_char_p)
MergeCallback = CFUNCTYPE(c_int, c_void_p, c_uint32, c_uint32)
BackupCallback = CFUNCTYPE(c_int, c_void_p, c_uint64, c_uint64)


class LockWidth(Struct):
    _fields_ = [("namespace_id", c_uint32), ("records_per_lock", c_uint32)]


class StoreOptions(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("write_mode", c_uint32),
        ("records_per_lock", c_uint32),
        ("early_release", c_uint32),
        ("lock_timeout_ms", c_uint32),
        ("transactions_max", c_uint32),
        ("lock_width_count", c_uint32),
        ("durability_delay_us", c_uint64),
        ("lock_widths", POINTER(LockWidth)),
    ]


class DeviceHandle(Struct):
    _fields_ = [("id", c_uint64)]


class RangeHandle(Struct):
    _fields_ = [("id", c_uint64)]


class SnapshotHandle(Struct):
    _fields_ = [("id", c_uint64)]


class SnapshotUsageOut(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("open_count", c_uint64),
        ("expired_count", c_uint64),
        ("kept_bytes", c_uint64),
        ("entry_count", c_uint64),
        ("memory_bytes", c_uint64),
    ]


class StoreHandle(Struct):
    _fields_ = [("id", c_uint64)]


class TxnHandle(Struct):
    _fields_ = [("id", c_uint64)]


STRUCTS = {
    "kaml_create_options": CreateOptions,
    "kaml_open_options": OpenOptions,
    "kaml_namespace_options": NamespaceOptions,
    "kaml_namespace_info": NamespaceOut,
    "kaml_key": KeyOut,
    "kaml_record": Record,
    "kaml_operation": Operation,
    "kaml_backup_report": BackupOut,
    "kaml_position": Position,
    "kaml_change": ChangeOut,
    "kaml_changes": ChangesHandle,
    "kaml_item": Item,
    "kaml_range": RangeHandle,
    "kaml_device_snapshot": SnapshotHandle,
    "kaml_device_snapshot_usage": SnapshotUsageOut,
    "kaml_cursor": Cursor,
    "kaml_version_info": VersionOut,
    "kaml_snapshot_info": SnapshotOut,
    "kaml_retention": RetentionIn,
    "kaml_merge_report": MergeOut,
    "kaml_device_info": DeviceInfoOut,
    "kaml_latency": LatencyOut,
    "kaml_device_statistics": StatisticsOut,
    "kaml_check_report": CheckOut,
    "kaml_lock_width": LockWidth,
    "kaml_store_options": StoreOptions,
    "kaml_device": DeviceHandle,
    "kaml_store": StoreHandle,
    "kaml_txn": TxnHandle,
}

CALLBACKS = {
    "kaml_backup_callback": BackupCallback,
    "kaml_check_callback": CheckCallback,
    "kaml_merge_callback": MergeCallback,
}

#: What is 0 in ``kaml.h`` is the default in it, too.
CONSTANTS = {
    "KAML_DURABLE_DEFAULT": 0,
    "KAML_DURABLE_POWER": 1,
    "KAML_DURABLE_PROCESS": 2,
    "KAML_INDEX_MEMORY": 0,
    "KAML_INDEX_FLASH": 1,
    "KAML_KEYS_BYTES": 0,
    "KAML_KEYS_U64": 1,
    "KAML_KEYS_ANY": 2,
    "KAML_KEYS_ORDERED": 3,
    "KAML_COMPRESSION_NONE": 0,
    "KAML_COMPRESSION_LZ4": 1,
    "KAML_COMPRESSION_ZSTD": 2,
    "KAML_WRITE_THROUGH": 0,
    "KAML_WRITE_BACK": 1,
    "KAML_PUT": 0,
    "KAML_PUT_IF_ABSENT": 1,
    "KAML_PUT_IF_PRESENT": 2,
    "KAML_PUT_DELETE": 3,
    "KAML_PUT_DELETE_IF_PRESENT": 4,
    "KAML_ADD": 16,
    "KAML_MAX": 17,
    "KAML_MIN": 18,
    "KAML_EXPECT": 19,
    "KAML_EXPECT_ABSENT": 20,
    "KAML_CHANGE_NAMESPACE": 1,
    "KAML_CHANGE_NAMESPACE_DELETED": 2,
    "KAML_CHANGE_PUT": 3,
    "KAML_CHANGE_DELETE": 4,
    "KAML_CHANGE_DELETE_RANGE": 5,
    "KAML_CHANGE_VERSION": 6,
    "KAML_CHANGE_VERSION_COMMAND": 7,
    "KAML_COMMAND_SNAPSHOT": 1,
    "KAML_COMMAND_ROLL_BACK": 2,
    "KAML_COMMAND_FORGET": 3,
    "KAML_COMMAND_FORGET_THROUGH": 4,
    "KAML_POSITION_BYTES": POSITION_BYTES,
    "KAML_KEY_BYTES_MAX": KEY_BYTES_MAX,
    "KAML_LONG_KEY_BYTES_MAX": LONG_KEY_BYTES_MAX,
    "KAML_RANGE_REVERSE": 1,
    "KAML_RANGE_KEYS_ONLY": 2,
    "KAML_RANGE_FROM_EXCLUDED": 4,
    "KAML_RANGE_TO_INCLUDED": 8,
    "KAML_NAME_BYTES": NAME_BYTES,
    "KAML_UUID_BYTES": UUID_BYTES,
    "KAML_DESCRIPTION_BYTES": DESCRIPTION_BYTES,
}

_RECORD = [c_uint32, c_void_p, c_size_t]
_VALUE_IN = [c_void_p, c_size_t]
_VALUE_OUT = [POINTER(c_void_p), POINTER(c_size_t)]
_BUFFER = [c_void_p, c_size_t, POINTER(c_size_t)]
_RANGE = [c_uint32, c_void_p, c_size_t, c_void_p, c_size_t, c_uint32]
#: Keys that a function of many keys takes at most.
KEYS_OF_A_CALL = 4096
_KEYS = [c_uint32, POINTER(c_void_p), POINTER(c_size_t), c_size_t]
_ITEMS_OUT = [POINTER(POINTER(Item)), POINTER(c_size_t)]

#: What each function returns and takes. ``c_int`` is a status.
FUNCTIONS = {
    "kaml_strerror": (c_char_p, [c_int]),
    "kaml_is_retryable": (c_bool, [c_int]),
    "kaml_last_error": (c_char_p, []),
    "kaml_set_last_error": (None, [c_char_p]),
    "kaml_version": (c_char_p, []),
    "kaml_free": (None, [c_void_p]),
    "kaml_create": (c_int, [c_char_p, c_uint64, POINTER(CreateOptions), POINTER(DeviceHandle)]),
    "kaml_open_or_create": (c_int, [c_char_p, c_uint64, POINTER(CreateOptions), POINTER(DeviceHandle)]),
    "kaml_create_in_memory": (c_int, [c_uint64, POINTER(CreateOptions), POINTER(DeviceHandle)]),
    "kaml_open": (c_int, [c_char_p, POINTER(OpenOptions), POINTER(DeviceHandle)]),
    "kaml_close": (c_int, [DeviceHandle]),
    "kaml_abandon": (c_int, [DeviceHandle]),
    "kaml_limits": (c_int, [DeviceHandle, POINTER(c_uint64), POINTER(c_uint64)]),
    "kaml_create_namespace": (c_int, [DeviceHandle, c_char_p, POINTER(NamespaceOptions), POINTER(c_uint32)]),
    "kaml_namespace": (c_int, [DeviceHandle, c_char_p, POINTER(c_uint32)]),
    "kaml_namespaces": (c_int, [DeviceHandle, POINTER(NamespaceOut), c_size_t, POINTER(c_size_t)]),
    "kaml_logs": (c_int, [DeviceHandle, c_uint32, POINTER(c_uint32), c_size_t, POINTER(c_size_t)]),
    "kaml_set_logs": (c_int, [DeviceHandle, c_uint32, POINTER(c_uint32), c_size_t]),
    "kaml_delete_namespace": (c_int, [DeviceHandle, c_uint32]),
    "kaml_info": (c_int, [DeviceHandle, POINTER(DeviceInfoOut)]),
    "kaml_statistics": (c_int, [DeviceHandle, POINTER(StatisticsOut)]),
    "kaml_check": (c_int, [DeviceHandle, CheckCallback, c_void_p, POINTER(CheckOut)]),
    "kaml_key_u64": (KeyOut, [c_uint64]),
    "kaml_get": (c_int, [DeviceHandle, *_RECORD, *_VALUE_OUT]),
    "kaml_get_into": (c_int, [DeviceHandle, *_RECORD, *_BUFFER]),
    "kaml_exists": (c_int, [DeviceHandle, *_RECORD]),
    "kaml_put": (c_int, [DeviceHandle, POINTER(Record), c_size_t]),
    "kaml_put_one": (c_int, [DeviceHandle, *_RECORD, *_VALUE_IN]),
    "kaml_delete": (c_int, [DeviceHandle, *_RECORD]),
    "kaml_list": (c_int, [DeviceHandle, c_uint32, POINTER(Cursor), POINTER(KeyOut), c_size_t, POINTER(c_size_t)]),
    "kaml_list_keys": (c_int, [DeviceHandle, c_uint32, POINTER(Cursor), c_size_t, *_ITEMS_OUT]),
    "kaml_get_many": (c_int, [DeviceHandle, *_KEYS, POINTER(POINTER(Item))]),
    "kaml_range_open": (c_int, [DeviceHandle, *_RANGE, POINTER(RangeHandle)]),
    "kaml_prefix_open": (c_int, [DeviceHandle, *_RECORD, c_uint32, POINTER(RangeHandle)]),
    "kaml_range_next": (c_int, [RangeHandle, c_size_t, *_ITEMS_OUT]),
    "kaml_range_close": (c_int, [RangeHandle]),
    "kaml_range_abandon": (c_int, [RangeHandle]),
    "kaml_first": (c_int, [DeviceHandle, c_uint32, POINTER(POINTER(Item))]),
    "kaml_last": (c_int, [DeviceHandle, c_uint32, POINTER(POINTER(Item))]),
    "kaml_count": (c_int, [DeviceHandle, *_RANGE, POINTER(c_uint64)]),
    "kaml_estimate": (c_int, [DeviceHandle, *_RANGE, POINTER(c_uint64)]),
    "kaml_delete_range": (c_int, [DeviceHandle, *_RANGE, POINTER(c_uint64)]),
    "kaml_snapshot_open": (c_int, [DeviceHandle, POINTER(SnapshotHandle)]),
    "kaml_snapshot_close": (c_int, [SnapshotHandle]),
    "kaml_snapshot_abandon": (c_int, [SnapshotHandle]),
    "kaml_snapshot_namespaces": (c_int, [SnapshotHandle, POINTER(NamespaceOut), c_size_t, POINTER(c_size_t)]),
    "kaml_snapshot_get": (c_int, [SnapshotHandle, *_RECORD, *_VALUE_OUT]),
    "kaml_snapshot_get_into": (c_int, [SnapshotHandle, *_RECORD, *_BUFFER]),
    "kaml_snapshot_exists": (c_int, [SnapshotHandle, *_RECORD]),
    "kaml_snapshot_list_keys": (c_int, [SnapshotHandle, c_uint32, POINTER(Cursor), c_size_t, *_ITEMS_OUT]),
    "kaml_snapshot_range_open": (c_int, [SnapshotHandle, *_RANGE, POINTER(RangeHandle)]),
    "kaml_snapshot_prefix_open": (c_int, [SnapshotHandle, *_RECORD, c_uint32, POINTER(RangeHandle)]),
    "kaml_snapshot_first": (c_int, [SnapshotHandle, c_uint32, POINTER(POINTER(Item))]),
    "kaml_snapshot_last": (c_int, [SnapshotHandle, c_uint32, POINTER(POINTER(Item))]),
    "kaml_snapshot_count": (c_int, [SnapshotHandle, *_RANGE, POINTER(c_uint64)]),
    "kaml_snapshot_usage": (c_int, [DeviceHandle, POINTER(SnapshotUsageOut)]),
    "kaml_limit_snapshot_memory": (c_int, [DeviceHandle, c_uint64]),
    "kaml_get_as_of": (c_int, [DeviceHandle, c_uint32, *_RECORD, *_VALUE_OUT]),
    "kaml_get_back": (c_int, [DeviceHandle, c_uint32, *_RECORD, *_VALUE_OUT]),
    "kaml_history": (
        c_int,
        [DeviceHandle, *_RECORD, POINTER(Cursor), POINTER(VersionOut), c_size_t, POINTER(c_size_t)],
    ),
    "kaml_snapshot": (c_int, [DeviceHandle, c_uint32, POINTER(c_uint32)]),
    "kaml_snapshots": (c_int, [DeviceHandle, c_uint32, POINTER(SnapshotOut), c_size_t, POINTER(c_size_t)]),
    "kaml_forget_snapshot": (c_int, [DeviceHandle, c_uint32, c_uint32]),
    "kaml_roll_back": (c_int, [DeviceHandle, c_uint32, c_uint32, POINTER(c_uint32)]),
    "kaml_undo": (c_int, [DeviceHandle, *_RECORD, c_uint32]),
    "kaml_merge": (c_int, [DeviceHandle, c_uint32, POINTER(RetentionIn), POINTER(MergeOut)]),
    "kaml_merge_with_progress": (
        c_int,
        [DeviceHandle, c_uint32, POINTER(RetentionIn), MergeCallback, c_void_p, POINTER(MergeOut)],
    ),
    "kaml_write": (c_int, [DeviceHandle, POINTER(Operation), c_size_t, POINTER(c_int64)]),
    "kaml_put_expiring": (c_int, [DeviceHandle, *_RECORD, *_VALUE_IN, c_uint64]),
    "kaml_expiry": (c_int, [DeviceHandle, *_RECORD, POINTER(c_uint64)]),
    "kaml_set_time_to_live": (c_int, [DeviceHandle, c_uint32, c_uint64]),
    "kaml_add": (c_int, [DeviceHandle, *_RECORD, c_int64, POINTER(c_int64)]),
    "kaml_compare_and_set": (c_int, [DeviceHandle, *_RECORD, *_VALUE_IN, *_VALUE_IN]),
    "kaml_store_put_expiring": (c_int, [StoreHandle, *_RECORD, *_VALUE_IN, c_uint64]),
    "kaml_store_add": (c_int, [StoreHandle, *_RECORD, c_int64, POINTER(c_int64)]),
    "kaml_store_compare_and_set": (c_int, [StoreHandle, *_RECORD, *_VALUE_IN, *_VALUE_IN]),
    "kaml_txn_upsert_expiring": (c_int, [TxnHandle, *_RECORD, *_VALUE_IN, c_uint64]),
    "kaml_txn_add": (c_int, [TxnHandle, *_RECORD, c_int64, POINTER(c_int64)]),
    "kaml_backup": (c_int, [DeviceHandle, c_char_p, c_char_p, POINTER(BackupOut)]),
    "kaml_backup_with_progress": (
        c_int,
        [DeviceHandle, c_char_p, c_char_p, BackupCallback, c_void_p, POINTER(BackupOut)],
    ),
    "kaml_backup_verify": (c_int, [c_char_p, POINTER(BackupOut)]),
    "kaml_restore": (c_int, [POINTER(c_char_p), c_size_t, c_char_p, c_uint64, POINTER(CreateOptions)]),
    "kaml_restore_with_progress": (
        c_int,
        [POINTER(c_char_p), c_size_t, c_char_p, c_uint64, POINTER(CreateOptions), BackupCallback, c_void_p],
    ),
    "kaml_resize": (c_int, [DeviceHandle, c_uint64, POINTER(c_uint64)]),
    "kaml_position_now": (c_int, [DeviceHandle, POINTER(Position)]),
    "kaml_changes_open": (c_int, [DeviceHandle, POINTER(Position), POINTER(ChangesHandle)]),
    "kaml_changes_next": (
        c_int,
        [ChangesHandle, c_uint32, POINTER(POINTER(ChangeOut)), POINTER(c_size_t), POINTER(Position)],
    ),
    "kaml_changes_close": (c_int, [ChangesHandle]),
    "kaml_changes_abandon": (c_int, [ChangesHandle]),
    "kaml_store_open": (c_int, [DeviceHandle, c_uint64, POINTER(StoreOptions), POINTER(StoreHandle)]),
    "kaml_store_close": (c_int, [StoreHandle]),
    "kaml_store_abandon": (c_int, [StoreHandle]),
    "kaml_store_flush": (c_int, [StoreHandle]),
    "kaml_store_acknowledge_lost": (c_int, [StoreHandle, POINTER(c_uint64)]),
    "kaml_store_get": (c_int, [StoreHandle, *_RECORD, *_VALUE_OUT]),
    "kaml_store_get_into": (c_int, [StoreHandle, *_RECORD, *_BUFFER]),
    "kaml_store_exists": (c_int, [StoreHandle, *_RECORD]),
    "kaml_store_put": (c_int, [StoreHandle, *_RECORD, *_VALUE_IN]),
    "kaml_store_delete": (c_int, [StoreHandle, *_RECORD]),
    "kaml_store_get_many": (c_int, [StoreHandle, *_KEYS, POINTER(POINTER(Item))]),
    "kaml_store_range": (c_int, [StoreHandle, *_RANGE, c_size_t, *_ITEMS_OUT]),
    "kaml_store_read_only": (c_int, [StoreHandle, POINTER(SnapshotHandle)]),
    "kaml_txn_expect": (c_int, [TxnHandle, POINTER(Record), c_size_t]),
    "kaml_txn_range": (c_int, [TxnHandle, *_RANGE, c_size_t, *_ITEMS_OUT]),
    "kaml_txn_range_for_update": (c_int, [TxnHandle, *_RANGE, c_size_t, *_ITEMS_OUT]),
    "kaml_txn_begin": (c_int, [StoreHandle, POINTER(TxnHandle)]),
    "kaml_txn_read": (c_int, [TxnHandle, *_RECORD, *_VALUE_OUT]),
    "kaml_txn_read_into": (c_int, [TxnHandle, *_RECORD, *_BUFFER]),
    "kaml_txn_read_for_update": (c_int, [TxnHandle, *_RECORD, *_VALUE_OUT]),
    "kaml_txn_update": (c_int, [TxnHandle, *_RECORD, *_VALUE_IN]),
    "kaml_txn_upsert": (c_int, [TxnHandle, *_RECORD, *_VALUE_IN]),
    "kaml_txn_insert": (c_int, [TxnHandle, *_RECORD, *_VALUE_IN]),
    "kaml_txn_delete": (c_int, [TxnHandle, *_RECORD]),
    "kaml_txn_commit": (c_int, [TxnHandle]),
    "kaml_txn_commit_durable": (c_int, [TxnHandle]),
    "kaml_txn_abort": (c_int, [TxnHandle]),
    "kaml_txn_free": (c_int, [TxnHandle]),
    "kaml_txn_abandon": (c_int, [TxnHandle]),
}


#: Which arguments of each function are numbers.
_NUMBERS = {
    function: [(place, kind) for place, kind in enumerate(kinds) if kind in UNSIGNED]
    for function, (_, kinds) in FUNCTIONS.items()
}


def _load() -> ctypes.CDLL:
    name = f"libkaml.so.{VERSION_MAJOR}"
    bundled = os.path.join(os.path.dirname(__file__), name)  # in a wheel
    name = os.environ.get("KAML_LIBRARY") or (bundled if os.path.exists(bundled) else name)
    try:
        library = ctypes.CDLL(name)
    except OSError as failure:
        remedy = (
            "install a wheel of kaml, which contains the library; or build it with crates/kaml-capi/install.sh PREFIX "
            f"and set KAML_LIBRARY=PREFIX/lib/libkaml.so.{VERSION_MAJOR}"
        )
        raise ImportError(f"the library of kaml cannot be loaded: {failure} ({remedy})") from failure
    for function, (restype, argtypes) in FUNCTIONS.items():
        declared = getattr(library, function, None)
        if declared is None:
            raise ImportError(f"{name} has no {function}: it is older than this package; install both from one version of KAML")
        declared.restype, declared.argtypes = restype, argtypes
    found = library.kaml_version().decode()
    if found.split(".")[0] != str(VERSION_MAJOR):
        raise ImportError(f"{name} is version {found}; this package needs {VERSION_MAJOR}.x")
    return library


_library = _load()


class Pointer(c_void_p):
    """What the library has allocated, freed with this object."""


class Items(POINTER(Item)):  # type: ignore[misc]
    """Records that the library has allocated, freed with this object."""

    _type_ = Item


class ChangeList(POINTER(ChangeOut)):  # type: ignore[misc]
    """Changes that the library has allocated, freed with this object."""

    _type_ = ChangeOut


def _destroy_with(kind: type, function: str) -> None:
    """Makes a function of the library the destructor of a type. None of it is Python code, so no Ctrl-C can come in between."""
    method = ctypes.pythonapi.PyInstanceMethod_New
    method.restype, method.argtypes = ctypes.py_object, [ctypes.py_object]
    kind.__del__ = method(getattr(_library, function))  # type: ignore[attr-defined]


_destroy_with(Pointer, "kaml_free")
_destroy_with(Items, "kaml_free")
_destroy_with(ChangeList, "kaml_free")
_destroy_with(ChangesHandle, "kaml_changes_abandon")
_destroy_with(RangeHandle, "kaml_range_abandon")
_destroy_with(SnapshotHandle, "kaml_snapshot_abandon")
_destroy_with(DeviceHandle, "kaml_abandon")
_destroy_with(StoreHandle, "kaml_store_abandon")
_destroy_with(TxnHandle, "kaml_txn_abandon")


def version() -> str:
    """The version of the shared library."""
    return _library.kaml_version().decode()


def status(function: str, *arguments: Any) -> int:
    """Calls a function that returns a status."""
    for place, kind in _NUMBERS[function]:
        unsigned(arguments[place], kind, f"argument {place} of {function}")
    return getattr(_library, function)(*arguments)


def call(function: str, *arguments: Any) -> None:
    """Calls a function that returns a status; any but ``OK`` is raised."""
    _check(status(function, *arguments))


def _check(code: int) -> None:
    if code != Status.OK:
        raise error(code, _library.kaml_last_error().decode(errors="replace"))


def is_there(function: str, *arguments: Any) -> bool:
    """Calls a function that returns ``OK`` or ``NOT_FOUND``."""
    code = status(function, *arguments)
    if code == Status.NOT_FOUND:
        return False
    _check(code)
    return True


def value(function: str, *arguments: Any) -> Optional[bytes]:
    """Calls a function that returns a value; none if there is none."""
    pointer, length = Pointer(), c_size_t()
    if not is_there(function, *arguments, byref(pointer), byref(length)):
        return None
    return ctypes.string_at(pointer.value or 0, length.value) if length.value else b""


def item(function: str, *arguments: Any) -> "Optional[tuple[bytes, bytes]]":
    """Calls a function that returns a record; none if there is none."""
    found = Items()
    return _record(found[0]) if is_there(function, *arguments, byref(found)) else None


def items(function: str, *arguments: Any, keys_only: bool = False) -> "list[Any]":
    """Calls a function that returns records, as pairs of key and value, or their keys."""
    found, count = Items(), c_size_t()
    call(function, *arguments, byref(found), byref(count))
    what = _key if keys_only else _record
    return [what(found[at]) for at in range(count.value)]


def values(function: str, handle: Any, namespace_id: int, keys: "Iterable[Key]") -> "list[Optional[bytes]]":
    """Calls a function that reads many keys, as often as there are too many for one call. None is the value of a key that does not exist."""
    all_keys = [key_bytes(key) for key in keys]
    read: "list[Optional[bytes]]" = []
    for begin in range(0, len(all_keys), KEYS_OF_A_CALL):
        some = all_keys[begin : begin + KEYS_OF_A_CALL]
        starts = ctypes.cast((c_char_p * len(some))(*some), POINTER(c_void_p))
        lengths = (c_size_t * len(some))(*map(len, some))
        found = Items()
        call(function, handle, namespace_id, starts, lengths, len(some), byref(found))
        read += [_value(found[at]) for at in range(len(some))]
    return read


def _value(one: Item) -> Optional[bytes]:
    return None if one.value is None else ctypes.string_at(one.value, one.value_length)


def _key(one: Item) -> bytes:
    return ctypes.string_at(one.key, one.key_length)


def _record(one: Item) -> "tuple[bytes, bytes]":
    return _key(one), ctypes.string_at(one.value, one.value_length) if one.value_length else b""


def logs_in(logs: "Iterable[int]") -> "tuple[Any, int]":
    """Numbers of logs as an array for the library, which is null if there are none."""
    numbers = [operator.index(log) for log in logs]
    for number in numbers:
        if not 0 <= number < 1 << 32:
            raise OverflowError(f"log {number}: the numbers of logs begin at 0")
    return (c_uint32 * len(numbers))(*numbers) if numbers else None, len(numbers)


class Hearing:
    """A callback for the library, for a ``with`` block around the call. What it raises makes the library end the call, and is raised
    by the block; C knows no exceptions, and Python would only print it."""

    def __init__(self, kind: Any, hear: "Callable[..., object]") -> None:
        self._hear = hear
        self._raised: Optional[BaseException] = None
        self._callback = kind(self._call)

    def _call(self, _: object, *told: Any) -> int:
        try:
            self._hear(*told)
        except BaseException as failure:
            self._raised = failure
        return self._raised is not None

    def __enter__(self) -> Any:
        callback, self._callback = self._callback, None  # no cycle for the collector of garbage
        return callback

    def __exit__(self, _: object, failure: Optional[BaseException], *rest: object) -> None:
        raised, self._raised = self._raised, None
        if raised is not None:
            raise raised
        if isinstance(failure, Error) and failure.status == Status.CANCELLED:
            # Ctrl-C came before the callback could catch it. ctypes printed it, and what the library got as the answer was anything.
            raise KeyboardInterrupt from failure


class Owner:
    """Something of the library that is closed once: by ``close``, or when nobody knows it any more."""

    _CLOSE = ""
    _opened: Optional[Struct] = None

    def _own(self, handle: Struct) -> None:
        """Takes a handle that the library has yet to fill in: what it opens has an owner already, whatever interrupts the call."""
        self._process = os.getpid()
        self._opened = handle

    @property
    def _is_open(self) -> bool:
        return self._opened is not None and self._opened.id != 0

    @property
    def _handle(self) -> Struct:
        if not self._is_open:
            raise error(Status.BAD_HANDLE, f"the {type(self).__name__} is closed")
        return self._opened

    def __reduce__(self) -> "tuple[object, ...]":
        # Copying asks this, too. A copy would close what is the original's.
        raise TypeError(f"a {type(self).__name__} can neither be copied nor pickled")

    def _close(self) -> None:
        if not self._is_open:
            return
        if os.getpid() != self._process:
            self._opened = None  # it is the parent's, which continues with it
            return
        close_abandoned()
        code = status(self._CLOSE, self._opened)
        if code not in (Status.IN_USE, Status.BAD_STATE):
            self._opened.id = 0
        if code != Status.BAD_HANDLE:  # another thread was quicker
            _check(code)

    def __exit__(self, raised: "Optional[type[BaseException]]", *_: object) -> None:
        try:
            self._close()
        except Error:
            if raised is None:
                raise
            # The exception of the block is more useful; garbage collection closes what could not be closed now.

    def __del__(self) -> None:
        # After a fork what was open is the parent's; when the interpreter ends the system cleans up.
        if not self._is_open or sys is None or sys.is_finalizing() or os.getpid() != self._process:
            return
        _let_go(self._CLOSE, self._opened)
        warnings.warn(f"{type(self).__name__} was not closed", ResourceWarning, stacklevel=2)


#: What nobody knows any more, and what still uses it: the collector of garbage has no order.
_in_use: "list[tuple[str, Struct]]" = []


#: What closes those that nothing open keeps from being closed.
_ABANDON = {
    "kaml_snapshot_close": "kaml_snapshot_abandon",
    "kaml_txn_free": "kaml_txn_abandon",
    "kaml_changes_close": "kaml_changes_abandon",
}


def _let_go(close: str, handle: Struct) -> None:
    # A transaction or a snapshot is kept by nothing: an interruption of this leaves it to the destructor of its handle.
    if close not in _ABANDON or status(_ABANDON[close], handle) == Status.IN_USE:
        _in_use.append((close, handle))
    _close_abandoned()


def close_abandoned() -> None:
    """Closes what a finalizer could not close, because it was in use or because Ctrl-C came."""
    if _in_use:
        _close_abandoned()


def _close_abandoned() -> None:
    # Garbage is collected anywhere, also between a call that failed and the look at its message.
    message = _library.kaml_last_error()
    try:
        goes_on = True
        while goes_on:
            closed = [one for one in list(_in_use) if _is_closed(*one)]
            for one in closed:
                if one in _in_use:  # else another thread was quicker
                    _in_use.remove(one)
            goes_on = bool(closed)
    finally:
        _library.kaml_set_last_error(message)


def _is_closed(close: str, handle: Struct) -> bool:
    return status(_ABANDON.get(close, close), handle) != Status.IN_USE


def values_of(found: Struct, names: "tuple[str, ...]") -> "list[Any]":
    """Fields of what the library filled in; text as text."""
    values = (getattr(found, name) for name in names)
    return [value.decode(errors="replace") if isinstance(value, bytes) else value for value in values]


def id_of(namespace: Any) -> int:
    """The number of a namespace."""
    try:
        return unsigned(namespace.id, c_uint32, "namespace")
    except AttributeError:
        raise TypeError(f"expected a Namespace, not {type(namespace).__name__}") from None


def name_bytes(name: str) -> bytes:
    """A name as the library takes it."""
    if not isinstance(name, str):
        raise TypeError(f"a name is a str, not {type(name).__name__}")
    return _without_nul(name.encode())


def path_bytes(path: "Union[str, os.PathLike[str]]") -> bytes:
    """A path as the library takes it."""
    return _without_nul(os.fsencode(path))


def call_with_path(function: str, path: "Union[str, os.PathLike[str]]", *arguments: Any) -> None:
    """Calls a function that takes a path first; the system's error for the file is raised with it."""
    close_abandoned()  # one that an interrupted finalizer left still locks the file
    try:
        call(function, path_bytes(path), *arguments)
    except OSError as failure:
        failure.filename = os.fspath(path)
        raise


def _without_nul(text: bytes) -> bytes:
    if b"\0" in text:
        raise ValueError("embedded null byte")  # C would see the beginning only
    return text


def key_bytes(key: Key) -> bytes:
    """A key as the library takes it."""
    if isinstance(key, bytes):
        return key
    if isinstance(key, str):
        return key.encode()
    if isinstance(key, bool):
        raise TypeError("a key is no bool")
    # Numbers before buffers: those of numpy are both, and their bytes are in the machine's order.
    try:
        number = operator.index(key)
    except TypeError:
        return _bytes_of_key(key)
    if not 0 <= number < 1 << 64:
        raise error(Status.BAD_KEY, f"{number} is not in 0..2^64")
    return number.to_bytes(8, "big")


def _bytes_of_key(key: Any) -> bytes:
    try:
        view = memoryview(key)
    except TypeError:
        view = None
    if view is None or view.ndim == 0:  # a single float, or whatever else numpy has, is no row of bytes
        raise TypeError(f"a key is bytes, str or int, not {type(key).__name__}")
    return view.tobytes()


def value_bytes(value: Buffer) -> bytes:
    """The bytes of anything that has some."""
    return value if isinstance(value, bytes) else memoryview(value).tobytes()


def key_in(key: Key) -> "tuple[bytes, int]":
    """A key and its length, as functions take them."""
    data = key_bytes(key)
    return data, len(data)


def range_in(
    start: Optional[Key],
    stop: Optional[Key],
    reverse: bool = False,
    keys_only: bool = False,
    start_excluded: bool = False,
    stop_included: bool = False,
) -> "tuple[Optional[bytes], int, Optional[bytes], int, int]":
    """A range of keys, as functions take it."""
    flags = (
        (CONSTANTS["KAML_RANGE_REVERSE"] if reverse else 0)
        | (CONSTANTS["KAML_RANGE_KEYS_ONLY"] if keys_only else 0)
        | (CONSTANTS["KAML_RANGE_FROM_EXCLUDED"] if start_excluded else 0)
        | (CONSTANTS["KAML_RANGE_TO_INCLUDED"] if stop_included else 0)
    )
    lower, upper = ((None, 0) if bound is None else key_in(bound) for bound in (start, stop))
    return (*lower, *upper, flags)


def prefix_range(prefix: Key) -> "tuple[Optional[bytes], Optional[bytes]]":
    """The keys that begin with a prefix, as a range."""
    start = key_bytes(prefix)
    kept = start.rstrip(b"\xff")
    return start or None, kept[:-1] + bytes([kept[-1] + 1]) if kept else None


def records_in(records: "list[tuple[int, int, bytes, bytes]]", kind: Any = Record) -> "ctypes.Array[Any]":
    """Records as functions take them: namespace, action, key and value. The bytes belong to the list, which outlives the call."""

    def pointer(data: bytes) -> "int | None":
        return ctypes.cast(c_char_p(data), c_void_p).value

    array = (kind * len(records))()
    for record, (namespace, action, key, value) in zip(array, records):
        record.namespace_id, record.action = namespace, action
        record.key, record.key_length = pointer(key), len(key)
        record.value, record.value_length = pointer(value), len(value)
    return array


def time_to_live(expires_in: Any) -> int:
    """After how many milliseconds a record expires: of seconds or a ``timedelta``; none is the time to live of its namespace."""
    if expires_in is None:
        return 0
    seconds = expires_in.total_seconds() if isinstance(expires_in, datetime.timedelta) else float(expires_in)
    if math.isnan(seconds) or seconds <= 0:
        raise ValueError(f"expires_in: {expires_in!r} is not above 0; delete the record instead")
    milliseconds = math.inf if math.isinf(seconds) else math.ceil(seconds * 1000)
    return NEVER if milliseconds >= NEVER else int(milliseconds)


def number_in(number: Any) -> int:
    """What is added to a counter: ctypes would take it modulo 2^64 without an error."""
    number = operator.index(number)
    if not -(1 << 63) <= number < 1 << 63:
        raise OverflowError(f"number: {number} is not in -2^63..2^63")
    return number


def counter(function: str, *arguments: Any) -> int:
    """Calls a function that returns a counter."""
    found = c_int64()
    call(function, *arguments, byref(found))
    return found.value


def perhaps_in(value: Optional[Buffer]) -> "tuple[Optional[bytes], int]":
    """A value and its length, or none."""
    return (None, 0) if value is None else value_in(value)


def shared_in(value: Buffer) -> "tuple[Any, int]":
    """The bytes of a buffer where they are, and how many: nobody may change them before the call has returned. Those of a buffer that is for reading
    only, or not in one piece, are copied."""
    view = memoryview(value)
    if view.readonly or not view.c_contiguous or view.nbytes == 0:
        data = value_bytes(value)
        return c_char_p(data), len(data)
    return ctypes.pointer(c_char.from_buffer(view)), view.nbytes


def value_into(function: str, buffer: Any, *arguments: Any) -> Optional[int]:
    """Calls a function that reads a value into a buffer; its length, or none if there is none."""
    view = memoryview(buffer)
    if view.readonly or not view.c_contiguous:
        raise TypeError("a buffer to read into is writable and in one piece")
    length = c_size_t()
    place = ctypes.pointer(c_char.from_buffer(view)) if view.nbytes else None
    return length.value if is_there(function, *arguments, place, view.nbytes, byref(length)) else None


def value_in(value: Buffer) -> "tuple[bytes, int]":
    """A value and its length, as functions take them."""
    data = value_bytes(value)
    return data, len(data)
