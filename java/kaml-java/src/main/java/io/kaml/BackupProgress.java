package io.kaml;

import static java.lang.foreign.ValueLayout.ADDRESS;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.MemorySegment;
import java.lang.invoke.MethodHandle;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;

/** Gets the progress of a backup or of a restore. */
@FunctionalInterface
public interface BackupProgress {
    /**
     * Some bytes are done. It is called by the thread that made the call, at least once for each megabyte of the files.
     *
     * @param bytesDone bytes that are done: of the device for a backup, of the files for a restore
     * @param byteCount all bytes
     * @return whether to continue
     */
    boolean accept(long bytesDone, long byteCount);

    /** Hears of a backup. No exception may leave it inside the library. */
    final class Hearing {
        private static final FunctionDescriptor CALLBACK = FunctionDescriptor.of(JAVA_INT, ADDRESS, JAVA_LONG, JAVA_LONG);
        private static final MethodHandle PROGRESS;

        static {
            try {
                PROGRESS = MethodHandles.lookup().findVirtual(Hearing.class, "hear",
                        MethodType.methodType(int.class, MemorySegment.class, long.class, long.class));
            } catch (ReflectiveOperationException absent) {
                throw new AssertionError(absent);
            }
        }

        private final BackupProgress progress;
        private Throwable thrown;

        Hearing(BackupProgress progress) {
            this.progress = progress;
        }

        MemorySegment callback(Arena arena) {
            return Native.upcall(PROGRESS.bindTo(this), CALLBACK, arena);
        }

        int hear(MemorySegment context, long bytesDone, long byteCount) {
            try {
                return progress.accept(bytesDone, byteCount) ? 0 : 1;
            } catch (Throwable failure) {
                thrown = failure;
                return 1;
            }
        }

        /** Throws what the progress threw, or what the library reports. */
        void check(int status) {
            KamlException failure = status == 0 ? null : Native.failure(status);
            if (thrown instanceof Error error) {
                throw error;
            }
            if (thrown instanceof RuntimeException own) {
                throw own;
            }
            if (failure != null) {
                throw failure;
            }
        }
    }
}
