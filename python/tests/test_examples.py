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
