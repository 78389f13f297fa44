package io.kaml.infinispan;

import io.kaml.infinispan.WriteQueue.Change;
import io.kaml.infinispan.configuration.KamlStoreConfiguration;
import io.reactivex.rxjava3.core.Flowable;
import jakarta.transaction.Transaction;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.EnumSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executor;
import java.util.concurrent.TimeUnit;
import java.util.function.Predicate;
import org.infinispan.commons.configuration.ConfiguredBy;
import org.infinispan.commons.io.ByteBufferImpl;
import org.infinispan.commons.marshall.Marshaller;
import org.infinispan.commons.time.TimeService;
import org.infinispan.commons.util.IntSet;
import org.infinispan.commons.util.IntSets;
import org.infinispan.commons.util.concurrent.CompletableFutures;
import org.infinispan.context.impl.FlagBitSets;
import org.infinispan.distribution.ch.KeyPartitioner;
import org.infinispan.persistence.PersistenceUtil;
import org.infinispan.persistence.spi.InitializationContext;
import org.infinispan.persistence.spi.MarshallableEntry;
import org.infinispan.persistence.spi.MarshallableEntryFactory;
import org.infinispan.persistence.spi.NonBlockingStore;
import org.infinispan.persistence.spi.PersistenceException;
import org.infinispan.util.concurrent.BlockingManager;
import org.reactivestreams.Publisher;

/**
 * Stores the entries of a cache on a KAML device. Caches of one process share the device of a path.
 *
 * <p>Every change is stored, with the durability that the configuration requests, before its stage completes. Changes of many callers are
 * one write. A batch is one atomic Put, unless it exceeds what the device takes in one. A transaction that exceeds it is refused when it is
 * prepared.
 *
 * @param <K> type of keys
 * @param <V> type of values
 */
@ConfiguredBy(KamlStoreConfiguration.class)
public final class KamlStore<K, V> implements NonBlockingStore<K, V> {
    private static final String DEVICE_FILE = "device.kaml";

    /** The flags of a state transfer. The resolution of conflicts has the first one alone, and its entries are newer. */
    private static final long RECEIVING = FlagBitSets.PUT_FOR_STATE_TRANSFER | FlagBitSets.CACHE_MODE_LOCAL;

    private final ThreadLocal<Boolean> isReceiving = ThreadLocal.withInitial(() -> false);
    private final Map<Transaction, List<Change>> prepared = new ConcurrentHashMap<>();
    private SharedDevice shared;
    private CacheRecords records;
    private String cacheName;
    private boolean isSegmented;
    /** Segments that this node has. Changes of others come late, from an earlier topology, and must leave nothing. */
    private IntSet owned;
    private IntSet all;
    /** Whether the cluster has named the segments of this node. */
    private volatile boolean hasTopology;
    private boolean keepStale;
    private Received received;
    private Marshaller marshaller;
    private KeyPartitioner keyPartitioner;
    private MarshallableEntryFactory<K, V> entryFactory;
    private TimeService timeService;
    private BlockingManager blockingManager;
    private Executor completer;

    /** A store that Infinispan starts. */
    public KamlStore() {}

    @Override
    public Set<Characteristic> characteristics() {
        return EnumSet.of(Characteristic.BULK_READ, Characteristic.EXPIRATION, Characteristic.SEGMENTABLE, Characteristic.TRANSACTIONAL);
    }

    @Override
    public CompletionStage<Void> start(InitializationContext context) {
        KamlStoreConfiguration configuration = context.getConfiguration();
        cacheName = context.getCache().getName();
        isSegmented = configuration.segmented();
        marshaller = context.getPersistenceMarshaller();
        keyPartitioner = context.getKeyPartitioner();
        entryFactory = context.getMarshallableEntryFactory();
        timeService = context.getTimeService();
        blockingManager = context.getBlockingManager();
        completer = context.getNonBlockingExecutor();
        int segmentCount = context.getCache().getCacheConfiguration().clustering().hash().numSegments();
        all = IntSets.immutableRangeSet(segmentCount);
        owned = IntSets.concurrentCopyFrom(all, segmentCount);
        hasTopology = false;
        received = new Received(TimeUnit.MILLISECONDS.toNanos(
                2 * context.getCache().getCacheConfiguration().clustering().stateTransfer().timeout()));
        keepStale = configuration.keepStale();
        String rule = isSegmented ? context.getCache().getCacheConfiguration().clustering().hash().keyPartitioner().getClass().getName() : "none";
        Path location = PersistenceUtil.getLocation(context.getGlobalConfiguration(), configuration.location());
        return blockingManager.runBlocking(() -> {
            try {
                Path path = Files.exists(location) && !Files.isDirectory(location) ? location : location.resolve(DEVICE_FILE);
                shared = SharedDevice.open(path, configuration.durability(), configuration.capacityBytes(), cacheName);
                records = CacheRecords.open(shared, cacheName, segmentCount, rule,
                        isSegmented ? key -> keyPartitioner.getSegment(unmarshall(key)) : key -> 0);
            } catch (IOException failure) {
                throw new PersistenceException("the directory of " + location + " cannot be made: " + failure, failure);
            }
        }, "kaml-start");
    }

