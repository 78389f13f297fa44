package io.kaml;

import static java.lang.foreign.ValueLayout.ADDRESS;
import static java.lang.foreign.ValueLayout.JAVA_BOOLEAN;
import static java.lang.foreign.ValueLayout.JAVA_BYTE;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemoryLayout;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.SymbolLookup;
import java.lang.invoke.MethodHandle;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.function.Consumer;

/**
 * Calls of libkaml, and what its structures look like.
 *
 * <p>A handle in C is a structure of one 64-bit number, which every ABI that Linux has passes as that number.
 */
final class Native {
    private static final Linker LINKER = Linker.nativeLinker();
    private static final SymbolLookup LIBRARY = load();

    /** Bytes of {@code kaml_item}: address and length of the key, then of the value. */
    static final long ITEM_BYTES = 32;
    /** Bytes of {@code kaml_record}: namespace and action, then as an item. */
    static final long RECORD_BYTES = 40;
    /** Bytes of {@code kaml_namespace_info}: count, id, keys, versioned, blocks, and the name. */
    static final long NAMESPACE_INFO_BYTES = 280;
    /** Bytes of {@code kaml_cursor}. */
    static final long CURSOR_BYTES = 28;
    /** Records that an iterator fetches with one call. */
    static final long BATCH = 256;

    private static final MethodHandle LAST_ERROR = function("kaml_last_error", ADDRESS);
    private static final MethodHandle IS_RETRYABLE = function("kaml_is_retryable", JAVA_BOOLEAN, JAVA_INT);
    private static final MethodHandle VERSION = function("kaml_version", ADDRESS);
    private static final MethodHandle FREE =
            LINKER.downcallHandle(symbol("kaml_free"), FunctionDescriptor.ofVoid(ADDRESS));

    static final MethodHandle CREATE = call("kaml_create", ADDRESS, JAVA_LONG, ADDRESS, ADDRESS);
    static final MethodHandle OPEN_OR_CREATE = call("kaml_open_or_create", ADDRESS, JAVA_LONG, ADDRESS, ADDRESS);
    static final MethodHandle CREATE_IN_MEMORY = call("kaml_create_in_memory", JAVA_LONG, ADDRESS, ADDRESS);
    static final MethodHandle OPEN = call("kaml_open", ADDRESS, ADDRESS, ADDRESS);
    static final MethodHandle CLOSE = call("kaml_close", JAVA_LONG);
    static final MethodHandle ABANDON = call("kaml_abandon", JAVA_LONG);
    static final MethodHandle LIMITS = call("kaml_limits", JAVA_LONG, ADDRESS, ADDRESS);
    static final MethodHandle CREATE_NAMESPACE = call("kaml_create_namespace", JAVA_LONG, ADDRESS, ADDRESS, ADDRESS);
    static final MethodHandle NAMESPACE = call("kaml_namespace", JAVA_LONG, ADDRESS, ADDRESS);
    static final MethodHandle NAMESPACES = call("kaml_namespaces", JAVA_LONG, ADDRESS, JAVA_LONG, ADDRESS);
    static final MethodHandle LOGS = call("kaml_logs", JAVA_LONG, JAVA_INT, ADDRESS, JAVA_LONG, ADDRESS);
    static final MethodHandle SET_LOGS = call("kaml_set_logs", JAVA_LONG, JAVA_INT, ADDRESS, JAVA_LONG);
    static final MethodHandle DELETE_NAMESPACE = call("kaml_delete_namespace", JAVA_LONG, JAVA_INT);

    static final MethodHandle INFO = call("kaml_info", JAVA_LONG, ADDRESS);
    static final MethodHandle RESIZE = call("kaml_resize", JAVA_LONG, JAVA_LONG, ADDRESS);
    static final MethodHandle STATISTICS = call("kaml_statistics", JAVA_LONG, ADDRESS);
    static final MethodHandle CHECK = call("kaml_check", JAVA_LONG, ADDRESS, ADDRESS, ADDRESS);

