"""The examples do what their first lines show."""

import http.client
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import unittest

import kaml

EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"
sys.path.insert(0, str(EXAMPLES))
sys.dont_write_bytecode = True

import blob_server  # noqa: E402
import events  # noqa: E402
import inventory  # noqa: E402
import notes  # noqa: E402
import sessions  # noqa: E402
import work_queue  # noqa: E402


class Queue(unittest.TestCase):
    """``work_queue.py``."""

    def setUp(self):
        self.now = 1000.0
        self.device = kaml.Device.in_memory(64 << 20)
        self.addCleanup(self.device.close)
        self.store = kaml.Store(self.device, 8 << 20)
        self.addCleanup(self.store.close)
        self.queue = work_queue.WorkQueue(self.device, self.store, lambda: self.now)

    def test_jobs_come_in_order_and_return_when_a_lease_ends(self):
        self.queue.put("a", "b", "c")
        first = self.queue.take(lease_s=10)
        self.assertEqual((first.text, self.queue.counts()), ("a", (2, 1)))
        self.now += 11
        again = self.queue.take(lease_s=10)
        self.assertEqual((again.text, again.number), ("a", 1))
        self.assertFalse(self.queue.finish(first))
        self.assertTrue(self.queue.finish(again))
        self.assertFalse(self.queue.finish(again))
        self.assertEqual([self.queue.take().text, self.queue.take().text, self.queue.take()], ["b", "c", None])
        self.assertEqual(self.queue.counts(), (0, 2))

    def test_workers_share_the_jobs(self):
        self.queue.put(*map(str, range(100)))
        done, lock = [], threading.Lock()

        def work():
            while (job := self.queue.take()) is not None:
                self.assertTrue(self.queue.finish(job))
                with lock:
                    done.append(job.text)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(sorted(done, key=int), list(map(str, range(100))))
        self.assertEqual(self.queue.counts(), (0, 0))

    def test_the_command_line(self):
        environment = {**os.environ, "PYTHONPATH": str(pathlib.Path(kaml.__file__).parents[1].resolve())}
        with tempfile.TemporaryDirectory() as directory:

            def run(*words):
                command = [sys.executable, "-B", EXAMPLES / "work_queue.py", "jobs.kaml", *words]
                return subprocess.run(command, cwd=directory, env=environment, check=True, capture_output=True, text=True, timeout=60).stdout

            self.assertEqual(run("put", "one", "two"), "2 ready, 0 leased\n")
            self.assertEqual(run("work"), "job 1: one\njob 2: two\n0 ready, 0 leased\n")


def run_in_threads(count, work):
    """Runs ``work(number)`` in threads; what one raises is raised here."""
    raised = []

    def run(number):
        try:
            work(number)
        except BaseException as error:  # shown below
            raised.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if raised:
        raise raised[0]


class WithStore(unittest.TestCase):
    """A device in memory and a store over it; programs that run in a directory of their own."""

    def setUp(self):
        self.device = kaml.Device.in_memory(64 << 20)
        self.addCleanup(self.device.close)
        self.store = kaml.Store(self.device, 8 << 20)
        self.addCleanup(self.store.close)

    def program(self, name):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        environment = {**os.environ, "PYTHONPATH": str(pathlib.Path(kaml.__file__).parents[1].resolve())}

        def run(*words, code=0):
            command = [sys.executable, "-B", EXAMPLES / name, "x.kaml", *words]
            done = subprocess.run(command, cwd=directory.name, env=environment, capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, code, done)
            return done.stdout + done.stderr

        return run


