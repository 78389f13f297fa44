/** Configuration of the KAML store, by a builder or in XML, JSON and YAML. */
package io.kaml.infinispan.configuration;
