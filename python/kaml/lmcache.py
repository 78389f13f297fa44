"""KAML as the second level of LMCache: pages of an LLM server's key-value cache that survive restarts.

LMCache (``lmcache server``) loads :class:`Client` by its name. Give it this adapter::

    {"type": "native_plugin", "module_path": "kaml.lmcache", "class_name": "Client",
     "adapter_params": {"path": "/var/lib/kaml/pages.kaml", "capacity": 68719476736, "bytes_max": 60000000000}}

``adapter_params`` are the arguments of :class:`Client`. Nothing of LMCache is imported, so the module works with each version that has
``native_plugin`` (0.5.6 is tested).

What the pages have that files do not: a page is whole or absent after a crash, its checksum is verified with each read, and what the cache holds is
counted and kept in order of use over restarts, so it never outgrows ``bytes_max``.
"""

import functools
import os
import select
import threading
from queue import SimpleQueue
from typing import Any, Callable, List, Optional, Sequence, Tuple, Union

from ._device import Durability
from ._errors import Error
from ._pages import Pages, Usage

__all__ = ["Client", "Usage"]

#: Operations that run at a time if nothing else is requested.
THREADS = 8


class _Signal:
    """A file descriptor that can be read while something is completed."""

    def __init__(self) -> None:
        if hasattr(os, "eventfd"):  # from Python 3.10 on
            self.fd = self._write_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        else:
            self.fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def set(self) -> None:
        try:
            os.write(self._write_fd, (1).to_bytes(8, "little"))
        except BlockingIOError:
            pass  # it can be read already

    def clear(self) -> None:
        try:
            while os.read(self.fd, 4096) and self._write_fd != self.fd:
                pass
        except BlockingIOError:
            pass

    def close(self) -> None:
        for fd in {self.fd, self._write_fd}:
            os.close(fd)


class _Task:
    """A batch of which some operations are still to be done."""

    def __init__(self, number: int, results: "List[bool]") -> None:
        self.number, self.results, self.left = number, results, len(results)
        self.error = ""


