package io.kaml.infinispan.lab;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/** A {@link Node} as the process that started it sees it. */
final class Peer {
    private static final int FIRST_PORT = Integer.getInteger("lab.first.port", 17800);
    private static final int FIRST_RESP_PORT = 16379;
    private static final long START_SECONDS = 120;

    private final int index;
    private final Path directory;
    private final String durability;
    private final boolean hasResp;
    private final AtomicLong numbers = new AtomicLong();
    private volatile Run run;

    private static final class Run {
        final Process process;
        final Map<Long, CompletableFuture<String>> waiting = new ConcurrentHashMap<>();
        volatile boolean isDead;

        Run(Process process) {
            this.process = process;
        }
    }

    Peer(int index, Path directory, String durability, boolean hasResp) {
        this.index = index;
        this.directory = directory;
        this.durability = durability;
        this.hasResp = hasResp;
    }

    Path directory() {
        return directory;
    }

    int respPort() {
        return FIRST_RESP_PORT + index;
    }

    /** Starts the process, and waits until its caches are running. */
    void start(int nodes) throws Exception {
        Files.createDirectories(directory);
        StringBuilder hosts = new StringBuilder();
        for (int i = 0; i < nodes; i++) {
            hosts.append(i == 0 ? "" : ",").append("127.0.0.1[").append(FIRST_PORT + i).append(']');
        }
        ProcessBuilder builder = new ProcessBuilder(List.of(Path.of(System.getProperty("java.home"), "bin", "java").toString(),
                "--enable-native-access=ALL-UNNAMED", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Djava.net.preferIPv4Stack=true",
                "-Dkaml.library=" + System.getProperty("kaml.library"), "-Dlab.port=" + (FIRST_PORT + index), "-Dlab.hosts=" + hosts,
                "-cp", classpath(), Node.class.getName(), "node" + index, directory.toString(), durability,
                hasResp ? Integer.toString(respPort()) : "0"));
        builder.redirectError(ProcessBuilder.Redirect.appendTo(directory.resolve("log").toFile()));
        Run started = new Run(builder.start());
        CompletableFuture<String> ready = new CompletableFuture<>();
        started.waiting.put(0L, ready);
        Thread.ofPlatform().daemon().start(() -> read(started));
        run = started;
        try {
            ready.get(START_SECONDS, TimeUnit.SECONDS);
        } catch (Exception failure) {
            started.process.destroyForcibly();
            throw new IllegalStateException("node " + index + " does not start; see " + directory.resolve("log"), failure);
        }
    }

    /** Without the modules of the endpoint, a node starts in a third of the time. */
    private String classpath() {
        String all = System.getProperty("java.class.path");
        return hasResp ? all : Stream.of(all.split(":")).filter(path -> !path.matches(
                ".*(infinispan-(server|query|multimap|tasks|scripting|clustered-counter|cachestore)|lucene|hibernate|netty|opentelemetry|lua|rocksdb).*"))
                .collect(Collectors.joining(":"));
    }

    private static void read(Run run) {
        try (BufferedReader lines = new BufferedReader(new InputStreamReader(run.process.getInputStream(), StandardCharsets.UTF_8))) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                String[] parts = line.split(" ", 3);
                if (parts.length < 2 || !parts[0].matches("\\d+")) {
                    continue;
                }
                CompletableFuture<String> waiting = run.waiting.remove(Long.parseLong(parts[0]));
                String text = parts.length == 3 ? parts[2] : "";
                if (waiting != null && parts[1].equals("ok")) {
                    waiting.complete(text);
                } else if (waiting != null) {
                    waiting.completeExceptionally(new IOException(text));
                }
            }
        } catch (IOException ended) {
            // As below.
        }
        run.isDead = true;
        run.waiting.values().forEach(waiting -> waiting.completeExceptionally(new IOException("the node has ended")));
    }

    /** Sends a command. */
    CompletableFuture<String> send(String command) {
        Run current = run;
        long number = numbers.incrementAndGet();
        CompletableFuture<String> result = new CompletableFuture<>();
        current.waiting.put(number, result);
        try {
            OutputStream input = current.process.getOutputStream();
            synchronized (current) {
                input.write((number + " " + command + "\n").getBytes(StandardCharsets.UTF_8));
                input.flush();
            }
        } catch (IOException ended) {
            result.completeExceptionally(ended);
        }
        if (current.isDead) {
            result.completeExceptionally(new IOException("the node has ended"));
        }
        return result;
    }

    String call(String command) throws Exception {
        try {
            return send(command).get(60, TimeUnit.SECONDS);
        } catch (TimeoutException late) {
            throw new IOException("node " + index + ": no result of " + command + " within 60 s", late);
        }
    }

    boolean isRunning() {
        Run current = run;
        return current != null && !current.isDead;
    }

    /** Ends the process with SIGKILL. */
    void kill() throws InterruptedException {
        run.isDead = true;
        run.process.destroyForcibly().waitFor();
    }

    /** Ends the process by the end of its input. */
    void end() throws InterruptedException {
        try {
            run.process.getOutputStream().close();
        } catch (IOException ended) {
            // It has ended.
        }
        if (!run.process.waitFor(30, TimeUnit.SECONDS)) {
            kill();
        }
        run.isDead = true;
    }

    /** Sends a signal such as STOP or CONT. */
    void signal(String name) {
        try {
            new ProcessBuilder("kill", "-" + name, Long.toString(run.process.pid())).start().waitFor();
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        }
    }
}
