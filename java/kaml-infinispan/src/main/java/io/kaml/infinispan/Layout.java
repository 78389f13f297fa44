package io.kaml.infinispan;

import io.kaml.Entry;
import java.nio.ByteBuffer;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.Arrays;
import org.infinispan.commons.io.ByteBufferImpl;
import org.infinispan.persistence.spi.MarshallableEntry;
import org.infinispan.persistence.spi.PersistenceException;

/**
 * The bytes of keys and values in the namespaces of a cache.
 *
 * <p>A record has the key {@code segment (2 bytes, big-endian), marshalled key}. A marshalled key of more than {@value #KEY_BYTES_WHOLE}
 * bytes is cut off, and the SHA-256 of the whole key follows. Such a record has {@value #RECORD_KEY_BYTES_MAX} bytes of key, which no other
 * record has, and the whole key in its value. The key of an expiry is {@code time (8 bytes, big-endian), key of the record}.
 *
 * <p>A value begins with a version and flags. What the flags name follows: the times, then the lengths of metadata, internal metadata and
 * whole key, then these, then the marshalled value.
 */
final class Layout {
    /** Namespaces take keys of 1024 bytes, and an expiry has 8 bytes in front of the key of the record. */
    static final int RECORD_KEY_BYTES_MAX = 1024 - 8;
    /** The longest marshalled key that is stored whole. */
    static final int KEY_BYTES_WHOLE = RECORD_KEY_BYTES_MAX - 3;
    /** A segment has two bytes, and every segment one after it, which ends its range. */
    static final int SEGMENTS_MAX = (1 << 16) - 1;

    private static final int SEGMENT_BYTES = 2;
    private static final int DIGEST_BYTES = 32;
    private static final byte VERSION = 1;
    private static final int HAS_TIMES = 1;
    private static final int HAS_METADATA = 2;
    private static final int HAS_INTERNAL = 4;
    private static final int HAS_KEY = 8;
    private static final int HAS_VALUE = 16;
    private static final int ALL_FLAGS = 31;

    private Layout() {}

    /** The key of a record. */
    static byte[] recordKey(int segment, byte[] key, int offset, int length) {
        boolean whole = length <= KEY_BYTES_WHOLE;
        byte[] record = new byte[whole ? SEGMENT_BYTES + length : RECORD_KEY_BYTES_MAX];
        record[0] = (byte) (segment >> 8);
        record[1] = (byte) segment;
        if (whole) {
            System.arraycopy(key, offset, record, SEGMENT_BYTES, length);
        } else {
            System.arraycopy(key, offset, record, SEGMENT_BYTES, RECORD_KEY_BYTES_MAX - SEGMENT_BYTES - DIGEST_BYTES);
            MessageDigest digest = sha256();
            digest.update(key, offset, length);
            System.arraycopy(digest.digest(), 0, record, RECORD_KEY_BYTES_MAX - DIGEST_BYTES, DIGEST_BYTES);
        }
        return record;
    }

    static byte[] recordKey(int segment, org.infinispan.commons.io.ByteBuffer key) {
        return recordKey(segment, key.getBuf(), key.getOffset(), key.getLength());
    }

    private static MessageDigest sha256() {
        try {
            return MessageDigest.getInstance("SHA-256");
        } catch (NoSuchAlgorithmException absent) {
            throw new AssertionError("every Java platform has SHA-256", absent);
        }
    }

    /** No key of this segment is less. */
    static byte[] segmentStart(int segment) {
        return new byte[] {(byte) (segment >> 8), (byte) segment};
    }

    static int segmentOf(byte[] recordKey) {
        return (recordKey[0] & 0xff) << 8 | recordKey[1] & 0xff;
    }

    /** Whether the key of a record is cut off, so the whole one is in its value. */
    static boolean isCut(byte[] recordKey) {
        return recordKey.length == RECORD_KEY_BYTES_MAX;
    }

    static byte[] expiryKey(long time, byte[] recordKey) {
        return ByteBuffer.allocate(8 + recordKey.length).putLong(time).put(recordKey).array();
    }

    static byte[] recordKeyOfExpiry(byte[] expiryKey) {
        return Arrays.copyOfRange(expiryKey, 8, expiryKey.length);
    }

