"""What the package does, on the real library."""

import doctest
import pathlib
import tempfile
import threading
import unittest

import kaml
from kaml import Batch, Device, KeyKind, Status, Store


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
            self.assertEqual(len(device.history(pages, "home", limit=2)), 2)
            device.undo(pages, "home")
            self.assertEqual(device.get(pages, "home"), b"two")
            before = device.roll_back(pages, first)
            self.assertEqual(device.get(pages, "home"), b"one")
            self.assertTrue(device.history(pages, "home")[0].hidden)
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
            paper = device.create_namespace("paper", versioned=True, index=kaml.Index.BLOOM, merge_when_low=policy)
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
                with self.assertRaises(kaml.Error) as state, store.transaction() as txn:
                    with self.assertRaises(kaml.RetryableError):
                        txn.update(self.accounts, 1, b"x")
                self.assertEqual(state.exception.status, Status.BAD_STATE)

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


def load_tests(_loader, tests, _pattern):
    tests.addTests(doctest.DocTestSuite(kaml))
    return tests


if __name__ == "__main__":
    unittest.main()