    static final MethodHandle BACKUP =
            call("kaml_backup_with_progress", JAVA_LONG, ADDRESS, ADDRESS, ADDRESS, ADDRESS, ADDRESS);
    static final MethodHandle BACKUP_VERIFY = call("kaml_backup_verify", ADDRESS, ADDRESS);
    static final MethodHandle RESTORE =
            call("kaml_restore_with_progress", ADDRESS, JAVA_LONG, ADDRESS, JAVA_LONG, ADDRESS, ADDRESS, ADDRESS);
    static final MethodHandle POSITION_NOW = call("kaml_position_now", JAVA_LONG, ADDRESS);
    static final MethodHandle CHANGES_OPEN = call("kaml_changes_open", JAVA_LONG, ADDRESS, ADDRESS);
    static final MethodHandle CHANGES_NEXT = call("kaml_changes_next", JAVA_LONG, JAVA_INT, ADDRESS, ADDRESS, ADDRESS);
    static final MethodHandle CHANGES_CLOSE = call("kaml_changes_close", JAVA_LONG);
    static final MethodHandle CHANGES_ABANDON = call("kaml_changes_abandon", JAVA_LONG);

    static final MethodHandle GET = call("kaml_get", JAVA_LONG, JAVA_INT, ADDRESS, JAVA_LONG, ADDRESS, ADDRESS);
    static final MethodHandle GET_INTO =
            call("kaml_get_into", JAVA_LONG, JAVA_INT, ADDRESS, JAVA_LONG, ADDRESS, JAVA_LONG, ADDRESS);
    static final MethodHandle GET_MANY =
            call("kaml_get_many", JAVA_LONG, JAVA_INT, ADDRESS, ADDRESS, JAVA_LONG, ADDRESS);
    static final MethodHandle EXISTS = call("kaml_exists", JAVA_LONG, JAVA_INT, ADDRESS, JAVA_LONG);
    static final MethodHandle PUT = call("kaml_put", JAVA_LONG, ADDRESS, JAVA_LONG);
    static final MethodHandle PUT_ONE =
            call("kaml_put_one", JAVA_LONG, JAVA_INT, ADDRESS, JAVA_LONG, ADDRESS, JAVA_LONG);
    static final MethodHandle WRITE = call("kaml_write", JAVA_LONG, ADDRESS, JAVA_LONG, ADDRESS);
    static final MethodHandle PUT_EXPIRING =
            call("kaml_put_expiring", JAVA_LONG, JAVA_INT, ADDRESS, JAVA_LONG, ADDRESS, JAVA_LONG, JAVA_LONG);
    static final MethodHandle EXPIRY = call("kaml_expiry", JAVA_LONG, JAVA_INT, ADDRESS, JAVA_LONG, ADDRESS);
    static final MethodHandle SET_TIME_TO_LIVE = call("kaml_set_time_to_live", JAVA_LONG, JAVA_INT, JAVA_LONG);
    static final MethodHandle ADD = adding("kaml_add");
    static final MethodHandle COMPARE_AND_SET = comparing("kaml_compare_and_set");
    static final MethodHandle DELETE = call("kaml_delete", JAVA_LONG, JAVA_INT, ADDRESS, JAVA_LONG);
    static final MethodHandle LIST_KEYS =
            call("kaml_list_keys", JAVA_LONG, JAVA_INT, ADDRESS, JAVA_LONG, ADDRESS, ADDRESS);
    static final MethodHandle RANGE_OPEN = bounds("kaml_range_open");
    static final MethodHandle PREFIX_OPEN =
            call("kaml_prefix_open", JAVA_LONG, JAVA_INT, ADDRESS, JAVA_LONG, JAVA_INT, ADDRESS);
    static final MethodHandle RANGE_NEXT = call("kaml_range_next", JAVA_LONG, JAVA_LONG, ADDRESS, ADDRESS);
    static final MethodHandle RANGE_CLOSE = call("kaml_range_close", JAVA_LONG);
    static final MethodHandle RANGE_ABANDON = call("kaml_range_abandon", JAVA_LONG);
    static final MethodHandle FIRST = call("kaml_first", JAVA_LONG, JAVA_INT, ADDRESS);
    static final MethodHandle LAST = call("kaml_last", JAVA_LONG, JAVA_INT, ADDRESS);
    static final MethodHandle COUNT = bounds("kaml_count");
    static final MethodHandle ESTIMATE = bounds("kaml_estimate");
    static final MethodHandle DELETE_RANGE = bounds("kaml_delete_range");

