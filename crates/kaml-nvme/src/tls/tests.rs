//! Derivation against values of nvme-cli's library, and both ends of a channel against each other.

use super::*;
use proptest::prelude::*;

const SHORT: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
const LONG: &str = "NVMeTLSkey-1:02:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwP/w0S89ELi3W2LxIcLXVsDn8kXZQ==:";
const RAW: &str = "NVMeTLSkey-1:00:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
const HOST: &str = "nqn.psk-test-host";
const SUBSYSTEM: &str = "nqn.psk-test-subsys";

/// Goal:   keys are read and written as nvme-cli does, and what is wrong with one is named.
/// Method: the keys of libnvme's own test; the same with faults.
#[test]
fn golden_keys() {
    for text in [SHORT, LONG, RAW] {
        let key: TlsKey = text.parse().unwrap();
        assert_eq!(key.to_text().as_str(), text);
        assert_eq!(format!("{key:?}"), "TlsKey(..)");
        assert_eq!(key, text.parse().unwrap());
    }
    assert!(SHORT.parse::<TlsKey>() != LONG.parse() && SHORT.parse::<TlsKey>() != RAW.parse());
    let bad = |text: &str| text.parse::<TlsKey>().unwrap_err();
    assert_eq!(bad(&SHORT[..SHORT.len() - 1]), BadTlsKey::Form);
    assert_eq!(bad(""), BadTlsKey::Form);
    assert_eq!(bad(&format!("{SHORT}{SHORT}")), BadTlsKey::Form);
    assert_eq!(bad("DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:"), BadTlsKey::Form);
    assert_eq!(bad(&SHORT.replace(":01:", ":03:")), BadTlsKey::Hash);
    assert_eq!(bad(&SHORT.replace(":01:", ":1:")), BadTlsKey::Form);
    assert_eq!(bad(&SHORT.replace(":01:", ":02:")), BadTlsKey::Length);
    assert_eq!(bad(&LONG.replace(":02:", ":01:")), BadTlsKey::Length);
    assert_eq!(bad("NVMeTLSkey-1:01:VRLbtg==:"), BadTlsKey::Length);
    assert_eq!(bad(&SHORT.replace("VRL", "VRM")), BadTlsKey::Checksum);
}

/// Goal:   identities and keys of TLS are those of nvme-cli, in the form of today and in that of before.
/// Method: digests of libnvme's own test. Keys that an implementation in another language, written from the texts of RFC 5869 and 8446, has
///         computed, which has the same digests.
#[test]
fn golden_derivation() {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    for (key, early, version_0, digest, version_1) in [
        (
            SHORT,
            false,
            "05c6503551ad136e6ee32e6eeb3f6d500b69701d84ec71e328f65c7f51566f68",
            "iSbjiStwJ/1TrTvDlt2fjFmzvsytOJelidNnA+X5lEU=",
            "8fc3c0badfd4c0c66fa3ca33aadd0314f85536cc9bc47338b60f3e6e563786ca",
        ),
        (
            SHORT,
            true,
            "09fb1983ac6d6d0353e7cae4f23daddd651c367fa347c59d9cf6936f5a83eafb",
            "66GuqV08TsAGII39teWUfwQwizjv06Jy8jOcX3NAAzM=",
            "b9f5ab2a41ba6e72a23a12066302a2f775fa6c0942c8e0b18ca8ac07edf305e2",
        ),
        (
            LONG,
            false,
            "f42ba63824cdfe421914c582921f85b5b5b7e2d4df084caeedc9be20b212e8bb0fe8a23e9d59a1c8fc6449da4970a78d",
            "QhW2+Rp6RzHlNtCslyRxMnwJ11tKKhz8JCAQpQ+XUD8f9td1VeH5h53yz2wKJG1a",
            "a2b2f943f479fc682555cec89857c80ed004ce92f32a973d5764155bb7e36b17a85368a0666d250afac9282dda2e62ca",
        ),
        (
            LONG,
            true,
            "2ee4754186a625b28a3936ef4a40d839c3ad958b2e017562ee07e2501f172ce999dc9c29033ea7ee33f814f192c13f47",
            "RsKmYJ3nAn1ApjjMloJFbAkLPivONDAX/xW327YBUsn2eGShXSjCZvBaOxscLqmz",
            "fcefe2e2a2e682b1447dcabf1ec268f78f08c63cd075753abcc8bda2c5c34d48d3014aa8d76ad80107e4f5c9f27e2149",
        ),
        (
            RAW,
            false,
            "ec85300ba827726bd3bc4fc07f3a34aec5fe7c8ccac05fefc2f021c74e0df9ef",
            "quJVUJjp/BImWR0UQay/MjSfEgyAr6TyBOWybS/B404=",
            "a45d08ee4639c7570729bb3e57e905e466a49a15ece5401af906830c4d3bdb0b",
        ),
    ] {
        let key: TlsKey = key.parse().unwrap();
        let suite = if version_0.len() == 64 { "01" } else { "02" };
        let texts = [
            (format!("NVMe0R{suite} {HOST} {SUBSYSTEM}"), version_0),
            (format!("NVMe1R{suite} {HOST} {SUBSYSTEM} {digest}"), version_1),
        ];
        for (text, secret) in texts {
            let identity = Identity::parse(&text).unwrap();
            assert_eq!(identity.to_text(), text);
            let named = key.named(&identity);
            assert!(named.iter().any(|psk| hex(&psk.secret) == secret && psk.identity == text), "{text}");
            let offered = key.offered(HOST, SUBSYSTEM);
            let is_offered = offered.iter().any(|psk| hex(&psk.secret) == secret && psk.identity == text);
            assert_eq!(is_offered, !early, "{text}");
        }
    }
}

