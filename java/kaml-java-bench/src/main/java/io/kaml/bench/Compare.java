package io.kaml.bench;

import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.EnumMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.SplittableRandom;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicReference;

/**
 * Puts and gets of KAML and of RocksDB from Java. The engines have their turns one after another in each round, and the median of the rounds
 * is shown. Each value contains its key, which every get checks.
 */
public final class Compare {
    private static final int BATCH = 64;
    private static final int[] THREADS = {1, 16};
    private static final int ROUNDS = 3;

    private final long records;
    private final int valueBytes;
    private final long turnMs;
    private final Path directory;
    private final long cacheBytes;

    private Compare(long records, int valueBytes, long turnMs, Path directory) {
        this.records = records;
        this.valueBytes = valueBytes;
        this.turnMs = turnMs;
        this.directory = directory;
        cacheBytes = Math.max(8L << 20, records * valueBytes / 10);
    }

    /** Operations of a turn. */
    private record Turn(double perSecond, double p99Us) {}

    /** One operation on a key. */
    private interface Operation {
        void run(Engine engine, long key, SplittableRandom random);
    }

    /**
     * Measures.
     *
     * @param arguments number of records, bytes of a value, milliseconds of a turn, and an empty directory on the disk that is measured
     */
    public static void main(String[] arguments) throws Exception {
        Path directory = Files.createDirectories(Path.of(arguments[3]));
        new Compare(Long.parseLong(arguments[0]), Integer.parseInt(arguments[1]), Long.parseLong(arguments[2]), directory).run();
    }

    private void run() throws Exception {
        Map<String, Map<Engine.Kind, List<Turn>>> rows = new LinkedHashMap<>();
        for (Engine.Kind kind : Engine.Kind.values()) {
            load(kind);
        }
        for (int round = 0; round < ROUNDS; round++) {
            for (Engine.Kind kind : Engine.Kind.values()) {
                try (Engine engine = open(kind)) {
                    for (int threads : THREADS) {
                        turn(rows, "gets, " + threads + (threads == 1 ? " thread" : " threads"), kind, engine, threads, this::get);
                        turn(rows, "durable puts, " + threads + (threads == 1 ? " thread" : " threads"), kind, engine, threads, this::put);
                    }
                    turn(rows, "gets of absent keys, 1 thread", kind, engine, 1, this::getAbsent);
                }
            }
        }
        print(rows);
    }

    private Engine open(Engine.Kind kind) {
        return kind.open(directory, records * valueBytes, cacheBytes);
    }

    private void load(Engine.Kind kind) {
        SplittableRandom random = new SplittableRandom(7);
        try (Engine engine = open(kind)) {
            for (long first = 0; first < records; first += BATCH) {
                byte[][] values = new byte[(int) Math.min(BATCH, records - first)][];
                for (int i = 0; i < values.length; i++) {
                    values[i] = value(first + i, random);
                }
                engine.putAll(first, values);
            }
        }
    }

    /** Bytes that do not compress, after the key. */
    private byte[] value(long key, SplittableRandom random) {
        byte[] value = new byte[valueBytes];
        random.nextBytes(value);
        ByteBuffer.wrap(value).putLong(key);
        return value;
    }

    private void put(Engine engine, long key, SplittableRandom random) {
        engine.put(key, value(key, random));
    }

    private void get(Engine engine, long key, SplittableRandom random) {
        byte[] value = engine.get(key);
        if (value == null || value.length != valueBytes || ByteBuffer.wrap(value).getLong() != key) {
            throw new IllegalStateException("a wrong value of key " + key);
        }
    }

    private void getAbsent(Engine engine, long key, SplittableRandom random) {
        if (engine.get(records + key) != null) {
            throw new IllegalStateException("a value of an absent key");
        }
    }

    private void turn(Map<String, Map<Engine.Kind, List<Turn>>> rows, String row, Engine.Kind kind, Engine engine, int threads, Operation operation)
            throws InterruptedException {
        // A tenth of the time, so code is compiled and caches are filled.
        measure(engine, threads, operation, turnMs / 10);
        Turn turn = measure(engine, threads, operation, turnMs);
        rows.computeIfAbsent(row, absent -> new EnumMap<>(Engine.Kind.class)).computeIfAbsent(kind, absent -> new ArrayList<>()).add(turn);
    }

    private Turn measure(Engine engine, int threads, Operation operation, long ms) throws InterruptedException {
        List<long[]> latencies = new ArrayList<>();
        AtomicReference<Throwable> failure = new AtomicReference<>();
        CountDownLatch begin = new CountDownLatch(1);
        List<Thread> all = new ArrayList<>();
        for (int i = 0; i < threads; i++) {
            SplittableRandom random = new SplittableRandom(System.nanoTime() + i);
            all.add(Thread.ofPlatform().start(() -> {
                long[] mine = new long[1 << 16];
                int count = 0;
                try {
                    begin.await();
                    long end = System.nanoTime() + ms * 1_000_000;
                    for (long before = System.nanoTime(); before < end;) {
                        operation.run(engine, random.nextLong(records), random);
                        long after = System.nanoTime();
                        mine = count == mine.length ? Arrays.copyOf(mine, 2 * count) : mine;
                        mine[count++] = after - before;
                        before = after;
                    }
                } catch (Throwable thrown) {
                    failure.set(thrown);
                }
                synchronized (latencies) {
                    latencies.add(Arrays.copyOf(mine, count));
                }
            }));
        }
        long first = System.nanoTime();
        begin.countDown();
        for (Thread thread : all) {
            thread.join();
        }
        double seconds = (System.nanoTime() - first) / 1e9;
        if (failure.get() != null) {
            throw new IllegalStateException(failure.get());
        }
        long[] sorted = latencies.stream().flatMapToLong(Arrays::stream).sorted().toArray();
        return new Turn(sorted.length / seconds, sorted[(int) (sorted.length * 0.99)] / 1000.0);
    }

    private void print(Map<String, Map<Engine.Kind, List<Turn>>> rows) {
        StringBuilder head = new StringBuilder("| operations/s, p99 |");
        for (Engine.Kind kind : Engine.Kind.values()) {
            head.append(' ').append(kind.title).append(" |");
        }
        System.out.printf("%d records of %d bytes, block cache of RocksDB %d MiB, %d ms a turn, median of %d%n%n", records, valueBytes,
                cacheBytes >> 20, turnMs, ROUNDS);
        System.out.println(head);
        System.out.println("|---".repeat(Engine.Kind.values().length + 1) + "|");
        rows.forEach((row, kinds) -> {
            StringBuilder line = new StringBuilder("| ").append(row).append(" |");
            kinds.forEach((kind, turns) -> {
                turns.sort((one, other) -> Double.compare(one.perSecond, other.perSecond));
                Turn median = turns.get(turns.size() / 2);
                line.append(String.format(" %,.0f, %,.0f µs |", median.perSecond, median.p99Us));
            });
            System.out.println(line);
        });
    }
}
