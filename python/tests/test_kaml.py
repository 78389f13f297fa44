"""What the package does, on the real library."""

import copy
import ctypes
import doctest
import errno
import gc
import itertools
import os
import pathlib
import pickle
import signal
import sys
import tempfile
import threading
import time
import unittest
import warnings

import kaml
from kaml import Batch, Device, KeyKind, Status, Store


class Ranges(unittest.TestCase):
    """Keys of any length, and ranges of them."""

    COUNT = 700

    def setUp(self):
        self.device = Device.in_memory(64 << 20)
        self.addCleanup(self.device.close)
        self.pages = self.device.create_namespace("pages", KeyKind.ORDERED)
        self.model = [(self.key(number), str(number).encode() * (number % 50)) for number in range(self.COUNT)]
        for at in range(self.COUNT):
            self.device.put(self.pages, *self.model[at * 11 % self.COUNT])

    @staticmethod
    def key(number):
        """In the order of the numbers, of 6 to 1023 bytes."""
        return b"%06d" % number + b"/and more" * (number % 114)

    def expected(self, start, stop, start_excluded=False, stop_included=False):
        def is_in(key):
            after = start is None or key > start or (key == start and not start_excluded)
            return after and (stop is None or key < stop or (key == stop and stop_included))

        return [pair for pair in self.model if is_in(pair[0])]

    def test_ranges_are_those_of_a_sorted_list(self):
        bounds = [None, self.key(0), self.key(300), b"000300", self.key(301), self.key(699), b"z"]
        for start, stop, first, last in itertools.product(bounds, bounds, (False, True), (False, True)):
            flags = {"start_excluded": first, "stop_included": last}
            expected = self.expected(start, stop, **flags)
            self.assertEqual(list(self.device.range(self.pages, start, stop, **flags)), expected)
            keys = [key for key, _ in reversed(expected)]
            found = self.device.range(self.pages, start, stop, reverse=True, keys_only=True, **flags)
            self.assertEqual(list(found), keys)
            if not first and not last:
                self.assertEqual(self.device.count(self.pages, start, stop), len(expected))
        self.assertEqual(self.device.first(self.pages), self.model[0])
        self.assertEqual(self.device.last(self.pages), self.model[-1])
        self.assertTrue(100 < self.device.estimate(self.pages) < 5000)
        self.assertEqual(list(self.device.keys(self.pages)), [key for key, _ in self.model])
        hundreds = [pair for pair in self.model if pair[0].startswith(b"0003")]
        self.assertEqual(list(self.device.prefix(self.pages, "0003")), hundreds)
        self.assertEqual(list(self.device.prefix(self.pages, "0003", reverse=True)), hundreds[::-1])
        self.assertEqual(len(list(self.device.prefix(self.pages, "", keys_only=True))), self.COUNT)

    def test_many_keys_are_read_like_single_ones(self):
        model = dict(self.model)
        model[b"empty"] = b""
        self.device.put(self.pages, b"empty", b"")
        keys = [b"empty", b"none", *(self.key(number % (self.COUNT + 50)) for number in range(10_000)), "none"]
        expected = [model.get(key) for key in keys]
        self.assertEqual(self.device.get_many(self.pages, keys), expected)
        self.assertEqual(self.device.get_many(self.pages, []), [])
        with self.assertRaises(kaml.Error):
            self.device.get_many(self.pages, [b"right", b""])
        with Store(self.device, 8 << 20) as store:
            for _ in range(2):
                self.assertEqual(store.get_many(self.pages, keys), expected)
            self.assertEqual(store.get_many(self.pages, iter([b"empty"])), [b""])

    def test_an_iterator_shows_one_moment_and_can_be_left(self):
        walk = self.device.range(self.pages)
        seen = [next(walk)]
        self.assertEqual(self.device.delete_range(self.pages, self.key(100), self.key(200)), 100)
        self.device.put(self.pages, self.key(self.COUNT), b"new")
        self.assertEqual(seen + list(walk), self.model)
        self.assertEqual(self.device.count(self.pages), self.COUNT - 100 + 1)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for _ in range(2000):
                next(self.device.range(self.pages, keys_only=True))
            never_begun = self.device.range(self.pages)
            del never_begun
            gc.collect()
        walk = self.device.range(self.pages)
        next(walk)
        self.device.close()
        with self.assertRaises(kaml.Error) as refused:
            list(walk)
        self.assertEqual(refused.exception.status, Status.BAD_HANDLE)

    def test_unordered_namespaces_have_long_keys(self):
        texts = self.device.create_namespace("texts", KeyKind.ANY)
        self.device.write(Batch().put(texts, "x" * 1024, b"1").put(texts, "short", b"2").put(texts, "y" * 17, b"3"))
        self.assertEqual(self.device.get(texts, "x" * 1024), b"1")
        self.assertEqual(set(self.device.keys(texts)), {b"x" * 1024, b"short", b"y" * 17})
        self.device.delete(texts, "y" * 17)
        self.assertFalse(self.device.exists(texts, "y" * 17))
        for wrong in (
            lambda: self.device.put(texts, "x" * 1025, b""),
            lambda: self.device.put(texts, "", b""),
            lambda: self.device.range(self.pages, "", "a"),
            lambda: self.device.range(self.pages, b"a" * 1025),
        ):
            with self.assertRaises(kaml.Error) as refused:
                wrong()
            self.assertEqual(refused.exception.status, Status.BAD_KEY)
        for wrong in (
            lambda: self.device.range(texts),
            lambda: self.device.count(texts),
            lambda: self.device.first(texts),
            lambda: self.device.delete_range(texts),
        ):
            with self.assertRaises(kaml.Error) as refused:
                wrong()
            self.assertEqual(refused.exception.status, Status.BAD_ARGUMENT)
        self.device.delete_namespace(texts)
        with self.assertRaises(kaml.Error) as refused:
            self.device.range(texts)
        self.assertEqual(refused.exception.status, Status.UNKNOWN_NAMESPACE)
        empty = self.device.create_namespace("empty", KeyKind.ORDERED)
        self.assertEqual((self.device.first(empty), self.device.last(empty)), (None, None))
        self.assertEqual(list(self.device.range(empty)), [])

    def test_stores_and_transactions_have_ranges(self):
        with Store(self.device, 8 << 20, write_mode=kaml.WriteMode.BACK) as store:
            store.put(self.pages, self.key(self.COUNT), b"unflushed")
            self.model.append((self.key(self.COUNT), b"unflushed"))
            self.assertEqual(store.get(self.pages, self.key(self.COUNT)), b"unflushed")
            self.assertEqual(store.range(self.pages), self.model)
            keys = [key for key, _ in self.model[:-4:-1]]
            self.assertEqual(store.range(self.pages, limit=3, reverse=True, keys_only=True), keys)
            self.assertEqual(store.prefix(self.pages, "0001"), self.expected(b"0001", b"0002"))
            self.assertEqual(store.prefix(self.pages, b"\xff\xff"), [])
            with self.assertRaises(kaml.Error) as refused:
                self.device.delete_range(self.pages)
            self.assertEqual(refused.exception.status, Status.IN_USE)
            with store.transaction() as txn:
                txn.delete(self.pages, self.key(5))
                txn.insert(self.pages, self.key(5) + b"!", b"another")
                own = [self.model[4], (self.key(5) + b"!", b"another"), self.model[6]]
                self.assertEqual(txn.range(self.pages, self.key(4), self.key(6), stop_included=True), own)
                self.assertEqual(txn.range(self.pages, self.key(4), limit=2, start_excluded=True), own[1:])
                self.assertEqual(txn.prefix(self.pages, "000004"), own[:1])
                with self.assertRaises(OverflowError):
                    txn.range(self.pages, limit=-1)
                self.assertEqual(len(txn.range(self.pages)), len(self.model))
        self.assertEqual(self.device.count(self.pages), len(self.model))

    def test_ranges_are_locked_for_update(self):
        with Store(self.device, 8 << 20, lock_timeout_ms=50) as store:
            with store.transaction() as first, store.transaction() as second:
                self.assertEqual(first.range_for_update(self.pages, limit=2), self.model[:2])
                self.assertEqual(first.range_for_update(self.pages, limit=1, reverse=True), self.model[-1:])
                keys = second.range_for_update(self.pages, self.key(2), self.key(4), keys_only=True)
                self.assertEqual(keys, [key for key, _ in self.model[2:4]])
                first.update(self.pages, self.key(0), b"changed")
            for flags in ({}, {"reverse": True}):
                with store.transaction() as first:
                    first.range_for_update(self.pages, limit=1, **flags)
                    with self.assertRaises(kaml.RetryableError) as refused:
                        with store.transaction() as second:
                            second.range_for_update(self.pages, limit=1, **flags)
                    self.assertEqual(refused.exception.status, Status.LOCK_TIMEOUT)
            with self.assertRaises(kaml.Error) as refused:
                with store.transaction() as txn:
                    txn.range_for_update(self.device.create_namespace("unordered"))
            self.assertEqual(refused.exception.status, Status.BAD_ARGUMENT)
        self.assertEqual(self.device.get(self.pages, self.key(0)), b"changed")


