"""Records that expire, counters, expected values, backups, sizes and the change stream."""

import asyncio
import math
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest
from datetime import timedelta

import kaml
import kaml.aio
from kaml import Batch, ChangeKind, Device, Status, Store, VersionCommand


class Lasting(unittest.TestCase):
    def setUp(self):
        self.device = Device.in_memory(64 << 20)
        self.addCleanup(self.device.close)
        self.plain = self.device.create_namespace("plain")
        self.brief = self.device.create_namespace("brief", expires_in=3600)

    def assert_raises_status(self, status, function, *arguments, **named):
        with self.assertRaises(kaml.Error) as raised:
            function(*arguments, **named)
        self.assertEqual(raised.exception.status, status)

    def test_records_expire(self):
        """Goal: a record has the time that its put or its namespace gives it, and is gone then; times that mean nothing are refused.
        Method: puts of each kind; the times are read, and one of a millisecond passes."""
        device, now = self.device, time.time()
        device.put(self.brief, "default", b"1")
        device.put(self.brief, "never", b"1", expires_in=math.inf)
        device.put(self.plain, "minute", b"1", expires_in=timedelta(minutes=1))
        device.write(Batch().put(self.plain, "batch", b"1", expires_in=120).put(self.plain, "kept", b"1"))
        for space, key, seconds in [(self.brief, "default", 3600), (self.plain, "minute", 60), (self.plain, "batch", 120)]:
            self.assertAlmostEqual(device.expiry(space, key), now + seconds, delta=50, msg=key)
        self.assertEqual(device.expiry(self.brief, "never"), math.inf)
        self.assertEqual(device.expiry(self.plain, "kept"), math.inf)
        self.assertIsNone(device.expiry(self.plain, "none"))
        device.put(self.plain, "soon", b"1", expires_in=0.001)
        time.sleep(0.01)
        self.assertIsNone(device.get(self.plain, "soon"))
        device.set_time_to_live(self.plain, 60)
        device.put(self.plain, "later", b"1")
        self.assertLess(device.expiry(self.plain, "later"), math.inf)
        for wrong in (0, -1, math.nan):
            self.assertRaises(ValueError, device.put, self.plain, "a", b"1", expires_in=wrong)

    def test_counters_and_expected_values(self):
        """Goal: counters and expected values, one by one and in batches, do what they do in Rust.
        Method: operands and expected values that hold and do not."""
        device, plain = self.device, self.plain
        self.assertEqual((device.add(plain, "n", 5), device.add(plain, "n"), device.add(plain, "n", -7)), (5, 6, -1))
        self.assert_raises_status(Status.BAD_ARGUMENT, device.add, plain, "n", -(2**63))
        self.assertRaises(OverflowError, device.add, plain, "n", 2**63)
        batch = Batch().add(plain, "n", 3).put(plain, "a", b"one").max(plain, "n", 9).min(plain, "m", -4)
        self.assertEqual(device.write(batch), [2, 9, -4])
        self.assertEqual(device.get(plain, "n"), (9).to_bytes(8, "little", signed=True))
        with self.assertRaises(kaml.ValueDiffersError):
            device.write(Batch().expect(plain, "a", b"two").add(plain, "n"))
        with self.assertRaises(kaml.ValueDiffersError):
            device.write(Batch().expect(plain, "a", None))
        self.assertIsNone(device.write(Batch().expect(plain, "a", b"one").delete(plain, "a")))
        device.compare_and_set(plain, "c", None, b"")
        self.assertRaises(kaml.ValueDiffersError, device.compare_and_set, plain, "c", None, b"1")
        device.compare_and_set(plain, "c", b"", b"1")
        device.compare_and_set(plain, "c", b"1", None)
        self.assertFalse(device.exists(plain, "c"))

    def test_a_store_has_the_same(self):
        """Goal: a store shows no record after its time, and has counters and expected values; its device refuses changes meanwhile.
        Method: the same through a store and a transaction."""
        with Store(self.device, 8 << 20) as store:
            store.put(self.brief, "a", b"1")
            store.put(self.plain, "soon", b"1", expires_in=0.001)
            self.assertEqual((store.get(self.brief, "a"), store.add(self.plain, "n", 2)), (b"1", 2))
            with store.transaction() as txn:
                txn.upsert(self.plain, "t", b"1", expires_in=0.001)
                self.assertEqual(txn.add(self.plain, "n"), 3)
            time.sleep(0.01)
            self.assertIsNone(store.get(self.plain, "soon"))
            self.assertFalse(store.exists(self.plain, "t"))
            store.compare_and_set(self.plain, "c", None, b"1")
            self.assertRaises(kaml.ValueDiffersError, store.compare_and_set, self.plain, "c", None, b"1")
            self.assert_raises_status(Status.IN_USE, self.device.set_time_to_live, self.plain, 1)
            self.assert_raises_status(Status.IN_USE, self.device.add, self.plain, "n")
        self.assertLess(self.device.expiry(self.brief, "a"), math.inf)

    def test_the_change_stream(self):
        """Goal: changes come in order, each exactly one time, from any position; a reader ends when it is told, and closes with its device.
        Method: read some commits, begin again after the first, with a time-out, and with positions that are none."""
        device, start = self.device, self.device.position()
        device.put(self.plain, "a", b"1", expires_in=60)
        device.write(Batch().put(self.plain, "b", b"2").delete(self.plain, "a"))
        with device.changes(since=start, timeout=0) as reader:
            commits = list(reader)
            self.assertEqual(reader.position, commits[-1].position)
        kinds = [[change.kind for change in commit.changes] for commit in commits]
        self.assertEqual(kinds, [[ChangeKind.NAMESPACE] * 2, [ChangeKind.PUT], [ChangeKind.PUT, ChangeKind.DELETE]])
        put = commits[1].changes[0]
        self.assertEqual((put.key, put.value, put.namespace_id), (b"a", b"1", self.plain.id))
        self.assertLess(put.expires_at, math.inf)
        with device.changes(since=commits[1].position, timeout=0.01) as reader:
            next(reader)
            self.assertEqual([change.key for change in next(reader).changes], [b"b", b"a"])
            self.assertRaises(StopIteration, next, reader)
        self.assertRaises(ValueError, device.changes, since=b"short")
        self.assert_raises_status(Status.BAD_ARGUMENT, device.changes, since=bytes(32))
        reader.close()
        self.assert_raises_status(Status.BAD_HANDLE, next, reader)

    def test_commands_on_versions(self):
        """Goal: the stream has what commands on user versions do, and other changes have no command.
        Method: a snapshot, a put, a rollback and a forgotten snapshot."""
        device = self.device
        texts = device.create_namespace("texts", versioned=True)
        device.put(texts, "a", b"1")
        with device.changes(timeout=0) as reader:
            first = device.snapshot(texts)
            device.put(texts, "a", b"2")
            before = device.roll_back(texts, first)
            device.forget_snapshot(texts, before)
            changes = [change for commit in reader for change in commit.changes if change.kind != ChangeKind.NAMESPACE]
        commands = [(change.kind, change.command, change.snapshot) for change in changes]
        kind, does = ChangeKind.VERSION_COMMAND, VersionCommand
        expected = [(kind, does.SNAPSHOT, 0), (ChangeKind.VERSION, None, 0), (kind, does.ROLL_BACK, first)]
        self.assertEqual(commands, [*expected, (kind, does.FORGET, before)])
        self.assertEqual([change.time_ns > 0 and change.sequence > 0 for change in changes], [True] * 4)

    def test_changes_for_asyncio(self):
        """Goal: the stream can be iterated by asyncio, and a cancelled task closes its reader.
        Method: one that ends, and one that is cancelled while it waits; the device closes."""

        async def main():
            async with await kaml.aio.Device.in_memory(64 << 20) as device:
                users = await device.ensure_namespace("users")
                start = await device.call(device.sync.position)
                await device.put(users, "ada", b"1", expires_in=60)
                self.assertEqual(await device.add(users, "n"), 1)
                seen = [change.key async for commit in device.changes(start, timeout=0) for change in commit.changes]
                self.assertEqual(seen, [b"users", b"ada", b"n"])

                async def wait():
                    async for _ in device.changes():
                        pass

                waiting = asyncio.ensure_future(wait())
                await asyncio.sleep(0.05)
                waiting.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await waiting

        asyncio.run(main())

    def test_logs(self):
        """Goal: a namespace has the logs that it was created with or given later, and what it stored before stays readable.
        Method: lists of logs of each kind, also with a store open; those that cannot be are refused and change nothing."""
        device = Device.in_memory(64 << 20, die_count=2)
        self.addCleanup(device.close)
        self.assertEqual(device.logs(device.create_namespace("plain")), [])
        mapped = device.create_namespace("mapped", logs=(0, 1))
        self.assertEqual(sorted(device.logs(mapped)), [0, 1])
        self.assertEqual(device.ensure_namespace("mapped", logs=[1]), mapped)
        device.put(mapped, "before", b"1")
        with Store(device, 8 << 20) as store:
            device.set_logs(mapped, iter([1]))
            store.put(mapped, "after", b"2")
            self.assertEqual((store.get(mapped, "before"), store.get(mapped, "after")), (b"1", b"2"))
        for wrong in ([1, 1], [device.info().die_count]):
            self.assert_raises_status(Status.BAD_ARGUMENT, device.set_logs, mapped, wrong)
            self.assert_raises_status(Status.BAD_ARGUMENT, device.create_namespace, "wrong", logs=wrong)
        self.assertRaises(OverflowError, device.set_logs, mapped, [-1])
        self.assertRaises(OverflowError, device.set_logs, mapped, [1 << 32])
        self.assertRaises(TypeError, device.set_logs, mapped, ["1"])
        self.assertEqual(device.logs(mapped), [1])
        device.set_logs(mapped, [])
        self.assertEqual(device.logs(mapped), [])
        device.delete_namespace(mapped)
        self.assert_raises_status(Status.UNKNOWN_NAMESPACE, device.logs, mapped)

    def test_backups_and_sizes(self):
        """Goal: a restored backup has what was backed up, and what is no backup is refused; a device grows.
        Method: a full backup and an incremental one of a device on a file, restored to another."""
        with tempfile.TemporaryDirectory() as directory:
            path, full, more, copy = (os.path.join(directory, name) for name in ("device", "full", "more", "copy"))
            with Device.create(path, 64 << 20, grow_up_to=1 << 30) as device:
                users = device.create_namespace("users")
                device.put(users, "ada", b"1")
                report = device.backup(full)
                self.assertEqual((report.namespace_count, report.record_count, report.incremental), (1, 1, False))
                device.put(users, "grace", b"2")
                self.assertTrue(device.backup(more, since=full).incremental)
                self.assertGreater(device.resize(128 << 20), 100 << 20)
                self.assert_raises_status(Status.BAD_ARGUMENT, device.resize, 4096)
            self.assertEqual(Device.verify_backup(full).record_count, 1)
            self.assert_raises_status(Status.NOT_A_DEVICE, Device.verify_backup, path)
            self.assertRaises(FileNotFoundError, Device.verify_backup, copy)
            self.assertRaises(TypeError, Device.restore, full, copy)
            Device.restore([full, more], copy)
            with Device.open(copy) as device:
                users = device.namespace("users")
                self.assertEqual((device.get(users, "ada"), device.get(users, "grace")), (b"1", b"2"))

    def test_backups_are_ended(self):
        """Goal: a backup reports its progress; one that its progress or Ctrl-C ends leaves no file and no open snapshot, and the next one is whole.
        Method: a device of several blocks; an exception at each call, and a signal from another thread while a backup without a progress runs."""
        value = os.urandom(100_000)
        for number in range(200):
            self.device.put(self.plain, f"large {number}", value)
        with tempfile.TemporaryDirectory() as directory:
            full, copy = os.path.join(directory, "full"), os.path.join(directory, "copy")
            seen = []
            report = self.device.backup(full, progress=lambda done, total: seen.append((done, total)))
            self.assertEqual((report.record_count, seen), (200, sorted(seen)))
            self.assertEqual(seen[-1][0], seen[-1][1])
            os.remove(full)
            for last in {1, 2, len(seen) // 2, len(seen)}:
                calls = iter(range(1, last))
                self.assertRaises(StopIteration, self.device.backup, full, progress=lambda done, total: next(calls))
                self.assertEqual(os.listdir(directory), [])
            self.assertEqual(self.device.snapshot_usage().open_count, 0)
            self.assertRaises(KeyboardInterrupt, self.device.backup, full, progress=lambda *_: signal.raise_signal(signal.SIGINT))
            self.assertEqual(os.listdir(directory), [])
            self.device.backup(full)
            self.assertEqual(Device.verify_backup(full).record_count, 200)

            stop = iter(range(1))
            self.assertRaises(StopIteration, Device.restore, [full], copy, progress=lambda done, total: next(stop))
            self.assertEqual(os.listdir(directory), ["full"])
            seen.clear()
            Device.restore([full], copy, progress=lambda done, total: seen.append((done, total)))
            self.assertEqual(seen, sorted(seen))
            self.assertLessEqual(seen[-1][0], os.path.getsize(full))

    def test_ctrl_c_ends_a_backup(self):
        """Goal: Ctrl-C ends the backup of a program that requested no progress, before its end.
        Method: such a program backs up again and again into new files until the signal comes; nothing unfinished is left."""
        program = textwrap.dedent("""
            import itertools, os, sys, kaml
            with kaml.Device.in_memory(256 << 20) as device:
                space = device.create_namespace("space")
                for number in range(100):
                    device.put(space, number, os.urandom(1 << 20))
                print("ready", flush=True)
                try:
                    for number in itertools.count():
                        device.backup(os.path.join(sys.argv[1], "backup"))
                except KeyboardInterrupt:
                    print("interrupted", device.snapshot_usage().open_count)
        """)
        with tempfile.TemporaryDirectory() as directory:
            command = [sys.executable, "-c", program, directory]
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
                self.assertEqual(run.stdout.readline(), "ready\n")
                time.sleep(0.3)
                run.send_signal(signal.SIGINT)
                out, _ = run.communicate(timeout=60)
            self.assertEqual((out, run.returncode), ("interrupted 0\n", 0))
            self.assertLessEqual(set(os.listdir(directory)), {"backup"})


if __name__ == "__main__":
    unittest.main()
