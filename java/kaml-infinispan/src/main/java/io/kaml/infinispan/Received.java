package io.kaml.infinispan;

import java.nio.ByteBuffer;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import org.infinispan.commons.util.IntSet;

/**
 * Which keys were deleted in segments that this node is receiving from others. A state transfer can bring an entry that was deleted here
 * meanwhile: Infinispan then leaves its memory as it is, but gives the entry to the store. Only the thread that writes uses this.
 */
final class Received {
    private record Segment(long deadline, Set<ByteBuffer> deleted) {}

    private final Map<Integer, Segment> segments = new HashMap<>();
    private final long windowNanos;

    /**
     * None yet.
     *
     * @param windowNanos how long a segment is watched; a state transfer is over by then
     */
    Received(long windowNanos) {
        this.windowNanos = windowNanos;
    }

    void begin(IntSet added) {
        long deadline = System.nanoTime() + windowNanos;
        added.forEach((int segment) -> segments.put(segment, new Segment(deadline, new HashSet<>())));
    }

    void end(IntSet removed) {
        removed.forEach((int segment) -> segments.remove(segment));
    }

    boolean isEmpty() {
        return segments.isEmpty();
    }

    void deleted(byte[] recordKey) {
        Segment segment = segments.isEmpty() ? null : segments.get(Layout.segmentOf(recordKey));
        if (segment != null) {
            if (System.nanoTime() - segment.deadline > 0) {
                segments.remove(Layout.segmentOf(recordKey));
            } else {
                segment.deleted.add(ByteBuffer.wrap(recordKey));
            }
        }
    }

    boolean wasDeleted(byte[] recordKey) {
        Segment segment = segments.get(Layout.segmentOf(recordKey));
        return segment != null && segment.deleted.contains(ByteBuffer.wrap(recordKey));
    }
}
