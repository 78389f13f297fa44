package io.kaml;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.NoSuchElementException;
import java.util.OptionalLong;
import java.util.Random;
import java.util.TreeMap;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Records, batches, ranges and snapshots of a device. */
class DeviceTest {
    private static final long BYTES = 64L << 20;

    @TempDir
    Path directory;

    private static void fails(Status status, Runnable call) {
        KamlException failure = assertThrows(KamlException.class, call::run);
        assertEquals(status, failure.status(), failure.getMessage());
        assertFalse(failure.getMessage().isEmpty());
    }

    private static byte[] text(String text) {
        return Keys.text(text);
    }

    /**
     * Goal: records survive closing, in namespaces of every kind of key; opening again finds them, or says why not.
     * Method: put, close, open, get; a second opening, a missing file, a file that is no device.
     */
    @Test
    void recordsSurvive() throws IOException {
        Path path = directory.resolve("data.kaml");
        for (int round = 0; round < 2; round++) {
            try (Device device = Device.openOrCreate(path, BYTES)) {
                for (KeyKind kind : KeyKind.values()) {
                    Namespace namespace = device.ensureNamespace(kind.name(), NamespaceOptions.of(kind));
                    byte[] key = kind == KeyKind.U64 ? Keys.u64(-2) : text("key");
                    byte[] before = namespace.get(key);
                    assertArrayEquals(round == 0 ? null : text(kind.name()), before);
                    assertEquals(round == 1, namespace.exists(key));
                    namespace.put(key, text(kind.name()));
                    assertArrayEquals(text(kind.name()), namespace.get(key));
                }
                fails(Status.LOCKED, () -> Device.open(path));
                fails(Status.BAD_ARGUMENT, () -> device.ensureNamespace("U64", NamespaceOptions.ordered()));
                assertEquals(4, device.namespaces().size());
                assertEquals(1, device.namespaces().getFirst().recordCount());
            }
        }
        fails(Status.NO_FILE, () -> Device.open(directory.resolve("absent")));
        Path other = Files.writeString(directory.resolve("other"), "some words");
        fails(Status.NOT_A_DEVICE, () -> Device.open(other));
        fails(Status.NOT_EMPTY, () -> Device.create(other, BYTES, CreateOptions.DEFAULT));
        assertEquals("some words", Files.readString(other));
        Device.create(other, BYTES, CreateOptions.DEFAULT.withForce().withProcessDurability()).close();
        try (Device one = Device.openReadOnly(path); Device two = Device.openReadOnly(path)) {
            assertArrayEquals(text("ANY"), two.namespace("ANY").get(text("key")));
            fails(Status.READ_ONLY, () -> one.namespace("ANY").put(text("key"), text("x")));
        }
        assertTrue(Device.libraryVersion().matches("\\d+\\.\\d+\\.\\d+"));
    }

    /**
     * Goal: values of any bytes and lengths come back; those that do not fit are refused, with their names.
     * Method: lengths up to the longest value, into arrays and into native memory; keys of 0 bytes and too long ones.
     */
    @Test
    void valuesComeBack() {
        try (Device device = Device.inMemory(BYTES); Arena arena = Arena.ofConfined()) {
            Namespace namespace = device.createNamespace("n", NamespaceOptions.ordered());
            int longest = (int) device.valueBytesMax();
            assertTrue(device.batchBytesMax() > 1000);
            Random random = new Random(1);
            MemorySegment buffer = arena.allocate(longest);
            for (int length : new int[] {0, 1, 4095, 4096, 40_000, longest}) {
                byte[] value = new byte[length];
                random.nextBytes(value);
                namespace.put(text("k"), value);
                assertArrayEquals(value, namespace.get(text("k")));
                assertEquals(OptionalLong.of(length), namespace.getInto(text("k"), buffer));
                assertArrayEquals(value, buffer.asSlice(0, length).toArray(ValueLayout.JAVA_BYTE));
            }
            fails(Status.BUFFER_TOO_SMALL, () -> namespace.getInto(text("k"), buffer.asSlice(0, 10)));
            assertEquals(OptionalLong.empty(), namespace.getInto(text("absent"), buffer));
            fails(Status.VALUE_TOO_LARGE, () -> namespace.put(text("k"), new byte[longest + 1]));
            fails(Status.BAD_KEY, () -> namespace.put(new byte[0], text("x")));
            fails(Status.BAD_KEY, () -> namespace.put(new byte[1025], text("x")));
            namespace.put(new byte[1024], text("x"));
            namespace.delete(text("k"));
            assertNull(namespace.get(text("k")));
            namespace.delete(text("k"));
        }
    }

