"""What calls fail with: the statuses of ``kaml.h`` as exceptions."""

import enum
import errno
import os
from typing import Optional


class Status(enum.IntEnum):
    """``kaml_status``, without its prefix."""

    OK = 0
    NOT_FOUND = 1
    EXISTS = 2
    VALUE_DIFFERS = 3
    DEADLOCK = 10
    LOCK_TIMEOUT = 11
    DEPENDENCY_LOST = 12
    COMMITS_LOST = 13
    BAD_ARGUMENT = 20
    BAD_HANDLE = 21
    BAD_STATE = 22
    IN_USE = 23
    BAD_KEY = 24
    VALUE_TOO_LARGE = 25
    BATCH_TOO_LARGE = 26
    BUFFER_TOO_SMALL = 27
    UNKNOWN_NAMESPACE = 28
    NAMESPACE_EXISTS = 29
    BAD_NAME = 30
    TOO_MANY = 31
    CACHE_TOO_SMALL = 32
    NO_RESOURCES = 33
    NO_VERSION = 34
    CANCELLED = 35
    SNAPSHOT_TOO_OLD = 36
    FULL = 40
    NO_SPACE = 41
    READ_ONLY = 42
    STOPPED = 44
    CORRUPT = 45
    IO = 46
    NOT_A_DEVICE = 50
    NEWER_VERSION = 51
    LOCKED = 52
    NOT_EMPTY = 53
    NO_FILE = 54
    NO_PERMISSION = 55
    INTERNAL = 99


class Error(Exception):
    """A call that failed; ``status`` is the kind of failure, the text has the names and numbers of this case."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self._message = message
        #: A ``Status``, or a bare number that a later version of the library has added.
        self.status = Status(status) if status in Status.__members__.values() else status

    def __reduce__(self) -> "tuple[object, ...]":
        # Without it a pool of processes waits forever for a call that failed: what it failed with cannot be read there.
        return type(self), (self.status, self._message)


class NotFoundError(Error):
    """No record has that key. A transaction continues after it."""


class ExistsError(Error):
    """A record has that key already. A transaction continues after it."""


class ValueDiffersError(Error):
    """A record has another value than the expected one, or does not exist. A transaction continues after it."""


class _FileError(Error, OSError):
    _ERRNO = 0

    def __init__(self, status: int, message: str, filename: "Optional[str | bytes]" = None) -> None:
        super().__init__(status, message)
        self.errno, self.strerror, self.filename = self._ERRNO, os.strerror(self._ERRNO), filename

    def __str__(self) -> str:
        return self._message  # which names the file

    def __reduce__(self) -> "tuple[object, ...]":
        return type(self), (self.status, self._message, self.filename)


class NoFileError(_FileError, FileNotFoundError):
    """There is no such file, or no directory to make it in."""

    _ERRNO = errno.ENOENT


class NoPermissionError(_FileError, PermissionError):
    """The system does not let the file be read, written or made."""

    _ERRNO = errno.EACCES


class SnapshotTooOldError(Error):
    """A snapshot, or an iterator, has expired: what it keeps of overwritten records was in the way. Open another one."""


class RetryableError(Error):
    """The transaction was aborted, for no fault of its own: run it again."""


_CLASSES = {
    Status.NOT_FOUND: NotFoundError,
    Status.EXISTS: ExistsError,
    Status.VALUE_DIFFERS: ValueDiffersError,
    Status.NO_FILE: NoFileError,
    Status.NO_PERMISSION: NoPermissionError,
    Status.SNAPSHOT_TOO_OLD: SnapshotTooOldError,
    Status.DEADLOCK: RetryableError,
    Status.LOCK_TIMEOUT: RetryableError,
    Status.DEPENDENCY_LOST: RetryableError,
}


def error(status: int, message: str) -> Error:
    """The exception for a status."""
    return _CLASSES.get(status, Error)(status, message)
