"""The caches of pages for LMCache and SGLang: what they store, what leaves, and what survives."""

import ctypes
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import types
import unittest

import kaml
from kaml._pages import Pages
from kaml.lmcache import Client
from kaml.sglang import KamlHiCache

PAGE = 256 << 10
CAPACITY = 64 << 20
KEY = "meta-llama/Llama-3.1-8B@{:08x}@0@{:032x}"
#: A process that stores pages without end, and prints the number of each that is stored.
WRITER = """
import sys
from kaml.lmcache import Client
from kaml.sglang import KamlHiCache
with Client(sys.argv[1], capacity=64 << 20, bytes_max=8 << 20, durability="process") as client:
    for n in range(10**9):
        client.submit_batch_set([f"page {n}"], [memoryview(bytearray([n % 251]) * (256 << 10))])
        client.wait(30)
        assert client.drain_completions()[0][1]
        print(n, flush=True)
"""


def page(n, length=PAGE):
    return memoryview(bytearray(n.to_bytes(8, "little") * (length // 8)))


def key(n):
    return KEY.format(n % 4, n)


def result(client, number):
    """Waits for one task as LMCache does: by polling the descriptor."""
    poller = select.poll()
    poller.register(client.event_fd(), select.POLLIN)
    done = {}
    while number not in done:
        assert poller.poll(60_000), "nothing is completed"
        done.update({one: rest for one, *rest in client.drain_completions()})
    return done[number]


class Clients(unittest.TestCase):
    """``kaml.lmcache.Client``."""

    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.addCleanup(self.dir.cleanup)
        self.path = os.path.join(self.dir.name, "pages.kaml")

    def client(self, **parameters):
        client = Client(self.path, capacity=CAPACITY, durability="process", **parameters)
        self.addCleanup(client.close)
        return client

    def test_pages_are_found_by_the_next_process(self):
        client = self.client()
        keys = [key(n) for n in range(32)]
        for begin in range(0, 32, 8):
            buffers = [page(n) for n in range(begin, begin + 8)]
            self.assertEqual(result(client, client.submit_batch_set(keys[begin : begin + 8], buffers)), [True, "", [True] * 8])
        client.close()
        client = self.client()
        self.assertEqual(client.usage()[:2], (32, 32 * PAGE))
        found = result(client, client.submit_batch_exists([*keys, "another"]))
        self.assertEqual(found, [True, "", [True] * 32 + [False]])
        buffers = [memoryview(bytearray(PAGE)) for _ in range(33)]
        loaded = result(client, client.submit_batch_get([*keys, "another"], buffers))
        self.assertEqual(loaded, [True, "", [True] * 32 + [False]])
        self.assertTrue(all(buffers[n] == page(n) for n in range(32)))
        self.assertEqual(result(client, client.submit_batch_delete(keys[:4] + ["another"])), [True, "", [True] * 4 + [False]])
        client.close()
        self.assertEqual(self.client().usage()[:2], (28, 28 * PAGE))

    def test_a_page_of_another_length_is_no_page(self):
        client = self.client()
        result(client, client.submit_batch_set(["a"], [page(1)]))
        for length in (PAGE - 8, PAGE + 8, 0):
            self.assertEqual(result(client, client.submit_batch_get(["a"], [memoryview(bytearray(length))]))[2], [False])

    def test_pages_are_replaced(self):
        client = self.client()
        for n in range(3):
            result(client, client.submit_batch_set(["a"], [page(n, PAGE >> n)]))
        buffer = memoryview(bytearray(PAGE >> 2))
        self.assertEqual(result(client, client.submit_batch_get(["a"], [buffer]))[2], [True])
        self.assertEqual((buffer, client.usage()[:2]), (page(2, PAGE >> 2), (1, PAGE >> 2)))

    def test_the_least_recently_used_pages_leave_also_after_a_restart(self):
        client = self.client(bytes_max=8 * PAGE)
        for n in range(8):
            result(client, client.submit_batch_set([key(n)], [page(n)]))
        time.sleep(1.1)  # uses are stored in seconds
        result(client, client.submit_batch_get([key(0)], [memoryview(bytearray(PAGE))]))
        client.close()
        client = self.client(bytes_max=8 * PAGE)
        for n in range(8, 15):
            result(client, client.submit_batch_set([key(n)], [page(n)]))
        found = result(client, client.submit_batch_exists([key(n) for n in range(15)]))[2]
        self.assertEqual(found, [True] + [False] * 7 + [True] * 7)
        self.assertEqual(client.usage(), (8, 8 * PAGE, 8 * PAGE))
        client.close()
        self.assertEqual(self.client(bytes_max=4 * PAGE).usage()[:2], (4, 4 * PAGE))

    def test_a_full_device_makes_room(self):
        client = self.client()
        for n in range(400):  # 100 MiB on a device of 64 MiB
            self.assertEqual(result(client, client.submit_batch_set([key(n)], [page(n)])), [True, "", [True]], n)
        self.assertTrue(result(client, client.submit_batch_exists([key(399)]))[2][0])
        self.assertFalse(result(client, client.submit_batch_exists([key(0)]))[2][0])
        client.close()
        self.assertGreater(self.client().usage().pages, 100)

    def test_old_pages_leave(self):
        client = self.client(age_max=1)
        result(client, client.submit_batch_set(["a"], [page(1)]))
        self.assertEqual(result(client, client.submit_batch_exists(["a"]))[2], [True])
        time.sleep(2.5)
        self.assertEqual(result(client, client.submit_batch_exists(["a"]))[2], [False])
        self.assertEqual(result(client, client.submit_batch_get(["a"], [memoryview(bytearray(PAGE))]))[2], [False])
        result(client, client.submit_batch_set(["b"], [page(2)]))
        self.assertEqual(client.usage()[:2], (1, PAGE))

    def test_many_batches_at_a_time(self):
        client = self.client(bytes_max=16 * PAGE, threads=8)
        submitted = {}
        for n in range(100):
            some = [key(n * 7 % 40 + at) for at in range(4)]
            submitted[client.submit_batch_set(some, [page(n * 7 % 40 + at) for at in range(4)])] = None
            submitted[client.submit_batch_exists(some)] = None
        end = time.monotonic() + 60
        while None in submitted.values() and time.monotonic() < end:
            client.wait(1)
            submitted.update({one: ok for one, ok, *_ in client.drain_completions()})
        self.assertEqual(set(submitted.values()), {True})
        for n in range(44):
            buffer = memoryview(bytearray(PAGE))
            if result(client, client.submit_batch_get([key(n)], [buffer]))[2][0]:
                self.assertEqual(buffer, page(n))
        pages, used, _ = client.usage()
        self.assertLessEqual(used, 16 * PAGE)
        client.close()
        self.assertLessEqual(self.client(bytes_max=16 * PAGE).usage()[1], used)

    def test_killed_writers_leave_whole_pages(self):
        for _ in range(5):
            command = [sys.executable, "-c", WRITER, self.path]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
                stored = [int(writer.stdout.readline()) for _ in range(40)][-1]
                writer.send_signal(signal.SIGKILL)
                stored = max([stored, *map(int, writer.stdout.read().split())])
            with Client(self.path, bytes_max=8 << 20) as client:
                buffer = memoryview(bytearray(PAGE))
                self.assertEqual(result(client, client.submit_batch_get([f"page {stored}"], [buffer]))[2], [True])
                self.assertEqual(buffer, bytes([stored % 251]) * PAGE)
                self.assertLessEqual(client.usage().bytes, 8 << 20)
            with kaml.Device.open(self.path) as device:
                names = [name.decode() for name in device.keys(device.namespace("lmcache"))]
                self.assertEqual(sorted(names), sorted(map(bytes.decode, device.keys(device.namespace("lmcache.use")))))
                self.assertEqual(device.check().problems, ())

    def test_mistakes_are_named(self):
        client = self.client(bytes_max=PAGE)
        ok, error, results = result(client, client.submit_batch_set(["a", "b"], [page(1, 2 * PAGE), page(2)]))
        self.assertEqual((ok, results), (False, [False, True]))
        self.assertIn("raise bytes_max", error)
        ok, error, results = result(client, client.submit_batch_set(["k" * 1025], [page(1)]))
        self.assertEqual((ok, results), (False, [False]))
        self.assertIn("1024", error)
        with self.assertRaisesRegex(ValueError, "1 keys with 2 buffers"):
            client.submit_batch_get(["a"], [page(1), page(2)])
        self.assertEqual(result(client, client.submit_batch_set([], [])), [True, "", []])
        client.close()
        client.close()
        with self.assertRaisesRegex(ValueError, "closed"):
            client.submit_batch_exists(["a"])
        for wrong in ({"threads": 0}, {"bytes_max": -1}, {"age_max": -1}):
            with self.assertRaises(ValueError):
                Client(self.path, **wrong)
        with self.assertRaises(KeyError):
            Client(self.path, durability="for ever")

    def test_the_cache_is_cleared(self):
        pages = Pages(self.path, "p", capacity=CAPACITY)
        self.addCleanup(pages.close)
        for n in range(5):
            pages.store(key(n), page(n))
        pages.clear()
        self.assertEqual(pages.usage()[:2], (0, 0))
        self.assertFalse(pages.load(key(1), page(0)))


class HostMemory:
    """The pool of pages that SGLang registers, with keys and values apart."""

    def __init__(self, pages):
        self.length = PAGE // 2
        self.parts = [bytearray(self.length) for _ in range(2 * pages)]
        self.pinned = [(ctypes.c_ubyte * self.length).from_buffer(part) for part in self.parts]

    def get_page_buffer_meta(self, indices):
        chosen = [self.pinned[2 * index + part] for index in indices for part in (0, 1)]
        return [ctypes.addressof(part) for part in chosen], [self.length] * len(chosen)

    def fill(self, index, n):
        for part in (0, 1):
            self.parts[2 * index + part][:] = page(2 * n + part, self.length)

    def has(self, index, n):
        return all(self.parts[2 * index + part] == page(2 * n + part, self.length) for part in (0, 1))


class HiCaches(unittest.TestCase):
    """``kaml.sglang.KamlHiCache``, called as SGLang 0.5.23 does, without SGLang."""

    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.addCleanup(self.dir.cleanup)

    def storage(self, rank=0, **more):
        extra = {"path": os.path.join(self.dir.name, "h.kaml"), "capacity": CAPACITY, "durability": "process", **more}
        config = types.SimpleNamespace(tp_rank=rank, tp_size=2, pp_rank=0, pp_size=1, model_name="a/b", extra_config=extra)
        storage = KamlHiCache(config, extra)
        self.addCleanup(storage.close)
        self.memory = HostMemory(16)
        storage.register_mem_pool_host(self.memory)
        return storage

    def test_pages_come_back_into_the_memory_of_the_host(self):
        storage = self.storage()
        keys = [f"hash{n}" for n in range(8)]
        for n in range(8):
            self.memory.fill(n, n)
        self.assertEqual(storage.batch_set_v1(keys, range(8)), [True] * 8)
        storage.close()
        storage = self.storage()
        self.assertEqual(storage.batch_exists([*keys[:5], "gap", *keys[5:]]), 5)
        self.assertEqual(storage.batch_get_v1([*keys, "gap"], range(9)), [True] * 8 + [False])
        self.assertTrue(all(self.memory.has(n, n) for n in range(8)))
        self.assertEqual(sorted(os.listdir(self.dir.name)), ["h.kaml.tp0of2"])
        self.assertEqual(self.storage(rank=1).batch_exists(keys), 0)

    def test_single_values(self):
        storage = self.storage()
        self.assertTrue(storage.set("k", page(3)))
        target = bytearray(PAGE)
        self.assertIs(storage.get("k", target), target)
        self.assertEqual(target, page(3))
        self.assertEqual((storage.get("other", target), storage.exists("k"), storage.exists("other")), (None, True, False))
        self.assertEqual(storage.batch_get(["k", "other"], [target, target]), [target, None])
        storage.clear()
        self.assertFalse(storage.exists("k"))

    def test_failures_are_misses(self):
        storage = self.storage(bytes_max=PAGE)
        with self.assertLogs("kaml.sglang", "WARNING"):
            self.assertFalse(storage.set("k", page(1, 2 * PAGE)))
        storage.close()
        with self.assertLogs("kaml.sglang", "WARNING"):
            self.assertEqual(storage.batch_set(["k"], [page(1)]), False)
        self.assertRaises(ValueError, KamlHiCache, types.SimpleNamespace(extra_config={}))


class Buffers(unittest.TestCase):
    """``Device.get_into``."""

    def test_values_are_read_into_buffers(self):
        with kaml.Device.in_memory(CAPACITY) as device:
            pages = device.create_namespace("pages")
            device.put(pages, 1, b"x" * 1000)
            device.put(pages, 2, b"")
            buffer = bytearray(1001)
            self.assertEqual((device.get_into(pages, 1, buffer), bytes(buffer)), (1000, b"x" * 1000 + b"\0"))
            self.assertEqual(device.get_into(pages, 2, memoryview(buffer)[:0]), 0)
            self.assertIsNone(device.get_into(pages, 3, buffer))
            with self.assertRaises(kaml.Error) as caught:
                device.get_into(pages, 1, memoryview(buffer)[:999])
            self.assertEqual(caught.exception.status, kaml.Status.BUFFER_TOO_SMALL)
            for wrong in (b"only read", memoryview(buffer)[::2], 7):
                with self.assertRaises(TypeError):
                    device.get_into(pages, 1, wrong)


if __name__ == "__main__":
    unittest.main()
