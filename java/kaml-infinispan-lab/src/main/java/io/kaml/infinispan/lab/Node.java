package io.kaml.infinispan.lab;

import io.kaml.infinispan.configuration.KamlStoreConfiguration.Durability;
import io.kaml.infinispan.configuration.KamlStoreConfigurationBuilder;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.TreeMap;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.infinispan.AdvancedCache;
import org.infinispan.Cache;
import org.infinispan.commons.dataconversion.MediaType;
import org.infinispan.configuration.cache.CacheMode;
import org.infinispan.configuration.cache.ConfigurationBuilder;
import org.infinispan.configuration.global.GlobalConfigurationBuilder;
import org.infinispan.conflict.MergePolicy;
import org.infinispan.context.Flag;
import org.infinispan.eviction.EvictionStrategy;
import org.infinispan.globalstate.ConfigurationStorage;
import org.infinispan.manager.DefaultCacheManager;
import org.infinispan.manager.EmbeddedCacheManager;
import org.infinispan.partitionhandling.PartitionHandling;
import org.infinispan.topology.CacheTopology;

/**
 * One node of a cluster, a process of its own. It reads commands from its standard input, a line each, and writes a line for each result:
 * {@code NUMBER ok [TEXT]} or {@code NUMBER error TEXT}. Commands of one line after another can complete in any order.
 */
public final class Node {
    /** Names of the two caches. */
    static final String[] CACHES = {"replicated", "distributed"};
    /** Entries in memory. The others are in the store alone. */
    private static final int IN_MEMORY = 100;

    private final EmbeddedCacheManager manager;
    private final ExecutorService slow = Executors.newCachedThreadPool();

    private Node(EmbeddedCacheManager manager) {
        this.manager = manager;
    }