    static final MethodHandle SNAPSHOT_OPEN = call("kaml_snapshot_open", JAVA_LONG, ADDRESS);
    static final MethodHandle SNAPSHOT_CLOSE = call("kaml_snapshot_close", JAVA_LONG);
    static final MethodHandle SNAPSHOT_ABANDON = call("kaml_snapshot_abandon", JAVA_LONG);
    static final MethodHandle SNAPSHOT_USAGE = call("kaml_snapshot_usage", JAVA_LONG, ADDRESS);
    static final MethodHandle SNAPSHOT_GET =
            call("kaml_snapshot_get", JAVA_LONG, JAVA_INT, ADDRESS, JAVA_LONG, ADDRESS, ADDRESS);
    static final MethodHandle SNAPSHOT_EXISTS = call("kaml_snapshot_exists", JAVA_LONG, JAVA_INT, ADDRESS, JAVA_LONG);
    static final MethodHandle SNAPSHOT_RANGE_OPEN = bounds("kaml_snapshot_range_open");
    static final MethodHandle SNAPSHOT_PREFIX_OPEN =
            call("kaml_snapshot_prefix_open", JAVA_LONG, JAVA_INT, ADDRESS, JAVA_LONG, JAVA_INT, ADDRESS);
    static final MethodHandle SNAPSHOT_COUNT = bounds("kaml_snapshot_count");
    static final MethodHandle SNAPSHOT_FIRST = call("kaml_snapshot_first", JAVA_LONG, JAVA_INT, ADDRESS);
    static final MethodHandle SNAPSHOT_LAST = call("kaml_snapshot_last", JAVA_LONG, JAVA_INT, ADDRESS);
    static final MethodHandle SNAPSHOT_LIST_KEYS =
            call("kaml_snapshot_list_keys", JAVA_LONG, JAVA_INT, ADDRESS, JAVA_LONG, ADDRESS, ADDRESS);
    static final MethodHandle LIMIT_SNAPSHOT_MEMORY = call("kaml_limit_snapshot_memory", JAVA_LONG, JAVA_LONG);

    static final MethodHandle GET_AS_OF =
            call("kaml_get_as_of", JAVA_LONG, JAVA_INT, JAVA_INT, ADDRESS, JAVA_LONG, ADDRESS, ADDRESS);
    static final MethodHandle GET_BACK =
            call("kaml_get_back", JAVA_LONG, JAVA_INT, JAVA_INT, ADDRESS, JAVA_LONG, ADDRESS, ADDRESS);
    static final MethodHandle HISTORY =
            call("kaml_history", JAVA_LONG, JAVA_INT, ADDRESS, JAVA_LONG, ADDRESS, ADDRESS, JAVA_LONG, ADDRESS);
    static final MethodHandle SNAPSHOT = call("kaml_snapshot", JAVA_LONG, JAVA_INT, ADDRESS);
    static final MethodHandle SNAPSHOTS = call("kaml_snapshots", JAVA_LONG, JAVA_INT, ADDRESS, JAVA_LONG, ADDRESS);
    static final MethodHandle FORGET_SNAPSHOT = call("kaml_forget_snapshot", JAVA_LONG, JAVA_INT, JAVA_INT);
    static final MethodHandle ROLL_BACK = call("kaml_roll_back", JAVA_LONG, JAVA_INT, JAVA_INT, ADDRESS);
    static final MethodHandle UNDO = call("kaml_undo", JAVA_LONG, JAVA_INT, ADDRESS, JAVA_LONG, JAVA_INT);
    static final MethodHandle MERGE =
            call("kaml_merge_with_progress", JAVA_LONG, JAVA_INT, ADDRESS, ADDRESS, ADDRESS, ADDRESS);

