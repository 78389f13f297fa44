package io.kaml;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.TreeMap;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Growth, sizes, backups, the change stream, and snapshots of all records. */
class LifeTest {
    private static final long BYTES = 64L << 20;
    private static final Duration AT_ONCE = Duration.ZERO;
    private static final Duration LONG = Duration.ofSeconds(30);

    private static final int VALUE = 200_000;

    @TempDir
    Path directory;

    private static void fails(Status status, Runnable call) {
        KamlException failure = assertThrows(KamlException.class, call::run);
        assertEquals(status, failure.status(), failure.getMessage());
        assertFalse(failure.getMessage().isEmpty());
    }

    private static byte[] noise(int seed, int length) {
        byte[] noise = new byte[length];
        new Random(seed).nextBytes(noise);
        return noise;
    }

    /**
     * Goal: a file grows to its limit and not further, and by command beyond it; a device becomes smaller when what is in it fits.
     * Method: put until it is full; compare its bytes with the limit; resize, put, delete, resize.
     */
    @Test
    void devicesGrowAndShrink() {
        long limit = 96L << 20;
        Path path = directory.resolve("data.kaml");
        try (Device device = Device.create(path, 32L << 20, CreateOptions.DEFAULT.withProcessDurability().withGrowthUpTo(limit))) {
            Namespace records = device.createNamespace("records", NamespaceOptions.of(KeyKind.U64));
            assertTrue(device.statistics().capacityBytes() < 32L << 20);
            int count = fill(records, 0);
            assertTrue(count > 200, count + " records");
            assertTrue(device.info().flashBytes() > 64L << 20 && device.info().flashBytes() <= limit, device.info().toString());
            long taken = device.resize(128L << 20);
            assertTrue(taken > limit && taken <= 128L << 20, taken + " bytes");
            int more = fill(records, count);
            assertTrue(more > count, more + " records");
            fails(Status.FULL, () -> device.resize(48L << 20));
            for (int i = 20; i < more; i++) {
                records.delete(Keys.u64(i));
            }
            assertTrue(device.resize(48L << 20) <= 48L << 20);
            for (int i = 0; i < 20; i++) {
                assertArrayEquals(noise(i, VALUE), records.get(Keys.u64(i)));
            }
            fails(Status.BAD_ARGUMENT, () -> device.resize(1000));
            assertEquals(OpenOptions.Durability.PROCESS, device.info().durability());
            assertTrue(device.info().uuid().matches("[0-9a-f]{32}"), device.info().uuid());
            assertTrue(device.info().description().contains("data.kaml"), device.info().description());
            assertEquals(0, device.info().blockBytes() % device.info().pageBytes());
        }
        try (Device device = Device.open(path)) {
            assertTrue(device.info().wasClean());
            assertEquals(20, device.namespaces().getFirst().recordCount());
        }
        fails(Status.BAD_ARGUMENT, () -> Device.create(directory.resolve("other"), 32L << 20, new CreateOptions(false, false, 0, 0, false, limit)));
    }

    private static int fill(Namespace records, int from) {
        for (int i = from;; i++) {
            try {
                records.put(Keys.u64(i), noise(i, VALUE));
            } catch (KamlException failure) {
                assertEquals(Status.FULL, failure.status(), failure.getMessage());
                return i;
            }
        }
    }