class Events(WithStore):
    """``events.py``."""

    def test_streams_have_an_order_and_conditions(self):
        store = events.EventStore(self.device, self.store)
        self.assertEqual(store.append("a", {"n": 1}, {"n": 2}), 2)
        store.append("ab", "other")
        self.assertEqual(store.append("a", {"n": 3}, after=2), 3)
        with self.assertRaises(events.Conflict):
            store.append("a", "late", after=2)
        self.assertEqual([(e.number, e.data) for e in store.read("a", after=1)], [(2, {"n": 2}), (3, {"n": 3})])
        self.assertEqual([e.data for e in store.read("ab")], ["other"])

    def test_subscribers_miss_nothing_and_see_nothing_twice(self):
        store = events.EventStore(self.device, self.store)
        run_in_threads(4, lambda number: [store.append(f"s{number}", n) for n in range(25)])
        seen = []
        for _ in range(3):  # a subscriber that stops in between
            for event in store.follow("one", limit=10):
                seen.append(event.position)
                if len(seen) % 40 == 39:
                    break  # this one comes again
        self.assertEqual(sorted(set(seen)), list(range(1, 101)))
        self.assertLessEqual(len(seen), 103)
        self.assertEqual(list(store.follow("one")), [])
        self.assertEqual(len(list(store.follow("two"))), 100)

    def test_the_command_line(self):
        run = self.program("events.py")
        self.assertEqual(run("append", "order-7", "created", "paid"), "2 events\n")
        self.assertEqual(run("append", "order-7", "shipped", "--after", "1", code=1), "order-7 has 2 events, not 1\n")
        self.assertEqual(run("read", "order-7"), "1 order-7 1: created\n2 order-7 2: paid\n")
        self.assertEqual(run("follow", "mailer").count("\n"), 2)
        self.assertEqual(run("follow", "mailer"), "")


class Notes(WithStore):
    """``notes.py``."""

    def test_the_past_is_read_and_returns(self):
        self.store.close()
        mine = notes.Notes(self.device)
        mine.write("a", "one")
        mine.mark("monday")
        mine.write("a", "two")
        mine.write("b", "new")
        self.assertEqual((mine.read("a"), mine.read("a", "monday"), mine.read("b", "monday")), ("two", "one", None))
        self.assertEqual([text for _, text in mine.history("a")], ["two", "one"])
        mine.undo("a")
        self.assertEqual(mine.read("a"), "one")
        before = mine.return_to("monday")
        self.assertEqual((mine.read("a"), mine.read("b"), mine.read("b", before)), ("one", None, "new"))
        self.assertEqual(mine.moments(), ["monday", before])
        mine.erase("a")
        self.assertEqual([text for _, text in mine.history("a")][0], None)
        with self.assertRaises(KeyError):
            mine.read("a", "tuesday")
        with self.assertRaises(ValueError):
            mine.mark("monday")

    def test_the_command_line(self):
        run = self.program("notes.py")
        run("write", "shopping", "tea")
        run("mark", "monday")
        run("write", "shopping", "nothing")
        self.assertEqual(run("read", "shopping", "--at", "monday"), "tea\n")
        self.assertEqual(run("history", "shopping").count("\n"), 2)
        self.assertIn("before returning to monday", run("return", "monday"))
        self.assertEqual(run("read", "shopping"), "tea\n")
        self.assertIn("no moment", run("read", "shopping", "--at", "never", code=1))


class Inventory(WithStore):
    """``inventory.py``."""

    def test_the_last_piece_is_sold_once(self):
        stock = inventory.Inventory(self.device, self.store)
        stock.receive("tea", 40)
        stock.receive("cup", 40)
        short, lock = [], threading.Lock()

        def order(number):
            for at in range(15):
                try:
                    stock.order(number * 100 + at, {"tea": 1, "cup": 1} if at % 2 else {"cup": 1, "tea": 1})
                    if at % 5 == 0:
                        self.assertTrue(stock.cancel(number * 100 + at))
                except inventory.Short:
                    with lock:
                        short.append(number)
                self.assertEqual(stock.check(), [])

        run_in_threads(4, order)
        # 48 orders that were not cancelled, and 40 pieces.
        self.assertGreaterEqual(len(short), 8)
        stock.order(5000, stock.stock())
        self.assertEqual(stock.stock(), {"cup": 0, "tea": 0})
        with self.assertRaises(inventory.Short):
            stock.order(5001, {"tea": 1})
        self.assertEqual(stock.check(), [])
        self.assertFalse(stock.cancel(7777))

    def test_the_command_line(self):
        run = self.program("inventory.py")
        self.assertEqual(run("receive", "tea", "3"), "3 in stock\n")
        run("order", "7", "tea=2")
        self.assertIn("1 of tea are left", run("order", "8", "tea=2", code=1))
        self.assertIn("an order of that number", run("order", "7", "tea=1", code=1))
        self.assertEqual(run("show"), "tea: 1\n")
        self.assertEqual(run("cancel", "7"), "cancelled\n")
        self.assertEqual(run("check"), "all is well\n")


