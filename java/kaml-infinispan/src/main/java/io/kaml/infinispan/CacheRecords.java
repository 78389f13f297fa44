package io.kaml.infinispan;

import io.kaml.Device;
import io.kaml.Entry;
import io.kaml.KeyRange;
import io.kaml.Keys;
import io.kaml.Namespace;
import io.kaml.NamespaceOptions;
import io.kaml.KeyKind;
import io.kaml.RecordIterator;
import io.kaml.infinispan.WriteQueue.Change;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.Executor;
import java.util.function.LongSupplier;
import java.util.function.Predicate;
import java.util.function.ToIntFunction;
import org.infinispan.commons.io.ByteBufferImpl;
import org.infinispan.commons.util.IntSet;
import org.infinispan.persistence.spi.MarshallableEntry;
import org.infinispan.persistence.spi.PersistenceException;

/**
 * The records of one cache on a device: a namespace of records, and one of their expiries in the order of time. Each record that can expire
 * has an expiry, stored in the same Put. An expiry can be older than its record: what counts is the time in the record.
 */
final class CacheRecords {
    private static final String RECORDS = "infinispan/";
    private static final String EXPIRIES = "infinispan-expiries/";
    private static final String CACHES = "infinispan-caches";
    private static final int NAME_BYTES_MAX = 255;
    /** Expiries of one step of a purge, which holds up other changes. */
    private static final int PURGED_TOGETHER = 256;
    private static final byte[] NOTHING = {};

    private final Device device;
    private final WriteQueue writes;
    private final ReadQueue reads;
    private final Namespace records;
    private final Namespace expiries;
    private volatile boolean canExpire;

    private CacheRecords(SharedDevice shared, String cache) {
        this.device = shared.device;
        this.writes = shared.writes;
        this.reads = shared.reads;
        this.records = device.ensureNamespace(RECORDS + cache, NamespaceOptions.ordered());
        this.expiries = device.ensureNamespace(EXPIRIES + cache, NamespaceOptions.ordered());
        this.canExpire = expiries.first().isPresent();
    }

    /**
     * Opens the records of a cache. If the cache had another number of segments, or another rule for them, its records move to the segments
     * that they have now.
     *
     * @param rule names what determines the segment of a key
     * @param segmentOf the segment of a marshalled key
     */
    static CacheRecords open(SharedDevice shared, String cache, int segmentCount, String rule,
            ToIntFunction<org.infinispan.commons.io.ByteBuffer> segmentOf) {
        int nameBytes = (EXPIRIES + cache).getBytes(StandardCharsets.UTF_8).length;
        if (nameBytes > NAME_BYTES_MAX) {
            throw new PersistenceException("the name of cache \"" + cache + "\" makes a namespace of " + nameBytes + " bytes; at most "
                    + NAME_BYTES_MAX + " fit: give the cache a shorter name");
        }
        if (segmentCount > Layout.SEGMENTS_MAX) {
            throw new PersistenceException("cache \"" + cache + "\" has " + segmentCount + " segments; a KAML store takes at most "
                    + Layout.SEGMENTS_MAX + ": configure fewer");
        }
        CacheRecords opened = new CacheRecords(shared, cache);
        Namespace caches = shared.device.ensureNamespace(CACHES, NamespaceOptions.of(KeyKind.ANY));
        byte[] name = Keys.text(cache);
        byte[] now = Keys.text(segmentCount + " " + rule);
        if (!Arrays.equals(now, caches.get(name))) {
            opened.moveToSegments(segmentOf);
            caches.put(name, now);
        }
        return opened;
    }

    /** Moves each record to the segment of its key. If this is interrupted, it continues when the cache is opened again. */
    private void moveToSegments(ToIntFunction<org.infinispan.commons.io.ByteBuffer> segmentOf) {
        List<Change> changes = new ArrayList<>();
        try (RecordIterator all = records.range(KeyRange.all())) {
            while (all.hasNext()) {
                Entry entry = all.next();
                Layout.Decoded decoded = Layout.decode(entry);
                int segment = segmentOf.applyAsInt(decoded.key());
                if (segment != Layout.segmentOf(entry.key())) {
                    byte[] key = Layout.recordKey(segment, decoded.key());
                    addPut(changes, key, entry.value(), decoded.expiry());
                    changes.add(new Change(records, entry.key(), null));
                }
                if (changes.size() >= PURGED_TOGETHER) {
                    writes.writeNow(changes);
                    changes.clear();
                }
            }
        }
        writes.writeNow(changes);
    }

    /** Deletes the records whose marshalled keys a predicate selects. A job of the write queue. */
    void deleteIf(Predicate<org.infinispan.commons.io.ByteBuffer> selects) {
        List<Change> changes = new ArrayList<>();
        try (RecordIterator all = records.range(KeyRange.all())) {
            while (all.hasNext()) {
                Entry entry = all.next();
                if (selects.test(Layout.decode(entry).key())) {
                    changes.add(new Change(records, entry.key(), null));
                }
                if (changes.size() >= PURGED_TOGETHER) {
                    writes.writeNow(changes);
                    changes.clear();
                }
            }
        }
        writes.writeNow(changes);
    }