    /**
     * Goal: a full backup and an incremental one restore the device as it was at the second; a damaged one is refused.
     * Method: records of an ordered and versions of another namespace, changed between the backups; verify, restore, compare; change one byte.
     */
    @Test
    void backupsAreRestored() throws IOException {
        Path full = directory.resolve("full");
        Path later = directory.resolve("later");
        Path copy = directory.resolve("copy.kaml");
        try (Device device = Device.inMemory(BYTES); Device other = Device.inMemory(BYTES)) {
            Namespace users = device.createNamespace("users", NamespaceOptions.ordered());
            Namespace notes = device.createNamespace("notes", NamespaceOptions.of(KeyKind.BYTES).withVersions());
            for (int i = 0; i < 100; i++) {
                users.put(Keys.u64(i), noise(i, 2000));
            }
            notes.put(Keys.text("n"), Keys.text("one"));
            fails(Status.CANCELLED, () -> device.backup(full, null, (bytesDone, byteCount) -> false));
            assertThrows(IllegalStateException.class, () -> device.backup(full, null, (bytesDone, byteCount) -> {
                throw new IllegalStateException("the progress's own");
            }));
            assertFalse(Files.exists(full));
            BackupReport first = device.backup(full);
            assertEquals(2, first.namespaces());
            assertEquals(100, first.records());
            assertEquals(1, first.versions());
            assertFalse(first.isIncremental());
            assertEquals(Files.size(full), first.bytes());
            users.delete(Keys.u64(7));
            users.put(Keys.u64(200), noise(200, 10));
            notes.put(Keys.text("n"), Keys.text("two"));
            BackupReport second = device.backup(later, full);
            assertTrue(second.isIncremental());
            assertTrue(second.bytes() < first.bytes() / 4, second.toString());
            assertEquals(1, second.deleted());
            fails(Status.BAD_ARGUMENT, () -> other.backup(directory.resolve("x"), full));
        }
        assertEquals(100, Device.verifyBackup(full).records());
        fails(Status.CANCELLED, () ->
                Device.restore(List.of(full, later), copy, 0, CreateOptions.DEFAULT, (bytesDone, byteCount) -> false));
        assertFalse(Files.exists(copy));
        Device.restore(List.of(full, later), copy, 0, CreateOptions.DEFAULT);
        fails(Status.NOT_EMPTY, () -> Device.restore(List.of(full), copy, 0, CreateOptions.DEFAULT));
        fails(Status.BAD_ARGUMENT, () -> Device.restore(List.of(later), directory.resolve("y"), 0, CreateOptions.DEFAULT));
        fails(Status.NOT_A_DEVICE, () -> Device.restore(List.of(), directory.resolve("y"), 0, CreateOptions.DEFAULT));
        try (Device device = Device.open(copy)) {
            Namespace users = device.namespace("users");
            assertEquals(100, users.count(KeyRange.all()));
            assertNull(users.get(Keys.u64(7)));
            assertArrayEquals(noise(200, 10), users.get(Keys.u64(200)));
            Namespace notes = device.namespace("notes");
            assertArrayEquals(Keys.text("two"), notes.get(Keys.text("n")));
            assertArrayEquals(Keys.text("one"), notes.versions().getBack(1, Keys.text("n")));
        }
        Device.restore(List.of(full), copy, 128L << 20, CreateOptions.DEFAULT.withForce());
        byte[] bytes = Files.readAllBytes(full);
        bytes[bytes.length / 2] += 1;
        Files.write(full, bytes);
        fails(Status.CORRUPT, () -> Device.verifyBackup(full));
        fails(Status.NO_FILE, () -> Device.verifyBackup(directory.resolve("absent")));
        fails(Status.NOT_A_DEVICE, () -> Device.verifyBackup(copy));
    }

