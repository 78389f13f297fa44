package io.kaml;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Versions, snapshots of versioned namespaces, and merges. */
class VersionsTest {
    private static final long BYTES = 64L << 20;
    private static final byte[] KEY = Keys.text("key");

    @TempDir
    Path directory;

    private static void fails(Status status, Runnable call) {
        KamlException failure = assertThrows(KamlException.class, call::run);
        assertEquals(status, failure.status(), failure.getMessage());
        assertFalse(failure.getMessage().isEmpty());
    }

    private static byte[] number(int number) {
        return Keys.text("value " + number);
    }

    /**
     * Goal: every version of a key is found by snapshot, by count and in its history, and undo and rollback return to them; also after the
     * device was opened again.
     * Method: 600 puts, more than one call lists, a snapshot after each 200, a delete; then each of these reads.
     */
    @Test
    void thePastIsRead() {
        Path path = directory.resolve("data.kaml");
        Instant begin = Instant.now();
        int[] snapshots = new int[3];
        try (Device device = Device.create(path, BYTES, CreateOptions.DEFAULT)) {
            Namespace notes = device.createNamespace("notes", NamespaceOptions.of(KeyKind.BYTES).withVersions(MergePolicy.NEWEST));
            for (int i = 1; i <= 600; i++) {
                notes.put(KEY, number(i));
                if (i % 200 == 0) {
                    snapshots[i / 200 - 1] = notes.versions().snapshot();
                }
            }
            notes.delete(KEY);
        }
        try (Device device = Device.open(path)) {
            Namespace notes = device.ensureNamespace("notes", NamespaceOptions.of(KeyKind.BYTES).withVersions());
            Versions versions = notes.versions();
            assertNull(notes.get(KEY));
            for (int i = 0; i < 3; i++) {
                assertArrayEquals(number(200 * (i + 1)), versions.getAsOf(snapshots[i], KEY));
            }
            assertNull(versions.getBack(0, KEY));
            assertArrayEquals(number(600), versions.getBack(1, KEY));
            assertArrayEquals(number(590), versions.getBack(11, KEY));
            fails(Status.NO_VERSION, () -> versions.getAsOf(99, KEY));
            fails(Status.NO_VERSION, () -> versions.undo(KEY, 5000));

            List<Version> history = versions.history(KEY);
            assertEquals(601, history.size());
            assertTrue(history.getFirst().isDeleted());
            assertEquals("value 600".length(), history.get(1).length());
            for (int i = 1; i < history.size(); i++) {
                assertTrue(history.get(i).sequence() < history.get(i - 1).sequence());
                assertFalse(history.get(i).isDeleted() || history.get(i).isHidden());
                assertFalse(history.get(i).time().isBefore(begin.minusSeconds(1)) || history.get(i).time().isAfter(Instant.now()));
            }
            assertEquals(snapshots[0], history.getLast().userVersion());
            assertEquals(history.subList(0, 300), versions.history(KEY, 300));
            assertEquals(List.of(), versions.history(Keys.text("absent")));
            List<VersionSnapshot> found = versions.snapshots();
            assertEquals(List.of(snapshots[0], snapshots[1], snapshots[2]), found.stream().map(VersionSnapshot::number).toList());
            assertFalse(found.getFirst().time().isBefore(begin.minusSeconds(1)));

            versions.undo(KEY, 1);
            assertArrayEquals(number(600), notes.get(KEY));
            int before = versions.rollBack(snapshots[0]);
            assertArrayEquals(number(200), notes.get(KEY));
            assertTrue(versions.history(KEY).stream().anyMatch(Version::isHidden));
            versions.rollBack(before);
            assertArrayEquals(number(600), notes.get(KEY));
            versions.forget(snapshots[1]);
            fails(Status.NO_VERSION, () -> versions.getAsOf(snapshots[1], KEY));
            fails(Status.NO_VERSION, () -> versions.forget(snapshots[1]));
            for (int i = 0; i < 80; i++) {
                versions.snapshot();
            }
            assertEquals(84, versions.snapshots().size());
            try (Store store = new Store(device, 8 << 20, StoreOptions.DEFAULT)) {
                fails(Status.IN_USE, () -> versions.undo(KEY, 1));
                store.put(notes, KEY, number(1000));
                assertArrayEquals(number(1000), versions.getAsOf(versions.snapshot(), KEY));
            }
            Namespace plain = device.createNamespace("plain", NamespaceOptions.ordered());
            fails(Status.BAD_ARGUMENT, () -> plain.versions().snapshot());
            fails(Status.BAD_ARGUMENT, () -> plain.versions().history(KEY));
        }
    }

    /**
     * Goal: a merge keeps what its rules keep, reports it in advance, and ends when its progress requests that, also by an exception.
     * Method: 100 versions of one key; a dry run, merges with each rule, an error and an end within the progress.
     */
    @Test
    void mergesKeepWhatTheRulesKeep() {
        try (Device device = Device.inMemory(BYTES)) {
            Namespace notes = device.createNamespace("notes", NamespaceOptions.of(KeyKind.BYTES).withVersions());
            Versions versions = notes.versions();
            for (int i = 1; i <= 100; i++) {
                notes.put(KEY, number(i));
                if (i == 50) {
                    versions.snapshot();
                }
            }
            assertThrows(IllegalStateException.class, () -> versions.merge(Retention.SNAPSHOTS, (done, count) -> {
                throw new IllegalStateException("a test");
            }));
            versions.merge(Retention.SNAPSHOTS.dryRun(), (done, count) -> false);
            assertEquals(100, versions.history(KEY).size());
            Retention all = Retention.SNAPSHOTS.keepingSince(Instant.EPOCH);
            assertEquals(0, versions.merge(all.dryRun()).dropped());
            MergeReport planned = versions.merge(Retention.SNAPSHOTS.keepingLast(10).dryRun());
            assertEquals(100, versions.history(KEY).size());
            AtomicInteger calls = new AtomicInteger();
            MergeReport done = versions.merge(Retention.SNAPSHOTS.keepingLast(10), (rows, count) -> calls.incrementAndGet() > 0 && rows <= count);
            assertEquals(planned.dropped(), done.dropped());
            assertEquals(11, done.kept());
            assertEquals(89, done.dropped());
            assertTrue(done.droppedBytes() > 0 && calls.get() > 0);
            assertEquals(11, versions.history(KEY).size());
            versions.merge(Retention.SNAPSHOTS.forgettingSnapshots());
            assertEquals(1, versions.history(KEY).size());
            assertEquals(List.of(), versions.snapshots());
            assertArrayEquals(number(100), notes.get(KEY));
        }
    }

    /**
     * Goal: a namespace with a policy drops old versions when space runs low.
     * Method: put more versions of 64 KiB than the device has room for; the newest ones of the policy are kept.
     */
    @Test
    void policiesMakeRoom() {
        try (Device device = Device.inMemory(BYTES)) {
            MergePolicy policy = new MergePolicy(3, Duration.ofNanos(1), false);
            Namespace notes = device.createNamespace("notes", NamespaceOptions.of(KeyKind.BYTES).withVersions(policy));
            for (int i = 0; i < 2000; i++) {
                byte[] value = new byte[64 << 10];
                value[0] = (byte) i;
                notes.put(KEY, value);
            }
            int kept = notes.versions().history(KEY).size();
            assertTrue(kept >= 3 && kept < 1500, kept + " versions");
            assertEquals((byte) 1997, notes.versions().getBack(2, KEY)[0]);
        }
    }
}