    @Override
    public CompletionStage<Void> stop() {
        return blockingManager.runBlocking(() -> {
            prepared.clear();
            SharedDevice device = shared;
            shared = null;
            if (device != null) {
                try {
                    device.release(cacheName);
                } catch (InterruptedException interrupted) {
                    Thread.currentThread().interrupt();
                    throw new PersistenceException(interrupted);
                }
            }
        }, "kaml-stop");
    }

    @Override
    public CompletionStage<Boolean> isAvailable() {
        return blockingManager.supplyBlocking(() -> Files.exists(shared.path()) && records.isAvailable(), "kaml-available");
    }

    /** A store without segments has all records in one. */
    private int segment(int segment) {
        return isSegmented ? segment : 0;
    }

    /** The segments of the device that have the records of segments of the cache. */
    private IntSet stored(IntSet segments) {
        return !isSegmented ? IntSets.immutableSet(0) : segments == null ? all : segments;
    }

    /** What else selects a key: its segment, if the store has none. */
    private Predicate<? super K> selector(IntSet segments, Predicate<? super K> filter) {
        if (isSegmented || segments == null || segments.containsAll(all)) {
            return filter;
        }
        Predicate<K> inSegments = key -> segments.contains(keyPartitioner.getSegment(key));
        return filter == null ? inSegments : inSegments.and(filter);
    }

    @Override
    public CompletionStage<MarshallableEntry<K, V>> load(int segment, Object key) {
        org.infinispan.commons.io.ByteBuffer keyBytes = marshall(key);
        byte[] recordKey = Layout.recordKey(segment(segment), keyBytes);
        // The index is in memory, so this does not block, and a miss needs no other thread.
        if (!records.exists(recordKey)) {
            return CompletableFutures.completedNull();
        }
        return records.get(recordKey, keyBytes, timeService::wallClockTime, completer)
                .thenApply(decoded -> decoded == null ? null : entry(key, decoded));
    }

    @Override
    public CompletionStage<Boolean> containsKey(int segment, Object key) {
        org.infinispan.commons.io.ByteBuffer keyBytes = marshall(key);
        byte[] recordKey = Layout.recordKey(segment(segment), keyBytes);
        if (!records.exists(recordKey)) {
            return CompletableFutures.completedFalse();
        }
        if (!records.canExpire() && !Layout.isCut(recordKey)) {
            return CompletableFutures.completedTrue();
        }
        return records.get(recordKey, keyBytes, timeService::wallClockTime, completer).thenApply(decoded -> decoded != null);
    }

    @Override
    public CompletionStage<Void> write(int segment, MarshallableEntry<? extends K, ? extends V> entry) {
        boolean wasReceived = isReceiving.get();
        isReceiving.remove();
        List<Change> changes = new ArrayList<>(2);
        addPut(changes, segment, entry);
        if (changes.isEmpty()) {
            return CompletableFutures.completedNull();
        }
        return wasReceived ? shared.writes.receive(changes, received, completer) : shared.writes.write(changes, received, completer);
    }

    /**
     * Never true. Infinispan calls this just before {@link #write}, so it shows whether a state transfer brings the entry: such an entry can be
     * older than what the store has.
     */
    @Override
    public boolean ignoreCommandWithFlags(long commandFlags) {
        isReceiving.set((commandFlags & RECEIVING) == RECEIVING);
        return false;
    }

    private void addPut(List<Change> changes, int given, MarshallableEntry<? extends K, ? extends V> entry) {
        if (!isSegmented || owned.contains(given)) {
            records.addPut(changes, segment(given), entry);
        }
    }

    @Override
    public CompletionStage<Boolean> delete(int segment, Object key) {
        return shared.writes.delete(records.delete(segment(segment), marshall(key)), received, completer);
    }

    @Override
    public CompletionStage<Void> batch(int publisherCount, Publisher<SegmentedPublisher<Object>> removePublisher,
            Publisher<SegmentedPublisher<MarshallableEntry<K, V>>> writePublisher) {
        return collect(publisherCount, removePublisher, writePublisher).thenCompose(changes -> {
            if (changes.isEmpty()) {
                return CompletableFutures.completedNull();
            }
            CompletionStage<Void> stage = null;
            for (List<Change> piece : pieces(changes)) {
                CompletionStage<Void> stored = shared.writes.write(piece, received, completer);
                stage = stage == null ? stored : stage.thenCombine(stored, (one, other) -> null);
            }
            return stage;
        });
    }

