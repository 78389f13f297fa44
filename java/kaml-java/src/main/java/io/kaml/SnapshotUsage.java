package io.kaml;

/**
 * What open snapshots keep, those of iterators included.
 *
 * @param openCount moments of which snapshots are open; snapshots of one moment count once
 * @param expiredCount moments whose snapshots expired since the device was opened
 * @param keptBytes bytes of overwritten and deleted records that are kept on flash
 * @param entryCount overwritten and deleted records that are kept, and keys that did not exist
 * @param memoryBytes bytes of memory for them
 */
public record SnapshotUsage(long openCount, long expiredCount, long keptBytes, long entryCount, long memoryBytes) {}
