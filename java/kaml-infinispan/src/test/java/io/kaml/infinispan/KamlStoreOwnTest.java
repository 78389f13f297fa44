package io.kaml.infinispan;

import static org.testng.AssertJUnit.assertEquals;
import static org.testng.AssertJUnit.assertFalse;
import static org.testng.AssertJUnit.assertNull;
import static org.testng.AssertJUnit.assertTrue;
import static org.testng.AssertJUnit.fail;

import io.kaml.Device;
import io.kaml.Entry;
import io.kaml.KeyRange;
import io.kaml.Namespace;
import io.kaml.RecordIterator;
import io.kaml.infinispan.configuration.KamlStoreConfiguration.Durability;
import io.kaml.infinispan.configuration.KamlStoreConfigurationBuilder;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Comparator;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import java.util.stream.Stream;
import org.infinispan.AdvancedCache;
import org.infinispan.Cache;
import org.infinispan.commons.test.TestResourceTracker;
import org.infinispan.commons.time.ControlledTimeService;
import org.infinispan.commons.time.TimeService;
import org.infinispan.configuration.cache.CacheMode;
import org.infinispan.configuration.cache.ConfigurationBuilder;
import org.infinispan.configuration.cache.StorageType;
import org.infinispan.configuration.global.GlobalConfigurationBuilder;
import org.infinispan.context.Flag;
import org.infinispan.eviction.EvictionStrategy;
import org.infinispan.manager.DefaultCacheManager;
import org.infinispan.manager.EmbeddedCacheManager;
import org.infinispan.notifications.Listener;
import org.infinispan.notifications.cachelistener.annotation.CacheEntryExpired;
import org.infinispan.notifications.cachelistener.event.CacheEntryExpiredEvent;
import org.infinispan.test.TestingUtil;
import org.infinispan.test.fwk.TestCacheManagerFactory;
import org.infinispan.transaction.LockingMode;
import org.infinispan.transaction.TransactionMode;
import org.infinispan.transaction.lookup.EmbeddedTransactionManagerLookup;
import org.testng.annotations.AfterMethod;
import org.testng.annotations.BeforeMethod;
import org.testng.annotations.Test;

/** What Infinispan's own tests do not look at: caches that start again, long keys, segments, sharing, transactions, expiry. */
@Test(groups = "unit", testName = "io.kaml.infinispan.KamlStoreOwnTest")
public class KamlStoreOwnTest {
    private Path directory;

    @BeforeMethod
    void makeDirectory() throws IOException {
        directory = Files.createTempDirectory("kaml-infinispan");
    }

    @AfterMethod(alwaysRun = true)
    void removeDirectory() throws IOException {
        try (Stream<Path> files = Files.walk(directory)) {
            for (Path file : files.sorted(Comparator.reverseOrder()).toList()) {
                Files.delete(file);
            }
        }
    }

    private ConfigurationBuilder stored(Consumer<KamlStoreConfigurationBuilder> more) {
        ConfigurationBuilder builder = new ConfigurationBuilder();
        KamlStoreConfigurationBuilder store = builder.persistence().addStore(KamlStoreConfigurationBuilder.class)
                .location(directory.toString()).durability(Durability.PROCESS);
        more.accept(store);
        return builder;
    }

    private static EmbeddedCacheManager manager() {
        GlobalConfigurationBuilder global = new GlobalConfigurationBuilder().nonClusteredDefault();
        global.jmx().enabled(false);
        return new DefaultCacheManager(global.build());
    }

    private interface Use {
        void of(Cache<Object, Object> cache) throws Exception;
    }

    /** A cache manager with one cache of a configuration, which ends afterwards. */
    private static void with(ConfigurationBuilder configuration, Use use) throws Exception {
        with(configuration, null, use);
    }

    private static void with(ConfigurationBuilder configuration, TimeService time, Use use) throws Exception {
        try (EmbeddedCacheManager manager = manager()) {
            if (time != null) {
                TestingUtil.replaceComponent(manager, TimeService.class, time, true);
            }
            manager.defineConfiguration("cache", configuration.build());
            use.of(manager.getCache("cache"));
        }
    }

    private Path device() {
        return directory.resolve("device.kaml");
    }

    private long records(String namespace) {
        try (Device device = Device.open(device())) {
            return device.namespace(namespace).count(KeyRange.all());
        }
    }

