package io.kaml.infinispan.lab;

import io.kaml.CheckReport;
import io.kaml.Device;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * Kills the nodes of a cluster of three under load, and compares all entries after each restart.
 *
 * <p>Each loop kills one node with SIGKILL, restarts it on its device, and compares. With the system property {@code lab.divide}, one loop in
 * ten also stops a node for longer than the others wait, continues it, so the partition heals, and counts wrong values on it; then it restarts
 * this node and compares all entries. Every twentieth loop restarts all nodes one after another. At the end all nodes stop one after another, and start again; then the cluster is shut down, and starts again;
 * both times all entries are compared, and at last all devices are checked.
 */
public final class Cluster {
    private static final int NODES = 3;
    private static final int WRITERS = 24;
    private static final int KEYS = 600;

    private final List<Peer> peers = new ArrayList<>();
    private final Map<String, Expected> expected = new HashMap<>();
    private final Object gate = new Object();
    private final List<String> kills = new ArrayList<>();
    private final long first = System.nanoTime();
    private final Random random;
    private final String durability;
    private boolean isPaused;
    private boolean isEnding;
    private int working;
    private volatile int unavailable = -1;

    private Cluster(Path directory, String durability, long seed) {
        random = new Random(seed);
        this.durability = durability;
        for (int i = 0; i < NODES; i++) {
            peers.add(new Peer(i, directory.resolve("node" + i), durability, false));
        }
        for (String cache : Node.CACHES) {
            expected.put(cache, new Expected());
        }
    }

    /**
     * Runs the loops.
     *
     * @param arguments the number of loops, POWER, PROCESS, SIFS or NONE, a directory, and a seed
     */
    public static void main(String[] arguments) throws Exception {
        int loops = Integer.parseInt(arguments[0]);
        Path directory = Files.createDirectories(Path.of(arguments[2]));
        new Cluster(directory, arguments[1], Long.parseLong(arguments[3])).run(loops);
        System.exit(0);
    }

    private void run(int loops) throws Exception {
        long begin = System.nanoTime();
        for (Peer peer : peers) {
            peer.start(NODES);
        }
        settle();
        List<Thread> writers = new ArrayList<>();
        for (int i = 0; i < WRITERS; i++) {
            int writer = i;
            long seed = random.nextLong();
            writers.add(Thread.ofPlatform().daemon().start(() -> write(writer, new Random(seed))));
        }
        try {
            for (int loop = 1; loop <= loops; loop++) {
                killOne();
                compareAll("SIGKILL " + loop);
                if (Boolean.getBoolean("lab.divide") && loop % 10 == 2) {
                    divide("the partition in loop " + loop);
                }
                if (loop % 20 == 0) {
                    restartAll();
                    compareAll("the rolling restart in loop " + loop);
                }
                if (loop % 5 == 0 || loop == loops) {
                    report(loop, begin);
                }
            }
            end(writers);
        } finally {
            for (Peer peer : peers) {
                if (peer.isRunning()) {
                    peer.kill();
                }
            }
        }
    }

    private long millis(long nanos) {
        return TimeUnit.NANOSECONDS.toMillis(nanos - first);
    }

    private void report(int loop, long begin) {
        long acknowledged = expected.values().stream().mapToLong(Expected::acknowledged).sum();
        long uncertain = expected.values().stream().mapToLong(Expected::uncertain).sum();
        long differing = expected.values().stream().mapToLong(Expected::differing).sum();
        System.out.printf("%d loops, %d s: %d changes acknowledged, %d of unknown result, %d of them on some nodes only; nothing lost, nothing came back%n",
                loop, TimeUnit.NANOSECONDS.toSeconds(System.nanoTime() - begin), acknowledged, uncertain, differing);
    }

    /** One thread of the load: it changes keys of its own, through any node that is running. */
    private void write(int writer, Random random) {
        for (long number = 0; enter(); number++) {
            try {
                String cache = Node.CACHES[random.nextInt(Node.CACHES.length)];
                Expected entries = expected.get(cache);
                String key = "k" + (random.nextInt(KEYS / WRITERS) * WRITERS + writer);
                int at = random.nextInt(NODES);
                Peer peer = peers.get(at);
                if (!entries.canUse(key) || !peer.isRunning() || at == unavailable) {
                    Thread.sleep(1);
                    continue;
                }
                String value = random.nextInt(4) == 0 ? null : "w" + writer + "-" + number + "-" + "x".repeat(random.nextInt(400));
                entries.begin(key, value);
                long begin = System.nanoTime();
                peer.send(value == null ? "remove " + cache + " " + key : "put " + cache + " " + key + " " + value).get(30, TimeUnit.SECONDS);
                entries.acknowledge(key, value, "through node" + at + " from " + millis(begin) + " to " + millis(System.nanoTime()) + " ms");
            } catch (Exception unknown) {
                // Its result is not known.
            } finally {
                leave();
            }
        }
    }

