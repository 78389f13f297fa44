package io.kaml;

/** Why a call failed. The numbers are those of the C API and keep their meaning in later versions. */
public enum Status {
    /** No record has that key. */
    NOT_FOUND(1),
    /** A record has that key already. */
    EXISTS(2),
    /** The record has another value than the expected one, or does not exist. */
    VALUE_DIFFERS(3),
    /** The transaction waited for others that waited for it. It was aborted; run it again. */
    DEADLOCK(10),
    /** A lock was not granted in time. The transaction was aborted; run it again. */
    LOCK_TIMEOUT(11),
    /** What the transaction read did not become durable. It was aborted; run it again. */
    DEPENDENCY_LOST(12),
    /** Commits that had returned could not be stored and are undone. */
    COMMITS_LOST(13),
    /** An argument that makes no sense. */
    BAD_ARGUMENT(20),
    /** It was closed. */
    BAD_HANDLE(21),
    /** The state of the transaction does not allow the call. */
    BAD_STATE(22),
    /** In use: a device by a store, a store by transactions, a handle by another thread. */
    IN_USE(23),
    /** The namespace does not take keys of this length. */
    BAD_KEY(24),
    /** A value above the limit of the device. */
    VALUE_TOO_LARGE(25),
    /** More than one batch takes. */
    BATCH_TOO_LARGE(26),
    /** The value is longer than the buffer. */
    BUFFER_TOO_SMALL(27),
    /** No namespace has that name or number. */
    UNKNOWN_NAMESPACE(28),
    /** A namespace has that name already. */
    NAMESPACE_EXISTS(29),
    /** A name that a namespace cannot have. */
    BAD_NAME(30),
    /** Too many namespaces, transactions or handles. */
    TOO_MANY(31),
    /** A cache too small to work. */
    CACHE_TOO_SMALL(32),
    /** The system refused memory or a thread. */
    NO_RESOURCES(33),
    /** No snapshot has that number, or the key has fewer versions. */
    NO_VERSION(34),
    /** A callback requested the end. */
    CANCELLED(35),
    /** A snapshot, or an iterator, has expired. Open another one. */
    SNAPSHOT_TOO_OLD(36),
    /** The device is full; delete something first. */
    FULL(40),
    /** The file system below the device is full. */
    NO_SPACE(41),
    /** The device is open for reading only. */
    READ_ONLY(42),
    /** A write failed earlier: nothing is accepted until the device is opened again. */
    STOPPED(44),
    /** Stored bytes do not match their checksum. */
    CORRUPT(45),
    /** The system failed to read or write. */
    IO(46),
    /** There is no KAML device. */
    NOT_A_DEVICE(50),
    /** Created by a later version of this software. */
    NEWER_VERSION(51),
    /** Open in another process, or twice in this one. */
    LOCKED(52),
    /** Something exists already, and force was not set. */
    NOT_EMPTY(53),
    /** The file, or the directory for a new file, does not exist. */
    NO_FILE(54),
    /** The system does not allow this user to read, write or create the file. */
    NO_PERMISSION(55),
    /** An error in the library; please report it with its message. */
    INTERNAL(99),
    /** A status that this version of the package does not know. */
    UNKNOWN(-1);

    private static final Status[] BY_CODE = new Status[100];

    static {
        for (Status status : values()) {
            if (status.code >= 0) {
                BY_CODE[status.code] = status;
            }
        }
    }

    private final int code;

    Status(int code) {
        this.code = code;
    }

    /**
     * The number in the C API.
     *
     * @return 1 to 99, or -1 for {@link #UNKNOWN}
     */
    public int code() {
        return code;
    }

    static Status of(int code) {
        Status found = code >= 0 && code < BY_CODE.length ? BY_CODE[code] : null;
        return found == null ? UNKNOWN : found;
    }
}
