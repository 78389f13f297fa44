package io.kaml;

/**
 * A namespace, as a listing reports it.
 *
 * @param id its number
 * @param name its name
 * @param keys which keys it takes
 * @param recordCount how many records it has, or versions of all records
 * @param versioned whether it keeps every version of every record
 * @param blocks whether it holds logical blocks, not records
 */
public record NamespaceInfo(int id, String name, KeyKind keys, long recordCount, boolean versioned, boolean blocks) {}