    static final MethodHandle STORE_OPEN = call("kaml_store_open", JAVA_LONG, JAVA_LONG, ADDRESS, ADDRESS);
    static final MethodHandle STORE_CLOSE = call("kaml_store_close", JAVA_LONG);
    static final MethodHandle STORE_ABANDON = call("kaml_store_abandon", JAVA_LONG);
    static final MethodHandle STORE_FLUSH = call("kaml_store_flush", JAVA_LONG);
    static final MethodHandle STORE_GET =
            call("kaml_store_get", JAVA_LONG, JAVA_INT, ADDRESS, JAVA_LONG, ADDRESS, ADDRESS);
    static final MethodHandle STORE_EXISTS = call("kaml_store_exists", JAVA_LONG, JAVA_INT, ADDRESS, JAVA_LONG);
    static final MethodHandle STORE_PUT =
            call("kaml_store_put", JAVA_LONG, JAVA_INT, ADDRESS, JAVA_LONG, ADDRESS, JAVA_LONG);
    static final MethodHandle STORE_PUT_EXPIRING =
            call("kaml_store_put_expiring", JAVA_LONG, JAVA_INT, ADDRESS, JAVA_LONG, ADDRESS, JAVA_LONG, JAVA_LONG);
    static final MethodHandle STORE_ADD = adding("kaml_store_add");
    static final MethodHandle STORE_COMPARE_AND_SET = comparing("kaml_store_compare_and_set");
    static final MethodHandle STORE_GET_MANY =
            call("kaml_store_get_many", JAVA_LONG, JAVA_INT, ADDRESS, ADDRESS, JAVA_LONG, ADDRESS);
    static final MethodHandle STORE_ACKNOWLEDGE_LOST = call("kaml_store_acknowledge_lost", JAVA_LONG, ADDRESS);
    static final MethodHandle STORE_DELETE = call("kaml_store_delete", JAVA_LONG, JAVA_INT, ADDRESS, JAVA_LONG);
    static final MethodHandle STORE_RANGE = limited("kaml_store_range");
    static final MethodHandle STORE_READ_ONLY = call("kaml_store_read_only", JAVA_LONG, ADDRESS);

    static final MethodHandle TXN_BEGIN = call("kaml_txn_begin", JAVA_LONG, ADDRESS);
    static final MethodHandle TXN_READ =
            call("kaml_txn_read", JAVA_LONG, JAVA_INT, ADDRESS, JAVA_LONG, ADDRESS, ADDRESS);
    static final MethodHandle TXN_READ_FOR_UPDATE =
            call("kaml_txn_read_for_update", JAVA_LONG, JAVA_INT, ADDRESS, JAVA_LONG, ADDRESS, ADDRESS);
    static final MethodHandle TXN_RANGE = limited("kaml_txn_range");
    static final MethodHandle TXN_RANGE_FOR_UPDATE = limited("kaml_txn_range_for_update");
    static final MethodHandle TXN_UPDATE =
            call("kaml_txn_update", JAVA_LONG, JAVA_INT, ADDRESS, JAVA_LONG, ADDRESS, JAVA_LONG);
    static final MethodHandle TXN_UPSERT =
            call("kaml_txn_upsert", JAVA_LONG, JAVA_INT, ADDRESS, JAVA_LONG, ADDRESS, JAVA_LONG);
    static final MethodHandle TXN_UPSERT_EXPIRING =
            call("kaml_txn_upsert_expiring", JAVA_LONG, JAVA_INT, ADDRESS, JAVA_LONG, ADDRESS, JAVA_LONG, JAVA_LONG);
    static final MethodHandle TXN_ADD = adding("kaml_txn_add");
    static final MethodHandle TXN_INSERT =
            call("kaml_txn_insert", JAVA_LONG, JAVA_INT, ADDRESS, JAVA_LONG, ADDRESS, JAVA_LONG);
    static final MethodHandle TXN_DELETE = call("kaml_txn_delete", JAVA_LONG, JAVA_INT, ADDRESS, JAVA_LONG);
    static final MethodHandle TXN_COMMIT = call("kaml_txn_commit", JAVA_LONG);
    static final MethodHandle TXN_COMMIT_DURABLE = call("kaml_txn_commit_durable", JAVA_LONG);
    static final MethodHandle TXN_ABANDON = call("kaml_txn_abandon", JAVA_LONG);

    private Native() {}

    private static SymbolLookup load() {
        String path = System.getProperty("kaml.library");
        if (path == null) {
            path = System.getenv("KAML_LIBRARY");
        }
        String name = path == null ? "libkaml.so.0" : path;
        try {
            return SymbolLookup.libraryLookup(name, Arena.global());
        } catch (IllegalArgumentException absent) {
            throw new UnsatisfiedLinkError(
                    name + " cannot be loaded: set -Dkaml.library or KAML_LIBRARY to its path, or install it where the system searches");
        }
    }