    /**
     * Goal: entries are read back after a restart, with keys of any length and values of any type.
     * Method: keys around the length at which they are cut off, two long ones that differ in the last byte; restart; load, iterate, delete.
     */
    public void entriesSurvive() throws Exception {
        Map<Object, Object> expected = new HashMap<>();
        for (int length : new int[] {0, 1, 16, 900, Layout.KEY_BYTES_WHOLE - 5, Layout.KEY_BYTES_WHOLE, 1016, 1024, 5000}) {
            expected.put("k".repeat(length), "value of " + length);
            expected.put("k".repeat(length) + "!", length);
        }
        expected.put("large", "v".repeat(300_000));
        ConfigurationBuilder configuration = stored(store -> {});
        with(configuration, cache -> {
            expected.forEach(cache::put);
            cache.put("k".repeat(5000), "replaced");
            cache.put("gone", "x");
            assertEquals("x", cache.remove("gone"));
        });
        expected.put("k".repeat(5000), "replaced");
        with(configuration, cache -> {
            assertEquals(expected.size(), cache.size());
            assertEquals(expected, new HashMap<>(cache));
            assertEquals(expected.keySet(), new HashSet<>(cache.keySet()));
            expected.forEach((key, value) -> assertEquals(value, cache.get(key)));
            assertNull(cache.get("gone"));
            assertNull(cache.get("k".repeat(5001)));
            expected.keySet().forEach(cache::remove);
        });
        assertEquals(0, records("infinispan/cache"));
        with(configuration, cache -> assertEquals(0, cache.size()));
    }

    /**
     * Goal: a cache that is configured with another number of segments finds all its entries, and keeps each of them once.
     * Method: store with one number, open with others, segmented and not; look at the keys of the device.
     */
    public void segmentsCanChange() throws Exception {
        for (int segments : new int[] {256, 7, 1, 1000}) {
            for (boolean segmented : new boolean[] {true, false}) {
                ConfigurationBuilder configuration = stored(store -> store.segmented(segmented));
                configuration.clustering().hash().numSegments(segments);
                with(configuration, cache -> {
                    if (cache.isEmpty()) {
                        for (int i = 0; i < 1000; i++) {
                            cache.put(i, "v" + i, i % 2 == 0 ? -1 : 1, TimeUnit.DAYS);
                        }
                    }
                    assertEquals(1000, cache.size());
                    for (int i = 0; i < 1000; i++) {
                        assertEquals("v" + i, cache.get(i));
                    }
                });
                Set<Integer> used = new HashSet<>();
                try (Device device = Device.open(device())) {
                    try (RecordIterator all = device.namespace("infinispan/cache").range(KeyRange.all().keysOnly())) {
                        all.forEachRemaining(entry -> used.add(Layout.segmentOf(entry.key())));
                    }
                    assertEquals(1000, device.namespace("infinispan/cache").count(KeyRange.all()));
                    // Each record that can expire has an expiry with its key, from the last number of segments or an earlier one.
                    Namespace expiries = device.namespace("infinispan-expiries/cache");
                    assertTrue(expiries.count(KeyRange.all()) >= 500);
                }
                assertTrue(used.toString(), used.stream().allMatch(segment -> segment < segments));
            }
        }
    }

    /**
     * Goal: caches of one process share a device; a second cache of one name, and another durability, are refused with what to do.
     * Method: two caches of one path, of one manager and of two.
     */
    public void cachesShareADevice() throws Exception {
        ConfigurationBuilder configuration = stored(store -> {});
        try (EmbeddedCacheManager one = manager(); EmbeddedCacheManager two = manager()) {
            one.defineConfiguration("a", configuration.build());
            one.defineConfiguration("b", configuration.build());
            one.getCache("a").put("key", "of a");
            one.getCache("b").put("key", "of b");
            two.defineConfiguration("a", configuration.build());
            refused(() -> two.getCache("a"), "already running in this process");
            two.defineConfiguration("c", stored(store -> store.durability(Durability.POWER)).build());
            refused(() -> two.getCache("c"), "one durability for all caches");
            one.getCache("a").stop();
            assertEquals("of b", one.getCache("b").get("key"));
            two.defineConfiguration("d", configuration.build());
            two.getCache("d").put("key", "of d");
        }
        with(stored(store -> {}), cache -> assertNull(cache.get("key")));
        assertEquals(1, records("infinispan/a"));
        assertEquals(1, records("infinispan/b"));
        assertEquals(1, records("infinispan/d"));
    }

    private static void refused(Runnable call, String words) {
        try {
            call.run();
        } catch (RuntimeException failure) {
            for (Throwable cause = failure; cause != null; cause = cause.getCause()) {
                if (String.valueOf(cause.getMessage()).contains(words)) {
                    return;
                }
            }
            throw failure;
        }
        fail("not refused: " + words);
    }

