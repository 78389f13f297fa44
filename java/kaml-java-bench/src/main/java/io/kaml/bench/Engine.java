package io.kaml.bench;

import io.kaml.Batch;
import io.kaml.CreateOptions;
import io.kaml.Device;
import io.kaml.Keys;
import io.kaml.Namespace;
import io.kaml.NamespaceOptions;
import io.kaml.OpenOptions;
import java.nio.file.Files;
import java.nio.file.Path;
import org.rocksdb.BlockBasedTableConfig;
import org.rocksdb.BloomFilter;
import org.rocksdb.CompressionType;
import org.rocksdb.LRUCache;
import org.rocksdb.Options;
import org.rocksdb.RocksDB;
import org.rocksdb.RocksDBException;
import org.rocksdb.WriteBatch;
import org.rocksdb.WriteOptions;

/** A store that is measured: every put is on the disk when it returns. It is open during its turns only. */
interface Engine extends AutoCloseable {
    void put(long key, byte[] value);

    byte[] get(long key);

    /** Stores records with following keys in one atomic step. */
    void putAll(long first, byte[][] values);

    @Override
    void close();

    /** How an engine is opened; the first time it is created. */
    enum Kind {
        KAML("KAML", false), ROCKSDB_DIRECT("RocksDB, direct I/O", true), KAML_CACHED("KAML, page cache", false), ROCKSDB("RocksDB, page cache", true);

        final String title;
        private final boolean isRocks;

        Kind(String title, boolean isRocks) {
            this.title = title;
            this.isRocks = isRocks;
        }

        /** Each has a store of its own. */
        Engine open(Path directory, long dataBytes, long cacheBytes) {
            Path path = directory.resolve(name());
            try {
                return isRocks ? new Rocks(path, this == ROCKSDB_DIRECT, cacheBytes) : new Kaml(path, this == KAML_CACHED, dataBytes);
            } catch (RocksDBException failure) {
                throw new IllegalStateException(failure);
            }
        }
    }

    /** Records of an ordered namespace. */
    final class Kaml implements Engine {
        private final Device device;
        private final Namespace records;

        Kaml(Path path, boolean isCached, long dataBytes) {
            if (!Files.exists(path)) {
                // Twice the data, as the other engine needs for its compactions.
                Device.create(path, Math.max(256L << 20, 2 * dataBytes), CreateOptions.DEFAULT).close();
            }
            device = Device.open(path, isCached ? OpenOptions.DEFAULT.throughPageCache() : OpenOptions.DEFAULT);
            records = device.ensureNamespace("records", NamespaceOptions.ordered());
        }

        @Override
        public void put(long key, byte[] value) {
            records.put(Keys.u64(key), value);
        }

        @Override
        public byte[] get(long key) {
            return records.get(Keys.u64(key));
        }

        @Override
        public void putAll(long first, byte[][] values) {
            Batch batch = new Batch();
            for (int i = 0; i < values.length; i++) {
                batch.put(records, Keys.u64(first + i), values[i]);
            }
            device.write(batch);
        }

        @Override
        public void close() {
            device.close();
        }
    }

    /** The default column family, with filters, and a flush of the log for each put. */
    final class Rocks implements Engine {
        static {
            RocksDB.loadLibrary();
        }

        private final LRUCache cache;
        private final BloomFilter filter = new BloomFilter(10);
        private final Options options;
        private final WriteOptions durable = new WriteOptions().setSync(true);
        private final RocksDB database;

        Rocks(Path path, boolean isDirect, long cacheBytes) throws RocksDBException {
            cache = new LRUCache(cacheBytes);
            options = new Options().setCreateIfMissing(true).setCompressionType(CompressionType.NO_COMPRESSION).setIncreaseParallelism(2)
                    .setUseDirectReads(isDirect).setUseDirectIoForFlushAndCompaction(isDirect)
                    .setTableFormatConfig(new BlockBasedTableConfig().setFilterPolicy(filter).setBlockCache(cache));
            database = RocksDB.open(options, path.toString());
        }

        @Override
        public void put(long key, byte[] value) {
            try {
                database.put(durable, Keys.u64(key), value);
            } catch (RocksDBException failure) {
                throw new IllegalStateException(failure);
            }
        }

        @Override
        public byte[] get(long key) {
            try {
                return database.get(Keys.u64(key));
            } catch (RocksDBException failure) {
                throw new IllegalStateException(failure);
            }
        }

        @Override
        public void putAll(long first, byte[][] values) {
            try (WriteBatch batch = new WriteBatch()) {
                for (int i = 0; i < values.length; i++) {
                    batch.put(Keys.u64(first + i), values[i]);
                }
                database.write(durable, batch);
            } catch (RocksDBException failure) {
                throw new IllegalStateException(failure);
            }
        }

        @Override
        public void close() {
            database.close();
            durable.close();
            options.close();
            filter.close();
            cache.close();
        }
    }
}
