package io.kaml.infinispan.lab;

import io.kaml.infinispan.configuration.KamlStoreConfiguration.Durability;
import io.kaml.infinispan.configuration.KamlStoreConfigurationBuilder;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.SplittableRandom;
import java.util.stream.Stream;
import org.infinispan.AdvancedCache;
import org.infinispan.configuration.cache.ConfigurationBuilder;
import org.infinispan.configuration.global.GlobalConfigurationBuilder;
import org.infinispan.context.Flag;
import org.infinispan.eviction.EvictionStrategy;
import org.infinispan.manager.DefaultCacheManager;
import org.infinispan.manager.EmbeddedCacheManager;
import org.infinispan.persistence.rocksdb.configuration.RocksDBStoreConfigurationBuilder;
import org.infinispan.persistence.sifs.configuration.SoftIndexFileStoreConfigurationBuilder;

/**
 * Measures a local cache over KAML and over the other stores of Infinispan. Each step is a process of its own. The cache has few entries in
 * memory, so reads reach the store.
 */
public final class Bench {
    private static final int IN_MEMORY = 1000;

    private enum Kind {
        KAML_POWER("KAML, POWER"),
        SIFS_SYNC("SIFS, sync-writes"),
        KAML_PROCESS("KAML, PROCESS"),
        SIFS("SIFS, default"),
        ROCKSDB("RocksDB");

        final String title;

        Kind(String title) {
            this.title = title;
        }

        void configure(ConfigurationBuilder builder, Path directory) {
            switch (this) {
                case KAML_POWER, KAML_PROCESS -> builder.persistence().addStore(KamlStoreConfigurationBuilder.class)
                        .location(directory.toString()).durability(this == KAML_POWER ? Durability.POWER : Durability.PROCESS);
                case SIFS_SYNC, SIFS -> builder.persistence().addStore(SoftIndexFileStoreConfigurationBuilder.class)
                        .dataLocation(directory.resolve("data").toString()).indexLocation(directory.resolve("index").toString())
                        .syncWrites(this == SIFS_SYNC);
                case ROCKSDB -> builder.persistence().addStore(RocksDBStoreConfigurationBuilder.class)
                        .location(directory.resolve("data").toString()).expiredLocation(directory.resolve("expired").toString());
            }
        }
    }

    private final Kind kind;
    private final Path directory;
    private final int entries;
    private final int valueBytes;
    private final int threads;

    private Bench(Kind kind, Path directory, int entries, int valueBytes, int threads) {
        this.kind = kind;
        this.directory = directory;
        this.entries = entries;
        this.valueBytes = valueBytes;
        this.threads = threads;
    }

    /**
     * Runs all, or one step in this process.
     *
     * @param arguments entries, bytes of a value, threads, a directory; then kind and step for one step
     */
    public static void main(String[] arguments) throws Exception {
        int entries = Integer.parseInt(arguments[0]);
        int valueBytes = Integer.parseInt(arguments[1]);
        int threads = Integer.parseInt(arguments[2]);
        Path directory = Path.of(arguments[3]);
        if (arguments.length == 6) {
            Kind kind = Kind.valueOf(arguments[4]);
            new Bench(kind, directory, entries, valueBytes, threads).step(arguments[5]);
            return;
        }
        System.out.printf("%,d entries of %,d bytes, %d threads, %d processors%n%n", entries, valueBytes, threads,
                Runtime.getRuntime().availableProcessors());
        System.out.println("| store | puts/s | overwrites/s | gets/s, not in memory | gets/s, absent | size / data | start after close, ms | start after SIGKILL, ms |");
        System.out.println("|---|---|---|---|---|---|---|---|");
        for (Kind kind : Kind.values()) {
            Path own = directory.resolve(kind.name());
            delete(own);
            Files.createDirectories(own);
            Map<String, Double> found = new LinkedHashMap<>();
            for (String step : List.of("load", "restart-killed", "restart-closed")) {
                run(List.of(arguments[0], arguments[1], arguments[2], own.toString(), kind.name(), step), found);
                if (step.equals("load")) {
                    found.put("size", used(own) / (double) (entries * (long) valueBytes));
                }
            }
            System.out.printf(Locale.ROOT, "| %s | %,.0f | %,.0f | %,.0f | %,.0f | %.2f | %,.0f | %,.0f |%n", kind.title, found.get("put"),
                    found.get("overwrite"), found.get("get"), found.get("absent"), found.get("size"), found.get("closed"), found.get("killed"));
            delete(own);
        }
    }

