package io.kaml.infinispan.configuration;

import io.kaml.infinispan.configuration.KamlStoreConfiguration.Durability;
import org.infinispan.commons.configuration.io.ConfigurationReader;
import org.infinispan.configuration.parsing.CacheParser;
import org.infinispan.configuration.parsing.ConfigurationBuilderHolder;
import org.infinispan.configuration.parsing.ConfigurationParser;
import org.infinispan.configuration.parsing.Namespace;
import org.infinispan.configuration.parsing.ParseUtils;
import org.infinispan.configuration.parsing.Parser;

/** Reads the element {@code kaml-store} of a configuration in XML, JSON or YAML. */
@Namespace(root = "kaml-store")
@Namespace(uri = KamlStoreConfigurationParser.NAMESPACE + "*", root = "kaml-store", since = "16.0")
public class KamlStoreConfigurationParser implements ConfigurationParser {
    static final String NAMESPACE = Parser.NAMESPACE + "store:kaml:";
    private static final String RELATIVE_TO = "relative-to";

    /** A parser, as Infinispan makes it. */
    public KamlStoreConfigurationParser() {}

    @Override
    public void readElement(ConfigurationReader reader, ConfigurationBuilderHolder holder) {
        if (!reader.getLocalName().equals(Element.KAML_STORE.toString())) {
            throw ParseUtils.unexpectedElement(reader);
        }
        KamlStoreConfigurationBuilder store =
                holder.getCurrentConfigurationBuilder().persistence().addStore(KamlStoreConfigurationBuilder.class);
        String path = null;
        String relativeTo = null;
        for (int i = 0; i < reader.getAttributeCount(); i++) {
            ParseUtils.requireNoNamespaceAttribute(reader, i);
            String name = reader.getAttributeName(i);
            String value = reader.getAttributeValue(i);
            if (name.equals(Attribute.PATH.toString())) {
                path = value;
            } else if (name.equals(RELATIVE_TO)) {
                relativeTo = ParseUtils.requireAttributeProperty(reader, i);
            } else if (name.equals(Attribute.DURABILITY.toString())) {
                store.durability(ParseUtils.parseEnum(reader, i, Durability.class, value));
            } else if (name.equals(Attribute.CAPACITY.toString())) {
                store.capacityBytes(ParseUtils.parseLong(reader, i, value));
            } else if (name.equals(Attribute.KEEP_STALE.toString())) {
                store.keepStale(ParseUtils.parseBoolean(reader, i, value));
            } else {
                CacheParser.parseStoreAttribute(reader, i, store);
            }
        }
        String resolved = ParseUtils.resolvePath(path, relativeTo);
        if (resolved != null) {
            store.location(resolved);
        }
        while (reader.inTag()) {
            CacheParser.parseStoreElement(reader, store);
        }
    }

    @Override
    public Namespace[] getNamespaces() {
        return ParseUtils.getNamespaceAnnotations(getClass());
    }
}
