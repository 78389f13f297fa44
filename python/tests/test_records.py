"""Records as a ``dict`` has them, namespaces that are found or created, and ``asyncio``."""

import asyncio
import ctypes.util
import doctest
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import unittest

import kaml
import kaml.aio
from kaml import Device, KeyKind, Status, Store

PACKAGE = pathlib.Path(__file__).parents[1]


class Namespaces(unittest.TestCase):
    """``ensure_namespace``."""

    def setUp(self):
        self.device = Device.in_memory(64 << 20)
        self.addCleanup(self.device.close)

    def test_the_second_call_finds_what_the_first_made(self):
        first = self.device.ensure_namespace("pages", KeyKind.ORDERED)
        self.assertEqual(self.device.ensure_namespace("pages", KeyKind.ORDERED), first)
        self.assertEqual(self.device.namespaces(), [first])

    def test_an_index_on_flash_takes_what_one_in_memory_takes(self):
        articles = self.device.ensure_namespace("articles", KeyKind.U64, index=kaml.IndexPlace.FLASH)
        self.assertEqual(self.device.ensure_namespace("articles", KeyKind.U64, index=kaml.IndexPlace.FLASH), articles)
        for value in (b"first", b"second"):
            self.device.put(articles, 7, value)
        self.device.put(articles, 8, b"other")
        self.device.delete(articles, 8)
        self.assertEqual(self.device.get(articles, 7), b"second")
        self.assertIsNone(self.device.get(articles, 8))
        for options in ({"keys": KeyKind.ORDERED}, {"versioned": True}, {"expires_in": 5.0}):
            with self.assertRaises(kaml.Error) as caught:
                self.device.create_namespace("refused", index=kaml.IndexPlace.FLASH, **options)
            self.assertEqual(caught.exception.status, Status.BAD_ARGUMENT)

    def test_another_kind_is_refused_with_both_kinds_named(self):
        self.device.ensure_namespace("pages", KeyKind.ORDERED)
        for options in ({}, {"keys": KeyKind.ANY}, {"keys": KeyKind.ORDERED, "versioned": True}):
            with self.assertRaises(kaml.Error) as caught:
                self.device.ensure_namespace("pages", **options)
            self.assertEqual(caught.exception.status, Status.BAD_ARGUMENT)
            self.assertIn("'pages' has keys=ORDERED, versioned=False, not keys=", str(caught.exception))

    def test_threads_that_create_one_together_get_the_same(self):
        for number in range(20):
            found, gate = [], threading.Barrier(4)

            def ensure(name=f"n{number}", found=found, gate=gate):
                gate.wait()
                found.append(self.device.ensure_namespace(name))

            threads = [threading.Thread(target=ensure) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(len(found), 4)
            self.assertEqual(len(set(found)), 1)


class Records(unittest.TestCase):
    """The same operations on a ``dict`` and on records give the same results."""

    def setUp(self):
        self.device = Device.in_memory(64 << 20)
        self.addCleanup(self.device.close)

    def test_records_behave_as_a_dict(self):
        for keys in (KeyKind.BYTES, KeyKind.ANY, KeyKind.ORDERED):
            self.compare(self.device.records(self.device.ensure_namespace(keys.name, keys)))
        self.compare(self.device.records(self.device.ensure_namespace("past", versioned=True)))

    def test_records_of_a_store_behave_as_a_dict(self):
        for mode in kaml.WriteMode:
            names = {keys: self.device.ensure_namespace(f"{mode.name} {keys.name}", keys) for keys in (KeyKind.ANY, KeyKind.ORDERED)}
            with Store(self.device, 8 << 20, write_mode=mode) as store:
                for namespace in names.values():
                    self.compare(store.records(namespace))

    def compare(self, records):
        model = {}
        for target in (model, records):
            target[b"a"] = b"1"
            target[b"b"] = b"2"
            target[b"a"] = b"3"
            target.update({b"c": b"", b"d": b"4"})
            self.assertEqual(target.pop(b"b"), b"2")
            self.assertEqual(target.setdefault(b"a", b"x"), b"3")
            self.assertEqual(target.setdefault(b"e", b"5"), b"5")
            del target[b"d"]
            for missing in (lambda: target[b"d"], lambda: target.pop(b"d"), lambda: target.__delitem__(b"d")):
                with self.assertRaises(KeyError):
                    missing()
            self.assertIsNone(target.get(b"d"))
        self.assertEqual(len(records), len(model))
        self.assertEqual(dict(records), model)
        self.assertEqual(sorted(records.items()), sorted(model.items()))
        self.assertEqual(records, model)
        self.assertTrue(b"a" in records and "a" in records and b"d" not in records and None not in records)
        records.clear()
        self.assertEqual((len(records), list(records), bool(records)), (0, [], False))

    def test_an_ordered_namespace_is_listed_in_order(self):
        records = self.device.records(self.device.ensure_namespace("pages", KeyKind.ORDERED))
        for key in ("b/2", "a", "b/1", "c"):
            records[key] = key.encode()
        self.assertEqual(list(records), [b"a", b"b/1", b"b/2", b"c"])
        self.assertEqual(list(records.prefix("b/")), [(b"b/1", b"b/1"), (b"b/2", b"b/2")])

    def test_wrong_types_and_deleted_namespaces_raise(self):
        namespace = self.device.ensure_namespace("pages")
        records = self.device.records(namespace)
        for wrong in (lambda: records[1.5], lambda: records.__setitem__("a", "text"), lambda: records.prefix(None)):
            self.assertRaises(TypeError, wrong)
        self.device.delete_namespace(namespace)
        for call in (lambda: records["a"], lambda: len(records)):
            with self.assertRaises(kaml.Error) as caught:
                call()
            self.assertEqual(caught.exception.status, Status.UNKNOWN_NAMESPACE)


class Async(unittest.TestCase):
    """``kaml.aio``."""

    def test_calls_do_what_they_do_without_asyncio(self):
        async def main(path):
            async with await kaml.aio.Device.open_or_create(path, 64 << 20) as device:
                pages = await device.ensure_namespace("pages", KeyKind.ORDERED)
                await asyncio.gather(*(device.put(pages, f"{n:04}", b"%d" % n) for n in range(600)))
                await device.write(kaml.Batch().delete(pages, "0000").put(pages, "x", b"y"))
                await device.delete(pages, "0001")
                self.assertEqual([key async for key in device.keys(pages)][:2], [b"0002", b"0003"])
                self.assertEqual([value async for _, value in device.range(pages, "0500", "0503")], [b"500", b"501", b"502"])
                self.assertEqual([key async for key in device.prefix(pages, "05", keys_only=True, reverse=True)][0], b"0599")
                self.assertEqual((await device.get(pages, "x"), await device.get(pages, "0001")), (b"y", None))
                self.assertTrue(await device.exists(pages, "x"))
                self.assertEqual(await device.namespaces(), [await device.namespace("pages")])
                self.assertEqual((await device.call(device.sync.statistics)).record_counts[pages], 599)
                async for _ in device.range(pages):
                    break  # an iterator can be left
            async with await kaml.aio.Device.open(path) as device:
                self.assertEqual(await device.get(pages, "0599"), b"599")

        with tempfile.TemporaryDirectory() as directory:
            asyncio.run(main(f"{directory}/device.kaml"))

    def test_transactions_are_serializable(self):
        async def main():
            async with await kaml.aio.Device.in_memory(64 << 20, threads=4) as device:
                counts = await device.ensure_namespace("counts")
                async with await kaml.aio.Store.open(device, 8 << 20) as store:

                    def count(txn):
                        seen = int(txn.read_for_update(counts, "n") or 0) + 1
                        txn.upsert(counts, "n", b"%d" % seen)

                    await asyncio.gather(*(store.run(count) for _ in range(200)))
                    await store.put(counts, "other", b"1")
                    await store.delete(counts, "other")
                    await store.flush()
                    self.assertEqual((await store.get(counts, "n"), await store.get(counts, "other")), (b"200", None))

        asyncio.run(main())

    def test_the_loop_runs_while_a_call_waits(self):
        async def main():
            async with await kaml.aio.Device.in_memory(64 << 20, threads=1) as device:
                entered, leave = threading.Event(), threading.Event()
                blocked = asyncio.ensure_future(device.call(lambda: (entered.set(), leave.wait())))
                while not entered.is_set():
                    await asyncio.sleep(0)
                waiting = asyncio.ensure_future(device.ensure_namespace("n"))
                dropped = asyncio.ensure_future(device.ensure_namespace("never"))
                await asyncio.sleep(0)
                dropped.cancel()
                await asyncio.sleep(0)
                leave.set()
                await blocked
                await waiting
                self.assertTrue(dropped.cancelled())
                self.assertEqual([one.name for one in await device.namespaces()], ["n"])

        asyncio.run(main())

    def test_a_closed_device_refuses(self):
        async def main():
            device = await kaml.aio.Device.in_memory(64 << 20)
            namespace = await device.ensure_namespace("n")
            await device.close()
            await device.close()
            with self.assertRaises(kaml.Error) as caught:
                await device.get(namespace, "a")
            self.assertEqual(caught.exception.status, Status.BAD_HANDLE)
            with self.assertRaises(kaml.NoFileError):
                await kaml.aio.Device.open("/nonexistent/device")

        asyncio.run(main())


class Loading(unittest.TestCase):
    """What ``import kaml`` reports if the library cannot be used."""

    def test_the_error_has_the_remedy(self):
        libc = ctypes.util.find_library("c")
        cases = {"/nonexistent/libkaml.so": "install a wheel", libc: "install both from one version"}
        for library, remedy in cases.items():
            environment = {**os.environ, "KAML_LIBRARY": library, "PYTHONPATH": str(PACKAGE.resolve())}
            command = [sys.executable, "-B", "-c", "import kaml"]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, f"ImportError: .*{remedy}")


class Documentation(unittest.TestCase):
    """What the pages of the package show."""

    def test_examples_of_the_modules(self):
        for module in (kaml.aio, sys.modules["kaml._device"]):
            outcome = doctest.testmod(module)
            self.assertEqual(outcome.failed, 0)
            self.assertGreater(outcome.attempted, 2)

    def test_the_first_program_runs_twice(self):
        program = PACKAGE / "examples/first.py"
        path = {**os.environ, "PYTHONPATH": str(pathlib.Path(kaml.__file__).parents[1].resolve())}
        with tempfile.TemporaryDirectory() as directory:
            for run in (1, 2):
                command = [sys.executable, "-B", program]
                done = subprocess.run(command, cwd=directory, env=path, capture_output=True, text=True, timeout=60)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertEqual(done.stdout, f"Ada Lovelace 2 [(b'alan', b'Alan Turing')]\nvisit {run}\n")

    def test_the_page_shows_the_first_program(self):
        self.assertIn(f"```python\n{(PACKAGE / 'examples/first.py').read_text()}```", (PACKAGE / "README.md").read_text())