class Sessions(WithStore):
    """``sessions.py``."""

    def test_sessions_end_after_silence(self):
        now = [1000.0]
        store = sessions.Sessions(self.device, self.store, silence_s=10, clock=lambda: now[0])
        ada, bob = store.begin(user="ada"), store.begin(user="bob")
        now[0] += 6
        self.assertEqual(store.use(ada, cart=1), {"user": "ada", "cart": 1})
        now[0] += 6
        self.assertEqual((store.use(ada), store.use(bob)), ({"user": "ada", "cart": 1}, None))
        self.assertEqual((store.sweep(), store.sweep()), (1, 0))
        store.end(ada)
        store.end(ada)
        self.assertIsNone(store.use(ada))
        now[0] += 100
        self.assertEqual(store.sweep(), 0)

    def test_the_command_line(self):
        run = self.program("sessions.py")
        token = run("begin", "ada").strip()
        self.assertIn("ada", run("show", token))
        run("end", token)
        self.assertIn("has ended", run("show", token))
        self.assertEqual(run("sweep"), "0 removed\n")


class BlobServer(unittest.TestCase):
    """``blob_server.py``."""

    def setUp(self):
        self.device = kaml.Device.in_memory(64 << 20)
        self.addCleanup(self.device.close)
        server = blob_server.serve(self.device, 0)
        self.addCleanup(server.server_close)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(server.shutdown)
        self.client = http.client.HTTPConnection(*server.server_address[:2], timeout=60)
        self.addCleanup(self.client.close)

    def ask(self, method, path, body=None, **headers):
        self.client.request(method, path, body, headers)
        response = self.client.getresponse()
        return response.status, response.read(), response.headers

    def test_blobs_are_stored_read_in_ranges_replaced_and_deleted(self):
        data = bytes(number % 251 for number in range(3 * blob_server.PART + 1000))
        self.assertEqual(self.ask("GET", "/film")[0], 404)
        self.assertEqual(self.ask("PUT", "/film", data)[0], 201)
        self.assertEqual(self.ask("GET", "/film")[:2], (200, data))
        status, body, headers = self.ask("HEAD", "/film")
        self.assertEqual((status, body, headers["Content-Length"]), (200, b"", str(len(data))))
        edge = blob_server.PART
        for start, stop in ((0, 1), (edge - 1, edge + 1), (edge, 2 * edge), (len(data) - 1, len(data)), (5, len(data))):
            status, body, headers = self.ask("GET", "/film", Range=f"bytes={start}-{stop - 1}")
            self.assertEqual((status, body), (206, data[start:stop]), (start, stop))
            self.assertEqual(headers["Content-Range"], f"bytes {start}-{stop - 1}/{len(data)}")
        self.assertEqual(self.ask("GET", "/film", Range="bytes=1000-")[1], data[1000:])
        self.assertEqual(self.ask("GET", "/film", Range="bytes=-10")[1], data[-10:])
        self.assertEqual(self.ask("GET", "/film", Range=f"bytes={len(data)}-")[0], 416)
        self.assertEqual(self.ask("PUT", "/film", b"short")[0], 201)
        self.assertEqual(self.ask("GET", "/film")[1], b"short")
        self.assertEqual(self.device.count(self.device.namespace("blob parts")), 1)  # the old parts are deleted
        self.assertEqual(self.ask("DELETE", "/film")[0], 204)
        self.assertEqual(self.ask("DELETE", "/film")[0], 404)
        self.assertEqual(self.device.count(self.device.namespace("blob parts")), 0)
        self.assertEqual(self.ask("PUT", "/empty", b"")[0], 201)
        self.assertEqual(self.ask("GET", "/empty")[:2], (200, b""))
