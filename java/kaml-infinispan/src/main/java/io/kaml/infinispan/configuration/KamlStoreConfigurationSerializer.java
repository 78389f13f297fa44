package io.kaml.infinispan.configuration;

import org.infinispan.commons.configuration.io.ConfigurationWriter;
import org.infinispan.commons.util.Version;
import org.infinispan.configuration.serializing.AbstractStoreSerializer;
import org.infinispan.configuration.serializing.ConfigurationSerializer;

/** Writes the element {@code kaml-store} of a configuration. */
public class KamlStoreConfigurationSerializer extends AbstractStoreSerializer implements ConfigurationSerializer<KamlStoreConfiguration> {
    /** A serializer, as Infinispan makes it. */
    public KamlStoreConfigurationSerializer() {}

    @Override
    public void serialize(ConfigurationWriter writer, KamlStoreConfiguration configuration) {
        writer.writeStartElement(Element.KAML_STORE);
        writer.writeDefaultNamespace(KamlStoreConfigurationParser.NAMESPACE + Version.getMajorMinor());
        configuration.attributes().write(writer);
        writeCommonStoreSubAttributes(writer, configuration);
        writeCommonStoreElements(writer, configuration);
        writer.writeEndElement();
    }
}
