package io.kaml.infinispan;

import static org.testng.AssertJUnit.assertEquals;
import static org.testng.AssertJUnit.assertTrue;
import static org.testng.AssertJUnit.fail;

import io.kaml.infinispan.configuration.KamlStoreConfiguration;
import io.kaml.infinispan.configuration.KamlStoreConfiguration.Durability;
import io.kaml.infinispan.configuration.KamlStoreConfigurationBuilder;
import org.infinispan.commons.CacheConfigurationException;
import org.infinispan.commons.dataconversion.MediaType;
import org.infinispan.commons.io.StringBuilderWriter;
import org.infinispan.commons.configuration.io.ConfigurationWriter;
import org.infinispan.configuration.cache.Configuration;
import org.infinispan.configuration.cache.ConfigurationBuilder;
import org.infinispan.configuration.parsing.ConfigurationBuilderHolder;
import org.infinispan.configuration.parsing.ParserRegistry;
import org.testng.annotations.Test;

/** Configurations in XML, JSON and YAML, and by a builder. */
@Test(groups = "unit", testName = "io.kaml.infinispan.KamlStoreConfigurationTest")
public class KamlStoreConfigurationTest {
    private static Configuration parse(String text, MediaType type) {
        ConfigurationBuilderHolder holder = new ParserRegistry().parse(text, type);
        return holder.getNamedConfigurationBuilders().get("cache").build();
    }

    private static String xml(String attributes) {
        return """
                <infinispan xmlns="urn:infinispan:config:16.0"><cache-container><local-cache name="cache"><persistence>
                <kaml-store xmlns="urn:infinispan:config:store:kaml:16.0" %s/>
                </persistence></local-cache></cache-container></infinispan>""".formatted(attributes);
    }

    private static KamlStoreConfiguration store(Configuration configuration) {
        return (KamlStoreConfiguration) configuration.persistence().stores().getFirst();
    }

    /**
     * Goal: every attribute is read, and has its default without it.
     * Method: XML with all and with few attributes.
     */
    public void attributesAreRead() {
        KamlStoreConfiguration all = store(parse(
                xml("path='/data' durability='PROCESS' capacity='1073741824' preload='true' segmented='false' keep-stale='true'"),
                MediaType.APPLICATION_XML));
        assertEquals("/data", all.location());
        assertEquals(Durability.PROCESS, all.durability());
        assertEquals(1L << 30, all.capacityBytes());
        assertTrue(all.keepStale());
        assertTrue(all.preload() && !all.purgeOnStartup() && !all.segmented());
        KamlStoreConfiguration few = store(parse(xml("path='/data'"), MediaType.APPLICATION_XML));
        assertEquals(Durability.POWER, few.durability());
        assertEquals(0, few.capacityBytes());
    }

    /**
     * Goal: a configuration that is written is read as the same, in every format.
     * Method: write and parse.
     */
    public void writtenConfigurationsAreTheSame() {
        ConfigurationBuilder builder = new ConfigurationBuilder();
        builder.persistence().addStore(KamlStoreConfigurationBuilder.class).location("/data/x").durability(Durability.PROCESS)
                .capacityBytes(1 << 30).keepStale(true).async().enable();
        Configuration configuration = builder.build();
        for (MediaType type : new MediaType[] {MediaType.APPLICATION_XML, MediaType.APPLICATION_JSON, MediaType.APPLICATION_YAML}) {
            StringBuilderWriter text = new StringBuilderWriter();
            try (ConfigurationWriter writer = ConfigurationWriter.to(text).withType(type).build()) {
                new ParserRegistry().serialize(writer, null, java.util.Map.of("cache", configuration));
            }
            Configuration again = parse(text.toString(), type);
            assertEquals(text.toString(), store(configuration), store(again));
        }
    }

    /**
     * Goal: what is wrong is refused with its name.
     * Method: unknown attributes, elements and values; no location.
     */
    public void mistakesAreNamed() {
        refused(() -> parse(xml("path='/data' colour='red'"), MediaType.APPLICATION_XML), "colour");
        refused(() -> parse(xml("path='/data' durability='SOME'"), MediaType.APPLICATION_XML), "SOME");
        refused(() -> parse(xml("path='/data' capacity='much'"), MediaType.APPLICATION_XML), "much");
        refused(() -> parse(xml("path='/data' capacity='-1'"), MediaType.APPLICATION_XML), "-1 bytes");
        refused(() -> parse(xml("path='/data' shared='true'"), MediaType.APPLICATION_XML), "shared");
    }

    private static void refused(Runnable call, String words) {
        try {
            call.run();
        } catch (CacheConfigurationException | IllegalArgumentException failure) {
            for (Throwable cause = failure; cause != null; cause = cause.getCause()) {
                if (String.valueOf(cause.getMessage()).contains(words)) {
                    return;
                }
            }
            throw failure;
        }
        fail("not refused: " + words);
    }
}
