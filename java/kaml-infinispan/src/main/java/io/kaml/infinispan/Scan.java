package io.kaml.infinispan;

import io.kaml.Device;
import io.kaml.Entry;
import io.kaml.KamlException;
import io.kaml.KeyRange;
import io.kaml.Namespace;
import io.kaml.RecordIterator;
import io.kaml.Snapshot;
import io.kaml.Status;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.NoSuchElementException;
import java.util.PrimitiveIterator;
import org.infinispan.commons.util.IntSet;

/**
 * The records of some segments in the order of their keys, as of one moment. If the device must reclaim what that moment keeps, the scan
 * continues with a later moment after the last key that it returned.
 */
final class Scan implements Iterator<Entry>, AutoCloseable {
    /** Neighbouring segments: the first, and the one after the last. */
    record Run(int from, int to) {
        KeyRange range() {
            return KeyRange.from(Layout.segmentStart(from)).to(Layout.segmentStart(to));
        }
    }

    private final Device device;
    private final Namespace records;
    private final List<Run> runs;
    private final boolean keysOnly;
    private Snapshot snapshot;
    private RecordIterator iterator;
    private int nextRun;
    private byte[] last;
    private Entry next;
    private boolean isClosed;

    Scan(Device device, Namespace records, IntSet segments, boolean keysOnly) {
        this.device = device;
        this.records = records;
        this.runs = runs(segments);
        this.keysOnly = keysOnly;
    }

    static List<Run> runs(IntSet segments) {
        List<Run> runs = new ArrayList<>();
        int from = -1;
        int to = -1;
        for (PrimitiveIterator.OfInt each = sorted(segments); each.hasNext(); ) {
            int segment = each.nextInt();
            if (segment != to) {
                if (from >= 0) {
                    runs.add(new Run(from, to));
                }
                from = segment;
            }
            to = segment + 1;
        }
        if (from >= 0) {
            runs.add(new Run(from, to));
        }
        return runs;
    }

    private static PrimitiveIterator.OfInt sorted(IntSet segments) {
        return segments.intStream().filter(segment -> segment < Layout.SEGMENTS_MAX).sorted().iterator();
    }

    /** Also called by threads that cancel, so one call at a time. */
    @Override
    public synchronized boolean hasNext() {
        while (next == null && !isClosed) {
            try {
                if (!advance()) {
                    close();
                }
            } catch (KamlException failure) {
                if (failure.status() != Status.SNAPSHOT_TOO_OLD) {
                    throw failure;
                }
                closeMoment();
            }
        }
        return next != null;
    }

    private boolean advance() {
        if (iterator == null) {
            if (nextRun == runs.size()) {
                return false;
            }
            if (snapshot == null) {
                snapshot = device.snapshot();
            }
            Run run = runs.get(nextRun);
            KeyRange range = last == null ? run.range() : KeyRange.after(last).to(Layout.segmentStart(run.to()));
            iterator = snapshot.range(records, keysOnly ? range.keysOnly() : range);
        }
        if (iterator.hasNext()) {
            next = iterator.next();
            last = next.key();
        } else {
            iterator.close();
            iterator = null;
            last = null;
            nextRun += 1;
        }
        return true;
    }

    @Override
    public synchronized Entry next() {
        if (!hasNext()) {
            throw new NoSuchElementException();
        }
        Entry entry = next;
        next = null;
        return entry;
    }

    private void closeMoment() {
        if (iterator != null) {
            iterator.close();
            iterator = null;
        }
        if (snapshot != null) {
            snapshot.close();
            snapshot = null;
        }
    }

    @Override
    public synchronized void close() {
        isClosed = true;
        next = null;
        closeMoment();
    }
}