    private boolean enter() {
        synchronized (gate) {
            while (isPaused && !isEnding) {
                try {
                    gate.wait();
                } catch (InterruptedException interrupted) {
                    return false;
                }
            }
            working += isEnding ? 0 : 1;
            return !isEnding;
        }
    }

    private void leave() {
        synchronized (gate) {
            working -= 1;
            gate.notifyAll();
        }
    }

    private void pause() throws InterruptedException {
        synchronized (gate) {
            isPaused = true;
            while (working > 0) {
                gate.wait();
            }
        }
    }

    private void resume() {
        synchronized (gate) {
            isPaused = false;
            gate.notifyAll();
        }
    }

    private void killOne() throws Exception {
        Thread.sleep(random.nextInt(700));
        Peer victim = peers.get(random.nextInt(NODES));
        long before = System.nanoTime();
        victim.kill();
        kills.add(victim.directory().getFileName() + " killed between " + millis(before) + " and " + millis(System.nanoTime()) + " ms");
        Thread.sleep(random.nextInt(700));
        victim.start(NODES);
        settle();
    }

    /**
     * A node that does not run looks like one that the network has cut off.
     *
     * <p>Infinispan keeps old and deleted entries in the memory of such a node, whatever its store is, until it starts again.
     */
    private void divide(String what) throws Exception {
        int index = random.nextInt(NODES);
        unavailable = index;
        peers.get(index).signal("STOP");
        List<Peer> others = new ArrayList<>(peers);
        others.remove(index);
        await(others, NODES - 1);
        Thread.sleep(random.nextInt(2000));
        peers.get(index).signal("CONT");
        settle();
        pause();
        for (String cache : Node.CACHES) {
            // First what is in memory: a get loads what it finds in the store.
            Map<String, String> memory = parse(peers.get(index).call("memory " + cache + " " + KEYS));
            Map<String, String> values = parse(peers.get(index).call("values " + cache + " " + KEYS));
            List<String> wrong = expected.get(cache).wrong(values);
            long inMemory = wrong.stream().filter(key -> values.get(key) != null && values.get(key).equals(memory.get(key))).count();
            System.out.printf("after %s, get on node%d returns %d wrong values of cache %s, %d of them from its memory%n", what, index, wrong.size(), cache,
                    inMemory);
        }
        peers.get(index).end();
        peers.get(index).start(NODES);
        settle();
        unavailable = -1;
        compareAll(what);
    }

    private void restartAll() throws Exception {
        for (Peer peer : peers) {
            peer.end();
            peer.start(NODES);
            settle();
        }
    }

    private void settle() throws Exception {
        await(peers, NODES);
    }

    /** Waits until some nodes have the same topologies with this number of members, and move no entries, two times in a row. */
    private static void await(List<Peer> nodes, int members) throws Exception {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(180);
        for (int settled = 0; settled < 2; ) {
            String first = nodes.getFirst().call("settled " + members);
            boolean isSettled = first.startsWith("yes");
            for (Peer peer : nodes) {
                isSettled = isSettled && peer.call("settled " + members).equals(first);
            }
            settled = isSettled ? settled + 1 : 0;
            if (System.nanoTime() > end) {
                throw new IllegalStateException("the cluster does not settle; see the logs in " + nodes.getFirst().directory());
            }
            Thread.sleep(200);
        }
    }

    private void compareAll(String after) throws Exception {
        pause();
        for (String cache : Node.CACHES) {
            List<String> problems = compare(cache);
            if (!problems.isEmpty()) {
                System.out.println("FAILED after " + after + ", cache " + cache + "; " + kills);
                for (String problem : problems) {
                    System.out.println(problem.replaceAll("x+", "x"));
                    for (Matcher key = Pattern.compile("\\bk\\d+").matcher(problem); key.find(); ) {
                        for (Peer peer : peers) {
                            System.out.println("    " + key.group() + ": " + peer.directory().getFileName() + " has "
                                    + peer.call("where " + cache + " " + key.group()));
                        }
                    }
                }
                throw new IllegalStateException(problems.size() + " problems");
            }
        }
        resume();
    }

