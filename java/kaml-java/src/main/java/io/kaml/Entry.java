package io.kaml;

/**
 * A record that a range returned.
 *
 * @param key its key
 * @param value its value; null if keys alone were requested
 */
public record Entry(byte[] key, byte[] value) {}