class Devices(unittest.TestCase):
    """Devices, namespaces, batches."""

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.path = pathlib.Path(directory.name) / "device.kaml"

    def test_records_come_back_after_reopening(self):
        with Device.create(self.path, 64 << 20) as device:
            users = device.create_namespace("users")
            numbers = device.create_namespace("numbers", KeyKind.U64)
            device.put(users, "ada", b"Ada Lovelace")
            device.put(users, b"\0\xff", bytearray(b""))
            device.write(Batch().put(numbers, 7, b"seven").put(numbers, (1 << 64) - 1, b"last").delete(users, "ada"))
            self.assertGreater(device.limits.value_bytes_max, 256 << 10)
        with Device.open(self.path, read_only=True) as device:
            users, numbers = device.namespace("users"), device.namespace("numbers")
            self.assertIsNone(device.get(users, "ada"))
            self.assertEqual(device.get(users, b"\0\xff"), b"")
            self.assertEqual(device.get(numbers, 7), b"seven")
            self.assertEqual({int.from_bytes(key, "big") for key in device.keys(numbers)}, {7, (1 << 64) - 1})
            with self.assertRaises(kaml.Error) as refused:
                device.put(numbers, 7, b"eight")
            self.assertEqual(refused.exception.status, Status.READ_ONLY)

    def test_a_device_is_created_once(self):
        for found in (None, b"Ada Lovelace"):
            with Device.open_or_create(self.path, 64 << 20) as device:
                if found is None:
                    device.create_namespace("users")
                users = device.namespace("users")
                self.assertEqual(device.get(users, "ada"), found)
                device.put(users, "ada", b"Ada Lovelace")

    def test_a_device_without_a_capacity_grows(self):
        with Device.open_or_create(self.path) as device:
            numbers = device.create_namespace("numbers", KeyKind.U64)
            for key in range(2_000):
                device.put(numbers, key, bytes(60_000))
        self.assertGreaterEqual(os.path.getsize(self.path), 128 << 20)
        with Device.open_or_create(self.path) as device:
            self.assertEqual(device.get(device.namespace("numbers"), 1_999), bytes(60_000))

    def test_a_batch_is_stored_whole_or_not_at_all(self):
        with Device.in_memory(64 << 20) as device:
            space = device.create_namespace("space")
            device.put(space, "there", b"1")
            with self.assertRaises(kaml.ExistsError):
                device.write(Batch().put(space, "new", b"2").put_if_absent(space, "there", b"2"))
            with self.assertRaises(kaml.NotFoundError):
                device.write(Batch().put(space, "new", b"2").delete_if_present(space, "absent"))
            self.assertFalse(device.exists(space, "new"))
            device.write(Batch().put_if_present(space, "there", b"3").put_if_absent(space, "new", b"3"))
            self.assertEqual([device.get(space, key) for key in ("there", "new")], [b"3", b"3"])

    def test_all_keys_are_listed(self):
        with Device.in_memory(64 << 20) as device:
            space = device.create_namespace("space")
            wanted = {f"key {number}".encode() for number in range(3000)}
            batch = Batch()
            for key in wanted:
                batch.put(space, key, b"")
            device.write(batch)
            listed = list(device.keys(space))
            self.assertEqual((len(listed), set(listed)), (3000, wanted))
            device.delete_namespace(space)
            with self.assertRaises(kaml.Error) as gone:
                device.get(space, "key 1")
            self.assertEqual(gone.exception.status, Status.UNKNOWN_NAMESPACE)

    def test_namespaces_are_listed(self):
        with Device.create(self.path, 64 << 20) as device:
            self.assertEqual(device.namespaces(), [])
            names = ["space", "n\u00e4me", "x" * 255, *(f"more {number}" for number in range(70))]
            made = [device.create_namespace(name) for name in names]
            self.assertEqual(device.namespaces(), made)
            device.delete_namespace(made.pop(1))
        with Device.open(self.path) as device:
            self.assertEqual(device.namespaces(), made)

    def test_versions_come_back(self):
        with Device.create(self.path, 256 << 20) as device:
            pages = device.create_namespace("pages", versioned=True)
            device.put(pages, "home", b"one")
            first = device.snapshot(pages)
            device.put(pages, "home", b"two")
            device.delete(pages, "home")
            self.assertIsNone(device.get(pages, "home"))
            self.assertEqual(device.get_as_of(pages, first, "home"), b"one")
            self.assertEqual(device.get_back(pages, 1, "home"), b"two")
            history = device.history(pages, "home")
            self.assertEqual([(v.length, v.deleted) for v in history], [(0, True), (3, False), (3, False)])
            device.undo(pages, "home")
            self.assertEqual(device.get(pages, "home"), b"two")
            before = device.roll_back(pages, first)
            self.assertEqual(device.get(pages, "home"), b"one")
            self.assertTrue(next(device.history(pages, "home")).hidden)
        with Device.open(self.path) as device:
            pages = device.namespace("pages")
            self.assertEqual([snapshot.number for snapshot in device.snapshots(pages)], [first, before])
            device.roll_back(pages, before)
            self.assertEqual(device.get(pages, "home"), b"two")
            device.forget_snapshot(pages, first)
            for ask in (lambda: device.roll_back(pages, first), lambda: device.get_as_of(pages, first, "home")):
                with self.assertRaises(kaml.Error) as refused:
                    ask()
                self.assertEqual(refused.exception.status, Status.NO_VERSION)
            dry = device.merge(pages, dry_run=True)
            self.assertEqual((dry.dropped, dry.versions), (device.merge(pages).dropped, dry.versions))
            policy = kaml.MergePolicy(keep_last=3, keep_for_ns=10**12, keep_internal=True)
            paper = device.create_namespace("paper", versioned=True, merge_when_low=policy)
            device.put(paper, "home", b"one")
            device.put(paper, "home", b"two")
            self.assertEqual(device.get_back(paper, 1, "home"), b"one")
            with self.assertRaises(kaml.Error) as refused:
                device.create_namespace("records", merge_when_low=policy)
            self.assertEqual(refused.exception.status, Status.BAD_ARGUMENT)
            plain = device.create_namespace("plain")
            with self.assertRaises(kaml.Error) as refused:
                device.snapshot(plain)
            self.assertEqual(refused.exception.status, Status.BAD_ARGUMENT)

    def test_histories_are_told_whole(self):
        with Device.in_memory(256 << 20) as device:
            pages = device.create_namespace("pages", versioned=True)
            for number in range(3000):
                device.put(pages, "home", b"x" * (number % 7))
            history = device.history(pages, "home")
            told = [next(history) for _ in range(100)]
            device.delete(pages, "home")  # not listed
            told += history
            self.assertEqual([version.length for version in told], [number % 7 for number in reversed(range(3000))])
            self.assertEqual(told, sorted(told, reverse=True))
            newest = list(itertools.islice(device.history(pages, "home"), 2))
            self.assertEqual([version.deleted for version in newest], [True, False])
            self.assertEqual(list(device.history(pages, "nobody")), [])
            with self.assertRaises(kaml.Error) as refused:
                next(device.history(device.create_namespace("plain"), "home"))
            self.assertEqual(refused.exception.status, Status.BAD_ARGUMENT)

    def test_histories_read_each_version_once(self):
        """Goal: a history costs a few reads a version, however many there are and however many are under way.
        Method: count reads at several lengths, one history alone, 16 in turn, and one after another in turn with a copy."""
        with Device.in_memory(512 << 20) as device:
            pages = device.create_namespace("pages", versioned=True, version_buffer_bytes=1 << 20)
            for key, count in (("few", 10), ("some", 1000), ("many", 10000)):
                for number in range(count):
                    device.put(pages, key, b"%d" % number)
            for number in range(40000):  # so that all before is in segments
                device.put(pages, number % 1000, b"%d" % number)

            def reads_of(key, histories):
                before = device.statistics().read_count
                count = sum(1 for _ in itertools.zip_longest(*[device.history(pages, key) for _ in range(histories)]))
                return count, (device.statistics().read_count - before) / (count * histories)

            for key, wanted in (("few", 10), ("some", 1000), ("many", 10000)):
                for histories in (1, 16) if wanted <= 1000 else (1,):
                    count, reads = reads_of(key, histories)
                    self.assertEqual(count, wanted)
                    self.assertLess(reads, 4, (key, histories))
                    self.assertGreater(reads, 0.01, "nothing was read: it is all in the buffer")

    def test_what_progress_raises_ends_a_merge(self):
        """Goal: a merge reports its progress, can be ended, and continues later.
        Method: raise at the first call; then merge to the end, dry and for good; any call can be made meanwhile."""
        with Device.in_memory(256 << 20) as device:
            pages = device.create_namespace("pages", versioned=True, version_buffer_bytes=1 << 20)
            for number in range(50000):
                device.put(pages, number % 100, b"%d" % number)
            told = []

            def progress(done, total):
                told.append((done, total, device.get(pages, 1)))

            def ends(done, total):
                raise KeyboardInterrupt

            self.assertRaises(KeyboardInterrupt, device.merge, pages, progress=ends)
            self.assertRaises(KeyboardInterrupt, device.merge, pages, dry_run=True, progress=ends)
            self.assertRaises(TypeError, device.merge, pages, progress=lambda: None)
            planned = device.merge(pages, dry_run=True, progress=progress)
            self.assertGreater(planned.dropped, 0)
            self.assertEqual(device.merge(pages, progress=progress).dropped, planned.dropped)
            self.assertEqual({value for *_, value in told}, {b"49901"})
            self.assertTrue(all(done <= total for done, total, _ in told))
            self.assertEqual(told[-1][0], told[-1][1])
            self.assertEqual(device.merge(pages, dry_run=True).dropped, 0)

    def test_versions_are_put_under_a_condition(self):
        with Device.in_memory(256 << 20) as device:
            pages, plain = device.create_namespace("pages", versioned=True), device.create_namespace("plain")
            with self.assertRaises(kaml.NotFoundError):
                device.write(Batch().put_if_present(pages, "home", b"1"))
            device.write(Batch().put_if_absent(pages, "home", b"1"))
            with self.assertRaises(kaml.ExistsError):
                device.write(Batch().put_if_absent(pages, "home", b"2"))
            device.write(Batch().put_if_present(pages, "home", b"3"))
            self.assertEqual((device.get(pages, "home"), device.get_back(pages, 1, "home")), (b"3", b"1"))
            both = lambda value: Batch().put_if_present(pages, "home", value).put(plain, "home", value)
            device.write(both(b"4"))
            self.assertEqual((device.get(pages, "home"), device.get(plain, "home")), (b"4", b"4"))
            device.write(Batch().delete_if_present(pages, "home"))
            for refused in (both(b"5"), Batch().delete_if_present(pages, "home")):
                with self.assertRaises(kaml.NotFoundError):
                    device.write(refused)
            self.assertEqual((device.get(pages, "home"), device.get(plain, "home")), (None, b"4"))

    def test_devices_tell_how_they_stand(self):
        with Device.create(self.path, 256 << 20, durability=kaml.Durability.PROCESS) as device:
            info, new = device.info(), device.statistics()
            self.assertEqual((info.durability, info.flash_bytes), (kaml.Durability.PROCESS, info.block_count * info.block_bytes))
            self.assertIn(str(self.path), info.description)
            self.assertEqual(len(bytes.fromhex(info.uuid)), 16)
            self.assertEqual((new.put_count, new.write_amplification, new.record_counts), (0, 0, {}))
            self.assertEqual(new.get_latency, kaml.Latency(0, 0, 0, 0, 0, 0, 0))
            space, past = device.create_namespace("space"), device.create_namespace("past", versioned=True)
            for number in range(100):
                device.put(space, number, b"x" * 1000)
                device.put(past, "key", b"x" * 1000)
                device.get(space, number)
            now = device.statistics()
            self.assertEqual((now.put_count, now.get_count, now.host_bytes), (200, 100, 200_000))
            self.assertEqual(now.record_counts, {space: 100, past: 100})
            self.assertEqual(now.live_bytes + now.free_bytes, now.capacity_bytes)
            self.assertLess(now.free_bytes, new.free_bytes)
            self.assertEqual((now.put_latency.count, now.get_latency.count), (200, 100))
            self.assertLessEqual(now.put_latency.p50_ns, now.put_latency.max_ns)
            self.assertIs(now.stopped, False)
            self.assertLess(now.free_blocks, now.block_count)
        with Device.open(self.path) as device:
            self.assertEqual((device.info().uuid, device.info().was_clean), (info.uuid, True))
            self.assertEqual(device.statistics().record_counts, {space: 100, past: 100})

    def test_checks_find_what_is_damaged(self):
        marks = [bytes([65 + number]) * 256 for number in range(3)]
        with Device.create(self.path, 64 << 20) as device:
            space = device.create_namespace("space")
            for number, mark in enumerate(marks):
                device.put(space, number, mark)
            heard = []
            report = device.check(lambda *blocks: heard.append(blocks))
            self.assertEqual((report.records, report.value_bytes, report.problems), (3, 768, ()))
            self.assertEqual(heard, [(done, report.blocks) for done in range(report.blocks + 1)])
        content = self.path.read_bytes()
        self.path.write_bytes(content.replace(marks[0], b"?" * 256).replace(marks[2], b"?" * 256))
        with Device.open(self.path, read_only=True) as device:
            report = device.check()
            self.assertEqual((report.records, len(report.problems)), (1, 2))
            self.assertTrue(all("damaged" in problem for problem in report.problems), report.problems)
            self.assertEqual(device.get(device.namespace("space"), 1), marks[1])

    def test_what_progress_raises_ends_a_check(self):
        with Device.in_memory(64 << 20) as device:
            space = device.create_namespace("space")
            device.put(space, 1, b"value")
            calls = []

            def progress(done, total):
                calls.append((done, total, device.get(space, 1)))  # any call can be made
                with self.assertRaises(kaml.Error) as refused:
                    device.close()
                self.assertEqual(refused.exception.status, Status.IN_USE)
                raise KeyboardInterrupt

            with self.assertRaises(KeyboardInterrupt):
                device.check(progress)
            self.assertEqual(len(calls), 1)
            self.assertRaises(TypeError, device.check, lambda: None)
            self.assertEqual(device.check().problems, ())

    def test_numbers_of_others_are_numbers(self):
        class Number(bytearray):
            """As those of numpy: a number, and a buffer of its bytes in the machine's order."""

            def __index__(self):
                return int.from_bytes(self, sys.byteorder)

        numbers = [Number((7).to_bytes(width, sys.byteorder)) for width in (1, 2, 4, 8)]
        floats = [ctypes.c_float(7), ctypes.c_bool(True), 7.5, None]
        try:
            import numpy
        except ImportError:
            pass
        else:
            numbers += [kind(7) for kind in (numpy.int8, numpy.uint16, numpy.int32, numpy.uint64)] + [numpy.array(7)]
            floats += [numpy.float32(7), numpy.float64(7), numpy.bool_(True)]
        with Device.in_memory(64 << 20) as device:
            space = device.create_namespace("space")
            for number in numbers:
                device.put(space, number, b"seven")
                self.assertEqual(list(device.keys(space)), [(7).to_bytes(8, "big")], repr(number))
                self.assertEqual(device.get(space, 7), b"seven")
            for key in floats:
                with self.assertRaisesRegex(TypeError, "^a key is bytes, str or int, not "):
                    device.put(space, key, b"")
            for key in (bytearray(b"key"), memoryview(b"key")):
                device.put(space, key, b"text")
                self.assertEqual(device.get(space, "key"), b"text")

    def test_mistakes_are_told(self):
        with Device.in_memory(64 << 20) as device:
            space = device.create_namespace("space", KeyKind.U64)
            for key in ("", "x" * 17, "seven b", -1, 1 << 64):
                with self.assertRaises(kaml.Error) as refused:
                    device.put(space, key, b"")
                self.assertEqual(refused.exception.status, Status.BAD_KEY, key)
            for value in (5, "text", None):
                with self.assertRaises(TypeError):
                    device.put(space, 1, value)
            with self.assertRaises(kaml.Error) as refused:
                device.create_namespace("space")
            self.assertEqual(refused.exception.status, Status.NAMESPACE_EXISTS)
            self.assertIn("space", str(refused.exception))
        with self.assertRaises(kaml.Error) as closed:
            device.get(space, 1)
        self.assertEqual(closed.exception.status, Status.BAD_HANDLE)
        with self.assertRaises(kaml.Error) as missing:
            Device.open(self.path)
        self.assertIn("device.kaml", str(missing.exception))


