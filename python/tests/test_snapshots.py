"""Snapshots of devices, transactions that only read, and records that a transaction expects."""

import copy
import gc
import itertools
import pickle
import threading
import unittest
import warnings

import kaml
from kaml import Device, KeyKind, Status, Store

RECORDS = 700


def key_of(number):
    return b"a key with the number %04d" % number


def value_of(number, turn):
    return b"%d of %d" % (number, turn)


class Snapshots(unittest.TestCase):
    def setUp(self):
        self.device = Device.in_memory(64 << 20)
        self.addCleanup(self.device.close)
        self.ordered = self.device.create_namespace("ordered", KeyKind.ORDERED)
        self.any = self.device.create_namespace("any", KeyKind.ANY)
        self.fill(range(RECORDS), 1)

    def fill(self, numbers, turn):
        batch = kaml.Batch()
        for number in numbers:
            for space in (self.ordered, self.any):
                batch.put(space, key_of(number), value_of(number, turn))
        self.device.write(batch)

    def assert_raises_status(self, status, function, *arguments, **named):
        with self.assertRaises(kaml.Error) as raised:
            function(*arguments, **named)
        self.assertEqual(raised.exception.status, status)

    def assert_shows(self, snapshot, turn):
        """All reads, of a snapshot that shows all records of a turn."""
        records = [(key_of(number), value_of(number, turn)) for number in range(RECORDS)]
        keys = [key for key, _ in records]
        for key, value in records[::37]:
            for space in (self.ordered, self.any):
                self.assertEqual(snapshot.get(space, key), value)
                self.assertTrue(snapshot.exists(space, key))
        for space in (self.ordered, self.any):
            self.assertIsNone(snapshot.get(space, key_of(RECORDS)))
            self.assertFalse(snapshot.exists(space, key_of(RECORDS)))
        self.assertEqual(list(snapshot.range(self.ordered)), records)
        self.assertEqual(list(snapshot.range(self.ordered, reverse=True, keys_only=True)), keys[::-1])
        self.assertEqual(list(snapshot.range(self.ordered, key_of(5), key_of(9))), records[5:9])
        edges = {"start_excluded": True, "stop_included": True}
        self.assertEqual(list(snapshot.range(self.ordered, key_of(5), key_of(9), **edges)), records[6:10])
        self.assertEqual(list(snapshot.prefix(self.ordered, key_of(120)[:-1])), records[120:130])
        self.assertEqual(
            list(snapshot.prefix(self.ordered, key_of(120)[:-1], reverse=True, keys_only=True)), keys[129:119:-1]
        )
        self.assertEqual(snapshot.first(self.ordered), records[0])
        self.assertEqual(snapshot.last(self.ordered), records[-1])
        self.assertEqual(snapshot.count(self.ordered), RECORDS)
        self.assertEqual(snapshot.count(self.ordered, key_of(5), key_of(9)), 4)
        self.assertEqual(list(snapshot.keys(self.ordered)), keys)
        self.assertEqual(sorted(snapshot.keys(self.any)), keys)

    def test_a_snapshot_shows_its_moment(self):
        """Goal: whatever is put, deleted and created later, a snapshot shows what was there.
        Method: all reads of two snapshots of different moments; nothing stays open."""
        with self.device.open_snapshot() as first:
            self.fill(range(RECORDS), 2)
            with self.device.open_snapshot() as second:
                self.fill(range(RECORDS, RECORDS + 50), 3)
                late = self.device.create_namespace("late")
                self.device.delete_range(self.ordered)
                for number in range(0, RECORDS, 3):
                    self.device.delete(self.any, key_of(number))
                self.assertEqual(self.device.snapshot_usage().open_count, 2)
                self.assert_shows(first, 1)
                self.assert_shows(second, 2)
                self.assertEqual(first.namespaces(), [self.ordered, self.any])
                self.assert_raises_status(Status.UNKNOWN_NAMESPACE, first.get, late, "a")
        usage = self.device.snapshot_usage()
        self.assertEqual((usage.open_count, usage.expired_count), (0, 0))  # entries are released in the background

    def test_a_transaction_that_reads_only_sees_whole_commits(self):
        """Goal: each view has the sum that every commit keeps, waits for no lock, and outlives its store.
        Method: a thread moves amounts between accounts while views sum them up."""
        accounts = self.device.create_namespace("accounts", KeyKind.ORDERED)
        store = Store(self.device, 8 << 20)
        for number in range(20):
            store.put(accounts, number, b"%d" % 100)
        ended = threading.Event()

        def move():
            for turn in itertools.count():
                if ended.is_set():
                    return
                with store.transaction() as txn:
                    source, target = turn % 20, (turn * 7 + 3) % 20
                    if source != target:
                        txn.expect([(accounts, source), (accounts, target)])
                        for account, amount in ((source, -1), (target, 1)):
                            balance = int(txn.read_for_update(accounts, account))
                            txn.update(accounts, account, b"%d" % (balance + amount))

        mover = threading.Thread(target=move)
        mover.start()
        try:
            for _ in range(30):
                with store.read_only() as view:
                    self.assertEqual(sum(int(balance) for _, balance in view.range(accounts)), 2000)
        finally:
            ended.set()
            mover.join()
        with store.transaction() as txn:
            txn.read_for_update(accounts, 1)
            with store.read_only() as view:
                self.assertIsNotNone(view.get(accounts, 1))
        with store.read_only() as view:
            store.close()
            self.assertEqual(view.count(accounts), 20)
        self.assert_raises_status(Status.BAD_HANDLE, store.read_only)

    def test_expected_records_are_read_together(self):
        """Goal: what a transaction expects is in the cache when it is used; mistakes are raised. Method: count the reads of the device."""
        with Store(self.device, 8 << 20) as store:
            with store.transaction() as txn:
                txn.expect((self.any, key_of(number)) for number in range(0, RECORDS, 9))
                before = self.device.statistics().read_count
                for number in range(0, RECORDS, 9):
                    self.assertEqual(txn.read(self.any, key_of(number)), value_of(number, 1))
                self.assertEqual(self.device.statistics().read_count, before)
                txn.expect([])
                txn.expect([(kaml.Namespace(4711, "none"), "a")])
                self.assert_raises_status(Status.BAD_KEY, txn.expect, [(self.any, b"")])
                self.assertRaises(TypeError, txn.expect, [("any", b"a")])
                self.assertRaises(TypeError, txn.expect, [(self.any, 1.5)])
                self.assertEqual(txn.read(self.any, key_of(1)), value_of(1, 1))

    def test_iterators_outlive_their_snapshot(self):
        """Goal: an iterator shows the moment of its snapshot to its end, also one that nobody else knows; then nothing is open.
        Method: close and forget snapshots under iterators."""
        with self.device.open_snapshot() as snapshot:
            walk = snapshot.range(self.ordered, keys_only=True)
            self.assertEqual(next(walk), key_of(0))
        self.device.delete_range(self.ordered)
        self.assertEqual(sum(1 for _ in walk), RECORDS - 1)
        self.assertEqual(self.device.snapshot_usage().open_count, 0)
        self.fill(range(RECORDS), 1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            self.assertEqual(sum(1 for _ in self.device.open_snapshot().prefix(self.ordered, "a")), RECORDS)
            gc.collect()
        self.assertEqual(self.device.snapshot_usage().open_count, 0)

    def test_snapshots_expire(self):
        """Goal: a snapshot that keeps too much raises an error of its own, as does an iterator; the next one works.
        Method: a limit of one byte."""
        with self.device.open_snapshot() as snapshot:
            walk = snapshot.range(self.ordered)
            next(walk)
            self.device.limit_snapshot_memory(1)
            self.fill(range(RECORDS), 2)
            self.assertRaises(kaml.SnapshotTooOldError, snapshot.get, self.any, key_of(1))
            self.assertRaises(kaml.SnapshotTooOldError, snapshot.range, self.ordered)
            self.assertRaises(kaml.SnapshotTooOldError, list, walk)
        self.assertEqual(self.device.snapshot_usage().expired_count, 1)
        self.device.limit_snapshot_memory(512 << 20)
        with self.device.open_snapshot() as snapshot:
            self.assert_shows(snapshot, 2)

    def test_mistakes(self):
        """Goal: every mistake has its error, and closing is safe in any order. Method: make them."""
        past = self.device.create_namespace("past", versioned=True)
        snapshot = self.device.open_snapshot()
        self.assert_raises_status(Status.BAD_ARGUMENT, snapshot.get, past, "a")
        self.assert_raises_status(Status.BAD_ARGUMENT, snapshot.range, self.any)
        self.assert_raises_status(Status.BAD_ARGUMENT, snapshot.first, self.any)
        self.assert_raises_status(Status.BAD_KEY, snapshot.get, self.any, b"")
        self.assertRaises(TypeError, snapshot.get, "any", b"a")
        self.assertRaises(TypeError, snapshot.get, self.any, 1.5)
        self.assertRaises(TypeError, copy.copy, snapshot)
        self.assertRaises(TypeError, pickle.dumps, snapshot)
        self.assertRaises(OverflowError, self.device.limit_snapshot_memory, -1)
        snapshot.close()
        snapshot.close()
        self.assert_raises_status(Status.BAD_HANDLE, snapshot.get, self.any, b"a")
        other = Device.in_memory(64 << 20)
        space = other.create_namespace("space", KeyKind.ORDERED)
        other.put(space, "a", b"1")
        snapshot, walk = other.open_snapshot(), None
        walk = snapshot.range(space)
        other.close()
        self.assert_raises_status(Status.BAD_HANDLE, snapshot.get, space, "a")
        self.assert_raises_status(Status.BAD_HANDLE, next, walk)
        snapshot.close()
        self.assert_raises_status(Status.BAD_HANDLE, other.open_snapshot)

    def test_a_forgotten_snapshot_is_closed_with_a_warning(self):
        """Goal: nothing stays open that nobody knows. Method: drop one; its device goes after it."""
        with self.assertWarns(ResourceWarning):
            self.device.open_snapshot()
            gc.collect()
        self.assertEqual(self.device.snapshot_usage().open_count, 0)


if __name__ == "__main__":
    unittest.main()
