package io.kaml.infinispan.lab;

import org.infinispan.commons.dataconversion.MediaType;
import org.infinispan.configuration.cache.ConfigurationBuilder;
import org.infinispan.distribution.ch.impl.RESPHashFunctionPartitioner;
import org.infinispan.manager.EmbeddedCacheManager;
import org.infinispan.server.resp.RespServer;
import org.infinispan.server.resp.configuration.RespServerConfigurationBuilder;

/** The endpoint for clients of Redis. */
final class Redis {
    static final String CACHE = "redis";
    private static final int SEGMENTS = 256;

    private Redis() {}

    static ConfigurationBuilder configure(ConfigurationBuilder builder) {
        builder.encoding().mediaType(MediaType.APPLICATION_OCTET_STREAM_TYPE);
        builder.clustering().hash().keyPartitioner(new RESPHashFunctionPartitioner()).numSegments(SEGMENTS);
        return builder;
    }

    static void start(EmbeddedCacheManager manager, int port) {
        manager.getCache(CACHE);
        new RespServer().start(
                new RespServerConfigurationBuilder().host("127.0.0.1").port(port).cache(CACHE).build(), manager);
    }
}
