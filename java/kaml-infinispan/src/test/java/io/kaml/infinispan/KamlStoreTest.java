package io.kaml.infinispan;

import io.kaml.infinispan.configuration.KamlStoreConfigurationBuilder;
import java.io.File;
import org.infinispan.commons.test.CommonsTestingUtil;
import org.infinispan.commons.util.Util;
import org.infinispan.configuration.cache.Configuration;
import org.infinispan.configuration.cache.ConfigurationBuilder;
import org.infinispan.persistence.BaseNonBlockingStoreTest;
import org.infinispan.persistence.spi.NonBlockingStore;
import org.testng.annotations.AfterMethod;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Factory;
import org.testng.annotations.Test;

/** The tests of Infinispan for every store. */
@Test(groups = "unit", testName = "io.kaml.infinispan.KamlStoreTest")
public class KamlStoreTest extends BaseNonBlockingStoreTest {
    private final boolean segmented;
    private final String directory;

    @Factory(dataProvider = "modes")
    public KamlStoreTest(boolean segmented) {
        this.segmented = segmented;
        this.directory = CommonsTestingUtil.tmpDirectory(getClass()) + "/" + segmented;
    }

    @DataProvider
    public static Object[][] modes() {
        return new Object[][] {{true}, {false}};
    }

    @Override
    protected String parameters() {
        return "[segmented=" + segmented + "]";
    }

    @Override
    protected Configuration buildConfig(ConfigurationBuilder builder) {
        return builder.persistence().addStore(KamlStoreConfigurationBuilder.class).location(directory).segmented(segmented).build();
    }

    @Override
    protected NonBlockingStore<Object, Object> createStore() {
        return new KamlStore<>();
    }

    @AfterMethod(alwaysRun = true)
    @Override
    public void tearDown() {
        super.tearDown();
        Util.recursiveFileRemove(new File(directory));
    }
}