    /**
     * Goal: a transaction is stored as a whole at its commit, or not at all; one that is too large is refused before it changes anything.
     * Method: commit, rollback, and a transaction of more bytes than the device takes at once, with a store that takes part.
     */
    public void transactionsAreAtomic() throws Exception {
        ConfigurationBuilder configuration = stored(store -> store.transactional(true));
        configuration.transaction().transactionMode(TransactionMode.TRANSACTIONAL).lockingMode(LockingMode.OPTIMISTIC)
                .transactionManagerLookup(new EmbeddedTransactionManagerLookup());
        with(configuration, cache -> {
            AdvancedCache<Object, Object> advanced = cache.getAdvancedCache();
            advanced.getTransactionManager().begin();
            cache.put("a", 1);
            cache.put("b", 1);
            advanced.getTransactionManager().commit();
            advanced.getTransactionManager().begin();
            cache.put("a", 2);
            cache.remove("b");
            advanced.getTransactionManager().rollback();
            advanced.getTransactionManager().begin();
            cache.put("c", 3);
            cache.remove("a");
            advanced.getTransactionManager().commit();
            advanced.getTransactionManager().begin();
            for (int i = 0; i < 3000; i++) {
                cache.put("large" + i, "v".repeat(20_000));
            }
            refused(() -> {
                try {
                    advanced.getTransactionManager().commit();
                } catch (Exception failure) {
                    throw new IllegalStateException(failure);
                }
            }, "make smaller transactions");
        });
        with(configuration, cache -> assertEquals(Map.of("b", 1, "c", 3), new HashMap<>(cache)));
    }

    /** Collects the keys of expired entries. */
    @Listener
    public static final class Expired {
        final Set<Object> keys = new HashSet<>();

        @CacheEntryExpired
        public synchronized void note(CacheEntryExpiredEvent<Object, Object> event) {
            keys.add(event.getKey());
        }
    }

    /**
     * Goal: expired entries are not returned, are purged with an event for each, and leave nothing on the device. An entry that was stored
     * again lives as long as its last lifespan.
     * Method: entries with short and long lifespans, more than one step of a purge, not in memory; a clock that the test sets.
     */
    public void entriesExpire() throws Exception {
        ConfigurationBuilder configuration = stored(store -> {});
        configuration.expiration().disableReaper();
        configuration.memory().maxCount(1).whenFull(EvictionStrategy.REMOVE).storage(StorageType.HEAP);
        ControlledTimeService time = new ControlledTimeService();
        with(configuration, time, cache -> {
            Expired expired = new Expired();
            cache.addListener(expired);
            Set<Object> due = new HashSet<>();
            for (int i = 0; i < 700; i++) {
                cache.put(i, "v", 10, TimeUnit.SECONDS);
                due.add(i);
            }
            cache.put("forever", "v");
            cache.put("long", "v", 1000, TimeUnit.SECONDS);
            cache.put("again", "v", 10, TimeUnit.SECONDS);
            cache.put("again", "v", 1000, TimeUnit.SECONDS);
            cache.put("now forever", "v", 10, TimeUnit.SECONDS);
            cache.put("now forever", "v");
            cache.put("idle", "v", -1, TimeUnit.SECONDS, 10, TimeUnit.SECONDS);
            due.add("idle");
            Set<Object> kept = Set.of("forever", "long", "again", "now forever");
            assertEquals(due.size() + 4, cache.size());
            time.advance(TimeUnit.SECONDS.toMillis(11));
            assertEquals(4, cache.size());
            assertEquals(kept, new HashSet<>(cache.keySet()));
            assertNull(cache.get(699));
            assertFalse(cache.containsKey(5));
            cache.getAdvancedCache().getExpirationManager().processExpiration();
            assertEquals(kept, new HashSet<>(cache.keySet()));
            due.removeAll(expired.keys);
            assertEquals(Set.of(), due);
            for (Object key : kept) {
                assertEquals("v", cache.get(key));
            }
        });
        assertEquals(4, records("infinispan/cache"));
        assertEquals(2, records("infinispan-expiries/cache"));
    }

    /**
     * Goal: a purge never deletes an entry that is stored again at the same time.
     * Method: entries that have expired are stored again, while purges run; all of them must be found.
     */
    public void purgesRaceWithWrites() throws Exception {
        ConfigurationBuilder configuration = stored(store -> {});
        configuration.expiration().disableReaper();
        configuration.memory().maxCount(1).whenFull(EvictionStrategy.REMOVE);
        with(configuration, cache -> {
            for (int round = 0; round < 20; round++) {
                for (int i = 0; i < 50; i++) {
                    cache.put(i, "short", 1, TimeUnit.MILLISECONDS);
                }
                Thread.sleep(3);
                Thread purger = new Thread(() -> cache.getAdvancedCache().getExpirationManager().processExpiration());
                purger.start();
                for (int i = 0; i < 50; i++) {
                    cache.put(i, "kept");
                }
                purger.join();
                for (int i = 0; i < 50; i++) {
                    assertEquals("kept", cache.get(i));
                }
            }
        });
    }

