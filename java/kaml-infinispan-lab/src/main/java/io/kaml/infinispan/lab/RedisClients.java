package io.kaml.infinispan.lab;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/** Uses a cluster of three nodes with the clients of Redis: commands, a node that is killed and restarted, and redis-benchmark. */
public final class RedisClients {
    private static final int NODES = 3;
    private static final int KEYS = 200;

    private RedisClients() {}

    /**
     * Runs all.
     *
     * @param arguments POWER or PROCESS, and a directory
     */
    public static void main(String[] arguments) throws Exception {
        Path directory = Files.createDirectories(Path.of(arguments[1]));
        List<Peer> peers = new ArrayList<>();
        try {
            for (int i = 0; i < NODES; i++) {
                peers.add(new Peer(i, directory.resolve("node" + i), arguments[0], true));
                peers.getLast().start(NODES);
            }
            commands(peers);
            survivesKill(peers);
            System.out.println(redis("redis-benchmark", peers.getFirst(), "-t", "set,get,incr,del", "-n", "5000", "-c", "16", "-d", "1024", "-r", "1000", "-q")
                    .replace('\r', '\n').lines().filter(line -> line.contains("requests per second")).toList());
        } finally {
            for (Peer peer : peers) {
                if (peer.isRunning()) {
                    peer.kill();
                }
            }
        }
        System.exit(0);
    }

    private static void commands(List<Peer> peers) throws Exception {
        expect("OK", redis("redis-cli", peers.get(0), "set", "greeting", "hello"));
        expect("hello", redis("redis-cli", peers.get(1), "get", "greeting"));
        expect("1", redis("redis-cli", peers.get(2), "incr", "counter"));
        expect("2", redis("redis-cli", peers.get(0), "incr", "counter"));
        expect("3", redis("redis-cli", peers.get(1), "rpush", "list", "a", "b", "c"));
        expect("a\nb\nc", redis("redis-cli", peers.get(2), "lrange", "list", "0", "-1"));
        expect("2", redis("redis-cli", peers.get(0), "hset", "hash", "x", "1", "y", "2"));
        expect("2", redis("redis-cli", peers.get(1), "hget", "hash", "y"));
        expect("OK", redis("redis-cli", peers.get(2), "set", "short", "lived", "px", "300"));
        Thread.sleep(400);
        expect("", redis("redis-cli", peers.get(0), "get", "short"));
        expect("1", redis("redis-cli", peers.get(0), "del", "greeting"));
        expect("", redis("redis-cli", peers.get(1), "get", "greeting"));
        System.out.println("commands through three nodes: as expected");
    }

    private static void survivesKill(List<Peer> peers) throws Exception {
        for (int i = 0; i < KEYS; i++) {
            expect("OK", redis("redis-cli", peers.get(i % NODES), "set", "key" + i, "value" + i));
        }
        peers.get(1).kill();
        for (int i = 0; i < KEYS; i += 7) {
            eventually("value" + i, peers.get(i % 2 * 2), "key" + i);
        }
        peers.get(1).start(NODES);
        for (int i = 0; i < KEYS; i++) {
            eventually("value" + i, peers.get(1), "key" + i);
        }
        eventually("2", peers.get(1), "counter");
        System.out.println("a node was killed and restarted: " + KEYS + " keys as expected");
    }

    /** While nodes leave and join, a command can fail; it is repeated for a minute. */
    private static void eventually(String expected, Peer peer, String key) throws Exception {
        long end = System.nanoTime() + 60_000_000_000L;
        String found = redis("redis-cli", peer, "get", key);
        while (!found.equals(expected) && System.nanoTime() < end) {
            Thread.sleep(200);
            found = redis("redis-cli", peer, "get", key);
        }
        expect(expected, found);
    }

    private static void expect(String expected, String found) {
        if (!expected.equals(found)) {
            throw new IllegalStateException("expected \"" + expected + "\", found \"" + found + "\"");
        }
    }

    private static String redis(String program, Peer peer, String... arguments) throws IOException, InterruptedException {
        List<String> command = new ArrayList<>(List.of(program, "-p", Integer.toString(peer.respPort())));
        command.addAll(List.of(arguments));
        Process process = new ProcessBuilder(command).redirectErrorStream(true).start();
        process.getOutputStream().close();
        String output = new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
        process.waitFor();
        return output.strip();
    }
}
