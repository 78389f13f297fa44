package io.kaml;

import java.lang.invoke.MethodHandle;
import java.lang.ref.Cleaner;

/** A handle of the library: closed by its user, or else when nobody refers to it any more. */
final class Handle {
    private static final Cleaner CLEANER = Cleaner.create();

    final long id;
    private final MethodHandle close;
    private final Leftover leftover;
    private final Cleaner.Cleanable cleanable;

    Handle(Object owner, long id, MethodHandle close, MethodHandle abandon) {
        this.id = id;
        this.close = close;
        this.leftover = new Leftover(id, abandon);
        this.cleanable = CLEANER.register(owner, leftover);
    }

    /** Closes it. One that is closed stays closed; one that is in use stays open, and this throws. */
    void close() {
        if (leftover.isClosed) {
            return;
        }
        int status = Native.status(close, id);
        if (status == Status.IN_USE.code()) {
            throw Native.failure(status);
        }
        RuntimeException failure = status == 0 ? null : Native.failure(status);
        leftover.isClosed = true;
        cleanable.clean();
        if (failure != null && status != Status.BAD_HANDLE.code()) {
            throw failure;
        }
    }

    /** What is done for an owner that was forgotten. It must not refer to it. */
    private static final class Leftover implements Runnable {
        private final long id;
        private final MethodHandle abandon;
        private volatile boolean isClosed;

        Leftover(long id, MethodHandle abandon) {
            this.id = id;
            this.abandon = abandon;
        }

        @Override
        public void run() {
            if (!isClosed) {
                isClosed = true;
                // A device that a forgotten store still uses is closed with the process.
                Native.status(abandon, id);
            }
        }
    }
}
