//! The names by which hosts know a device.
//!
//! Lives here:       serial number, names of subsystem and namespaces, all made of the device's identity.
//! Lives elsewhere:  the identity itself (`kaml_flash`), where the names are reported (`identify`, `core`).

use kaml::NamespaceId;

/// Names of a device and its namespaces. Two devices that one host uses must have different ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity([u8; 16]);

impl Identity {
    /// The names of a device with this identity (`kaml::DeviceInfo::uuid`, `kaml::Device::renew_identity`).
    pub fn of(identity: [u8; 16]) -> Identity {
        Identity(identity)
    }

    /// As [`Identity::of`], of 32 hexadecimal digits. Missing digits count as zeroes.
    pub(crate) fn of_hex(digits: &str) -> Identity {
        let byte = |at: usize| digits.get(at..at + 2).and_then(|byte| u8::from_str_radix(byte, 16).ok()).unwrap_or(0);
        Identity(std::array::from_fn(|place| byte(place * 2)))
    }

    pub(crate) fn bytes(&self) -> [u8; 16] {
        self.0
    }

    fn hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The identity as a UUID in its usual form.
    pub fn uuid(&self) -> String {
        let hex = self.hex();
        [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
    }

    /// The serial number: 20 hexadecimal digits.
    pub fn serial(&self) -> String {
        self.hex()[..20].to_owned()
    }

    /// The name of the subsystem, unless it is served under another one.
    pub fn subsystem(&self) -> String {
        format!("nqn.2014-08.org.nvmexpress:uuid:{}", self.uuid())
    }

    /// The NGUID of a namespace. Different for all namespaces of all devices, and the same forever: made of the device's identity and
    /// the id, which is never used again.
    pub fn nguid(&self, namespace: NamespaceId) -> [u8; 16] {
        let mut seed = self.0.to_vec();
        seed.extend(namespace.to_le_bytes());
        xxhash_rust::xxh3::xxh3_128(&seed).to_be_bytes()
    }

    /// The UUID of a namespace.
    pub fn namespace_uuid(&self, namespace: NamespaceId) -> [u8; 16] {
        let mut uuid = self.nguid(namespace);
        uuid[6] = uuid[6] & 0x0f | 0x80; // version 8, of the maker's own making
        uuid[8] = uuid[8] & 0x3f | 0x80;
        uuid
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal:   the names that hosts know never change for a given identity.
    /// Method: those of one identity, written out; as bytes and as digits.
    #[test]
    fn names_follow_from_the_identity() {
        let identity = Identity::of(*b"0123456789abcdef");
        assert_eq!(identity, Identity::of_hex("30313233343536373839616263646566"));
        assert_eq!(identity.uuid(), "30313233-3435-3637-3839-616263646566");
        assert_eq!(identity.serial(), "30313233343536373839");
        assert_eq!(identity.subsystem(), "nqn.2014-08.org.nvmexpress:uuid:30313233-3435-3637-3839-616263646566");
        assert_ne!(identity.nguid(1), identity.nguid(2));
        assert_ne!(identity.nguid(1), Identity::of(*b"0123456789abcdeg").nguid(1));
        assert_eq!(identity.namespace_uuid(1)[..6], identity.nguid(1)[..6]);
    }
}
