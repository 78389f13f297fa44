"""Devices and stores for ``asyncio``.

>>> import asyncio, kaml.aio
>>> async def main():
...     async with await kaml.aio.Device.in_memory(64 << 20) as device:
...         users = await device.ensure_namespace("users", kaml.KeyKind.ORDERED)
...         await asyncio.gather(*(device.put(users, name, b"...") for name in ("ada", "alan", "grace")))
...         return [key async for key in device.range(users, "b", keys_only=True)], await device.get(users, "ada")
>>> asyncio.run(main())
([b'grace'], b'...')

Each call runs on a thread of the device, and the event loop is free meanwhile. Puts that are awaited together share flushes of the
disk, as those of threads do, so ``asyncio.gather`` of many puts costs little more than one. As many calls run at a time as the
device has threads; further ones wait for a thread in their order.

A call whose task is cancelled before it got a thread has no effect. One that is running continues, and its result is dropped: a put can
be stored although its task was cancelled.
"""

import asyncio
import functools
import itertools
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, AsyncIterator, Callable, List, Optional, TypeVar

import kaml

from ._native import Buffer, Key

T = TypeVar("T")

#: Threads of a device if nothing else is requested: so many puts share a flush.
THREADS = 16
#: Attempts to close a reader of changes.
READER_CLOSES_MAX = 1000
#: How long a call for changes waits: so soon a cancelled one releases its thread.
CHANGES_WAIT_S = 0.05
#: Records that an iterator reads with one call.
RANGE_RECORDS = 256


class _Threads:
    """Where the calls of a device run."""

    def __init__(self, count: int) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="kaml")

    async def run(self, function: "Callable[..., T]", *arguments: Any, **named: Any) -> T:
        work = functools.partial(function, *arguments, **named)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)
        except RuntimeError as failure:
            if str(failure) == "cannot schedule new futures after shutdown":
                raise kaml.Error(kaml.Status.BAD_HANDLE, "the Device is closed") from None
            raise

    async def end(self) -> None:
        """Waits until running calls have returned; later ones are refused."""
        await asyncio.shield(asyncio.to_thread(self._pool.shutdown))


class Device:
    """A :class:`kaml.Device` for ``asyncio``. Leaving its ``async with`` block closes it.

    The methods are those of :class:`kaml.Device`, to be awaited. The most used ones are here; :meth:`call` runs every other one on
    a thread of the device: ``await device.call(device.sync.statistics)``.
    """

    def __init__(self, device: kaml.Device, threads: int = THREADS) -> None:
        #: The same device for calls that block.
        self.sync = device
        self._threads = _Threads(threads)

    @classmethod
    async def _of(cls, make: "Callable[..., kaml.Device]", threads: int, *arguments: Any, **named: Any) -> "Device":
        pool = _Threads(threads)
        try:
            # A cancelled task leaves no device open that nobody can close.
            opening = asyncio.ensure_future(pool.run(make, *arguments, **named))
            try:
                opened = await asyncio.shield(opening)
            except asyncio.CancelledError:
                (await opening).close()
                raise
        except BaseException:
            await pool.end()
            raise
        device = cls.__new__(cls)
        device.sync, device._threads = opened, pool
        return device

    @classmethod
    async def open(cls, path: Any, *, threads: int = THREADS, **options: Any) -> "Device":
        """Opens a device, as :meth:`kaml.Device.open` does."""
        return await cls._of(kaml.Device.open, threads, path, **options)

    @classmethod
    async def open_or_create(cls, path: Any, capacity: int = 0, *, threads: int = THREADS, **options: Any) -> "Device":
        """Opens a device, or creates it first, as :meth:`kaml.Device.open_or_create` does."""
        return await cls._of(kaml.Device.open_or_create, threads, path, capacity, **options)

    @classmethod
    async def in_memory(cls, capacity: int, *, threads: int = THREADS) -> "Device":
        """Creates a device in memory, gone when it is closed: for tests."""
        return await cls._of(kaml.Device.in_memory, threads, capacity)

    async def call(self, function: "Callable[..., T]", *arguments: Any, **named: Any) -> T:
        """Runs a function on a thread of the device."""
        return await self._threads.run(function, *arguments, **named)

    async def close(self) -> None:
        """Waits for running calls and closes the device. Closing it again does nothing."""
        await self._threads.end()
        await asyncio.shield(asyncio.to_thread(self.sync.close))

    async def __aenter__(self) -> "Device":
        return self

    async def __aexit__(self, raised: Optional[type], *_: object) -> None:
        await _close_after(self.close, raised)

    async def ensure_namespace(self, name: str, *arguments: Any, **options: Any) -> kaml.Namespace:
        """Finds a namespace, or creates it first, as :meth:`kaml.Device.ensure_namespace` does."""
        return await self.call(self.sync.ensure_namespace, name, *arguments, **options)

    async def namespace(self, name: str) -> kaml.Namespace:
        """Finds a namespace by its name."""
        return await self.call(self.sync.namespace, name)

    async def namespaces(self) -> List[kaml.Namespace]:
        """All namespaces in the order of their ids."""
        return await self.call(self.sync.namespaces)

    async def get(self, namespace: kaml.Namespace, key: Key) -> Optional[bytes]:
        """Reads a value; none if the key does not exist."""
        return await self.call(self.sync.get, namespace, key)

    async def exists(self, namespace: kaml.Namespace, key: Key) -> bool:
        """Whether a key exists."""
        return await self.call(self.sync.exists, namespace, key)

    async def put(self, namespace: kaml.Namespace, key: Key, value: Buffer, **expiry: Any) -> None:
        """Stores a record, as :meth:`kaml.Device.put` does; durable when it returns."""
        await self.call(self.sync.put, namespace, key, value, **expiry)

    async def add(self, namespace: kaml.Namespace, key: Key, number: int = 1) -> int:
        """Adds to a counter, as :meth:`kaml.Device.add` does."""
        return await self.call(self.sync.add, namespace, key, number)

    async def changes(
        self, since: Optional[bytes] = None, timeout: Optional[float] = None
    ) -> AsyncIterator[kaml.Commit]:
        """What is committed, as :meth:`kaml.Device.changes` has it."""
        reader = await self.call(self.sync.changes, since)
        try:
            waited = 0.0
            while timeout is None or waited <= timeout:
                commit = await self.call(reader.next, CHANGES_WAIT_S)
                if commit is not None:
                    waited = 0.0
                    yield commit
                else:
                    waited += CHANGES_WAIT_S
        finally:
            await asyncio.shield(asyncio.to_thread(_close_reader, reader))

    async def delete(self, namespace: kaml.Namespace, key: Key) -> None:
        """Deletes a record, whether it exists or not; durable when it returns."""
        await self.call(self.sync.delete, namespace, key)

    async def write(self, batch: kaml.Batch) -> Optional[List[int]]:
        """Stores a batch, all or nothing; durable when it returns. Returns its counters."""
        return await self.call(self.sync.write, batch)

    def keys(self, namespace: kaml.Namespace) -> AsyncIterator[bytes]:
        """All keys of a namespace, for ``async for``."""
        return self._walk(self.sync.keys, namespace)

    def range(self, namespace: kaml.Namespace, *bounds: Optional[Key], **options: Any) -> AsyncIterator[Any]:
        """The records of a range of an ordered namespace, for ``async for``; as :meth:`kaml.Device.range`."""
        return self._walk(self.sync.range, namespace, *bounds, **options)

    def prefix(self, namespace: kaml.Namespace, prefix: Key, **options: Any) -> AsyncIterator[Any]:
        """The records whose keys begin with a prefix, for ``async for``; as :meth:`kaml.Device.prefix`."""
        return self._walk(self.sync.prefix, namespace, prefix, **options)

    async def _walk(self, begin: Any, *arguments: Any, **options: Any) -> AsyncIterator[Any]:
        records = await self.call(begin, *arguments, **options)
        while True:
            found = await self.call(lambda: list(itertools.islice(records, RANGE_RECORDS)))
            if not found:
                return
            for one in found:
                yield one