/// Goal:   the first message of OpenSSL's client proves its key, with the identity and key of the test above, and no other.
#[test]
fn golden_hello() {
    let hello = include_bytes!("../../../kaml-fuzz/corpus/tls/hello-openssl");
    assert!(has_key(&hello[1..], &SHORT.parse().unwrap()) && !has_key(&hello[1..], &LONG.parse().unwrap()));
}

/// Goal:   identities that are none are no identities, and one of another key has no keys.
#[test]
fn other_identities_are_refused() {
    for text in [
        "",
        "client",
        "NVMe0G01 nqn.a nqn.b",
        "NVMe2R01 nqn.a nqn.b x",
        "NVMe0R03 nqn.a nqn.b",
        "NVMe0R01 nqn.a",
        "NVMe0R01 host nqn.b",
        "NVMe0R01 nqn.a nqn.b x",
        "NVMe0R01  nqn.a nqn.b",
        "NVMe1R01 nqn.a nqn.b",
        "NVMe1R01 nqn.a nqn.b ",
    ] {
        assert_eq!(Identity::parse(text), None, "{text:?}");
    }
    let long = format!("nqn.{}", "a".repeat(219));
    let key: TlsKey = SHORT.parse().unwrap();
    let offered: Vec<String> = key.offered(&long, &long).into_iter().map(|psk| psk.identity).collect();
    assert!(offered.len() == 1 && offered[0].starts_with("NVMe1"), "version 0 has no room for them");
    assert!(Identity::parse(&offered[0]).is_some());
    let of_another = Identity::parse(&LONG.parse::<TlsKey>().unwrap().offered(HOST, SUBSYSTEM)[0].identity).unwrap();
    assert!(key.named(&of_another).is_empty());
}

/// Goal:   a build without TLS refuses what needs it, and reports why.
#[cfg(not(feature = "tls"))]
#[test]
fn options_need_the_feature() {
    use crate::target::{Error, Options, Security, Server};
    let device = kaml::Device::in_memory(&kaml::CreateOptions::new(64 << 20)).unwrap();
    let options = Options { security: Security::Optional, ..Options::for_device(&device) };
    assert!(matches!(Server::bind(&device, "127.0.0.1:0", options), Err(Error::Tls(TlsError::NotBuilt))));
    let psk = SHORT.parse::<TlsKey>().unwrap().offered(HOST, SUBSYSTEM).swap_remove(0);
    assert!(matches!(Channel::client(psk), Err(TlsError::NotBuilt)));
}

