"""KAML as the storage of SGLang's HiCache: pages of the key-value cache that survive restarts.

SGLang loads :class:`KamlHiCache` by its name::

    python3 -m sglang.launch_server --model-path MODEL --page-size 64 \\
        --enable-hierarchical-cache --hicache-mem-layout page_first --hicache-storage-backend dynamic \\
        --hicache-storage-backend-extra-config '{"backend_name": "kaml", "module_path": "kaml.sglang",
            "class_name": "KamlHiCache", "path": "/var/lib/kaml/hicache.kaml", "bytes_max": 60000000000}'

The configuration may have ``path``, ``namespace``, ``capacity``, ``bytes_max``, ``age_max`` and ``durability`` as
:class:`kaml.lmcache.Client` takes them, and ``threads``. Each rank is a process of its own and has a device of its own: with more than one, ``path`` gets
the rank at its end (``hicache.kaml.tp0of2``).

Nothing is raised to SGLang: a page that cannot be read is a miss, and one that cannot be stored is reported as not stored; the reason is logged.
The interface of version 0.5.23 is implemented without its methods for several pools (``batch_get_v2`` and the like), which models with
several kinds of state need.
"""

import ctypes
import functools
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, List, Optional, Sequence, Tuple

from ._pages import Pages

try:
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorage as _Base
except ImportError:  # the class alone, for tests without SGLang
    _Base = object

__all__ = ["KamlHiCache"]

logger = logging.getLogger(__name__)

#: Pages that are read or stored at a time if nothing else is requested.
THREADS = 8
#: What the configuration may have for the cache.
OPTIONS = ("capacity", "bytes_max", "age_max", "durability")


