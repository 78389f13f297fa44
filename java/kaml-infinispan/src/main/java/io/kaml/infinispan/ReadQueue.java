package io.kaml.infinispan;

import io.kaml.KamlException;
import io.kaml.Namespace;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.Executor;
import java.util.concurrent.locks.LockSupport;
import org.infinispan.persistence.spi.PersistenceException;

/**
 * Reads of a device. One thread takes what callers requested while it read, and reads it together: records next to each other are one read, the
 * others are in progress at the same time. So no caller blocks, and a thread wakes up for many reads, not for each.
 */
final class ReadQueue {
    /** Reads of one step. More would make the first of them wait for the last. */
    private static final int TOGETHER = 64;
    /** Reads that one task completes. */
    private static final int COMPLETED_TOGETHER = 8;

    private static final class Read {
        final Namespace namespace;
        final byte[] key;
        final Executor completer;
        final CompletableFuture<byte[]> done = new CompletableFuture<>();
        byte[] value;
        Throwable failure;

        Read(Namespace namespace, byte[] key, Executor completer) {
            this.namespace = namespace;
            this.key = key;
            this.completer = completer;
        }

        void complete() {
            if (failure != null) {
                done.completeExceptionally(new PersistenceException(failure));
            } else {
                done.complete(value);
            }
        }
    }

    private final ConcurrentLinkedQueue<Read> queue = new ConcurrentLinkedQueue<>();
    private final Thread thread;
    private volatile boolean isParked;
    private volatile boolean isClosing;

    ReadQueue(String name) {
        this.thread = Thread.ofPlatform().daemon().name("kaml-reader-" + name).start(this::run);
    }

    /** Reads a value; null if there is none. */
    CompletionStage<byte[]> get(Namespace namespace, byte[] key, Executor completer) {
        Read read = new Read(namespace, key, completer);
        if (isClosing) {
            return CompletableFuture.failedFuture(new PersistenceException("the store is stopped"));
        }
        queue.add(read);
        if (isParked) {
            LockSupport.unpark(thread);
        }
        return read.done;
    }

    /** Finishes what was requested, and ends the thread. */
    void close() throws InterruptedException {
        isClosing = true;
        LockSupport.unpark(thread);
        thread.join();
    }

    private void run() {
        List<Read> group = new ArrayList<>();
        while (true) {
            group.clear();
            for (Read next = queue.peek(); next != null && group.size() < TOGETHER; next = queue.peek()) {
                if (!group.isEmpty() && (next.namespace != group.getFirst().namespace || next.completer != group.getFirst().completer)) {
                    break;
                }
                group.add(queue.poll());
            }
            if (!group.isEmpty()) {
                read(group);
                complete(group);
            } else if (isClosing) {
                return;
            } else {
                isParked = true;
                if (queue.isEmpty() && !isClosing) {
                    LockSupport.park(this);
                }
                isParked = false;
            }
        }
    }

    private static void read(List<Read> group) {
        if (group.size() > 1) {
            try {
                List<byte[]> values = group.getFirst().namespace.getMany(group.stream().map(read -> read.key).toList());
                for (int i = 0; i < values.size(); i++) {
                    group.get(i).value = values.get(i);
                }
                return;
            } catch (KamlException one) {
                // One record can be damaged: the others must not fail with it.
            }
        }
        for (Read read : group) {
            try {
                read.value = read.namespace.get(read.key);
            } catch (Throwable failure) {
                read.failure = failure;
            }
        }
    }

    private static void complete(List<Read> group) {
        for (int from = 0; from < group.size(); from += COMPLETED_TOGETHER) {
            List<Read> together = List.copyOf(group.subList(from, Math.min(group.size(), from + COMPLETED_TOGETHER)));
            try {
                together.getFirst().completer.execute(() -> together.forEach(Read::complete));
            } catch (RuntimeException refused) {
                // The executor is shut down, so nobody else can complete them.
                together.forEach(Read::complete);
            }
        }
    }
}
