package io.kaml.infinispan;

import io.kaml.Batch;
import io.kaml.Device;
import io.kaml.Namespace;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.Executor;
import java.util.concurrent.locks.LockSupport;
import org.infinispan.persistence.spi.PersistenceException;

/**
 * All changes of a device, in one order. One thread takes what was submitted while it wrote, and stores it as one Put: many callers share
 * one write of the device, and no caller blocks. A job runs on the same thread between two Puts, so nothing changes while it runs.
 */
final class WriteQueue {
    /** Requests of one Put. More would make the first of them wait for the last. */
    private static final int REQUESTS_MAX = 1024;
    /** Requests that one task completes. Fewer tasks cost less; more of them use several processors. */
    private static final int COMPLETED_TOGETHER = 16;
    /** What a record takes in the commit ring beyond its key and value, at most. */
    private static final int RECORD_OVERHEAD = 96;

    /** A record to be stored, or to be deleted if it has no value. */
    record Change(Namespace namespace, byte[] key, byte[] value) {
        long bytes() {
            return key.length + (value == null ? 0 : value.length) + RECORD_OVERHEAD;
        }
    }

    private enum Kind {
        PUT,
        /** Reports whether the record existed. */
        DELETE,
        /** A record that another node has sent: it is stored only if nothing has changed it here. */
        RECEIVED,
        JOB
    }

    private static final class Request {
        final Kind kind;
        final List<Change> changes;
        final Callable<?> job;
        final Received received;
        final Executor completer;
        final CompletableFuture<Object> done = new CompletableFuture<>();
        Object result;
        Throwable failure;

        /** Whether nothing is to be stored: the record that is deleted does not exist, or the one that was received is old. */
        boolean isVoid;

        Request(Kind kind, List<Change> changes, Callable<?> job, Received received, Executor completer) {
            this.kind = kind;
            this.changes = changes;
            this.job = job;
            this.received = received;
            this.completer = completer;
        }

        long bytes() {
            long bytes = 0;
            for (Change change : changes) {
                bytes += change.bytes();
            }
            return bytes;
        }

        void complete() {
            if (failure != null) {
                done.completeExceptionally(failure instanceof PersistenceException ? failure : new PersistenceException(failure));
            } else {
                done.complete(result);
            }
        }
    }

    private final Device device;
    private final long bytesMax;
    private final ConcurrentLinkedQueue<Request> queue = new ConcurrentLinkedQueue<>();
    private final Thread thread;
    private volatile boolean isParked;
    private volatile boolean isClosing;

    WriteQueue(Device device, String name) {
        this.device = device;
        this.bytesMax = device.batchBytesMax();
        this.thread = Thread.ofPlatform().daemon().name("kaml-writer-" + name).start(this::run);
    }

    /** The most bytes that are stored as one atomic Put. */
    long bytesMax() {
        return bytesMax;
    }

    /** Stores changes, all or none. */
    CompletionStage<Void> write(List<Change> changes, Received received, Executor completer) {
        return submit(new Request(Kind.PUT, changes, null, received, completer));
    }

    /** Stores a record that another node has sent, with its expiry if it has one, unless it was changed here. */
    CompletionStage<Void> receive(List<Change> changes, Received received, Executor completer) {
        return submit(new Request(Kind.RECEIVED, changes, null, received, completer));
    }

    /** Deletes a record, and reports whether it existed. */
    CompletionStage<Boolean> delete(Change change, Received received, Executor completer) {
        return submit(new Request(Kind.DELETE, List.of(change), null, received, completer));
    }

    /** Runs a job while nothing else changes. The job can write with {@link #writeNow}. */
    <T> CompletionStage<T> run(Callable<T> job, Executor completer) {
        return submit(new Request(Kind.JOB, List.of(), job, null, completer));
    }

    @SuppressWarnings("unchecked")
    private <T> CompletionStage<T> submit(Request request) {
        if (isClosing) {
            request.failure = new PersistenceException("the store is stopped");
            request.complete();
        } else {
            queue.add(request);
            if (isParked) {
                LockSupport.unpark(thread);
            }
        }
        return (CompletionStage<T>) request.done;
    }