    /** One piece, if the device takes all in one Put. A record and its expiry are not separated. */
    private List<List<Change>> pieces(List<Change> changes) {
        List<List<Change>> pieces = new ArrayList<>();
        List<Change> piece = new ArrayList<>();
        long bytes = 0;
        for (Change change : changes) {
            boolean isExpiry = change.value() != null && change.value().length == 0;
            if (bytes + change.bytes() > shared.writes.bytesMax() - 2 * Layout.RECORD_KEY_BYTES_MAX && !piece.isEmpty() && !isExpiry) {
                pieces.add(piece);
                piece = new ArrayList<>();
                bytes = 0;
            }
            piece.add(change);
            bytes += change.bytes();
        }
        pieces.add(piece);
        return pieces;
    }

    private CompletionStage<List<Change>> collect(int publisherCount, Publisher<SegmentedPublisher<Object>> removePublisher,
            Publisher<SegmentedPublisher<MarshallableEntry<K, V>>> writePublisher) {
        // Both are subscribed before either is complete: neither publishes anything before.
        CompletionStage<List<Change>> deletes = Flowable.fromPublisher(removePublisher)
                .flatMap(keys -> Flowable.fromPublisher(keys)
                        .map(key -> records.delete(segment(keys.getSegment()), marshall(key))), publisherCount)
                .collect(() -> new ArrayList<Change>(), List::add).<List<Change>>map(list -> list).toCompletionStage();
        CompletionStage<List<Change>> puts = Flowable.fromPublisher(writePublisher)
                .flatMap(entries -> Flowable.fromPublisher(entries).map(entry -> Map.entry(entries.getSegment(), entry)), publisherCount)
                .collect(() -> new ArrayList<Change>(), (list, put) -> addPut(list, put.getKey(), put.getValue()))
                .<List<Change>>map(list -> list).toCompletionStage();
        return deletes.thenCombine(puts, (first, second) -> {
            first.addAll(second);
            return first;
        });
    }

    /**
     * Keeps the changes of a transaction in memory, after a check that they can be one Put. They are not durable yet: a node that was
     * restarted has no call by which it could learn how a transaction of its former life ended, so a durable copy would only be discarded.
     */
    @Override
    public CompletionStage<Void> prepareWithModifications(Transaction transaction, int publisherCount,
            Publisher<SegmentedPublisher<Object>> removePublisher,
            Publisher<SegmentedPublisher<MarshallableEntry<K, V>>> writePublisher) {
        return collect(publisherCount, removePublisher, writePublisher).thenAccept(changes -> {
            long bytes = changes.stream().mapToLong(Change::bytes).sum();
            if (bytes > shared.writes.bytesMax()) {
                throw new PersistenceException("the transaction changes " + bytes + " bytes of cache \"" + cacheName + "\"; the device takes "
                        + shared.writes.bytesMax() + " as one atomic Put: make smaller transactions, or a device with a larger ring");
            }
            prepared.put(transaction, changes);
        });
    }

    @Override
    public CompletionStage<Void> commit(Transaction transaction) {
        List<Change> changes = prepared.remove(transaction);
        if (changes == null || changes.isEmpty()) {
            return CompletableFutures.completedNull();
        }
        return shared.writes.write(changes, received, completer);
    }

    @Override
    public CompletionStage<Void> rollback(Transaction transaction) {
        prepared.remove(transaction);
        return CompletableFutures.completedNull();
    }

    @Override
    public CompletionStage<Void> clear() {
        return shared.writes.run(() -> {
            records.clear();
            return null;
        }, completer);
    }

    @Override
    public CompletionStage<Void> addSegments(IntSet segments) {
        IntSet requested = IntSets.mutableCopyFrom(segments);
        IntSet others = IntSets.mutableEmptySet(all.size());
        if (!hasTopology) {
            // The first call names what this node has. The cluster has changed other segments without it, and is going to send them
            // when they are added: what was stored of them would bring back entries that are deleted.
            hasTopology = true;
            others.addAll(all);
            others.removeAll(requested);
            owned.removeAll(others);
        }
        IntSet added = IntSets.mutableCopyFrom(requested);
        added.removeAll(owned);
        // At once: a change can follow before this is done. The queue keeps it after what is deleted here.
        owned.addAll(added);
        return shared.writes.run(() -> {
            forget(others);
            // A change that was under way when the segment was removed can have come after its removal.
            forget(added);
            received.begin(added);
            return null;
        }, completer);
    }

    private void forget(IntSet segments) {
        if (isSegmented && !keepStale) {
            records.clear(segments);
        }
    }