    private static MemorySegment symbol(String name) {
        return LIBRARY.find(name).orElseThrow(
                () -> new UnsatisfiedLinkError("the libkaml that was loaded has no " + name + ": it is older than this package"));
    }

    private static MethodHandle function(String name, MemoryLayout result, MemoryLayout... arguments) {
        return LINKER.downcallHandle(symbol(name), FunctionDescriptor.of(result, arguments));
    }

    private static MethodHandle call(String name, MemoryLayout... arguments) {
        return function(name, JAVA_INT, arguments);
    }

    /** A call about a range: two bounds, flags, and where its answer goes. */
    private static MethodHandle bounds(String name) {
        return call(name, JAVA_LONG, JAVA_INT, ADDRESS, JAVA_LONG, ADDRESS, JAVA_LONG, JAVA_INT, ADDRESS);
    }

    /** The same with a limit, and an array with its length for an answer. */
    private static MethodHandle limited(String name) {
        return call(name, JAVA_LONG, JAVA_INT, ADDRESS, JAVA_LONG, ADDRESS, JAVA_LONG, JAVA_INT, JAVA_LONG, ADDRESS, ADDRESS);
    }

    /** A call that adds a number to a counter. */
    private static MethodHandle adding(String name) {
        return call(name, JAVA_LONG, JAVA_INT, ADDRESS, JAVA_LONG, JAVA_LONG, ADDRESS);
    }

    /** A call about a key, an expected value and a new one. */
    private static MethodHandle comparing(String name) {
        return call(name, JAVA_LONG, JAVA_INT, ADDRESS, JAVA_LONG, ADDRESS, JAVA_LONG, ADDRESS, JAVA_LONG);
    }

    /** Calls, and returns the status. */
    static int status(MethodHandle handle, Object... arguments) {
        try {
            return (int) handle.invokeWithArguments(arguments);
        } catch (RuntimeException | Error thrown) {
            throw thrown;
        } catch (Throwable thrown) {
            throw new AssertionError("a native call throws nothing", thrown);
        }
    }

    /** Throws what a status other than 0 means. It must be the last call of this thread. */
    static void check(int status) {
        if (status != 0) {
            throw failure(status);
        }
    }

    /** True for 0, false for "not found"; anything else is thrown. */
    static boolean found(int status) {
        if (status != 0 && status != Status.NOT_FOUND.code()) {
            throw failure(status);
        }
        return status == 0;
    }

    static KamlException failure(int status) {
        try {
            String message = text((MemorySegment) LAST_ERROR.invokeExact());
            return new KamlException(Status.of(status), message, (boolean) IS_RETRYABLE.invokeExact(status));
        } catch (Throwable thrown) {
            throw new AssertionError("a native call throws nothing", thrown);
        }
    }

    static String version() {
        try {
            return text((MemorySegment) VERSION.invokeExact());
        } catch (Throwable thrown) {
            throw new AssertionError("a native call throws nothing", thrown);
        }
    }

    static void free(MemorySegment memory) {
        try {
            FREE.invokeExact(memory);
        } catch (Throwable thrown) {
            throw new AssertionError("a native call throws nothing", thrown);
        }
    }

    static MemorySegment upcall(MethodHandle target, FunctionDescriptor type, Arena arena) {
        return LINKER.upcallStub(target, type, arena);
    }

    static String text(MemorySegment words) {
        return words.reinterpret(Long.MAX_VALUE).getString(0);
    }

    /** The bytes in memory of the library; no bytes need no memory. */
    static MemorySegment copy(Arena arena, byte[] bytes) {
        if (bytes == null || bytes.length == 0) {
            return MemorySegment.NULL;
        }
        return arena.allocateFrom(JAVA_BYTE, bytes);
    }

    /** A key, which must not be empty for the library to see where it is: the library refuses an empty one with its own words. */
    static MemorySegment key(Arena arena, byte[] key) {
        return key.length == 0 ? arena.allocate(1) : copy(arena, key);
    }

    static long length(byte[] bytes) {
        return bytes == null ? 0 : bytes.length;
    }

