package io.kaml.infinispan.configuration;

import io.kaml.infinispan.configuration.KamlStoreConfiguration.Durability;
import org.infinispan.commons.CacheConfigurationException;
import org.infinispan.configuration.cache.AbstractStoreConfigurationBuilder;
import org.infinispan.configuration.cache.PersistenceConfigurationBuilder;
import org.infinispan.configuration.global.GlobalConfiguration;
import org.infinispan.persistence.PersistenceUtil;

/**
 * Configures a KAML store.
 *
 * <pre>{@code
 * new ConfigurationBuilder().persistence().addStore(KamlStoreConfigurationBuilder.class).location("/var/lib/cache").preload(false);
 * }</pre>
 */
public class KamlStoreConfigurationBuilder extends AbstractStoreConfigurationBuilder<KamlStoreConfiguration, KamlStoreConfigurationBuilder> {
    /**
     * A builder, as Infinispan makes it.
     *
     * @param builder the builder of which this one is a part
     */
    public KamlStoreConfigurationBuilder(PersistenceConfigurationBuilder builder) {
        super(builder, KamlStoreConfiguration.attributeDefinitionSet());
    }

    /**
     * Sets where the device is. Caches with one location share its device. Each node needs one of its own.
     *
     * @param path a block device or a file that exists, or else a directory
     * @return this builder
     */
    public KamlStoreConfigurationBuilder location(String path) {
        attributes.attribute(KamlStoreConfiguration.PATH).set(path);
        return this;
    }

    /**
     * Sets what stored entries survive; without this call, the loss of power.
     *
     * @param durability the same for all caches of a device
     * @return this builder
     */
    public KamlStoreConfigurationBuilder durability(Durability durability) {
        attributes.attribute(KamlStoreConfiguration.DURABILITY).set(durability);
        return this;
    }

    /**
     * Sets how large a new device is; without this call, a file grows by itself.
     *
     * @param bytes 0, or at least 32 MiB
     * @return this builder
     */
    public KamlStoreConfigurationBuilder capacityBytes(long bytes) {
        attributes.attribute(KamlStoreConfiguration.CAPACITY).set(bytes);
        return this;
    }

    /**
     * Sets whether a node that joins a cluster keeps the entries of segments that the cluster has changed without it.
     *
     * @param keep true only for the first start after all nodes failed at once
     * @return this builder
     */
    public KamlStoreConfigurationBuilder keepStale(boolean keep) {
        attributes.attribute(KamlStoreConfiguration.KEEP_STALE).set(keep);
        return this;
    }

    @Override
    public void validate() {
        super.validate();
        long bytes = attributes.attribute(KamlStoreConfiguration.CAPACITY).get();
        if (bytes < 0) {
            throw new CacheConfigurationException("the capacity of a KAML store is " + bytes + " bytes: use 0 for a file that grows, or at least 32 MiB");
        }
    }

    @Override
    public void validate(GlobalConfiguration global) {
        PersistenceUtil.validateGlobalStateStoreLocation(global, "KamlStore", attributes.attribute(KamlStoreConfiguration.PATH));
        super.validate(global);
    }

    @Override
    public KamlStoreConfiguration create() {
        return new KamlStoreConfiguration(attributes.protect(), async.create());
    }

    @Override
    public KamlStoreConfigurationBuilder self() {
        return this;
    }
}