    /** What is wrong in the entries of a cache, read through each node. */
    private List<String> compare(String cache) throws Exception {
        List<String> problems = new ArrayList<>();
        List<Map<String, String>> nodes = new ArrayList<>();
        for (Peer peer : peers) {
            nodes.add(entries(peer, cache));
            for (String problem : expected.get(cache).compare(nodes.getLast())) {
                problems.add(peer.directory().getFileName() + ": " + problem);
            }
        }
        if (problems.isEmpty()) {
            expected.get(cache).accept(nodes);
        }
        return problems;
    }

    private static Map<String, String> entries(Peer peer, String cache) throws Exception {
        return parse(peer.call("entries " + cache));
    }

    private static Map<String, String> parse(String entries) {
        Map<String, String> found = new HashMap<>();
        for (String entry : entries.split(",")) {
            if (!entry.isEmpty()) {
                int at = entry.indexOf('=');
                found.put(entry.substring(0, at), entry.substring(at + 1));
            }
        }
        return found;
    }

    private void end(List<Thread> writers) throws Exception {
        pause();
        synchronized (gate) {
            isEnding = true;
            gate.notifyAll();
        }
        for (Thread writer : writers) {
            writer.join();
        }
        if (hasKaml()) {
            stopOneByOne();
        }
        shutDown();
        if (hasKaml()) {
            checkDevices();
        }
    }

    /** The stores of Infinispan are only for comparison: they are emptied when a node starts. */
    private boolean hasKaml() {
        return !durability.equals("SIFS") && !durability.equals("NONE");
    }

    /**
     * Stops the nodes one after another: those that remain take the entries of each. The last one starts first, and is the cluster.
     *
     * <p>This comes before the shutdown, because a shutdown does nothing but stop the caches of the node that requests it, if the coordinator
     * of the cluster was killed at any time before. After this, the coordinator is one that has begun the cluster.
     */
    private void stopOneByOne() throws Exception {
        for (int i = 0; i < NODES; i++) {
            peers.get(i).end();
            if (i + 1 < NODES) {
                await(peers.subList(i + 1, NODES), NODES - i - 1);
            }
        }
        for (int i = NODES - 1; i >= 0; i--) {
            peers.get(i).start(NODES);
            await(peers.subList(i, NODES), NODES - i);
        }
        compareAll("the stop of all nodes one after another");
        System.out.println("all nodes were stopped one after another: all entries are the same");
    }

    private void shutDown() throws Exception {
        // Any node can request it.
        peers.getFirst().call("shutdown");
        // The other nodes stop their caches later. A node that ended before would look like one that has failed.
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(180);
        for (Peer peer : peers) {
            while (!peer.call("ended").equals("yes")) {
                if (System.nanoTime() > end) {
                    throw new IllegalStateException("a node did not stop its caches within 180 s of the shutdown: " + peer.directory());
                }
                Thread.sleep(50);
            }
        }
        for (Peer peer : peers) {
            peer.end();
        }
        if (!hasKaml()) {
            return;
        }
        List<Thread> starting = new ArrayList<>();
        for (Peer peer : peers) {
            starting.add(Thread.ofPlatform().start(() -> {
                try {
                    peer.start(NODES);
                } catch (Exception failure) {
                    failure.printStackTrace();
                }
            }));
        }
        for (Thread thread : starting) {
            thread.join();
        }
        settle();
        compareAll("the restart of the whole cluster");
        System.out.println("the whole cluster was shut down and restarted: all entries are the same");
    }

    private void checkDevices() throws Exception {
        for (Peer peer : peers) {
            peer.end();
        }
        for (Peer peer : peers) {
            try (Device device = Device.open(Node.device(peer.directory()))) {
                CheckReport report = device.check(problem -> System.out.println("FAILED: " + problem));
                if (report.problemCount() != 0) {
                    throw new IllegalStateException(report.toString());
                }
                System.out.println("checked: " + report.records() + " records in order");
            }
        }
    }
}