    @Override
    public CompletionStage<Void> removeSegments(IntSet segments) {
        IntSet removed = IntSets.mutableCopyFrom(segments);
        owned.removeAll(removed);
        return shared.writes.run(() -> {
            received.end(removed);
            if (isSegmented) {
                records.clear(removed);
            } else {
                records.deleteIf(key -> removed.contains(keyPartitioner.getSegment(unmarshall(key))));
            }
            return null;
        }, completer);
    }

    @Override
    public CompletionStage<Long> size(IntSet segments) {
        if (selector(segments, null) != null) {
            return Flowable.fromPublisher(publishKeys(segments, null)).count().toCompletionStage();
        }
        IntSet counted = stored(segments);
        return blockingManager.supplyBlocking(
                () -> records.count(counted) - records.expired(counted, timeService.wallClockTime()).size(), "kaml-size");
    }

    @Override
    public CompletionStage<Long> approximateSize(IntSet segments) {
        IntSet counted = stored(segments);
        return blockingManager.supplyBlocking(() -> records.count(counted), "kaml-approximate-size");
    }

    @Override
    public Publisher<MarshallableEntry<K, V>> publishEntries(IntSet segments, Predicate<? super K> filter, boolean includeValues) {
        IntSet published = stored(segments);
        Predicate<? super K> selector = selector(segments, filter);
        return blockingManager.blockingPublisher(Flowable.using(() -> records.scan(published, false), scan -> {
            long now = timeService.wallClockTime();
            return Flowable.fromIterable(() -> scan).map(Layout::decode).filter(decoded -> !decoded.isExpired(now))
                    .map(this::entry).filter(entry -> selector == null || selector.test(entry.getKey()));
        }, Scan::close));
    }

    @Override
    public Publisher<K> publishKeys(IntSet segments, Predicate<? super K> filter) {
        IntSet published = stored(segments);
        Predicate<? super K> selector = selector(segments, filter);
        return blockingManager.blockingPublisher(Flowable.using(() -> records.scan(published, true), scan -> {
            Set<ByteBuffer> expired = records.expired(published, timeService.wallClockTime());
            return Flowable.fromIterable(() -> scan).filter(entry -> !expired.contains(ByteBuffer.wrap(entry.key())))
                    .concatMapIterable(entry -> {
                        org.infinispan.commons.io.ByteBuffer key = records.wholeKey(entry.key());
                        return key == null ? List.<K>of() : List.of(this.<K>unmarshall(key));
                    })
                    .filter(key -> selector == null || selector.test(key));
        }, Scan::close));
    }

    @Override
    public Publisher<MarshallableEntry<K, V>> purgeExpired() {
        Flowable<List<MarshallableEntry<K, V>>> steps = Flowable.defer(() -> {
            long now = timeService.wallClockTime();
            return Flowable.generate(() -> Boolean.TRUE, (Boolean more, io.reactivex.rxjava3.core.Emitter<List<MarshallableEntry<K, V>>> to) -> {
                if (!more) {
                    to.onComplete();
                    return false;
                }
                List<Layout.Decoded> purged = new ArrayList<>();
                boolean continues = await(shared.writes.run(() -> records.purge(now, purged), Runnable::run));
                to.onNext(purged.stream().map(this::entry).toList());
                return continues;
            });
        });
        return Flowable.fromPublisher(blockingManager.blockingPublisher(steps)).concatMapIterable(step -> step);
    }

    /** Waits on a thread that can block. */
    private static <T> T await(CompletionStage<T> stage) {
        return CompletableFutures.uncheckedAwait((CompletableFuture<T>) stage);
    }

    private MarshallableEntry<K, V> entry(Object key, Layout.Decoded decoded) {
        return entryFactory.create(key, decoded.value(), decoded.metadata(), decoded.internal(), decoded.created(), decoded.lastUsed());
    }

    private MarshallableEntry<K, V> entry(Layout.Decoded decoded) {
        return entryFactory.create(decoded.key(), decoded.value(), decoded.metadata(), decoded.internal(), decoded.created(), decoded.lastUsed());
    }

    private org.infinispan.commons.io.ByteBuffer marshall(Object key) {
        try {
            return marshaller.objectToBuffer(key);
        } catch (IOException failure) {
            throw new PersistenceException("a key of " + key.getClass() + " cannot be marshalled: " + failure.getMessage(), failure);
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
            throw new PersistenceException(interrupted);
        }
    }

    @SuppressWarnings("unchecked")
    private <T> T unmarshall(org.infinispan.commons.io.ByteBuffer bytes) {
        try {
            return (T) marshaller.objectFromByteBuffer(bytes.getBuf(), bytes.getOffset(), bytes.getLength());
        } catch (IOException | ClassNotFoundException failure) {
            throw new PersistenceException("a stored key cannot be read: " + failure.getMessage(), failure);
        }
    }
}