class Client:
    """Stores and loads pages for LMCache, several at a time. Each ``submit`` returns a number at once; :meth:`drain_completions`
    returns what is done, and :meth:`event_fd` can be read when there is something. Any thread may call any method."""

    def __init__(
        self,
        path: "Union[str, os.PathLike[str]]",
        namespace: str = "lmcache",
        capacity: int = 0,
        bytes_max: int = 0,
        age_max: float = 0,
        durability: "Union[Durability, str]" = "power",
        threads: int = THREADS,
    ) -> None:
        """Opens the device ``path`` (a file or a block device), or creates it with ``capacity`` bytes; 0: a file grows as needed.

        ``bytes_max`` is the limit of all pages together in bytes; 0: the device is full. ``age_max``: pages that were not used for so many
        seconds leave; 0: they remain. ``durability`` is ``power`` or ``process`` (faster, and lost with power), and applies when the
        device is created. ``threads`` operations run at a time, 1 to 64."""
        if not 1 <= threads <= 64:
            raise ValueError(f"threads: {threads} is not in 1..64")
        self._cache = Pages(
            path, namespace, capacity=capacity, bytes_max=bytes_max, age_max=age_max, durability=durability
        )
        self._signal = _Signal()
        self._lock = threading.Lock()
        self._number = 0
        self._done: "List[Tuple[int, bool, str, Optional[List[bool]]]]" = []
        self._work: "SimpleQueue[Optional[Callable[[], None]]]" = SimpleQueue()
        self._is_closed = False
        self._threads = [
            threading.Thread(target=self._run, name=f"kaml-lmcache-{at}", daemon=True) for at in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    # --- the interface of LMCache's native connectors ---------------------------------------------------------------

    def event_fd(self) -> int:
        """A descriptor to poll: it can be read when something is completed."""
        return self._signal.fd

    def submit_batch_set(self, keys: Sequence[str], buffers: "Sequence[memoryview]") -> int:
        """Stores pages. The buffers belong to the client until the batch is completed; it does not copy them."""
        return self._submit(keys, buffers, self._store)

    def submit_batch_get(self, keys: Sequence[str], buffers: "Sequence[memoryview]") -> int:
        """Loads pages into buffers of just their length. The result of a page is false if it is not stored with that length."""
        return self._submit(keys, buffers, self._cache.load)

    def submit_batch_exists(self, keys: Sequence[str]) -> int:
        """Which pages are stored. It reads no flash."""
        return self._submit_all(len(keys), lambda: [self._cache.exists(key) for key in keys])

    def submit_batch_delete(self, keys: Sequence[str]) -> int:
        """Deletes pages; the result of a page is whether it was stored."""
        return self._submit_all(len(keys), lambda: self._cache.delete(keys))

    def drain_completions(self) -> "List[Tuple[int, bool, str, Optional[List[bool]]]]":
        """What has been completed since the last call: number, whether all succeeded, what failed, and the result of each page."""
        with self._lock:
            self._signal.clear()
            done, self._done = self._done, []
        return done

    def close(self) -> None:
        """Completes what was submitted, stores the uses, and closes the device. Closing it again does nothing."""
        with self._lock:
            was_closed, self._is_closed = self._is_closed, True
        if was_closed:
            return
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join()
        try:
            self._cache.close()
        finally:
            self._signal.close()

    # --- besides --------------------------------------------------------------------------------------------------

    def usage(self) -> Usage:
        """What the cache has, pages of earlier processes among it."""
        return self._cache.usage()

    def wait(self, seconds: float) -> bool:
        """Waits until something is completed; whether it is."""
        poller = select.poll()
        poller.register(self._signal.fd, select.POLLIN)
        return bool(poller.poll(seconds * 1000))

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- how ------------------------------------------------------------------------------------------------------

    def _store(self, key: str, buffer: memoryview) -> bool:
        self._cache.store(key, buffer)
        return True

    def _begin(self, count: int) -> _Task:
        """The caller holds the lock until the work is queued. So `close` cannot end the threads before it."""
        if self._is_closed:
            raise ValueError("the client is closed")
        self._number += 1
        return _Task(self._number, [False] * count)

    def _submit(
        self, keys: Sequence[str], buffers: "Sequence[memoryview]", act: "Callable[[str, memoryview], bool]"
    ) -> int:
        if len(keys) != len(buffers):
            raise ValueError(f"{len(keys)} keys with {len(buffers)} buffers")
        if not keys:
            return self._submit_all(0, list)
        with self._lock:
            task = self._begin(len(keys))
            for at, (key, buffer) in enumerate(zip(keys, buffers)):
                self._work.put(functools.partial(self._one, task, at, functools.partial(act, key, buffer)))
        return task.number

    def _submit_all(self, count: int, act: "Callable[[], List[bool]]") -> int:
        with self._lock:
            task = self._begin(count)
            self._work.put(functools.partial(self._all, task, act))
        return task.number

    def _all(self, task: _Task, act: "Callable[[], List[bool]]") -> None:
        try:
            task.results = act()
        except Exception as failure:
            task.error = _words(failure)
        self._complete(task)

    def _one(self, task: _Task, at: int, act: "Callable[[], bool]") -> None:
        try:
            task.results[at] = act()
        except Exception as failure:
            task.error = _words(failure)
        with self._lock:
            task.left -= 1
            is_last = task.left == 0
        if is_last:
            self._complete(task)

    def _complete(self, task: _Task) -> None:
        with self._lock:
            self._done.append((task.number, not task.error, task.error, task.results))
            self._signal.set()

    def _run(self) -> None:
        while True:
            work = self._work.get()
            if work is None:
                return
            work()
            del work  # it holds a buffer


def _words(failure: Exception) -> str:
    return str(failure) if isinstance(failure, Error) else f"{type(failure).__name__}: {failure}"
