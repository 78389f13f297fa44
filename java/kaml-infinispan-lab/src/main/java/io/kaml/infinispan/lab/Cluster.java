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
 * ten also stops a node for longer than the others wait, continues it, so the partition heals, and compares. Every twentieth loop restarts
 * all nodes one after another. The end shuts the cluster down, starts it again, compares, and checks all devices.
 */
public final class Cluster {
    private static final int NODES = 3;
    private static final int WRITERS = 24;
    private static final int KEYS = 600;
    private static final long PATIENCE_MS = 60_000;

    private final List<Peer> peers = new ArrayList<>();
    private final Map<String, Expected> expected = new HashMap<>();
    private final Object gate = new Object();
    private final Random random;
    private boolean isPaused;
    private boolean isEnding;
    private int working;
    private volatile int unavailable = -1;

    private Cluster(Path directory, String durability, long seed) {
        random = new Random(seed);
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
     * @param arguments the number of loops, POWER, PROCESS or SIFS, a directory, and a seed
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
                compare("SIGKILL " + loop, 0);
                if (Boolean.getBoolean("lab.divide") && loop % 10 == 2) {
                    divide();
                    // The node that was away shows deleted entries until the others have sent it what is true now.
                    compare("the partition in loop " + loop, PATIENCE_MS);
                }
                if (loop % 20 == 0) {
                    restartAll();
                    compare("the rolling restart in loop " + loop, 0);
                }
                if (loop % 5 == 0 || loop == loops) {
                    report(loop, begin);
                }
            }
            shutDown(writers);
        } finally {
            for (Peer peer : peers) {
                if (peer.isRunning()) {
                    peer.kill();
                }
            }
        }
    }

    private void report(int loop, long begin) {
        long acknowledged = expected.values().stream().mapToLong(Expected::acknowledged).sum();
        long uncertain = expected.values().stream().mapToLong(Expected::uncertain).sum();
        System.out.printf("%d loops, %d s: %d changes acknowledged, %d of unknown result, nothing lost, nothing came back%n", loop,
                TimeUnit.NANOSECONDS.toSeconds(System.nanoTime() - begin), acknowledged, uncertain);
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
                peer.send(value == null ? "remove " + cache + " " + key : "put " + cache + " " + key + " " + value).get(30, TimeUnit.SECONDS);
                entries.acknowledge(key, value);
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
        victim.kill();
        Thread.sleep(random.nextInt(700));
        victim.start(NODES);
        settle();
    }

    /** A node that does not run looks like one that the network has cut off. */
    private void divide() throws Exception {
        int index = random.nextInt(NODES);
        unavailable = index;
        peers.get(index).signal("STOP");
        List<Peer> others = new ArrayList<>(peers);
        others.remove(index);
        await(others, NODES - 1);
        Thread.sleep(random.nextInt(2000));
        peers.get(index).signal("CONT");
        settle();
        unavailable = -1;
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

    private void compare(String after, long patienceMs) throws Exception {
        pause();
        long begin = System.nanoTime();
        for (String cache : Node.CACHES) {
            List<String> problems = compare(cache);
            while (!problems.isEmpty() && TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - begin) < patienceMs) {
                Thread.sleep(500);
                problems = compare(cache);
                if (problems.isEmpty()) {
                    System.out.printf("after %s all nodes of cache %s were right after %d ms%n", after, cache,
                            TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - begin));
                }
            }
            if (!problems.isEmpty()) {
                System.out.println("FAILED after " + after + ", cache " + cache + ":");
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
        Map<String, String> found = entries(peers.getFirst(), cache);
        List<String> problems = expected.get(cache).compare(found);
        for (Peer peer : peers) {
            Map<String, String> others = entries(peer, cache);
            if (!others.equals(found)) {
                problems.add("nodes show different entries: " + difference(found, others));
            }
        }
        if (problems.isEmpty()) {
            expected.get(cache).accept(found);
        }
        return problems;
    }

    private static String difference(Map<String, String> one, Map<String, String> other) {
        Map<String, String> difference = new HashMap<>();
        one.forEach((key, value) -> {
            if (!value.equals(other.get(key))) {
                difference.put(key, value + " / " + other.get(key));
            }
        });
        other.forEach((key, value) -> {
            if (!one.containsKey(key)) {
                difference.put(key, "absent / " + value);
            }
        });
        return difference.toString();
    }

    private static Map<String, String> entries(Peer peer, String cache) throws Exception {
        Map<String, String> found = new HashMap<>();
        for (String entry : peer.call("entries " + cache).split(",")) {
            if (!entry.isEmpty()) {
                int at = entry.indexOf('=');
                found.put(entry.substring(0, at), entry.substring(at + 1));
            }
        }
        return found;
    }

    private void shutDown(List<Thread> writers) throws Exception {
        pause();
        synchronized (gate) {
            isEnding = true;
            gate.notifyAll();
        }
        for (Thread writer : writers) {
            writer.join();
        }
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
        compare("the restart of the whole cluster", 0);
        for (Peer peer : peers) {
            peer.end();
        }
        for (Peer peer : peers) {
            if (!Files.exists(Node.device(peer.directory()))) {
                continue;
            }
            try (Device device = Device.open(Node.device(peer.directory()))) {
                CheckReport report = device.check(problem -> System.out.println("FAILED: " + problem));
                if (report.problemCount() != 0) {
                    throw new IllegalStateException(report.toString());
                }
                System.out.println("checked: " + report.records() + " records in order");
            }
        }
        System.out.println("the whole cluster was shut down and restarted: all entries are the same");
    }
}