    /**
     * Starts a node.
     *
     * @param arguments its name, its directory, the durability of its store, SIFS or NONE, and the port of its RESP endpoint, or 0 for none
     */
    public static void main(String[] arguments) throws IOException {
        GlobalConfigurationBuilder global = GlobalConfigurationBuilder.defaultClusteredBuilder();
        global.transport().nodeName(arguments[0]).clusterName("kaml-lab").addProperty("configurationFile", "lab-jgroups.xml")
                .distributedSyncTimeout(20_000);
        global.jmx().enabled(false);
        global.globalState().enable().persistentLocation(arguments[1]).configurationStorage(ConfigurationStorage.OVERLAY);
        EmbeddedCacheManager manager = new DefaultCacheManager(global.build(), false);
        for (String name : CACHES) {
            manager.defineConfiguration(name, stored(name, arguments[2]).build());
        }
        int port = Integer.parseInt(arguments[3]);
        if (port != 0) {
            manager.defineConfiguration(Redis.CACHE, Redis.configure(stored("distributed", arguments[2])).build());
        }
        manager.start();
        Node node = new Node(manager);
        for (String name : CACHES) {
            manager.getCache(name);
        }
        if (port != 0) {
            Redis.start(manager, port);
        }
        node.print("0 ok started");
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            node.execute(line.split(" ", 5));
        }
        System.exit(0);
    }

    /** A cache over KAML; or over the default store of Infinispan, or without a store, with which a failure can be compared. */
    private static ConfigurationBuilder stored(String name, String store) {
        ConfigurationBuilder builder = new ConfigurationBuilder();
        builder.clustering().cacheMode(name.equals("replicated") ? CacheMode.REPL_SYNC : CacheMode.DIST_SYNC).remoteTimeout(10_000)
                .hash().numOwners(2).numSegments(64);
        // No merge policy: with one, Infinispan resolves conflicts whenever the coordinator changes, and can write an old value over a new one. While
        // the smaller part of a divided cluster refuses, there are no conflicts.
        builder.clustering().partitionHandling().whenSplit(PartitionHandling.DENY_READ_WRITES).mergePolicy(MergePolicy.NONE);
        builder.clustering().stateTransfer().timeout(60_000).awaitInitialTransfer(true);
        builder.encoding().mediaType(MediaType.TEXT_PLAIN_TYPE);
        if (!store.equals("NONE")) {
            builder.memory().maxCount(IN_MEMORY).whenFull(EvictionStrategy.REMOVE);
        }
        if (store.equals("NONE")) {
            return builder;
        } else if (store.equals("SIFS")) {
            builder.persistence().addSoftIndexFileStore().purgeOnStartup(true).dataLocation("data").indexLocation("index").syncWrites(true);
        } else {
            builder.persistence().addStore(KamlStoreConfigurationBuilder.class).location("kaml").durability(Durability.valueOf(store));
        }
        return builder;
    }

    private synchronized void print(String line) {
        System.out.println(line);
        System.out.flush();
    }

    private void execute(String[] command) {
        String number = command[0];
        if (command[1].equals("put") || command[1].equals("remove") || command[1].equals("get")) {
            Cache<String, String> cache = manager.getCache(command[2]);
            try {
                CompletionStage<String> stage = switch (command[1]) {
                    case "put" -> cache.putAsync(command[3], command[4]);
                    case "remove" -> cache.removeAsync(command[3]);
                    default -> cache.getAsync(command[3]);
                };
                stage.whenComplete((value, failure) -> print(failure != null ? number + " error " + failure : command[1].equals("get")
                        ? number + " ok " + value : number + " ok"));
            } catch (RuntimeException failure) {
                print(number + " error " + failure);
            }
            return;
        }
        slow.execute(() -> {
            try {
                print(number + " ok " + run(command));
            } catch (Exception failure) {
                print(number + " error " + failure);
            }
        });
    }

    private String run(String[] command) {
        switch (command[1]) {
            case "settled":
                // The numbers of the topologies: a node that was away can still have an old one, in which all is well.
                StringBuilder topologies = new StringBuilder("yes");
                for (String name : CACHES) {
                    if (!isSettled(name, Integer.parseInt(command[2]))) {
                        return "no";
                    }
                    topologies.append(' ').append(manager.getCache(name).getAdvancedCache().getDistributionManager().getCacheTopology().getTopologyId());
                }
                return topologies.toString();
            case "entries":
                // All entries of the cluster, read by iteration.
                StringBuilder all = new StringBuilder();
                new TreeMap<>(manager.<String, String>getCache(command[2])).forEach((key, value) -> all.append(key).append('=').append(value).append(','));
                return all.toString();
            case "values":
                // The same of the keys k0, k1, ..., read by get.
                return values(manager.getCache(command[2]), Integer.parseInt(command[3]));
            case "memory":
                // What this node has of them in memory.
                return values(manager.<String, String>getCache(command[2]).getAdvancedCache().withFlags(Flag.CACHE_MODE_LOCAL, Flag.SKIP_CACHE_LOAD),
                        Integer.parseInt(command[3]));
            case "where":
                // What this node has of a key in memory, and what in memory or its store.
                AdvancedCache<String, String> local = manager.<String, String>getCache(command[2]).getAdvancedCache().withFlags(Flag.CACHE_MODE_LOCAL);
                return cut(local.withFlags(Flag.SKIP_CACHE_LOAD).get(command[3])) + " in memory, " + cut(local.get(command[3])) + " with its store; it iterates over "
                        + cut(iterated(local.withFlags(Flag.SKIP_CACHE_LOAD), command[3])) + " in memory, " + cut(iterated(local, command[3])) + " with its store";
            case "shutdown":
                for (String name : CACHES) {
                    manager.getCache(name).shutdown();
                }
                return "done";
            case "ended":
                for (String name : CACHES) {
                    if (manager.isRunning(name)) {
                        return "no";
                    }
                }
                return "yes";
            default:
                throw new IllegalArgumentException("unknown command " + command[1]);
        }
    }

    private static String values(Cache<String, String> cache, int count) {
        StringBuilder values = new StringBuilder();
        for (int i = 0; i < count; i++) {
            String value = cache.get("k" + i);
            values.append(value == null ? "" : "k" + i + "=" + value + ",");
        }
        return values.toString();
    }

    private static String iterated(AdvancedCache<String, String> cache, String key) {
        return new TreeMap<>(cache).get(key);
    }

    private static String cut(String value) {
        return value == null ? "nothing" : value.replaceAll("x+$", "");
    }

    private boolean isSettled(String name, int nodes) {
        AdvancedCache<?, ?> cache = manager.getCache(name).getAdvancedCache();
        CacheTopology topology = cache.getDistributionManager().getCacheTopology();
        return topology.getMembers().size() == nodes && topology.getPendingCH() == null && !cache.getDistributionManager().isRehashInProgress()
                && cache.getAvailability() == org.infinispan.partitionhandling.AvailabilityMode.AVAILABLE
                && manager.getMembers().size() == nodes;
    }

    /** The device of a node. */
    static Path device(Path directory) {
        return directory.resolve("kaml").resolve("device.kaml");
    }
}