    /**
     * Goal: a batch is stored whole or not at all, and its conditions are judged before it.
     * Method: batches over two namespaces with conditions that hold and one that does not.
     */
    @Test
    void batchesAreAtomic() {
        try (Device device = Device.inMemory(BYTES)) {
            Namespace one = device.createNamespace("one", NamespaceOptions.of(KeyKind.U64));
            Namespace two = device.createNamespace("two", NamespaceOptions.ordered());
            Batch batch = new Batch().putIfAbsent(one, Keys.u64(1), text("a")).put(two, text("x"), text("b"));
            assertEquals(2, batch.size());
            device.write(batch);
            fails(Status.EXISTS, () -> device.write(batch));
            batch.clear();
            batch.put(one, Keys.u64(2), text("c")).deleteIfPresent(two, text("absent"));
            fails(Status.NOT_FOUND, () -> device.write(batch));
            assertNull(one.get(Keys.u64(2)));
            device.write(new Batch().putIfPresent(two, text("x"), text("d")).delete(one, Keys.u64(1)));
            assertArrayEquals(text("d"), two.get(text("x")));
            assertFalse(one.exists(Keys.u64(1)));
            fails(Status.BAD_ARGUMENT, () -> device.write(new Batch()));
            assertTrue(one.putIfAbsent(Keys.u64(7), text("x")));
            assertFalse(one.putIfAbsent(Keys.u64(7), text("y")));
            assertTrue(one.putIfPresent(Keys.u64(7), text("z")));
            assertFalse(one.putIfPresent(Keys.u64(8), text("z")));
            List<Long> keys = new ArrayList<>();
            one.forEachKey(key -> keys.add(Keys.u64(key)));
            assertEquals(List.of(7L), keys);
            device.deleteNamespace(one);
            fails(Status.UNKNOWN_NAMESPACE, () -> one.get(Keys.u64(7)));
        }
    }

    /**
     * Goal: a device without a capacity grows while it is used, and stays what it has become.
     * Method: more bytes of values than its first size; then it is opened again.
     */
    @Test
    void devicesGrow() throws IOException {
        Path path = directory.resolve("growing.kaml");
        byte[] value = new byte[2 << 20];
        long first;
        long records;
        try (Device device = Device.openOrCreate(path)) {
            first = Files.size(path);
            assertTrue(first < 400 << 20, "it begins with " + first);
            records = first / value.length + 10;
            Namespace namespace = device.ensureNamespace("n", NamespaceOptions.of(KeyKind.U64));
            for (long key = 0; key < records; key++) {
                namespace.put(Keys.u64(key), value);
            }
        }
        assertTrue(Files.size(path) > first, "its size is " + Files.size(path));
        try (Device device = Device.openOrCreate(path)) {
            assertEquals(records, device.namespaces().getFirst().recordCount());
            assertArrayEquals(value, device.namespace("n").get(Keys.u64(records - 1)));
        }
    }

    private static List<String> keysOf(RecordIterator records) {
        List<String> keys = new ArrayList<>();
        records.forEachRemaining(entry -> keys.add(new String(entry.key())));
        return keys;
    }

    /**
     * Goal: ranges show what a sorted map shows, in both directions, with every kind of bound.
     * Method: some thousand random keys, of which many begin alike; random bounds and prefixes, compared with a tree map.
     */
    @Test
    void rangesAreInOrder() {
        try (Device device = Device.inMemory(BYTES)) {
            Namespace namespace = device.createNamespace("n", NamespaceOptions.ordered());
            TreeMap<String, String> model = new TreeMap<>();
            Random random = new Random(5);
            Batch batch = new Batch();
            for (int i = 0; i < 3000; i++) {
                String key = Integer.toString(random.nextInt(1_000_000), 36) + "/" + random.nextInt(3);
                model.put(key, "v" + i);
                batch.put(namespace, text(key), text("v" + i));
            }
            device.write(batch);
            for (int i = 0; i < 200; i++) {
                String a = Integer.toString(random.nextInt(1_000_000), 36);
                String b = Integer.toString(random.nextInt(1_000_000), 36);
                String from = a.compareTo(b) < 0 ? a : b;
                String to = a.compareTo(b) < 0 ? b : a;
                List<String> expected = new ArrayList<>(model.subMap(from, to).keySet());
                KeyRange range = KeyRange.from(text(from)).to(text(to));
                assertEquals(expected, keysOf(namespace.range(range.keysOnly())));
                assertEquals(expected.reversed(), keysOf(namespace.range(range.backwards())));
                assertEquals(expected.size(), namespace.count(range));
                String prefix = from.substring(0, 1 + random.nextInt(2));
                List<String> begin = model.tailMap(prefix).keySet().stream().filter(key -> key.startsWith(prefix)).toList();
                assertEquals(begin, keysOf(namespace.range(KeyRange.prefix(text(prefix)))));
                assertEquals(begin.size(), namespace.count(KeyRange.prefix(text(prefix))));
            }
            String some = model.higherKey("m");
            assertEquals(List.of(some), keysOf(namespace.range(KeyRange.from(text(some)).through(text(some)))));
            assertEquals(model.higherKey(some), new String(namespace.range(KeyRange.after(text(some))).next().key()));
            assertEquals(0, namespace.count(KeyRange.from(text("z")).to(text("a"))));
            assertEquals(model.firstKey(), new String(namespace.first().orElseThrow().key()));
            assertArrayEquals(text(model.lastEntry().getValue()), namespace.last().orElseThrow().value());
            assertEquals(model.size(), namespace.count(KeyRange.prefix(new byte[0])));
            long deleted = namespace.deleteRange(KeyRange.prefix(text("1")));
            assertEquals(model.keySet().stream().filter(key -> key.startsWith("1")).count(), deleted);
            assertEquals(model.size() - deleted, namespace.count(KeyRange.all()));
            namespace.put(new byte[] {(byte) 0xff, (byte) 0xff}, text("end"));
            assertEquals(1, namespace.count(KeyRange.prefix(new byte[] {(byte) 0xff})));
            RecordIterator closed = namespace.range(KeyRange.all());
            closed.next();
            closed.close();
            closed.close();
            assertFalse(closed.hasNext());
            assertThrows(NoSuchElementException.class, closed::next);
            Namespace hashed = device.createNamespace("h", NamespaceOptions.of(KeyKind.ANY));
            fails(Status.BAD_ARGUMENT, () -> hashed.range(KeyRange.all()).hasNext());
        }
    }

