package io.kaml;

import java.time.Instant;

/**
 * A snapshot of a versioned namespace. It is durable, and is read by its number.
 *
 * @param number its number
 * @param time when it was taken
 */
public record VersionSnapshot(int number, Instant time) {}
