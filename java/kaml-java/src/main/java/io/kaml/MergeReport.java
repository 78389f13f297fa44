package io.kaml;

/**
 * What a merge did, or would do.
 *
 * @param versions versions that were looked at
 * @param kept those of them that the rules keep
 * @param dropped those that were dropped
 * @param droppedBytes their bytes
 * @param segmentsRead segments released
 * @param segmentsWritten segments that replace them; not known in a dry run
 */
public record MergeReport(long versions, long kept, long dropped, long droppedBytes, long segmentsRead, long segmentsWritten) {}