class Stores(unittest.TestCase):
    """The cache and transactions."""

    def setUp(self):
        self.device = Device.in_memory(64 << 20)
        self.addCleanup(self.device.close)
        self.accounts = self.device.create_namespace("accounts", KeyKind.U64)

    def test_the_cache_is_written_through_or_back(self):
        for mode in kaml.WriteMode:
            with Store(self.device, 4 << 20, write_mode=mode) as store:
                store.put(self.accounts, 1, mode.name.encode())
                self.assertEqual(store.get(self.accounts, 1), mode.name.encode())
                self.assertEqual(self.device.exists(self.accounts, 1), mode == kaml.WriteMode.THROUGH)
                store.flush()
                self.assertEqual(self.device.get(self.accounts, 1), mode.name.encode())
                store.delete(self.accounts, 1)
                self.assertFalse(store.exists(self.accounts, 1))
            self.assertIsNone(self.device.get(self.accounts, 1))

    def test_blocks_commit_or_abort(self):
        with Store(self.device, 4 << 20) as store:
            with store.transaction() as txn:
                txn.insert(self.accounts, 1, b"10")
                self.assertEqual(txn.read(self.accounts, 1), b"10")
                with self.assertRaises(kaml.ExistsError):
                    txn.insert(self.accounts, 1, b"11")
                with self.assertRaises(kaml.NotFoundError):
                    txn.update(self.accounts, 2, b"20")
            self.assertEqual(store.get(self.accounts, 1), b"10")
            with self.assertRaises(ZeroDivisionError), store.transaction() as txn:
                txn.update(self.accounts, 1, b"11")
                1 // 0
            with store.transaction() as txn:
                txn.delete(self.accounts, 1)
                txn.abort()
            self.assertEqual(store.get(self.accounts, 1), b"10")

    def test_upserts_store_what_is_there_and_what_is_not(self):
        with Store(self.device, 4 << 20) as store:
            store.put(self.accounts, 1, b"old")
            with store.transaction() as txn:
                txn.upsert(self.accounts, 1, b"new")
                txn.upsert(self.accounts, 2, b"made")
            self.assertEqual([store.get(self.accounts, key) for key in (1, 2)], [b"new", b"made"])

    def test_waits_in_vain_are_few(self):
        runs = 0

        def body(txn):
            nonlocal runs
            runs += 1
            txn.update(self.accounts, 1, b"2")
            store.put(self.accounts, 1, b"3")  # not through the transaction, which has locked it

        with Store(self.device, 4 << 20, lock_timeout_ms=20) as store:
            store.put(self.accounts, 1, b"1")
            with self.assertRaises(kaml.RetryableError):
                store.run(body)
            self.assertEqual((runs, store.get(self.accounts, 1)), (3, b"1"))

    def test_threads_lose_no_money(self):
        count, rounds = 8, 200

        def move(store, seed):
            for number in range(rounds):
                source, target = (seed * 5 + number) % count, (seed * 3 + number * 7 + 1) % count

                def body(txn):
                    if source == target:
                        return
                    taken = int(txn.read_for_update(self.accounts, source))
                    given = int(txn.read_for_update(self.accounts, target))
                    txn.update(self.accounts, source, str(taken - 1).encode())
                    txn.update(self.accounts, target, str(given + 1).encode())

                store.run(body)

        with Store(self.device, 4 << 20, early_release=True) as store:
            for account in range(count):
                store.put(self.accounts, account, b"1000")
            threads = [threading.Thread(target=move, args=(store, seed)) for seed in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            total = sum(int(store.get(self.accounts, account)) for account in range(count))
        self.assertEqual(total, 1000 * count)

    def test_delayed_commits_are_durable_when_asked_for(self):
        with Store(self.device, 4 << 20, durability_delay_ms=3_600_000) as store:
            with store.transaction() as txn:
                txn.insert(self.accounts, 1, b"soon")
            self.assertEqual(store.get(self.accounts, 1), b"soon")
            self.assertIsNone(self.device.get(self.accounts, 1))
            store.flush()
            self.assertEqual(self.device.get(self.accounts, 1), b"soon")
            txn = store.transaction()
            txn.update(self.accounts, 1, b"now")
            txn.commit_durable()
            self.assertEqual(self.device.get(self.accounts, 1), b"now")
            txn.close()
            self.assertEqual(store.acknowledge_lost(), 0)

    def test_a_victim_that_goes_on_is_not_committed(self):
        with Store(self.device, 4 << 20, lock_timeout_ms=50) as store:
            store.put(self.accounts, 1, b"")
            with store.transaction() as holder:
                holder.read_for_update(self.accounts, 1)
                with self.assertRaises(kaml.RetryableError) as told, store.transaction() as txn:
                    with self.assertRaises(kaml.RetryableError):
                        txn.update(self.accounts, 1, b"x")
                self.assertEqual(told.exception.status, Status.LOCK_TIMEOUT)

    def test_a_victim_that_goes_on_is_run_again(self):
        tries = []

        def body(txn):
            tries.append(txn)
            try:
                txn.update(self.accounts, 1, b"x")
            except kaml.Error:
                holder.abort()
            return txn.read(self.accounts, 1)

        with Store(self.device, 4 << 20, lock_timeout_ms=50) as store:
            store.put(self.accounts, 1, b"")
            with store.transaction() as holder:
                holder.read_for_update(self.accounts, 1)
                self.assertEqual(store.run(body), b"x")
            self.assertEqual(len(tries), 2)
            self.assertEqual(store.get(self.accounts, 1), b"x")

    def test_snapshots_have_what_stores_have_not_written_yet(self):
        with Device.in_memory(256 << 20) as device:
            pages = device.create_namespace("pages", versioned=True)
            with Store(device, 4 << 20, write_mode=kaml.WriteMode.BACK, durability_delay_ms=3_600_000) as store:
                store.put(pages, "home", b"one")
                first = device.snapshot(pages)
                store.run(lambda txn: txn.update(pages, "home", b"two"))
                second = device.snapshot(pages)
                store.put(pages, "home", b"three")
                self.assertEqual(device.get_as_of(pages, first, "home"), b"one")
                self.assertEqual(device.get_as_of(pages, second, "home"), b"two")
                device.forget_snapshot(pages, first)
                self.assertEqual(device.merge(pages, dry_run=True).dropped, device.merge(pages).dropped)
                self.assertEqual(device.get_as_of(pages, second, "home"), b"two")
                store.flush()
                device.merge(pages, keep_snapshots=False)
                self.assertEqual(device.snapshots(pages), [])
                self.assertEqual((store.get(pages, "home"), device.get(pages, "home")), (b"three", b"three"))
                third = device.snapshot(pages)
                for change in (lambda: device.roll_back(pages, third), lambda: device.undo(pages, "home")):
                    with self.assertRaisesRegex(kaml.Error, "close it first") as refused:
                        change()
                    self.assertEqual(refused.exception.status, Status.IN_USE)

    def test_what_is_in_use_is_not_closed(self):
        store = Store(self.device, 4 << 20)
        txn = store.transaction()
        for close in (store.close, self.device.close):
            with self.assertRaises(kaml.Error) as refused:
                close()
            self.assertEqual(refused.exception.status, Status.IN_USE)
        txn.close()
        txn.close()
        store.close()


class Mistakes(unittest.TestCase):
    """What C could not see is refused before the call."""

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)
        self.device = Device.in_memory(256 << 20)
        self.addCleanup(self.device.close)
        self.space = self.device.create_namespace("space")
        self.past = self.device.create_namespace("past", versioned=True)

    def test_numbers_do_not_wrap_around(self):
        device, past, path = self.device, self.past, self.directory / "device.kaml"
        device.put(past, "key", b"1")
        device.snapshot(past)
        wide, merge = 1 << 32, kaml.MergePolicy
        for number in (-1, 1 << 64, (1 << 64) + (64 << 20)):
            for ask in (
                lambda: Device.in_memory(number),
                lambda: Device.create(path, number),
                lambda: Store(device, number),
                lambda: device.create_namespace("new", versioned=True, version_buffer_bytes=number),
                lambda: device.create_namespace("new", versioned=True, merge_when_low=merge(keep_for_ns=number)),
                lambda: device.merge(past, keep_since_ns=number),
            ):
                self.assertRaises(OverflowError, ask)
        for number in (-1, wide, wide + 1):
            wrapped = kaml.Namespace(number + self.space.id, "space") if number > 0 else kaml.Namespace(number, "space")
            for ask in (
                lambda: Device.create(path, 64 << 20, durability=number),
                lambda: Device.open(path, durability=number),
                lambda: device.create_namespace("new", keys=number),
                lambda: device.create_namespace("new", versioned=True, merge_when_low=merge(keep_last=number)),
                lambda: device.get_as_of(past, number, "key"),
                lambda: device.get_back(past, number, "key"),
                lambda: device.forget_snapshot(past, number),
                lambda: device.roll_back(past, number),
                lambda: device.undo(past, "key", number),
                lambda: device.merge(past, keep_last=number),
                lambda: device.get(wrapped, "key"),
                lambda: device.put(wrapped, "key", b""),
                lambda: device.delete_namespace(wrapped),
                lambda: list(device.keys(wrapped)),
                lambda: Batch().put(wrapped, "key", b""),
                lambda: Store(device, 4 << 20, write_mode=number),
                lambda: Store(device, 4 << 20, records_per_lock=number),
                lambda: Store(device, 4 << 20, lock_timeout_ms=number),
                lambda: Store(device, 4 << 20, transactions_max=number),
            ):
                self.assertRaises(OverflowError, ask)
        self.assertRaises(OverflowError, lambda: Store(device, 4 << 20, durability_delay_ms=-1))
        self.assertRaises(OverflowError, lambda: Store(device, 4 << 20, durability_delay_ms=float("inf")))
        self.assertEqual((os.listdir(self.directory), device.get(past, "key")), ([], b"1"))

    def test_wrong_types_are_refused(self):
        device, space = self.device, self.space
        for ask in (
            lambda: Device.create(self.directory / "device.kaml", 64e6),
            lambda: Device.create(self.directory / "device.kaml", "64M"),
            lambda: Device.create(self.directory / "device.kaml", 64 << 20, force="no"),
            lambda: Device.create(7, 64 << 20),
            lambda: device.create_namespace(b"bytes"),
            lambda: device.namespace(7),
            lambda: device.get("space", "key"),
            lambda: device.get(space.id, "key"),
            lambda: device.get(space, True),
            lambda: device.get(space, 1.5),
            lambda: device.get(space, None),
            lambda: device.write([("space", "key", b"")]),
            lambda: Batch().delete("space", "key"),
            lambda: Store(device, 4e6),
            lambda: Store(device, 4 << 20, durability_delay_ms="5"),
            lambda: next(device.history(self.past, 1.5)),
            lambda: device.check(7),
        ):
            self.assertRaises(TypeError, ask)
        # C would see the beginning of these.
        for ask in (
            lambda: Device.create(str(self.directory / "device\0.kaml"), 64 << 20),
            lambda: Device.open(str(self.directory / "device\0.kaml")),
            lambda: device.create_namespace("na\0me"),
            lambda: device.namespace("space\0"),
        ):
            self.assertRaises(ValueError, ask)
        self.assertEqual(os.listdir(self.directory), [])


