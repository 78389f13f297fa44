package io.kaml;

/** How values of a namespace are stored. Where compression saves no room, a value is stored as it is. */
public enum Compression {
    /** As they are. */
    NONE,
    /** Compressed with LZ4: fast. */
    LZ4,
    /** Compressed with Zstandard: smaller. */
    ZSTD
}