    private void addPut(List<Change> changes, byte[] key, byte[] value, long expiry) {
        changes.add(new Change(records, key, value));
        if (expiry > 0) {
            canExpire = true;
            changes.add(new Change(expiries, Layout.expiryKey(expiry, key), NOTHING));
        }
    }

    /** What stores an entry. */
    void addPut(List<Change> changes, int segment, MarshallableEntry<?, ?> entry) {
        byte[] key = Layout.recordKey(segment, entry.getKeyBytes());
        byte[] value = Layout.encode(entry, key);
        addPut(changes, key, value, entry.getMetadataBytes() == null ? -1 : entry.expiryTime());
    }

    /** What deletes the entry of a key. Its expiry remains until its time. */
    Change delete(int segment, org.infinispan.commons.io.ByteBuffer key) {
        return new Change(records, Layout.recordKey(segment, key), null);
    }

    /** Whether a key exists, expired or not. Reads no flash. */
    boolean exists(byte[] recordKey) {
        return records.exists(recordKey);
    }

    /** The record of a key; null if there is none, or if it has expired. */
    CompletionStage<Layout.Decoded> get(byte[] recordKey, org.infinispan.commons.io.ByteBuffer key, LongSupplier clock, Executor completer) {
        return reads.get(records, recordKey, completer).thenApply(value -> {
            if (value == null) {
                return null;
            }
            Layout.Decoded decoded = Layout.decode(recordKey, value);
            // Two long keys of one digest are two keys.
            return decoded.isExpired(clock.getAsLong()) || !decoded.key().equals(key) ? null : decoded;
        });
    }

    /** The marshalled key of a record of which a scan has returned the key alone; null if it was deleted meanwhile. */
    org.infinispan.commons.io.ByteBuffer wholeKey(byte[] recordKey) {
        if (!Layout.isCut(recordKey)) {
            return ByteBufferImpl.create(recordKey, 2, recordKey.length - 2);
        }
        byte[] value = records.get(recordKey);
        return value == null ? null : Layout.decode(recordKey, value).key();
    }

    Scan scan(IntSet segments, boolean keysOnly) {
        return new Scan(device, records, segments, keysOnly);
    }

    /** Whether there can be records that expire. */
    boolean canExpire() {
        return canExpire;
    }

    /** Records, expired ones included. Reads no flash. */
    long count(IntSet segments) {
        long count = 0;
        for (Scan.Run run : Scan.runs(segments)) {
            count += records.count(run.range());
        }
        return count;
    }

    /** Keys of records that have expired and are not purged yet. */
    Set<ByteBuffer> expired(IntSet segments, long now) {
        Set<ByteBuffer> expired = new HashSet<>();
        if (canExpire) {
            try (RecordIterator due = due(now)) {
                while (due.hasNext()) {
                    byte[] key = Layout.recordKeyOfExpiry(due.next().key());
                    byte[] value = segments.contains(Layout.segmentOf(key)) ? records.get(key) : null;
                    if (value != null && Layout.decode(key, value).isExpired(now)) {
                        expired.add(ByteBuffer.wrap(key));
                    }
                }
            }
        }
        return expired;
    }

    private RecordIterator due(long now) {
        return expiries.range(KeyRange.all().to(Keys.u64(now + 1)).keysOnly());
    }

    /**
     * Deletes some records that have expired, and adds them to a list. A job of the write queue, so no record is replaced meanwhile.
     *
     * @return whether there can be more
     */
    boolean purge(long now, List<Layout.Decoded> purged) {
        List<Change> changes = new ArrayList<>();
        Set<ByteBuffer> seen = new HashSet<>();
        int looked = 0;
        try (RecordIterator due = due(now)) {
            for (; looked < PURGED_TOGETHER && due.hasNext(); looked++) {
                byte[] expiry = due.next().key();
                byte[] key = Layout.recordKeyOfExpiry(expiry);
                changes.add(new Change(expiries, expiry, null));
                byte[] value = seen.add(ByteBuffer.wrap(key)) ? records.get(key) : null;
                Layout.Decoded decoded = value == null ? null : Layout.decode(key, value);
                // A record that was stored again has a later expiry of its own.
                if (decoded != null && decoded.isExpired(now)) {
                    changes.add(new Change(records, key, null));
                    purged.add(decoded);
                }
            }
        }
        writes.writeNow(changes);
        return looked == PURGED_TOGETHER;
    }

    /** Deletes everything. A job of the write queue. */
    void clear() {
        records.deleteRange(KeyRange.all());
        expiries.deleteRange(KeyRange.all());
    }

    /** Deletes the records of segments. Their expiries remain until their time. A job of the write queue. */
    void clear(IntSet segments) {
        for (Scan.Run run : Scan.runs(segments)) {
            records.deleteRange(run.range());
        }
    }

    /** Whether the device accepts changes. */
    boolean isAvailable() {
        return !device.statistics().isStopped();
    }
}