    private static void run(List<String> arguments, Map<String, Double> found) throws Exception {
        List<String> command = new ArrayList<>(List.of(Path.of(System.getProperty("java.home"), "bin", "java").toString(),
                "--enable-native-access=ALL-UNNAMED", "-Xmx1g", "-XX:+UseParallelGC", "-Dkaml.library=" + System.getProperty("kaml.library"),
                "-cp", System.getProperty("java.class.path"), Bench.class.getName()));
        command.addAll(arguments);
        Process process = new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.DISCARD).start();
        try (BufferedReader lines = new BufferedReader(new InputStreamReader(process.getInputStream()))) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                if (line.startsWith("= ")) {
                    String[] parts = line.split(" ");
                    found.put(parts[1], Double.parseDouble(parts[2]));
                }
            }
        }
        process.waitFor();
    }

    private void step(String step) throws Exception {
        long begin = System.nanoTime();
        EmbeddedCacheManager manager = new DefaultCacheManager(new GlobalConfigurationBuilder().nonClusteredDefault().build(), false);
        ConfigurationBuilder builder = new ConfigurationBuilder();
        builder.memory().maxCount(IN_MEMORY).whenFull(EvictionStrategy.REMOVE);
        kind.configure(builder, directory);
        manager.defineConfiguration("cache", builder.build());
        manager.start();
        long managed = System.nanoTime();
        AdvancedCache<Object, Object> cache = manager.<Object, Object>getCache("cache").getAdvancedCache().withFlags(Flag.IGNORE_RETURN_VALUES);
        switch (step) {
            case "load" -> {
                print("put", measure(entries, (i, random) -> cache.put(i, value(random))));
                print("overwrite", measure(entries / 4, (i, random) -> cache.put(random.nextInt(entries), value(random))));
                print("get", measure(entries / 2, (i, random) -> {
                    if (cache.get(random.nextInt(entries)) == null) {
                        throw new IllegalStateException("an entry is missing");
                    }
                }));
                print("absent", measure(entries / 2, (i, random) -> cache.get(entries + random.nextInt(entries))));
                // As after SIGKILL: nothing is closed.
                Runtime.getRuntime().halt(0);
            }
            case "restart-killed", "restart-closed" -> {
                // Starting the cache manager is the same for all, so only the cache is measured.
                if (cache.get(entries / 2) == null || begin > managed) {
                    throw new IllegalStateException("an entry is missing");
                }
                print(step.substring("restart-".length()), (System.nanoTime() - managed) / 1e6);
                manager.stop();
            }
            default -> throw new IllegalArgumentException(step);
        }
    }

    private interface Operation {
        void run(int index, SplittableRandom random);
    }

    /** Runs operations on several threads, and returns how many a second there were. */
    private double measure(int count, Operation operation) throws InterruptedException {
        List<Thread> running = new ArrayList<>();
        long begin = System.nanoTime();
        for (int t = 0; t < threads; t++) {
            int thread = t;
            running.add(Thread.ofPlatform().start(() -> {
                SplittableRandom random = new SplittableRandom(thread);
                for (int i = thread; i < count; i += threads) {
                    operation.run(i, random);
                }
            }));
        }
        for (Thread thread : running) {
            thread.join();
        }
        return count / ((System.nanoTime() - begin) / 1e9);
    }

    /** Bytes that cannot be compressed. */
    private byte[] value(SplittableRandom random) {
        byte[] value = new byte[valueBytes];
        random.nextBytes(value);
        return value;
    }

    private static void print(String name, double value) {
        System.out.println("= " + name + " " + value);
        System.out.flush();
    }

    /** Bytes that the files take, without holes. */
    private static long used(Path directory) throws Exception {
        Process process = new ProcessBuilder("du", "-s", "--block-size=1", directory.toString()).start();
        try (BufferedReader lines = new BufferedReader(new InputStreamReader(process.getInputStream()))) {
            return Long.parseLong(lines.readLine().split("\\s")[0]);
        }
    }

    private static void delete(Path directory) throws IOException {
        if (Files.exists(directory)) {
            try (Stream<Path> files = Files.walk(directory)) {
                for (Path file : files.sorted(Comparator.reverseOrder()).toList()) {
                    Files.delete(file);
                }
            }
        }
    }
}