    /**
     * Goal: a reader gets every commit one time and in order, also after the device was opened again, and waits for the next one.
     * Method: commits of each kind, read one by one; a position that is stored; a commit of another thread; an interruption.
     */
    @Test
    void changesAreRead() throws InterruptedException {
        Path path = directory.resolve("data.kaml");
        byte[] place;
        Instant later = Instant.ofEpochMilli(System.currentTimeMillis() + 1_000_000);
        try (Device device = Device.create(path, BYTES, CreateOptions.DEFAULT.withProcessDurability())) {
            Namespace users = device.createNamespace("users", NamespaceOptions.ordered());
            users.put(Keys.text("before"), Keys.text("0"));
            try (ChangeReader reader = device.changes()) {
                Change namespace = reader.next(AT_ONCE).orElseThrow().changes().getFirst();
                assertEquals(ChangeKind.NAMESPACE, namespace.kind());
                assertArrayEquals(Keys.text("users"), namespace.key());
                assertEquals(users.id(), namespace.namespace());
                assertTrue(reader.next(AT_ONCE).isEmpty());
                device.write(new Batch().put(users, Keys.text("ada"), Keys.text("1")).putUntil(users, Keys.text("alan"), new byte[0], later));
                Commit first = reader.next(LONG).orElseThrow();
                assertEquals(List.of(ChangeKind.PUT, ChangeKind.PUT), first.changes().stream().map(Change::kind).toList());
                Change ada = first.changes().get(0);
                assertEquals(users.id(), ada.namespace());
                assertArrayEquals(Keys.text("ada"), ada.key());
                assertArrayEquals(Keys.text("1"), ada.value());
                assertEquals(Instant.MAX, ada.expiresAt());
                assertArrayEquals(new byte[0], first.changes().get(1).value());
                assertEquals(later, first.changes().get(1).expiresAt());
                place = first.position().bytes();
                users.delete(Keys.text("ada"));
                users.deleteRange(KeyRange.after(Keys.text("a")).through(Keys.text("b")));
                assertEquals(ChangeKind.DELETE, reader.next(LONG).orElseThrow().changes().getFirst().kind());
                Change range = reader.next(LONG).orElseThrow().changes().getFirst();
                assertEquals(ChangeKind.DELETE_RANGE, range.kind());
                assertTrue(range.isFromExcluded() && range.isToIncluded());
                assertArrayEquals(Keys.text("b"), range.value());
            }
        }
        try (Device device = Device.open(path); Device other = Device.inMemory(BYTES)) {
            Namespace users = device.namespace("users");
            Position position = Position.of(place);
            assertEquals(position, Position.of(position.bytes()));
            assertEquals(64, position.toString().length());
            try (ChangeReader reader = device.changes(position)) {
                assertEquals(ChangeKind.NAMESPACE, reader.next(LONG).orElseThrow().changes().getFirst().kind());
                assertEquals(ChangeKind.DELETE, reader.next(LONG).orElseThrow().changes().getFirst().kind());
                assertEquals(1, reader.next(LONG).orElseThrow().changes().size());
                Namespace notes = device.createNamespace("notes", NamespaceOptions.of(KeyKind.BYTES).withVersions());
                notes.put(Keys.text("n"), Keys.text("one"));
                List<Change> all = new ArrayList<>();
                for (var commit = reader.next(LONG); commit.isPresent(); commit = reader.next(AT_ONCE)) {
                    all.addAll(commit.get().changes());
                }
                Change version = all.getLast();
                assertEquals(ChangeKind.VERSION, version.kind());
                assertTrue(version.sequence() > 0 && version.time().isAfter(Instant.EPOCH), version.toString());

                int snapshot = notes.versions().snapshot();
                Change command = reader.next(LONG).orElseThrow().changes().getFirst();
                assertEquals(List.of(ChangeKind.VERSION_COMMAND, VersionCommand.SNAPSHOT, 0),
                        List.of(command.kind(), command.command(), command.snapshot()));
                notes.versions().forget(snapshot);
                Change forgotten = reader.next(LONG).orElseThrow().changes().getFirst();
                assertEquals(List.of(VersionCommand.FORGET, snapshot), List.of(forgotten.command(), forgotten.snapshot()));

                Thread writer = Thread.ofPlatform().start(() -> users.put(Keys.text("late"), new byte[10]));
                assertEquals(ChangeKind.PUT, reader.next(LONG).orElseThrow().changes().getFirst().kind());
                writer.join();
                Thread.currentThread().interrupt();
                assertThrows(InterruptedException.class, () -> reader.next(LONG));
                device.deleteNamespace(notes);
                assertEquals(ChangeKind.NAMESPACE_DELETED, reader.next(LONG).orElseThrow().changes().getFirst().kind());
            }
            Position end = device.position();
            ChangeReader reader = device.changes(end);
            assertEquals(ChangeKind.NAMESPACE, reader.next(AT_ONCE).orElseThrow().changes().getFirst().kind());
            assertTrue(reader.next(AT_ONCE).isEmpty());
            reader.close();
            reader.close();
            KamlException closed = assertThrows(KamlException.class, () -> reader.next(AT_ONCE));
            assertEquals(Status.BAD_HANDLE, closed.status());
            fails(Status.BAD_ARGUMENT, () -> other.changes(end));
            fails(Status.BAD_ARGUMENT, () -> Position.of(new byte[31]));
        }
    }

    /**
     * Goal: a snapshot of all records shows ends and keys as they were, and an estimate is near the count.
     * Method: change everything after the snapshot; compare both ends and all keys; estimate a range of many keys.
     */
    @Test
    void snapshotsShowEndsAndKeys() {
        try (Device device = Device.inMemory(BYTES)) {
            Namespace ordered = device.createNamespace("ordered", NamespaceOptions.ordered());
            Namespace any = device.createNamespace("any", NamespaceOptions.of(KeyKind.ANY));
            for (int i = 0; i < 2000; i++) {
                ordered.put(Keys.u64(i), new byte[1]);
            }
            any.put(Keys.text("a".repeat(100)), new byte[1]);
            long estimate = ordered.estimate(KeyRange.from(Keys.u64(500)).to(Keys.u64(1500)));
            assertTrue(estimate > 500 && estimate < 2000, estimate + " for 1000 keys");
            device.limitSnapshotMemory(64L << 20);
            try (Snapshot snapshot = device.snapshot()) {
                ordered.deleteRange(KeyRange.all());
                any.delete(Keys.text("a".repeat(100)));
                assertArrayEquals(Keys.u64(0), snapshot.first(ordered).orElseThrow().key());
                assertArrayEquals(Keys.u64(1999), snapshot.last(ordered).orElseThrow().key());
                TreeMap<String, Integer> keys = new TreeMap<>();
                snapshot.forEachKey(any, key -> keys.merge(new String(key), 1, Integer::sum));
                assertEquals(1, keys.get("a".repeat(100)));
                assertEquals(1, keys.size());
            }
            assertTrue(ordered.first().isEmpty() && ordered.last().isEmpty());
        }
    }
}