#[cfg(feature = "tls")]
mod channels {
    use super::*;
    use std::io::IoSlice;

    /// What a host sends first.
    fn hello(psk: Psk) -> (Channel, Vec<u8>) {
        let mut channel = Channel::client(psk).unwrap();
        let hello = channel.unsent().to_vec();
        channel.sent(hello.len());
        (channel, hello)
    }

    fn transfer(from: &mut Channel, to: &mut Channel) {
        let bytes = from.unsent().to_vec();
        let space = to.space();
        assert!(bytes.len() <= space.len());
        space[..bytes.len()].copy_from_slice(&bytes);
        from.sent(bytes.len());
        to.received(bytes.len());
    }

    fn read_all(channel: &mut Channel) -> Vec<u8> {
        let (mut space, mut all) = (vec![0; 10_000], Vec::new());
        while let Decrypted::Bytes(count) = channel.decrypt(&mut space).unwrap() {
            all.extend(&space[..count]);
        }
        all
    }

    /// The target's end for the first message of a host.
    fn accept(key: &TlsKey, hello: &[u8]) -> Result<Channel, Refusal> {
        let offer = Offer::read(hello)?.ok_or(Refusal::Garbage)?;
        let chosen = offer.choose(|identity| Ok(key.named(identity)))?;
        assert_eq!((chosen.identity.host.as_str(), chosen.identity.subsystem.as_str()), (HOST, SUBSYSTEM));
        let mut channel = Channel::server(chosen.psk, hello).unwrap();
        channel.handshake().unwrap();
        Ok(channel)
    }

    fn connect(key: &TlsKey, psk: Psk) -> (Channel, Channel) {
        let (mut host, hello) = hello(psk);
        let mut target = accept(key, &hello).unwrap();
        transfer(&mut target, &mut host);
        host.handshake().unwrap();
        assert!(host.is_open() && !target.is_open());
        transfer(&mut host, &mut target);
        target.handshake().unwrap();
        assert!(target.is_open());
        (host, target)
    }

    /// Goal:   both ends agree with each kind of key in both versions, with the suite of the key, and what one end sends is what the other reads.
    #[test]
    fn both_ends_agree() {
        for text in [SHORT, LONG, RAW] {
            let key: TlsKey = text.parse().unwrap();
            for psk in key.offered(HOST, SUBSYSTEM) {
                let suite = psk.suite.name();
                let (mut host, mut target) = connect(&key, psk);
                assert_eq!((host.suite(), target.suite()), (suite, suite));
                for _ in 0..2 {
                    let data: Vec<u8> = (0..60_000u32).map(|at| at as u8).collect();
                    let (mut sent, mut read) = (0, Vec::new());
                    while sent < data.len() {
                        let (short, long) = data[sent..].split_at(100.min(data.len() - sent));
                        sent += host.encrypt(&[IoSlice::new(short), IoSlice::new(long)]).unwrap();
                        transfer(&mut host, &mut target);
                        read.extend(read_all(&mut target));
                    }
                    assert!(read == data && !target.has_unread());
                    (host, target) = (target, host);
                }
            }
        }
    }

    /// Goal:   who has not the key, or changes what was sent, is refused before a handshake.
    /// Method: another key; each byte of a good first message changed, which the binder covers or is.
    #[test]
    fn only_the_key_opens() {
        let (key, other): (TlsKey, TlsKey) = (SHORT.parse().unwrap(), LONG.parse().unwrap());
        let psk = |key: &TlsKey, at: usize| key.offered(HOST, SUBSYSTEM).swap_remove(at);
        let (_, of_other) = hello(psk(&other, 0));
        assert_eq!(accept(&key, &of_other).err(), Some(Refusal::WrongKey(HOST.into())));
        let (_, good) = hello(psk(&key, 1));
        assert!(accept(&key, &good).is_ok());
        for at in 5..good.len() {
            let mut changed = good.clone();
            changed[at] ^= 1;
            let refused = std::panic::catch_unwind(|| accept(&key, &changed).err());
            // A name in the identity may become another host's, which `accept` notices.
            assert!(refused.is_err() || refused.is_ok_and(|refusal| refusal.is_some()), "byte {at}");
        }
        // A key of 48 bytes with SHA-256, as tlshd 1.0 has it; it offers the right suite, which OpenSSL then does not.
        let mut short = psk(&other, 0);
        short.suite = Suite::Aes128GcmSha256;
        let (_, hello) = hello(short);
        assert!(matches!(accept(&other, &hello), Err(Refusal::Suite { .. })));
        for end in 0..good.len() {
            assert!(Offer::read(&good[..end]).unwrap().is_none(), "{end} bytes are not all");
        }
    }

