package io.kaml;

/** Where the index of a namespace is. */
public enum IndexPlace {
    /** Every key with its address in memory, 10 to 30 bytes for each. */
    MEMORY,
    /** About two bytes of memory for each stored record. For keys of at most 16 bytes; without order, expiry, compression and counters. */
    FLASH
}