    /** The value of a record. */
    static byte[] encode(MarshallableEntry<?, ?> entry, byte[] recordKey) {
        org.infinispan.commons.io.ByteBuffer value = entry.getValueBytes();
        org.infinispan.commons.io.ByteBuffer metadata = entry.getMetadataBytes();
        org.infinispan.commons.io.ByteBuffer internal = entry.getInternalMetadataBytes();
        org.infinispan.commons.io.ByteBuffer key = isCut(recordKey) ? entry.getKeyBytes() : null;
        long expiry = metadata == null ? -1 : entry.expiryTime();
        boolean timed = entry.created() != -1 || entry.lastUsed() != -1 || expiry != -1;
        int flags = (timed ? HAS_TIMES : 0) | (metadata != null ? HAS_METADATA : 0) | (internal != null ? HAS_INTERNAL : 0)
                | (key != null ? HAS_KEY : 0) | (value != null ? HAS_VALUE : 0);
        int bytes = 2 + (timed ? 24 : 0) + partBytes(metadata) + partBytes(internal) + partBytes(key) + (value == null ? 0 : value.getLength());
        ByteBuffer to = ByteBuffer.allocate(bytes).put(VERSION).put((byte) flags);
        if (timed) {
            to.putLong(entry.created()).putLong(entry.lastUsed()).putLong(expiry);
        }
        putPart(to, metadata);
        putPart(to, internal);
        putPart(to, key);
        if (value != null) {
            to.put(value.getBuf(), value.getOffset(), value.getLength());
        }
        return to.array();
    }

    private static int partBytes(org.infinispan.commons.io.ByteBuffer part) {
        return part == null ? 0 : 4 + part.getLength();
    }

    private static void putPart(ByteBuffer to, org.infinispan.commons.io.ByteBuffer part) {
        if (part != null) {
            to.putInt(part.getLength()).put(part.getBuf(), part.getOffset(), part.getLength());
        }
    }

    /**
     * A value that was read.
     *
     * @param expiry when it expires, in milliseconds since 1970; -1 if it does not
     */
    record Decoded(org.infinispan.commons.io.ByteBuffer key, org.infinispan.commons.io.ByteBuffer value,
            org.infinispan.commons.io.ByteBuffer metadata, org.infinispan.commons.io.ByteBuffer internal, long created, long lastUsed,
            long expiry) {
        boolean isExpired(long now) {
            return expiry > 0 && expiry <= now;
        }
    }

    static Decoded decode(Entry entry) {
        return decode(entry.key(), entry.value());
    }

    /** Reads the value of a record. Bytes that this class did not write are refused. */
    static Decoded decode(byte[] recordKey, byte[] bytes) {
        ByteBuffer from = ByteBuffer.wrap(bytes);
        if (recordKey.length < SEGMENT_BYTES || bytes.length < 2 || from.get() != VERSION) {
            throw notOurs(recordKey, bytes, "a record of another version");
        }
        int flags = from.get();
        boolean isTimed = (flags & HAS_TIMES) != 0;
        if ((flags & ~ALL_FLAGS) != 0 || isTimed && from.remaining() < 24 || isCut(recordKey) != ((flags & HAS_KEY) != 0)) {
            throw notOurs(recordKey, bytes, "flags " + flags);
        }
        long created = isTimed ? from.getLong() : -1;
        long lastUsed = isTimed ? from.getLong() : -1;
        long expiry = isTimed ? from.getLong() : -1;
        org.infinispan.commons.io.ByteBuffer metadata = part(flags & HAS_METADATA, from, recordKey, bytes);
        org.infinispan.commons.io.ByteBuffer internal = part(flags & HAS_INTERNAL, from, recordKey, bytes);
        org.infinispan.commons.io.ByteBuffer key = part(flags & HAS_KEY, from, recordKey, bytes);
        org.infinispan.commons.io.ByteBuffer value =
                (flags & HAS_VALUE) == 0 ? null : ByteBufferImpl.create(bytes, from.position(), from.remaining());
        if (key == null) {
            key = ByteBufferImpl.create(recordKey, SEGMENT_BYTES, recordKey.length - SEGMENT_BYTES);
        }
        return new Decoded(key, value, metadata, internal, created, lastUsed, expiry);
    }

    private static org.infinispan.commons.io.ByteBuffer part(int isPresent, ByteBuffer from, byte[] recordKey, byte[] bytes) {
        if (isPresent == 0) {
            return null;
        }
        int length = from.remaining() < 4 ? -1 : from.getInt();
        if (length < 0 || length > from.remaining()) {
            throw notOurs(recordKey, bytes, "a part of " + length + " bytes");
        }
        int at = from.position();
        from.position(at + length);
        return ByteBufferImpl.create(bytes, at, length);
    }

    private static PersistenceException notOurs(byte[] recordKey, byte[] bytes, String what) {
        return new PersistenceException("a record with a key of " + recordKey.length + " bytes and a value of " + bytes.length + " bytes has "
                + what + ": another program or a later version wrote it; read it with that one, or clear the cache");
    }
}