    /// Goal:   ciphertext that was changed, or comes twice, is noticed.
    #[test]
    fn changed_records_are_noticed() {
        let key: TlsKey = SHORT.parse().unwrap();
        for fault in 0..3 {
            let (mut host, mut target) = connect(&key, key.offered(HOST, SUBSYSTEM).swap_remove(0));
            host.encrypt(&[IoSlice::new(b"a command")]).unwrap();
            let mut bytes = host.unsent().to_vec();
            match fault {
                0 => *bytes.last_mut().unwrap() ^= 1,
                1 => bytes.extend(bytes.clone()),
                _ => bytes[7] ^= 0x80,
            }
            target.space()[..bytes.len()].copy_from_slice(&bytes);
            target.received(bytes.len());
            let mut space = [0; 100];
            let first = target.decrypt(&mut space);
            let second = target.decrypt(&mut space);
            assert!(matches!(first.and(second), Err(TlsError::Broken(_))), "fault {fault}");
        }
    }

    /// Goal:   a target that shows anything but the key is refused by a host: another key, and a host as target.
    #[test]
    fn hosts_refuse_others() {
        let key: TlsKey = SHORT.parse().unwrap();
        let (mut host, _) = hello(key.offered(HOST, SUBSYSTEM).swap_remove(0));
        let (_, other) = hello(key.offered(HOST, SUBSYSTEM).swap_remove(0));
        host.space()[..other.len()].copy_from_slice(&other);
        host.received(other.len());
        assert!(matches!(host.handshake(), Err(TlsError::Handshake(_))));
        let (mut host, _) = hello(key.offered(HOST, SUBSYSTEM).swap_remove(0));
        let plain = [3, 0, 24, 0, 24, 0, 0, 0, 1, 0, 0, 0];
        host.space()[..plain.len()].copy_from_slice(&plain);
        host.received(plain.len());
        assert_eq!(host.handshake(), Err(TlsError::NotSpoken));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        /// Goal:   a first message with anything changed is refused or waited for, never a panic, also in the handshake.
        #[test]
        fn changed_messages_are_survived(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8), cut in any::<prop::sample::Index>(),
        ) {
            let key: TlsKey = SHORT.parse().unwrap();
            let (_, mut bytes) = hello(key.offered(HOST, SUBSYSTEM).swap_remove(0));
            for (at, value) in changes {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            bytes.truncate(cut.index(bytes.len()) + 1);
            let offer = Offer::read(&bytes);
            if let Ok(Some(offer)) = offer {
                let _ = offer.choose(|identity| Ok(key.named(identity)));
            }
            let psk = key.offered(HOST, SUBSYSTEM).swap_remove(0);
            let _ = Channel::server(psk, &bytes).unwrap().handshake();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Goal:   texts of any kind are a key, an identity, or neither, never a panic.
    #[test]
    fn random_texts_are_survived(text in "(NVMe(TLSkey-1:0[0-3]:)?)?[A-Za-z0-9+/=: .]{0,90}:?", bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = text.parse::<TlsKey>();
        let _ = Identity::parse(&text);
        let _ = Offer::read(&bytes);
        let mut record = vec![22, 3, 1, (bytes.len() >> 8) as u8, bytes.len() as u8];
        record.extend(&bytes);
        let _ = Offer::read(&record);
    }
}
