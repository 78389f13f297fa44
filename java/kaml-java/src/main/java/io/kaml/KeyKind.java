package io.kaml;

/** Which keys a namespace takes. */
public enum KeyKind {
    /** 1 to 16 bytes. */
    BYTES,
    /** 8 bytes: 64-bit integers, big-endian ({@link Keys#u64}). They take less memory. */
    U64,
    /** 1 to 1024 bytes, in no order. */
    ANY,
    /** 1 to 1024 bytes, in the order of their bytes: the namespace is read by ranges. */
    ORDERED
}
