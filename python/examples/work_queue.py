"""A durable work queue with leases: a job is done at least once, also if a worker dies.

    python work_queue.py jobs.kaml put "resize photo 17" "send mail 4"
    python work_queue.py jobs.kaml work              # takes jobs until none is left
    python work_queue.py jobs.kaml show

A worker that takes a job gets a lease: the job moves from `ready` to `leased`, under the time at which the lease ends. A worker that finishes
deletes it. When a lease ends first, the job returns to `ready` and is taken again.
"""

import argparse
import struct
import sys
import time
from typing import Callable, NamedTuple, Optional

import kaml

LEASE_S = 30.0


class Job(NamedTuple):
    """A job that a worker has taken."""

    number: int
    text: str
    #: Its key in `leased`.
    lease: bytes


class WorkQueue:
    """A queue on a device. Any number of threads may call it."""

    def __init__(self, device: kaml.Device, store: kaml.Store, clock: Callable[[], float] = time.time) -> None:
        self._store, self._clock = store, clock
        self._ready = device.ensure_namespace("ready", kaml.KeyKind.ORDERED)
        self._leased = device.ensure_namespace("leased", kaml.KeyKind.ORDERED)
        self._counts = device.ensure_namespace("counts")

    def put(self, *texts: str) -> None:
        """Appends jobs, all or none; durable when it returns."""

        def append(txn: kaml.Transaction) -> None:
            number = int(txn.read_for_update(self._counts, "last") or 0)
            for number, text in enumerate(texts, number + 1):
                txn.insert(self._ready, number, text.encode())
            txn.upsert(self._counts, "last", str(number).encode())

        self._store.run(append)

    def take(self, lease_s: float = LEASE_S) -> Optional[Job]:
        """Takes the oldest job for so many seconds; none if there is none."""
        now = self._clock()

        def move(txn: kaml.Transaction) -> Optional[Job]:
            for lease, text in txn.range_for_update(self._leased, stop=_time_key(now), limit=100):  # these leases have ended
                txn.delete(self._leased, lease)
                txn.insert(self._ready, lease[8:], text)
            found = txn.range_for_update(self._ready, limit=1)
            if not found:
                return None
            key, text = found[0]
            lease = _time_key(now + lease_s) + key
            txn.delete(self._ready, key)
            txn.insert(self._leased, lease, text)
            return Job(int.from_bytes(key, "big"), text.decode(), lease)

        return self._store.run(move)

    def finish(self, job: Job) -> bool:
        """Removes a job that is done. Returns false if its lease had ended and somebody else has it."""

        def remove(txn: kaml.Transaction) -> bool:
            if txn.read_for_update(self._leased, job.lease) is None:
                return False
            txn.delete(self._leased, job.lease)
            return True

        return self._store.run(remove)

    def counts(self) -> "tuple[int, int]":
        """How many jobs are ready, and how many are leased, as of one moment."""
        with self._store.read_only() as snapshot:
            return snapshot.count(self._ready), snapshot.count(self._leased)


def _time_key(seconds: float) -> bytes:
    return struct.pack(">Q", int(seconds * 1e6))


def main() -> None:
    parser = argparse.ArgumentParser(description="A durable work queue with leases.")
    parser.add_argument("device")
    parser.add_argument("action", choices=("put", "work", "show"))
    parser.add_argument("jobs", nargs="*")
    arguments = parser.parse_args()
    with kaml.Device.open_or_create(arguments.device) as device, kaml.Store(device, 8 << 20) as store:
        queue = WorkQueue(device, store)
        if arguments.action == "put":
            queue.put(*arguments.jobs)
        while arguments.action == "work":
            job = queue.take()
            if job is None:
                break
            print(f"job {job.number}: {job.text}")
            if not queue.finish(job):
                print(f"job {job.number} took too long, and is done again", file=sys.stderr)
        print("%d ready, %d leased" % queue.counts())


if __name__ == "__main__":
    main()