    /**
     * Goal: what a cluster deletes while a node is away does not come back with the node, unless this was requested; what exists is whole.
     * Method: two nodes; one ends without a shutdown of the cache; entries are put and removed; it starts again on its device.
     */
    public void deletedEntriesDoNotReturn() throws Exception {
        TestResourceTracker.testThreadStarted(getClass().getName());
        for (boolean keepStale : new boolean[] {false, true}) {
            for (CacheMode mode : new CacheMode[] {CacheMode.REPL_SYNC, CacheMode.DIST_SYNC}) {
                Path[] paths = {directory.resolve(mode + "1" + keepStale), directory.resolve(mode + "2" + keepStale)};
                try (EmbeddedCacheManager first = clustered(paths[0], mode, keepStale)) {
                    Cache<Object, Object> cache = first.getCache("cache");
                    try (EmbeddedCacheManager second = clustered(paths[1], mode, keepStale)) {
                        TestingUtil.waitForNoRebalance(cache, second.getCache("cache"));
                        for (int i = 0; i < 100; i++) {
                            cache.put(i, "v");
                        }
                    }
                    TestingUtil.waitForNoRebalance(cache);
                    for (int i = 0; i < 50; i++) {
                        cache.remove(i);
                        cache.put(100 + i, "v");
                    }
                    try (EmbeddedCacheManager second = clustered(paths[1], mode, keepStale)) {
                        Cache<Object, Object> again = second.getCache("cache");
                        TestingUtil.waitForNoRebalance(cache, again);
                        Set<Object> stored = new HashSet<>(again.getAdvancedCache().withFlags(Flag.CACHE_MODE_LOCAL).keySet());
                        for (int i = 50; i < 150; i++) {
                            assertTrue(stored.contains(i));
                        }
                        assertEquals(keepStale ? 150 : 100, stored.size());
                    }
                }
            }
        }
    }

    private static EmbeddedCacheManager clustered(Path path, CacheMode mode, boolean keepStale) {
        GlobalConfigurationBuilder global = GlobalConfigurationBuilder.defaultClusteredBuilder();
        ConfigurationBuilder builder = new ConfigurationBuilder();
        builder.clustering().cacheMode(mode).hash().numSegments(16);
        builder.memory().maxCount(1).whenFull(EvictionStrategy.REMOVE);
        builder.persistence().addStore(KamlStoreConfigurationBuilder.class).location(path.toString()).durability(Durability.PROCESS)
                .keepStale(keepStale);
        EmbeddedCacheManager manager = TestCacheManagerFactory.createClusteredCacheManager(global, new ConfigurationBuilder());
        manager.defineConfiguration("cache", builder.build());
        manager.getCache("cache");
        return manager;
    }

    /**
     * Goal: values that no device takes are refused by name, and others of the same time are stored.
     * Method: a value above the limit among small ones, asynchronously, so they share a Put.
     */
    public void oneRefusalIsOne() throws Exception {
        with(stored(store -> {}), cache -> {
            byte[] huge = new byte[70 << 20];
            var stages = new HashMap<Object, java.util.concurrent.CompletableFuture<Object>>();
            for (int i = 0; i < 50; i++) {
                stages.put(i, cache.putAsync(i, i == 25 ? huge : "small"));
            }
            for (var stage : stages.entrySet()) {
                if (stage.getKey().equals(25)) {
                    refused(() -> stage.getValue().join(), "bytes");
                } else {
                    stage.getValue().join();
                }
            }
        });
        assertEquals(49, records("infinispan/cache"));
    }

    /**
     * Goal: bytes that the store did not write give an error that names them.
     * Method: values with a wrong version, unknown flags and lengths beyond their end.
     */
    public void foreignBytesAreRefused() {
        byte[] key = {0, 0, 1};
        for (byte[] value : List.of(new byte[0], new byte[] {1}, new byte[] {2, 0}, new byte[] {1, 32}, new byte[] {1, 1, 0},
                new byte[] {1, 8, 0, 0, 0, 0}, new byte[] {1, 2, 0, 0, 0, 1}, new byte[] {1, 2, -1, -1, -1, -1, 0}, new byte[] {1, 2, 0})) {
            refused(() -> Layout.decode(new Entry(key, value)), "another program or a later version");
        }
        assertEquals(0, Layout.decode(key, new byte[] {1, 16}).value().getLength());
    }
}
