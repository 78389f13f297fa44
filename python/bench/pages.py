#!/usr/bin/env python3
"""Stores and loads pages of 1 MiB, 8 at a time, through ``kaml.lmcache``; beside it files, and the bare disk.

usage: python3 python/bench/pages.py [--dir DIR] [--pages N] [--rounds N]

The sides alternate; the table has medians. ``files`` does what LMCache's file-system back end does: each page is a file that is written
under another name and renamed. "Power" means that a page survives the loss of power when it is stored: files are synced. "The disk" is a file
that exists, written and read past the page cache by 8 threads.
"""

import argparse
import mmap
import os
import shutil
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

from kaml.lmcache import Client

PAGE = 1 << 20
AT_A_TIME = 8


class Kaml:
    def __init__(self, directory, pages, durability):
        capacity = max(pages * PAGE * 2, 1 << 30)
        path = os.path.join(directory, f"kaml-{durability}")
        self.client = Client(path, capacity=capacity, durability=durability, threads=AT_A_TIME)

    def run(self, submit, buffers):
        count, done = len(buffers), 0
        for begin in range(0, count, AT_A_TIME):
            keys = [f"page {n}" for n in range(begin, min(begin + AT_A_TIME, count))]
            submit(keys, buffers[begin : begin + AT_A_TIME])
        while done < (count + AT_A_TIME - 1) // AT_A_TIME:
            self.client.wait(60)
            for _, ok, error, results in self.client.drain_completions():
                assert ok and all(results), error
                done += 1

    def store(self, buffers):
        self.run(self.client.submit_batch_set, buffers)

    def load(self, buffers):
        self.run(self.client.submit_batch_get, buffers)

    def end(self):
        self.client.close()


class Files:
    def __init__(self, directory, pages, durability):
        self.directory, self.is_synced = os.path.join(directory, f"files-{durability}"), durability == "power"
        os.mkdir(self.directory)
        self.pool = ThreadPoolExecutor(AT_A_TIME)

    def store_one(self, at, buffer):
        path = os.path.join(self.directory, f"{at}.bin")
        with open(f"{path}.tmp", "wb", buffering=0) as file:
            file.write(buffer)
            if self.is_synced:
                os.fsync(file.fileno())
        os.replace(f"{path}.tmp", path)
        if self.is_synced:
            fd = os.open(self.directory, os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)

    def load_one(self, at, buffer):
        fd = os.open(os.path.join(self.directory, f"{at}.bin"), os.O_RDONLY)
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            assert os.readv(fd, [buffer]) == PAGE
        finally:
            os.close(fd)

    def store(self, buffers):
        list(self.pool.map(self.store_one, range(len(buffers)), buffers))

    def load(self, buffers):
        os.sync()  # else the page cache would be measured
        list(self.pool.map(self.load_one, range(len(buffers)), buffers))

    def end(self):
        self.pool.shutdown()
        shutil.rmtree(self.directory)


class Disk:
    def __init__(self, directory, pages, durability):
        self.fd = os.open(os.path.join(directory, "disk"), os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600)
        zeros = mmap.mmap(-1, PAGE)
        for at in range(pages):
            os.pwrite(self.fd, zeros, at * PAGE)
        self.pool = ThreadPoolExecutor(AT_A_TIME)

    def store(self, buffers):
        list(self.pool.map(lambda at: os.pwrite(self.fd, buffers[at], at * PAGE), range(len(buffers))))
        os.fdatasync(self.fd)

    def load(self, buffers):
        list(self.pool.map(lambda at: os.preadv(self.fd, [buffers[at]], at * PAGE), range(len(buffers))))

    def end(self):
        self.pool.shutdown()
        os.close(self.fd)


SIDES = {
    "the disk": (Disk, "power"),
    "KAML, power": (Kaml, "power"),
    "files, power": (Files, "power"),
    "KAML, process": (Kaml, "process"),
    "files, process": (Files, "process"),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", default=None, help="where to write; by default the directory of temporary files")
    parser.add_argument("--pages", type=int, default=512, help="pages in each round (512)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds (5)")
    given = parser.parse_args()
    rates = {side: ([], []) for side in SIDES}
    buffers = [memoryview(mmap.mmap(-1, PAGE)) for _ in range(given.pages)]
    for at, buffer in enumerate(buffers):
        buffer[:] = os.urandom(4096) * (PAGE // 4096)
    with tempfile.TemporaryDirectory(dir=given.dir) as directory:
        sides = {side: kind(directory, given.pages, durability) for side, (kind, durability) in SIDES.items()}
        for _ in range(given.rounds):
            for side, one in sides.items():
                for which, act in enumerate((one.store, one.load)):
                    began = time.perf_counter()
                    act(buffers)
                    rates[side][which].append(given.pages * PAGE / (time.perf_counter() - began) / 1e6)
        for one in sides.values():
            one.end()
    print(f"{'MB/s, medians of ' + str(given.rounds):24}{'store':>10}{'load':>10}")
    for side, (stored, loaded) in rates.items():
        print(f"{side:24}{statistics.median(stored):10.0f}{statistics.median(loaded):10.0f}")


if __name__ == "__main__":
    main()