    /** Stores changes at once, in pieces if they are too many. For jobs, and before the first request. */
    void writeNow(List<Change> changes) {
        Batch batch = new Batch();
        long bytes = 0;
        for (Change change : changes) {
            if (bytes + change.bytes() > bytesMax) {
                device.write(batch);
                batch.clear();
                bytes = 0;
            }
            add(batch, change);
            bytes += change.bytes();
        }
        if (batch.size() > 0) {
            device.write(batch);
        }
    }

    /** Finishes what was submitted, and ends the thread. */
    void close() throws InterruptedException {
        isClosing = true;
        LockSupport.unpark(thread);
        thread.join();
    }

    private void run() {
        List<Request> group = new ArrayList<>();
        while (awaitRequest()) {
            group.clear();
            long bytes = 0;
            for (Request next = queue.peek(); next != null && group.size() < REQUESTS_MAX; next = queue.peek()) {
                bytes += next.bytes();
                if (!group.isEmpty() && (bytes > bytesMax || next.job != null)) {
                    break;
                }
                group.add(queue.poll());
                if (next.job != null) {
                    break;
                }
            }
            if (group.getFirst().job != null) {
                runJob(group.getFirst());
            } else {
                store(group);
            }
            complete(group);
        }
    }

    private boolean awaitRequest() {
        while (queue.isEmpty()) {
            if (isClosing) {
                return false;
            }
            isParked = true;
            if (queue.isEmpty() && !isClosing) {
                LockSupport.park(this);
            }
            isParked = false;
        }
        return true;
    }

    private static void runJob(Request request) {
        try {
            request.result = request.job.call();
        } catch (Throwable failure) {
            request.failure = failure;
        }
    }

    private void store(List<Request> group) {
        try {
            Batch batch = new Batch();
            judge(group);
            for (Request request : group) {
                if (!request.isVoid) {
                    request.changes.forEach(change -> add(batch, change));
                }
            }
            if (batch.size() > 0) {
                device.write(batch);
            }
        } catch (Throwable failure) {
            if (group.size() == 1) {
                group.getFirst().failure = failure;
            } else {
                // One request can be the reason, such as a value that is too long: the others must not fail with it.
                group.forEach(request -> store(List.of(request)));
            }
        }
    }

    /** Determines which records exist when the turn of a request comes: on the device, or by an earlier request of the group. */
    private static void judge(List<Request> group) {
        if (group.stream().allMatch(request -> request.kind == Kind.PUT && request.received.isEmpty())) {
            return;
        }
        Map<Integer, Map<ByteBuffer, Boolean>> known = new HashMap<>();
        for (Request request : group) {
            if (request.kind != Kind.PUT) {
                Change change = request.changes.getFirst();
                Boolean exists = known.computeIfAbsent(change.namespace.id(), id -> new HashMap<>()).get(ByteBuffer.wrap(change.key));
                exists = exists == null ? change.namespace.exists(change.key) : exists;
                request.isVoid = request.kind == Kind.DELETE ? !exists : exists || request.received.wasDeleted(change.key);
                request.result = request.kind == Kind.DELETE ? exists : null;
            }
            for (Change change : request.changes) {
                if (change.value == null) {
                    request.received.deleted(change.key);
                }
                if (!request.isVoid) {
                    known.computeIfAbsent(change.namespace.id(), id -> new HashMap<>()).put(ByteBuffer.wrap(change.key), change.value != null);
                }
            }
        }
    }

    private static void add(Batch batch, Change change) {
        if (change.value == null) {
            batch.delete(change.namespace, change.key);
        } else {
            batch.put(change.namespace, change.key, change.value);
        }
    }

    private static void complete(List<Request> group) {
        for (int from = 0; from < group.size(); ) {
            Executor completer = group.get(from).completer;
            int to = from + 1;
            while (to < group.size() && to - from < COMPLETED_TOGETHER && group.get(to).completer == completer) {
                to += 1;
            }
            List<Request> together = List.copyOf(group.subList(from, to));
            try {
                completer.execute(() -> together.forEach(Request::complete));
            } catch (RuntimeException refused) {
                // The executor is shut down, so nobody else can complete them.
                together.forEach(Request::complete);
            }
            from = to;
        }
    }
}
