package io.kaml.infinispan;

import io.kaml.infinispan.configuration.KamlStoreConfigurationBuilder;
import java.io.File;
import java.nio.file.Paths;
import org.infinispan.commons.test.CommonsTestingUtil;
import org.infinispan.commons.util.Util;
import org.infinispan.configuration.cache.PersistenceConfigurationBuilder;
import org.infinispan.configuration.cache.ConfigurationBuilder;
import org.infinispan.configuration.global.GlobalConfigurationBuilder;
import org.infinispan.manager.EmbeddedCacheManager;
import org.infinispan.persistence.BaseStoreFunctionalTest;
import org.testng.annotations.AfterClass;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.Test;

/** The tests of Infinispan for a cache over every store. */
@Test(groups = "unit", testName = "io.kaml.infinispan.KamlStoreFunctionalTest")
public class KamlStoreFunctionalTest extends BaseStoreFunctionalTest {
    private String directory;

    @BeforeClass(alwaysRun = true)
    protected void makeDirectory() {
        directory = CommonsTestingUtil.tmpDirectory(getClass());
    }

    @AfterClass(alwaysRun = true)
    protected void removeDirectory() {
        Util.recursiveFileRemove(new File(directory));
    }

    @Override
    protected EmbeddedCacheManager createCacheManager(boolean start, GlobalConfigurationBuilder global, ConfigurationBuilder builder) {
        global.globalState().persistentLocation(directory);
        return super.createCacheManager(start, global, builder);
    }

    @Override
    protected PersistenceConfigurationBuilder createCacheStoreConfig(PersistenceConfigurationBuilder persistence, String cacheName,
            boolean preload) {
        persistence.addStore(KamlStoreConfigurationBuilder.class).location(Paths.get(directory, cacheName).toString()).preload(preload);
        return persistence;
    }
}
