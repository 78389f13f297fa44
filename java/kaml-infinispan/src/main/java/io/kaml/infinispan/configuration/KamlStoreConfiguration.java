package io.kaml.infinispan.configuration;

import io.kaml.infinispan.KamlStore;
import org.infinispan.commons.configuration.BuiltBy;
import org.infinispan.commons.configuration.ConfigurationFor;
import org.infinispan.commons.configuration.attributes.AttributeDefinition;
import org.infinispan.commons.configuration.attributes.AttributeSet;
import org.infinispan.configuration.cache.AbstractStoreConfiguration;
import org.infinispan.configuration.cache.AsyncStoreConfiguration;
import org.infinispan.configuration.serializing.SerializedWith;

/** How a cache is stored on a KAML device. */
@BuiltBy(KamlStoreConfigurationBuilder.class)
@ConfigurationFor(KamlStore.class)
@SerializedWith(KamlStoreConfigurationSerializer.class)
public class KamlStoreConfiguration extends AbstractStoreConfiguration<KamlStoreConfiguration> {
    static final AttributeDefinition<String> PATH =
            AttributeDefinition.builder(Attribute.PATH, null, String.class).immutable().build();
    static final AttributeDefinition<Durability> DURABILITY =
            AttributeDefinition.builder(Attribute.DURABILITY, Durability.POWER, Durability.class).immutable().build();
    static final AttributeDefinition<Long> CAPACITY =
            AttributeDefinition.builder(Attribute.CAPACITY, 0L, Long.class).immutable().build();

    static final AttributeDefinition<Boolean> KEEP_STALE =
            AttributeDefinition.builder(Attribute.KEEP_STALE, false, Boolean.class).immutable().build();

    /** What stored entries survive. */
    public enum Durability {
        /** The loss of power. */
        POWER,
        /** The end of the process, but not the loss of power; much faster. */
        PROCESS
    }

    KamlStoreConfiguration(AttributeSet attributes, AsyncStoreConfiguration async) {
        super(Element.KAML_STORE, attributes, async);
    }

    /**
     * The attributes of a store, with those that every store has.
     *
     * @return a new set
     */
    public static AttributeSet attributeDefinitionSet() {
        return new AttributeSet(KamlStoreConfiguration.class, AbstractStoreConfiguration.attributeDefinitionSet(), PATH, DURABILITY, CAPACITY,
                KEEP_STALE);
    }

    /**
     * Where the device is: a block device or a file that exists, or else a directory, in which it is the file {@code device.kaml}.
     *
     * @return the path; null for the persistent location of the cache manager
     */
    public String location() {
        return attributes.attribute(PATH).get();
    }

    /**
     * What stored entries survive.
     *
     * @return the durability
     */
    public Durability durability() {
        return attributes.attribute(DURABILITY).get();
    }

    /**
     * How large a new device is.
     *
     * @return bytes; 0 for the whole of a block device, or for a file that grows by itself
     */
    public long capacityBytes() {
        return attributes.attribute(CAPACITY).get();
    }

    /**
     * Whether a node that joins a cluster keeps the entries of segments that the cluster has changed without it. Entries that were deleted
     * meanwhile can come back then. It is for the first start after all nodes failed at once.
     *
     * @return whether it keeps them
     */
    public boolean keepStale() {
        return attributes.attribute(KEEP_STALE).get();
    }
}
