package io.kaml.infinispan;

import io.kaml.infinispan.configuration.KamlStoreConfigurationBuilder;
import java.io.File;
import org.infinispan.commons.test.CommonsTestingUtil;
import org.infinispan.commons.util.Util;
import org.infinispan.configuration.cache.ConfigurationBuilder;
import org.infinispan.persistence.ParallelIterationTest;
import org.testng.annotations.Test;

/** The tests of Infinispan for parallel iteration over every store. */
@Test(groups = {"unit", "smoke"}, testName = "io.kaml.infinispan.KamlStoreParallelIterationTest")
public class KamlStoreParallelIterationTest extends ParallelIterationTest {
    private String directory;

    @Override
    protected void configurePersistence(ConfigurationBuilder builder) {
        directory = CommonsTestingUtil.tmpDirectory(getClass());
        builder.persistence().addStore(KamlStoreConfigurationBuilder.class).location(directory);
    }

    @Override
    protected void teardown() {
        super.teardown();
        Util.recursiveFileRemove(new File(directory));
    }
}