    /** Takes a value that the library gave, and frees it. */
    static byte[] take(MemorySegment value, long length) {
        try {
            return value.reinterpret(length).toArray(JAVA_BYTE);
        } finally {
            free(value);
        }
    }

    /** The bytes whose address and length are at a place; null for the null address. */
    static byte[] bytes(MemorySegment items, long at) {
        MemorySegment address = items.get(ADDRESS, at);
        return address.equals(MemorySegment.NULL) ? null : address.reinterpret(items.get(JAVA_LONG, at + 8)).toArray(JAVA_BYTE);
    }

    /** Takes records that the library gave, and frees them. */
    static List<Entry> entries(MemorySegment items, long count) {
        if (items.equals(MemorySegment.NULL)) {
            return List.of();
        }
        try {
            MemorySegment all = items.reinterpret(count * ITEM_BYTES);
            List<Entry> entries = new ArrayList<>((int) count);
            for (long i = 0; i < count; i++) {
                entries.add(new Entry(bytes(all, i * ITEM_BYTES), bytes(all, i * ITEM_BYTES + 16)));
            }
            return entries;
        } finally {
            free(items);
        }
    }

    /** A call that reads a value: a handle of the library, a namespace and a key. */
    static byte[] get(MethodHandle call, long handle, int namespace, byte[] key) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment value = arena.allocate(ADDRESS);
            MemorySegment length = arena.allocate(JAVA_LONG);
            int status = (int) call.invokeExact(handle, namespace, key(arena, key), (long) key.length, value, length);
            return found(status) ? take(value.get(ADDRESS, 0), length.get(JAVA_LONG, 0)) : null;
        } catch (RuntimeException | Error thrown) {
            throw thrown;
        } catch (Throwable thrown) {
            throw new AssertionError("a native call throws nothing", thrown);
        }
    }

    /** Reads the values of keys, in their order; null where there is none. */
    static List<byte[]> getMany(MethodHandle call, long handle, int namespace, List<byte[]> keys) {
        int count = keys.size();
        if (count == 0) {
            return List.of();
        }
        long bytes = 0;
        for (byte[] key : keys) {
            bytes += key.length + 1;
        }
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment memory = arena.allocate(16L * count + 8 + bytes, 8);
            long at = 16L * count + 8;
            for (int i = 0; i < count; i++) {
                byte[] key = keys.get(i);
                memory.setAtIndex(ADDRESS, i, memory.asSlice(at));
                memory.setAtIndex(JAVA_LONG, count + i, key.length);
                MemorySegment.copy(key, 0, memory, JAVA_BYTE, at, key.length);
                at += key.length + 1;
            }
            MemorySegment items = memory.asSlice(16L * count, 8);
            check((int) call.invokeExact(handle, namespace, memory, memory.asSlice(8L * count), (long) count, items));
            MemorySegment first = items.get(ADDRESS, 0);
            try {
                MemorySegment all = first.reinterpret(count * ITEM_BYTES);
                List<byte[]> values = new ArrayList<>(count);
                for (int i = 0; i < count; i++) {
                    values.add(bytes(all, i * ITEM_BYTES + 16));
                }
                return values;
            } finally {
                free(first);
            }
        } catch (RuntimeException | Error thrown) {
            throw thrown;
        } catch (Throwable thrown) {
            throw new AssertionError("a native call throws nothing", thrown);
        }
    }

    /** A call about a key alone. */
    static int withKey(MethodHandle call, long handle, int namespace, byte[] key) {
        try (Arena arena = Arena.ofConfined()) {
            return (int) call.invokeExact(handle, namespace, key(arena, key), (long) key.length);
        } catch (RuntimeException | Error thrown) {
            throw thrown;
        } catch (Throwable thrown) {
            throw new AssertionError("a native call throws nothing", thrown);
        }
    }

    /** A call that stores a value. */
    static int withValue(MethodHandle call, long handle, int namespace, byte[] key, byte[] value) {
        try (Arena arena = Arena.ofConfined()) {
            return (int) call.invokeExact(
                    handle, namespace, key(arena, key), (long) key.length, copy(arena, value), length(value));
        } catch (RuntimeException | Error thrown) {
            throw thrown;
        } catch (Throwable thrown) {
            throw new AssertionError("a native call throws nothing", thrown);
        }
    }

    /** A call that stores a value for some time. */
    static int withValueExpiring(MethodHandle call, long handle, int namespace, byte[] key, byte[] value, long ms) {
        try (Arena arena = Arena.ofConfined()) {
            return status(call, handle, namespace, key(arena, key), (long) key.length, copy(arena, value), length(value), ms);
        }
    }

    /** Adds a number to a counter, and returns the counter. */
    static long add(MethodHandle call, long handle, int namespace, byte[] key, long number) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment counter = arena.allocate(JAVA_LONG);
            check(status(call, handle, namespace, key(arena, key), (long) key.length, number, counter));
            return counter.get(JAVA_LONG, 0);
        }
    }

    /** Stores a value if the key has the expected one; null is no value. */
    static boolean compareAndSet(MethodHandle call, long handle, int namespace, byte[] key, byte[] expected, byte[] value) {
        try (Arena arena = Arena.ofConfined()) {
            int status = status(call, handle, namespace, key(arena, key), (long) key.length, perhaps(arena, expected), length(expected),
                    perhaps(arena, value), length(value));
            if (status == Status.VALUE_DIFFERS.code()) {
                return false;
            }
            check(status);
            return true;
        }
    }

    /** A value where the null address means that there is none: no bytes need an address. */
    private static MemorySegment perhaps(Arena arena, byte[] value) {
        return value == null ? MemorySegment.NULL : key(arena, value);
    }

    /** The record at one end of a namespace. */
    static Optional<Entry> end(MethodHandle call, long handle, int namespace) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment item = arena.allocate(ADDRESS);
            boolean found = found(status(call, handle, namespace, item));
            return found ? Optional.of(entries(item.get(ADDRESS, 0), 1).getFirst()) : Optional.empty();
        }
    }

    /** Visits the keys of a namespace without an order. */
    static void keys(MethodHandle call, long handle, int namespace, Consumer<byte[]> visit) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment cursor = arena.allocate(CURSOR_BYTES, 8);
            MemorySegment items = arena.allocate(ADDRESS);
            MemorySegment count = arena.allocate(JAVA_LONG);
            List<Entry> keys;
            do {
                check(status(call, handle, namespace, cursor, BATCH, items, count));
                keys = entries(items.get(ADDRESS, 0), count.get(JAVA_LONG, 0));
                keys.forEach(entry -> visit.accept(entry.key()));
            } while (!keys.isEmpty());
        }
    }

    /** A call about a range whose answer is a number. */
    static long number(MethodHandle call, long handle, int namespace, KeyRange range) {
        KeyRange bounds = range.bounded();
        int flags = bounds.flags & (KeyRange.FROM_EXCLUDED | KeyRange.TO_INCLUDED);
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment answer = arena.allocate(JAVA_LONG);
            check(status(call, handle, namespace, copy(arena, bounds.from), length(bounds.from), copy(arena, bounds.to),
                    length(bounds.to), flags, answer));
            return answer.get(JAVA_LONG, 0);
        }
    }

    /** Opens an iterator over a range. */
    static RecordIterator range(MethodHandle open, MethodHandle openPrefix, long handle, int namespace, KeyRange range) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment opened = arena.allocate(JAVA_LONG);
            if (range.isPrefix) {
                check(status(openPrefix, handle, namespace, copy(arena, range.from), length(range.from), range.flags, opened));
            } else {
                check(status(open, handle, namespace, copy(arena, range.from), length(range.from), copy(arena, range.to),
                        length(range.to), range.flags, opened));
            }
            return new RecordIterator(opened.get(JAVA_LONG, 0));
        }
    }

    /** Reads up to so many records of a range. */
    static List<Entry> limited(MethodHandle call, long handle, int namespace, KeyRange range, long limit) {
        KeyRange bounds = range.bounded();
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment items = arena.allocate(ADDRESS);
            MemorySegment count = arena.allocate(JAVA_LONG);
            check(status(call, handle, namespace, copy(arena, bounds.from), length(bounds.from), copy(arena, bounds.to),
                    length(bounds.to), bounds.flags, limit, items, count));
            return entries(items.get(ADDRESS, 0), count.get(JAVA_LONG, 0));
        }
    }
}
