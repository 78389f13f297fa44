package io.kaml;

/**
 * Which keys of an ordered namespace, and how they are read. Ranges are values: each method returns another one.
 *
 * <pre>{@code
 * KeyRange.prefix(Keys.text("user/"))                  // keys that begin so
 * KeyRange.from(a).to(b)                               // a is in it, b is not
 * KeyRange.all().backwards().keysOnly()
 * }</pre>
 */
public final class KeyRange {
    static final int REVERSE = 1;
    static final int KEYS_ONLY = 2;
    static final int FROM_EXCLUDED = 4;
    static final int TO_INCLUDED = 8;

    final byte[] from;
    final byte[] to;
    final boolean isPrefix;
    final int flags;

    private KeyRange(byte[] from, byte[] to, boolean isPrefix, int flags) {
        this.from = from;
        this.to = to;
        this.isPrefix = isPrefix;
        this.flags = flags;
    }

    /**
     * All keys.
     *
     * @return the range
     */
    public static KeyRange all() {
        return new KeyRange(null, null, false, 0);
    }

    /**
     * Keys that begin with these bytes.
     *
     * @param prefix at most 1024 bytes
     * @return the range
     */
    public static KeyRange prefix(byte[] prefix) {
        return new KeyRange(prefix.clone(), null, true, 0);
    }

    /**
     * Keys from this one on, which is in the range.
     *
     * @param key the first key
     * @return the range
     */
    public static KeyRange from(byte[] key) {
        return new KeyRange(key.clone(), null, false, 0);
    }

    /**
     * Keys after this one.
     *
     * @param key the key before the first
     * @return the range
     */
    public static KeyRange after(byte[] key) {
        return new KeyRange(key.clone(), null, false, FROM_EXCLUDED);
    }

    /**
     * The same up to a key that is not in it.
     *
     * @param key the key after the last
     * @return the range
     * @throws IllegalStateException for a prefix, which has an end
     */
    public KeyRange to(byte[] key) {
        return ending(key, flags & ~TO_INCLUDED);
    }

    /**
     * The same up to a key that is in it.
     *
     * @param key the last key
     * @return the range
     * @throws IllegalStateException for a prefix, which has an end
     */
    public KeyRange through(byte[] key) {
        return ending(key, flags | TO_INCLUDED);
    }

    /**
     * The same from its end on.
     *
     * @return the range
     */
    public KeyRange backwards() {
        return new KeyRange(from, to, isPrefix, flags | REVERSE);
    }

    /**
     * The same without values: no value is read.
     *
     * @return the range
     */
    public KeyRange keysOnly() {
        return new KeyRange(from, to, isPrefix, flags | KEYS_ONLY);
    }

    private KeyRange ending(byte[] key, int flags) {
        if (isPrefix) {
            throw new IllegalStateException("the keys of a prefix have an end; use from(prefix) with an end of your own");
        }
        return new KeyRange(from, key.clone(), false, flags);
    }

    /** A prefix as a range with two bounds, for calls that take no prefix. */
    KeyRange bounded() {
        if (!isPrefix) {
            return this;
        }
        int length = from.length;
        while (length > 0 && from[length - 1] == (byte) 0xff) {
            length -= 1;
        }
        byte[] end = null;
        if (length > 0) {
            end = java.util.Arrays.copyOf(from, length);
            end[length - 1] += 1;
        }
        return new KeyRange(from.length == 0 ? null : from, end, false, flags);
    }
}
