package io.kaml;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;

/** Keys of numbers and of text. */
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
     * The key, or the value, of a text.
     *
     * @param text any text
     * @return its bytes in UTF-8
     */
    public static byte[] text(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }
}