class KamlHiCache(_Base):  # type: ignore[misc,valid-type]
    """``HiCacheStorage`` on a device."""

    def __init__(self, storage_config: Any, kwargs: Optional[dict] = None) -> None:
        given = dict(getattr(storage_config, "extra_config", None) or {})
        given.update(kwargs or {})
        path = given.get("path")
        if not isinstance(path, str):
            raise ValueError("the configuration of kaml.sglang needs a path: a file or a block device")
        rank = _rank(storage_config)
        model = (getattr(storage_config, "model_name", None) or "model").replace("/", "-")
        #: Ranks and models have pages of their own.
        self._suffix = f"@{model}{rank}"
        options = {name: given[name] for name in OPTIONS if name in given}
        self._cache = Pages(path + rank, given.get("namespace", "hicache"), **options)
        self._pool = ThreadPoolExecutor(int(given.get("threads", THREADS)), thread_name_prefix="kaml-sglang")

    # --- pages of the host's memory, without a copy ---------------------------------------------------------------

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """Whose ``get_page_buffer_meta`` has the addresses of pages."""
        self.mem_pool_host = mem_pool_host

    def batch_get_v1(self, keys: List[str], host_indices: Any, extra_info: Any = None) -> List[bool]:
        """Reads pages into the host's memory; which of them were there."""
        return self._each_page(self._cache.load, keys, host_indices)

    def batch_set_v1(self, keys: List[str], host_indices: Any, extra_info: Any = None) -> List[bool]:
        """Stores pages from the host's memory; which of them are stored. Those that are there already are not stored again."""
        return self._each_page(self._store, keys, host_indices)

    def batch_exists(self, keys: List[str], extra_info: Any = None) -> int:
        """How many pages from the first on are there without a gap."""
        for at, key in enumerate(keys):
            if not self.exists(key):
                return at
        return len(keys)

    # --- single values --------------------------------------------------------------------------------------------

    def exists(self, key: str) -> bool:
        """Whether a page is there. Reads no flash."""
        return self._guarded(lambda: self._cache.exists(self._name(key, 0)))

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        """Reads a page into a tensor; the tensor, or none if the page is not there."""
        if target_location is None:
            return None
        found = self._guarded(lambda: self._cache.load(self._name(key, 0), _bytes_of(target_location)))
        return target_location if found else None

    def batch_get(self, keys: List[str], target_locations: Any = None, target_sizes: Any = None) -> List[Any]:
        """As :meth:`get`, of several."""
        return [self.get(key, target) for key, target in zip(keys, target_locations or [None] * len(keys))]

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        """Stores a tensor; whether it is stored."""
        source = value if value is not None else target_location
        if source is None:
            return False
        return self._guarded(lambda: self._store(self._name(key, 0), _bytes_of(source)))

    def batch_set(
        self, keys: List[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None
    ) -> bool:
        """As :meth:`set`, of several; whether all are stored."""
        return all([self.set(key, value) for key, value in zip(keys, values or target_locations or [])])

    def clear(self) -> None:
        """Deletes all pages."""
        self._cache.clear()

    def get_stats(self) -> None:
        """SGLang has no type for other storages' statistics."""
        return None

    def close(self) -> None:
        """Stores the uses and closes the device. Closing it again does nothing."""
        self._pool.shutdown()
        self._cache.close()

    # --- how ------------------------------------------------------------------------------------------------------

    def _name(self, key: str, part: int) -> str:
        return f"{key}{self._suffix}" if part == 0 else f"{key}{self._suffix}#{part}"

    def _store(self, name: str, page: memoryview) -> bool:
        if not self._cache.exists(name):
            self._cache.store(name, page)
        return True

    def _each_page(self, act: "Callable[[str, memoryview], bool]", keys: Sequence[str], indices: Any) -> List[bool]:
        parts = self._parts(len(keys), indices)
        if parts is None:
            return [False] * len(keys)
        each = len(parts) // len(keys)
        # The first part is stored last: where it is, the others are.
        pages = [
            [(self._name(key, part), parts[at * each + part]) for part in reversed(range(each))]
            for at, key in enumerate(keys)
        ]
        return list(self._pool.map(functools.partial(self._one_page, act), pages))

    def _one_page(self, act: "Callable[[str, memoryview], bool]", page: "List[Tuple[str, memoryview]]") -> bool:
        return self._guarded(lambda: all(act(name, part) for name, part in page))

    def _parts(self, pages: int, indices: Any) -> "Optional[List[memoryview]]":
        """The memory of pages: each has one part or several, of keys and of values."""
        if pages == 0:
            return None
        addresses, lengths = self.mem_pool_host.get_page_buffer_meta(indices)
        if len(addresses) % pages:
            logger.error("%d parts of memory for %d pages", len(addresses), pages)
            return None
        return [_memory(address, length) for address, length in zip(addresses, lengths)]

    def _guarded(self, act: "Callable[[], bool]") -> bool:
        try:
            return act()
        except Exception as failure:
            logger.warning("kaml: %s", failure)
            return False


def _rank(config: Any) -> str:
    """The end of names that belong to one rank; empty for the only one."""
    ranks = ""
    for kind in ("tp", "pp", "attn_cp", "dcp"):
        size = getattr(config, f"{kind}_size", 1)
        if size > 1:
            ranks += f".{kind}{getattr(config, f'{kind}_rank')}of{size}"
    return ranks


@functools.lru_cache(maxsize=None)
def _array(length: int) -> Any:
    """ctypes keeps each type of array for ever."""
    return ctypes.c_ubyte * length


def _memory(address: int, length: int) -> memoryview:
    return memoryview(_array(length).from_address(address)).cast("B")


def _bytes_of(tensor: Any) -> memoryview:
    """The memory of a tensor in one piece, or of anything that has bytes."""
    if hasattr(tensor, "data_ptr"):
        if not tensor.is_contiguous():
            raise ValueError("a tensor that is not in one piece")
        return _memory(tensor.data_ptr(), tensor.numel() * tensor.element_size())
    return memoryview(tensor).cast("B")
