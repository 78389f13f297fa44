/**
 * The Infinispan cache store over a KAML device.
 *
 * <p>A cache with {@link io.kaml.infinispan.configuration.KamlStoreConfigurationBuilder} as its store writes every entry to the device of
 * its node, and reads from there what it has not in memory.
 */
package io.kaml.infinispan;