class Store:
    """A :class:`kaml.Store` for ``asyncio``. Leaving its ``async with`` block closes it.

    A transaction is a function that :meth:`run` calls on a thread. It cannot be awaited step by step: transactions that wait for
    each other's locks could then take all threads, and none could continue.

    >>> import asyncio, kaml.aio
    >>> async def main():
    ...     async with await kaml.aio.Device.in_memory(64 << 20) as device:
    ...         counts = await device.ensure_namespace("counts")
    ...         async with await kaml.aio.Store.open(device, 8 << 20) as store:
    ...             def count(txn):
    ...                 txn.upsert(counts, "n", b"%d" % (int(txn.read_for_update(counts, "n") or 0) + 1))
    ...             await asyncio.gather(*(store.run(count) for _ in range(10)))
    ...             return await store.get(counts, "n")
    >>> asyncio.run(main())
    b'10'
    """

    def __init__(self, device: Device, store: kaml.Store) -> None:
        #: The same store for calls that block.
        self.sync = store
        self._device = device

    @classmethod
    async def open(cls, device: Device, cache_bytes: int, **options: Any) -> "Store":
        """Opens a store over a device, with the options of :class:`kaml.Store`."""
        return cls(device, await device.call(kaml.Store, device.sync, cache_bytes, **options))

    async def close(self) -> None:
        """Flushes the store and closes it. Closing it again does nothing."""
        await asyncio.shield(self._device.call(self.sync.close))

    async def __aenter__(self) -> "Store":
        return self

    async def __aexit__(self, raised: Optional[type], *_: object) -> None:
        await _close_after(self.close, raised)

    async def run(self, body: "Callable[[kaml.Transaction], T]", retries_max: int = 100) -> T:
        """Runs ``body`` in a transaction on a thread and commits it, again after a deadlock; as :meth:`kaml.Store.run`."""
        return await self._device.call(self.sync.run, body, retries_max)

    async def get(self, namespace: kaml.Namespace, key: Key) -> Optional[bytes]:
        """Reads a value through the cache; none if the key does not exist."""
        return await self._device.call(self.sync.get, namespace, key)

    async def put(self, namespace: kaml.Namespace, key: Key, value: Buffer) -> None:
        """Stores a record; durable as the write mode specifies."""
        await self._device.call(self.sync.put, namespace, key, value)

    async def delete(self, namespace: kaml.Namespace, key: Key) -> None:
        """Deletes a record, whether it exists or not; durable as the write mode specifies."""
        await self._device.call(self.sync.delete, namespace, key)

    async def flush(self) -> None:
        """Makes everything durable that was put or committed before."""
        await self._device.call(self.sync.flush)


async def _close_after(close: "Callable[[], Any]", raised: Optional[type]) -> None:
    try:
        await close()
    except kaml.Error:
        if raised is None:
            raise  # else the exception of the block is more useful


def _close_reader(reader: kaml.Changes) -> None:
    """Closes a reader that a cancelled task may be waiting with, which ends soon."""
    for _ in range(READER_CLOSES_MAX):
        try:
            return reader.close()
        except kaml.Error as failure:
            if failure.status != kaml.Status.IN_USE:
                raise
        time.sleep(CHANGES_WAIT_S / 10)
    reader.close()