    /**
     * Goal: a snapshot, and an iterator, show what was there when they were opened.
     * Method: overwrite, delete and add meanwhile.
     */
    @Test
    void snapshotsStand() {
        try (Device device = Device.inMemory(BYTES)) {
            Namespace namespace = device.createNamespace("n", NamespaceOptions.ordered());
            for (int i = 0; i < 1000; i++) {
                namespace.put(text("%04d".formatted(i)), text("before"));
            }
            RecordIterator running;
            try (Snapshot snapshot = device.snapshot()) {
                running = snapshot.range(namespace, KeyRange.all());
                assertEquals("0000", new String(running.next().key()));
                namespace.deleteRange(KeyRange.from(text("0500")));
                namespace.put(text("0001"), text("after"));
                namespace.put(text("00015"), text("after"));
                assertArrayEquals(text("before"), snapshot.get(namespace, text("0001")));
                assertTrue(snapshot.exists(namespace, text("0999")));
                assertFalse(snapshot.exists(namespace, text("00015")));
                assertEquals(1000, snapshot.count(namespace, KeyRange.all()));
            }
            int left = 0;
            while (running.hasNext()) {
                assertArrayEquals(text("before"), running.next().value());
                left++;
            }
            assertEquals(999, left);
            assertEquals(501, namespace.count(KeyRange.all()));
        }
    }

    /**
     * Goal: what is closed stays closed, and says so; forgotten handles are closed by themselves.
     * Method: iterators of two thousand moments that nobody closes or keeps; use after closing.
     */
    @Test
    void nothingIsUsedAfterItsEnd() throws InterruptedException {
        Device device = Device.inMemory(BYTES);
        Namespace namespace = device.createNamespace("n", NamespaceOptions.ordered());
        namespace.put(text("a"), text("b"));
        for (int i = 0; i < 1_000; i++) {
            namespace.put(text("more " + i), text("than an iterator fetches at once"));
        }
        Snapshot snapshot = device.snapshot();
        long open = 0;
        for (int i = 0; i < 2_000; i++) {
            namespace.put(text("a"), Keys.u64(i));
            assertEquals("a", new String(namespace.range(KeyRange.all()).next().key()));
            open = Math.max(open, device.snapshotUsage().openCount());
        }
        assertTrue(open > 1, "iterators keep their moments");
        for (int i = 0; i < 600 && device.snapshotUsage().openCount() > 1; i++) {
            System.gc();
            Thread.sleep(100);
        }
        assertEquals(1, device.snapshotUsage().openCount());
        device.close();
        device.close();
        fails(Status.BAD_HANDLE, () -> namespace.get(text("a")));
        fails(Status.BAD_HANDLE, () -> snapshot.get(namespace, text("a")));
        fails(Status.BAD_HANDLE, () -> device.createNamespace("x", NamespaceOptions.ordered()));
        snapshot.close();
    }

    /**
     * Goal: many threads may use a device at once.
     * Method: platform and virtual threads put and get records of their own.
     */
    @Test
    void threadsShareADevice() throws InterruptedException {
        try (Device device = Device.inMemory(BYTES)) {
            Namespace namespace = device.createNamespace("n", NamespaceOptions.of(KeyKind.U64));
            List<Throwable> failures = java.util.Collections.synchronizedList(new ArrayList<>());
            List<Thread> threads = new ArrayList<>();
            for (int t = 0; t < 16; t++) {
                long first = t * 1000L;
                Runnable work = () -> {
                    try {
                        for (long key = first; key < first + 300; key++) {
                            namespace.put(Keys.u64(key), text("value " + key));
                            assertTrue(Arrays.equals(text("value " + key), namespace.get(Keys.u64(key))));
                        }
                    } catch (Throwable failure) {
                        failures.add(failure);
                    }
                };
                threads.add(t % 2 == 0 ? Thread.ofPlatform().start(work) : Thread.ofVirtual().start(work));
            }
            for (Thread thread : threads) {
                thread.join();
            }
            assertEquals(List.of(), failures);
            assertEquals(16 * 300, device.namespaces().getFirst().recordCount());
        }
    }
}
