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
import java.util.ArrayList;
import java.util.List;
import java.util.function.Consumer;

/**
 * What a check found.
 *
 * @param blocks blocks that were read
 * @param records records that are whole
 * @param versions versions that are whole, of namespaces that keep them
 * @param valueBytes bytes of all these values
 * @param problemCount problems; 0 for a device in order
 */
public record CheckReport(long blocks, long records, long versions, long valueBytes, long problemCount) {
    private static final FunctionDescriptor CALLBACK = FunctionDescriptor.of(JAVA_INT, ADDRESS, JAVA_LONG, JAVA_LONG, ADDRESS);
    private static final MethodHandle COLLECT;

    static {
        try {
            COLLECT = MethodHandles.lookup().findStatic(CheckReport.class, "collect", MethodType.methodType(
                    int.class, List.class, MemorySegment.class, long.class, long.class, MemorySegment.class));
        } catch (ReflectiveOperationException absent) {
            throw new AssertionError(absent);
        }
    }

    static CheckReport of(long device, Consumer<String> problem) {
        List<String> problems = new ArrayList<>();
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment report = arena.allocate(48, 8);
            report.set(JAVA_LONG, 0, 48);
            MemorySegment callback = Native.upcall(COLLECT.bindTo(problems), CALLBACK, arena);
            int status = Native.status(Native.CHECK, device, callback, MemorySegment.NULL, report);
            KamlException failure = status == 0 ? null : Native.failure(status);
            // The consumer can throw, which it must not do inside the library.
            problems.forEach(problem);
            if (failure != null) {
                throw failure;
            }
            return new CheckReport(report.getAtIndex(JAVA_LONG, 1), report.getAtIndex(JAVA_LONG, 2),
                    report.getAtIndex(JAVA_LONG, 3), report.getAtIndex(JAVA_LONG, 4), report.getAtIndex(JAVA_LONG, 5));
        }
    }

    private static int collect(List<String> problems, MemorySegment context, long done, long count, MemorySegment problem) {
        if (!problem.equals(MemorySegment.NULL)) {
            problems.add(Native.text(problem));
        }
        return 0;
    }
}
