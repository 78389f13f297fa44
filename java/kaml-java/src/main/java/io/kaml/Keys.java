package io.kaml;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;

/** Keys of numbers and of text, and values of counters. */
public final class Keys {
    private Keys() {}

    /**
     * The key of a number, for namespaces of {@link KeyKind#U64}. In an ordered namespace such keys are in the order of the unsigned
     * numbers.
     *
     * @param number the number
     * @return 8 bytes, big-endian
     */
    public static byte[] u64(long number) {
        return ByteBuffer.allocate(8).putLong(number).array();
    }

    /**
     * The number of a key.
     *
     * @param key 8 bytes, big-endian
     * @return the number
     * @throws IllegalArgumentException if the key does not have 8 bytes
     */
    public static long u64(byte[] key) {
        if (key.length != 8) {
            throw new IllegalArgumentException("a number has 8 bytes, this key " + key.length);
        }
        return ByteBuffer.wrap(key).getLong();
    }

    /**
     * The value of a counter, as {@link Namespace#add} stores it.
     *
     * @param number the number
     * @return 8 bytes, signed, little-endian
     */
    public static byte[] counter(long number) {
        return ByteBuffer.allocate(8).order(ByteOrder.LITTLE_ENDIAN).putLong(number).array();
    }

    /**
     * The number of a counter.
     *
     * @param value what {@link Namespace#get} returned; null counts as 0, as it does for {@link Namespace#add}
     * @return the number
     * @throws IllegalArgumentException if the value does not have 8 bytes
     */
    public static long counter(byte[] value) {
        if (value == null) {
            return 0;
        }
        if (value.length != 8) {
            throw new IllegalArgumentException("a counter has 8 bytes, this value " + value.length);
        }
        return ByteBuffer.wrap(value).order(ByteOrder.LITTLE_ENDIAN).getLong();
    }

    /**
     * The key, or the value, of a text.
     *
     * @param text any text
     * @return its bytes in UTF-8
     */
    public static byte[] text(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }
}