class Ends(unittest.TestCase):
    """Closing, and what is never closed."""

    def test_closing_again_does_nothing_and_using_is_refused(self):
        with Device.in_memory(64 << 20) as device:
            space = device.create_namespace("space")
            device.put(space, "key", b"")
            keys = device.keys(space)
            with Store(device, 4 << 20) as store:
                txn = store.transaction()
                for _ in range(2):
                    txn.close()
                for _ in range(2):
                    store.close()
            for _ in range(2):
                device.close()
        for ask in (
            lambda: device.get(space, "key"),
            lambda: next(keys),
            lambda: device.limits,
            lambda: Store(device, 4 << 20),
            lambda: store.get(space, "key"),
            lambda: store.flush(),
            lambda: store.transaction(),
            lambda: txn.read(space, "key"),
            lambda: txn.commit(),
        ):
            with self.assertRaisesRegex(kaml.Error, "^the (Device|Store|Transaction) is closed$") as refused:
                ask()
            self.assertEqual(refused.exception.status, Status.BAD_HANDLE)

    def test_nothing_open_is_copied(self):
        with Device.in_memory(64 << 20) as device, Store(device, 4 << 20) as store, store.transaction() as txn:
            for owner in (device, store, txn):
                dumps = [lambda o, protocol=n: pickle.dumps(o, protocol) for n in range(pickle.HIGHEST_PROTOCOL + 1)]
                for again in (copy.copy, copy.deepcopy, *dumps):
                    with self.assertRaisesRegex(TypeError, f"a {type(owner).__name__} can neither be copied nor pickled"):
                        again(owner)
            space = device.create_namespace("space")
            txn.insert(space, "key", b"value")
        self.assertEqual(copy.copy(space), space)

    def test_what_nobody_knows_is_closed_in_any_order(self):
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / "device.kaml"
            for cyclic in (False, True):
                with warnings.catch_warnings(record=True) as told:
                    warnings.simplefilter("always")
                    device = Device.create(path, 64 << 20, force=True)
                    space = device.create_namespace("space")
                    store = Store(device, 4 << 20)
                    store.put(space, "key", b"kept")
                    txn = store.transaction()
                    txn.update(space, "key", b"not committed")
                    if cyclic:
                        cycle = [device, store, txn]
                        cycle.append(cycle)
                        device.cycle = store.cycle = txn.cycle = cycle
                        del cycle
                    del device, store
                    self.assertEqual(txn.read(space, "key"), b"not committed")  # it keeps the others
                    del txn
                    gc.collect()
                self.assertEqual([str(warning.category.__name__) for warning in told], ["ResourceWarning"] * 3)
                with Device.open(path) as device:  # which would be locked
                    self.assertEqual(device.get(space, "key"), b"kept")

    def test_what_is_collected_leaves_messages_alone(self):
        native = kaml._native
        with Device.in_memory(64 << 20) as device, Store(device, 4 << 20) as store, warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            txn = store.transaction()
            txn.commit()
            code = native.status("kaml_namespace", device._handle, b"nobody", ctypes.byref(ctypes.c_uint32()))
            del txn  # which is aborted first, in vain
            gc.collect()
            with self.assertRaisesRegex(kaml.Error, "nobody"):
                native._check(code)

    def test_what_a_block_raises_is_what_is_raised(self):
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "device.kaml")
            with self.assertRaisesRegex(ValueError, "mine"):
                with Device.create(path, 64 << 20) as device, Store(device, 1 << 20) as store:
                    space = device.create_namespace("space")
                    store.put(space, "key", b"kept")
                    txn = store.transaction()  # which keeps both from being closed
                    txn.insert(space, "other", b"lost")
                    raise ValueError("mine")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ResourceWarning)
                del txn, store, device
                gc.collect()
            with Device.open(path) as device:  # which would be locked
                self.assertEqual(device.get(space, "key"), b"kept")
                self.assertIsNone(device.get(space, "other"))
            with self.assertRaises(kaml.Error):
                with Device.in_memory(64 << 20) as device, Store(device, 1 << 20) as store:
                    txn = store.transaction()  # which shows no other change
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ResourceWarning)
                del txn, store, device
                gc.collect()

    def test_missing_files_are_missing_files(self):
        for use in (Device.open, lambda path: Device.create(path, 64 << 20)):
            with self.assertRaisesRegex(FileNotFoundError, "/nowhere/at/all") as caught:
                use("/nowhere/at/all")
            self.assertIsInstance(caught.exception, kaml.NoFileError)
            self.assertEqual((caught.exception.status, caught.exception.errno), (Status.NO_FILE, errno.ENOENT))
            told = (caught.exception.filename, caught.exception.strerror)
            self.assertEqual(told, ("/nowhere/at/all", os.strerror(errno.ENOENT)))
        with self.assertRaises(PermissionError) as caught:
            Device.create(pathlib.Path("/sys/device.kaml"), 64 << 20)
        self.assertEqual(caught.exception.status, Status.NO_PERMISSION)
        self.assertEqual((caught.exception.filename, caught.exception.errno), ("/sys/device.kaml", errno.EACCES))
        again = pickle.loads(pickle.dumps(caught.exception))
        self.assertEqual((again.filename, str(again)), (caught.exception.filename, str(caught.exception)))

    def test_failures_pass_between_processes(self):
        for status in (*Status, 4711):
            failure = kaml._errors.error(int(status), "of this case")
            copies = [pickle.loads(pickle.dumps(failure, protocol)) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
            for again in (*copies, copy.copy(failure)):
                self.assertIs(type(again), type(failure))
                self.assertEqual((again.status, str(again)), (failure.status, str(failure)))
                self.assertEqual(getattr(again, "errno", None), getattr(failure, "errno", None))

    def test_forked_children_have_nothing_of_their_parents(self):
        with Device.in_memory(64 << 20) as device, Store(device, cache_bytes=1 << 20) as store:
            space = device.create_namespace("space")
            txn = store.transaction()
            txn.insert(space, "key", b"value")
            child = os.fork()
            if child == 0:
                refused = 0
                uses = (lambda: device.put(space, "other", b"lost"), lambda: store.get(space, "key"), txn.commit)
                for use in uses:
                    try:
                        use()
                    except kaml.Error as error:
                        refused += error.status == Status.BAD_HANDLE
                txn.close()
                with device, store:
                    pass
                with Device.in_memory(64 << 20) as own:
                    own.put(own.create_namespace("space"), "key", b"value")
                os._exit(4 + refused)
            for _ in range(2000):
                pid, status = os.waitpid(child, os.WNOHANG)
                if pid:
                    break
                time.sleep(0.01)
            else:
                os.kill(child, signal.SIGKILL)
                self.fail("the child hangs")
            self.assertEqual(os.WEXITSTATUS(status), 7)
            txn.commit()
            txn.close()
            self.assertEqual(device.get(space, "key"), b"value")

    def test_threads_close_what_others_use(self):
        for _ in range(20):
            device = Device.in_memory(64 << 20)
            space = device.create_namespace("space")
            store = Store(device, 4 << 20)
            unexpected = []

            def use():
                try:
                    for number in range(10_000):
                        store.put(space, number, b"value")
                        store.get(space, number)
                except kaml.Error as error:
                    if error.status != Status.BAD_HANDLE:
                        unexpected.append(error)

            def close(owner):
                while True:
                    try:
                        return owner.close()
                    except kaml.Error as error:
                        if error.status != Status.IN_USE:
                            unexpected.append(error)
                            return None

            threads = [threading.Thread(target=use) for _ in range(2)]
            threads += [threading.Thread(target=close, args=(owner,)) for owner in (store, store, device, device)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(unexpected, [])
            with self.assertRaises(kaml.Error) as refused:
                device.get(space, 1)
            self.assertEqual(refused.exception.status, Status.BAD_HANDLE)


def load_tests(_loader, tests, _pattern):
    tests.addTests(doctest.DocTestSuite(kaml))
    tests.addTests(doctest.DocTestSuite(kaml._device))
    return tests


class Interruptions(unittest.TestCase):
    """Ctrl-C at any place."""

    def interrupted_somewhere_new(self, body, places):
        """Runs a body and raises at the first bytecode of the package that is not among the places; False if there is none."""
        package, is_new = os.path.dirname(kaml.__file__), False

        def trace(frame, event, _):
            nonlocal is_new
            if not frame.f_code.co_filename.startswith(package):
                return None
            frame.f_trace_opcodes = True
            if event == "opcode" and not is_new:
                caller = frame.f_back
                place = (frame.f_code, frame.f_lasti, caller and caller.f_code, caller and caller.f_lasti)
                if place not in places:
                    places.add(place)
                    is_new = True
                    raise KeyboardInterrupt
            return trace

        sys.settrace(trace)
        try:
            body()
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(None)
        return is_new  # in a finalizer or a callback, which cannot pass it on

    def interrupt_everywhere(self, body, check):
        """Interrupts a body once at each of its bytecodes and callers; checks that nothing is left of it each time."""
        hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
        places = set()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                while self.interrupted_somewhere_new(body, places):
                    gc.collect()
                    with self.subTest(body=body.__name__, place=len(places)):
                        check()
        finally:
            sys.unraisablehook = hook
        self.assertGreater(len(places), 50, body)

    def test_nothing_is_lost_at_any_bytecode(self):
        """Goal: wherever Ctrl-C comes in the package, devices, stores, iterators, snapshots, checks and merges leave nothing open.
        Method: raise at each bytecode in turn; then the device's file is not locked, device and store are opened and closed, or the device
        counts no snapshot."""
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        path = os.path.join(directory.name, "device.kaml")
        with Device.create(path, 64 << 20, durability=kaml.Durability.PROCESS) as device:
            space, past = device.create_namespace("space"), device.create_namespace("past", versioned=True)
            ordered = device.create_namespace("ordered", KeyKind.ORDERED)
            for number in range(40):
                device.put(space, number, b"1")
                device.put(ordered, number, b"1")
                device.put(past, 1, b"%d" % number)

        def opens():
            with Device.open(path) as device:
                device.put(space, 1, b"2")

        def is_dropped():
            Device.open(path).get(space, 1)

        def check_file():
            Device.open(path).close()  # else it is locked

        for body in (opens, is_dropped):
            self.interrupt_everywhere(body, check_file)

        with Device.open(path) as device:

            def caches():
                with Store(device, 4 << 20) as store:
                    store.put(space, 1, store.get(space, 1))

            def store_is_dropped():
                Store(device, 4 << 20).put(space, 1, b"2")

            def iterates():
                for _ in itertools.islice(device.keys(space), 3):
                    pass
                for _ in itertools.islice(device.history(past, 1), 20):
                    pass

            def checks():
                device.check(lambda done, total: None)

            def merges():
                device.merge(past, dry_run=True, progress=lambda done, total: None)

            def check_store():
                Store(device, 4 << 20).close()

            def snapshot_is_dropped():
                device.open_snapshot().get(space, 1)

            def snapshot_is_read():
                with device.open_snapshot() as snapshot:
                    for _ in itertools.islice(snapshot.keys(ordered), 3):
                        pass
                    next(snapshot.range(ordered, reverse=True))

            def view_is_read():
                with Store(device, 4 << 20) as store, store.read_only() as view:
                    view.exists(space, 1)

            def check_snapshots():
                self.assertEqual(device.snapshot_usage().open_count, 0)

            for body in (caches, store_is_dropped, iterates, checks, merges, view_is_read):
                self.interrupt_everywhere(body, check_store)
            for body in (snapshot_is_dropped, snapshot_is_read, iterates):
                self.interrupt_everywhere(body, check_snapshots)
            self.interrupt_everywhere(view_is_read, check_snapshots)

    def test_no_transaction_is_lost_at_any_bytecode(self):
        """Goal: wherever Ctrl-C comes in the package, a transaction keeps no lock and the store closes.
        Method: raise at each bytecode of the package in turn, in commits, aborts, retries and plain reads."""
        with Device.in_memory(64 << 20) as device:
            space = device.create_namespace("space")
            with Store(device, 4 << 20, lock_timeout_ms=50) as store:
                store.put(space, "a", b"0")

                def commits():
                    with store.transaction() as txn:
                        txn.upsert(space, "a", txn.read_for_update(space, "a"))

                def aborts():
                    with store.transaction() as txn:
                        txn.upsert(space, "a", b"1")
                        txn.abort()

                def is_dropped():
                    store.transaction().upsert(space, "a", b"1")

                def runs():
                    store.run(lambda txn: txn.update(space, "a", b"0"))

                def check():
                    with store.transaction() as txn:  # nobody has the lock
                        txn.upsert(space, "a", b"0")

                for body in (commits, aborts, is_dropped, runs):
                    self.interrupt_everywhere(body, check)


if __name__ == "__main__":
    unittest.main()
