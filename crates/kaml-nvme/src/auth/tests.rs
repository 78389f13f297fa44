//! Both ends with each other, and with values that another program has computed.

use super::response::{By, Question};
use super::*;
use crate::wire::auth::{FromController, FromHost, Reason};
use proptest::prelude::*;
use std::sync::Arc;
use zeroize::Zeroizing;

pub(super) const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:host";
pub(super) const SUBSYSTEM: &str = "nqn.2026-11.example:subsystem";
const HOST_SECRET: &str = "DHHC-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
const CONTROLLER_SECRET: &str = "DHHC-1:00:ZGVmZ2hpamtsbW5vcHFyc3R1dnd4eXp7fH1+f4CBgoOEhYaHiImKi4yNjo+QkZKTvGwQfg==:";

pub(super) fn host_secret() -> Secret {
    HOST_SECRET.parse().unwrap()
}

pub(super) fn controller_secret() -> Secret {
    CONTROLLER_SECRET.parse().unwrap()
}

pub(super) fn parties(controller: Option<Secret>, strength: Strength) -> Arc<Parties> {
    let (host, subsystem) = (HOST.to_owned(), SUBSYSTEM.to_owned());
    Arc::new(Parties { host, subsystem, secret: host_secret(), controller_secret: controller, strength })
}

pub(super) fn draw(seed: u8) -> Draw {
    Draw { challenge: Zeroizing::new([seed; 64]), exponent: Zeroizing::new([seed; 56]) }
}

/// A host that offers no more than a hash and a group.
pub(super) fn only(hash: Hash, group: Group, transaction: u16) -> Vec<u8> {
    FromHost::Negotiate(crate::wire::auth::Negotiate {
        transaction,
        secure_channel: 0,
        is_known: true,
        hashes: vec![hash.id()],
        groups: vec![group.id()],
    })
    .write()
}

/// The controller takes a message, and computes.
pub(super) fn send(verifier: &mut Verifier, message: &[u8], parties: &Arc<Parties>, seed: u8) -> Sent {
    match verifier.send(message, parties, draw(seed), u32::from(seed)) {
        Sent::Work(work) => {
            verifier.finish(work.run());
            Sent::Taken
        }
        sent => sent,
    }
}

/// What both ends come to: of the host, and of the controller.
fn talk(
    host: &Parties,
    controller: &Arc<Parties>,
    offer: Option<Vec<u8>>,
) -> (Result<(), Refusal>, Result<(), Reason>) {
    let mut verifier = Verifier::new();
    let (mut prover, mut step) = Prover::begin(host, 0x1234, draw(9));
    if let Some(offer) = offer {
        step = Step::Exchange(offer);
    }
    let mut accepted = Err(Reason::Failed);
    loop {
        let message = match step {
            Step::Exchange(message) => message,
            Step::Finish(message) => {
                let is_over = matches!(send(&mut verifier, &message, controller, 7), Sent::Authenticated);
                return (Ok(()), if is_over { Ok(()) } else { accepted });
            }
            Step::Done => return (Ok(()), accepted),
        };
        assert!(matches!(send(&mut verifier, &message, controller, 7), Sent::Taken));
        let message = match verifier.receive(4096) {
            Received::Message(message) => message,
            Received::Authenticated(message) => {
                accepted = Ok(());
                message
            }
            Received::Refused(message, reason) => {
                accepted = Err(reason);
                message
            }
            Received::NotYet | Received::OutOfOrder | Received::TooLong => panic!("nothing to receive"),
        };
        step = match prover.receive(&message) {
            Ok(step) => step,
            Err(Refusal::ByHost(reason, message)) => {
                let told = send(&mut verifier, &message, controller, 7);
                assert!(matches!(told, Sent::HostRefuses(Some(same)) if same == reason) || accepted.is_ok());
                return (Err(Refusal::ByHost(reason, message)), Err(Reason::Failed));
            }
            Err(refusal) => return (Err(refusal), accepted),
        };
    }
}

/// Goal:   responses are those of the specification.
/// Method: the first half of each response, computed by another program (Python's hmac, hashlib and pow) from the formulas in the
///         facts about the protocol: all hash functions and groups, secrets with and without a hash.
#[test]
fn responses_are_as_computed_elsewhere() {
    let expected = [
        (Hash::Sha256, Group::Null, "0b057e26dccae66222495807b810be45", "8cfc508dad0cec7837a4f27a5a9e2e4d"),
        (Hash::Sha256, Group::Ffdhe2048, "692db3cde459332deea7ec29809b4b82", "81c0a8763f4e9ac08627fe0beac9a6ae"),
        (Hash::Sha256, Group::Ffdhe3072, "3f602d7e2b4623f525d4e4e7a67b5e8c", "ca93263803abadfeee54bc499d9df3a1"),
        (Hash::Sha256, Group::Ffdhe4096, "cb8faccd1e5f6b41221cf51ca87cd5f7", "59cc6d32a80d38bdae2b79c9348ed499"),
        (Hash::Sha256, Group::Ffdhe6144, "dd500002f4048540171b3f8254448671", "a1caca061b008d1c2d42bb80ecee7e9b"),
        (Hash::Sha256, Group::Ffdhe8192, "86eac96a6a73c02b5d8f18d73a818f91", "38c2d5a6f0af5ffe734a7bfe57ee588a"),
        (Hash::Sha384, Group::Null, "7410e7a7bcca55df5212063be5b3f718", "544ee9850542b88d523df8a254810220"),
        (Hash::Sha384, Group::Ffdhe2048, "04fb99531a1316806d84b40da0c10bfb", "7d929736a068d65ba0b1475c822c2248"),
        (Hash::Sha384, Group::Ffdhe3072, "a18fdb8b36acf009db59061088867eca", "9e12e9f49e4059f435b2bd559375f686"),
        (Hash::Sha384, Group::Ffdhe4096, "579997402374a3307673574f27425c24", "9cbd4530f85b0ea11135c6723baa1d23"),
        (Hash::Sha384, Group::Ffdhe6144, "ab688734a47da74b9f64695dcbe7ba5b", "91d73b5e769328f8100adc4b0e041277"),
        (Hash::Sha384, Group::Ffdhe8192, "17f71174ffc0ff2274d6d48a9e7fdd34", "cc7f1d97395b1ab8e7e45c0047670d64"),
        (Hash::Sha512, Group::Null, "a02f3e342e0b25d735162b596bc7a1ec", "54b0f2d8bcdf72492c6f33ad1bb22f8f"),
        (Hash::Sha512, Group::Ffdhe2048, "bfbbd0c2c9121bce847959224c438b31", "384b1d9a86addc0e916e6274482e74e7"),
        (Hash::Sha512, Group::Ffdhe3072, "5b96fbbbceb36dbb374ba1f18edf8292", "0d605cc1234f3a5c0dd50f4c3f109f91"),
        (Hash::Sha512, Group::Ffdhe4096, "8a8845f6cf877541de3b1b02b961b3e8", "d09002b69b95fe2d771a06362721b4eb"),
        (Hash::Sha512, Group::Ffdhe6144, "8b806d0dd26a614fc90d24e53b029ccf", "61da313f0c2e130f0e0df68b8adfb23d"),
        (Hash::Sha512, Group::Ffdhe8192, "8e41c1556bf0be782637a1ec1b5dda33", "4b3bb9fef5f1dbb63c1b58d2584e9b26"),
    ];
    for (hash, group, host, controller) in expected {
        let shared = (group != Group::Null).then(|| {
            let theirs = KeyPair::new(group, &[9; 56]);
            KeyPair::new(group, &[7; 56]).shared(theirs.public()).unwrap()
        });
        let respond = |by, secret: &Secret, seed: u8, sequence| {
            let question = Question {
                hash,
                challenge: &vec![seed; hash.bytes()],
                sequence,
                transaction: 0x1234,
                shared: shared.as_ref().map(|shared| shared.as_slice()),
                host: HOST,
                subsystem: SUBSYSTEM,
            };
            let response = question.respond(by, secret);
            assert_eq!(response.len(), hash.bytes());
            assert!(question.accepts(by, secret, &response));
            response[..16].iter().map(|byte| format!("{byte:02x}")).collect::<String>()
        };
        assert_eq!(respond(By::Host, &host_secret(), 1, 5), host, "{hash} {group}");
        assert_eq!(respond(By::Controller, &controller_secret(), 2, 6), controller, "{hash} {group}");
    }
}

/// Goal:   both ends accept each other in all hash functions and groups, in one direction and in both, and choose as documented.
#[test]
fn ends_with_the_same_secrets_accept_each_other() {
    for hash in Hash::ALL {
        for group in Group::ALL {
            for secret in [None, Some(controller_secret())] {
                let all = parties(secret, Strength::default());
                let offer = only(hash, group, 0x1234);
                assert_eq!(talk(&all, &all, Some(offer)), (Ok(()), Ok(())), "{hash} {group}");
            }
        }
    }
    let all = parties(None, Strength::default());
    let mut verifier = Verifier::new();
    let (_, step) = Prover::begin(&all, 1, draw(1));
    let Step::Exchange(offer) = step else { panic!("a host begins by sending") };
    send(&mut verifier, &offer, &all, 1);
    assert_eq!(verifier.agreed(), Some((Hash::Sha512, Group::Ffdhe2048)));
}

/// Goal:   an end that has another secret, or none, is refused by the other one.
#[test]
fn ends_with_other_secrets_are_refused() {
    let all = |secret: &Secret, controller: Option<&Secret>| {
        Arc::new(Parties {
            host: HOST.to_owned(),
            subsystem: SUBSYSTEM.to_owned(),
            secret: secret.clone(),
            controller_secret: controller.cloned(),
            strength: Strength::default(),
        })
    };
    let (right, other, third) =
        (host_secret(), controller_secret(), Secret::new(&[7; 64], Some(Hash::Sha512)).unwrap());
    for group in [Group::Null, Group::Ffdhe2048] {
        let offer = || Some(only(Hash::Sha384, group, 0x1234));
        let refused = (Err(Refusal::ByController(Some(Reason::Failed))), Err(Reason::Failed));
        assert_eq!(talk(&all(&other, None), &all(&right, None), offer()), refused, "another secret");
        let same_key = Secret::new(&(0..32).collect::<Vec<u8>>(), None).unwrap();
        assert_eq!(talk(&all(&same_key, None), &all(&right, None), offer()), refused, "not hashed with the name");
        assert_eq!(talk(&all(&right, Some(&other)), &all(&right, None), offer()), refused, "the controller has none");
        let (host, _) = talk(&all(&right, Some(&third)), &all(&right, Some(&other)), offer());
        assert!(matches!(host, Err(Refusal::ByHost(Reason::Failed, _))), "the controller has another one");
        let mut named = Arc::into_inner(all(&right, None)).unwrap();
        named.host = "nqn.2014-08.org.nvmexpress:uuid:other".to_owned();
        assert_eq!(talk(&named, &all(&right, None), offer()), refused, "the secret of another name");
    }
}

/// Goal:   neither end agrees to less than its strength, in whatever a host offers or a controller chooses.
#[test]
fn weak_terms_are_refused() {
    let any = parties(None, Strength::default());
    let strong = parties(None, Strength { hash: Hash::Sha384, group: Group::Ffdhe3072 });
    let by_controller = |reason| (Err(Refusal::ByController(Some(reason))), Err(reason));
    for (hash, group, reason) in [
        (Hash::Sha256, Group::Ffdhe3072, Reason::Hash),
        (Hash::Sha384, Group::Ffdhe2048, Reason::Group),
        (Hash::Sha384, Group::Null, Reason::Group),
    ] {
        assert_eq!(talk(&any, &strong, Some(only(hash, group, 0x1234))), by_controller(reason));
        let (host, _) = talk(&strong, &any, Some(only(hash, group, 0x1234)));
        assert!(matches!(host, Err(Refusal::ByHost(same, _)) if same == reason), "{hash} {group}");
    }
    assert_eq!(talk(&strong, &any, None), (Ok(()), Ok(())));
}

/// Goal:   what another host has said is of no use to one that has no secret.
/// Method: the Reply of a transaction, sent as the Reply of the next one, with its transaction number corrected.
#[test]
fn replayed_replies_are_refused() {
    for group in [Group::Null, Group::Ffdhe2048] {
        let all = parties(None, Strength::default());
        let mut verifier = Verifier::new();
        let (mut prover, _) = Prover::begin(&all, 0x1234, draw(9));
        send(&mut verifier, &only(Hash::Sha256, group, 0x1234), &all, 1);
        let Received::Message(challenge) = verifier.receive(4096) else { panic!("a challenge") };
        let Ok(Step::Exchange(reply)) = prover.receive(&challenge) else { panic!("a reply") };
        send(&mut verifier, &reply, &all, 1);
        assert!(matches!(verifier.receive(4096), Received::Authenticated(_)));
        for transaction in [0x1234, 0x1235] {
            send(&mut verifier, &only(Hash::Sha256, group, transaction), &all, 2);
            assert!(matches!(verifier.receive(4096), Received::Message(_)));
            let mut again = reply.clone();
            again[4..6].copy_from_slice(&transaction.to_le_bytes());
            send(&mut verifier, &again, &all, 2);
            assert!(matches!(verifier.receive(4096), Received::Refused(_, Reason::Failed)));
        }
    }
}

/// Goal:   secrets are read as nvme-cli writes them, and nothing else is a secret.
#[test]
fn secrets_are_checked() {
    for text in [HOST_SECRET, CONTROLLER_SECRET, "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:"] {
        assert_eq!(*text.parse::<Secret>().unwrap().to_text(), text);
    }
    let secret = Secret::new(&[1; 64], Some(Hash::Sha512)).unwrap();
    assert_eq!(secret.to_text().parse::<Secret>(), Ok(secret.clone()));
    assert_ne!(secret, Secret::new(&[1; 64], Some(Hash::Sha384)).unwrap());
    assert_ne!(secret, Secret::new(&[1; 48], Some(Hash::Sha512)).unwrap());
    assert_eq!(format!("{secret:?}"), "Secret(..)");
    for (text, why) in [
        ("", BadSecret::Form),
        ("DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n", BadSecret::Form),
        ("DHHC-1:0:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:", BadSecret::Form),
        ("DHHC-1:04:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:", BadSecret::Hash),
        ("DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2m:", BadSecret::Checksum),
        ("DHHC-1:00:ja6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:", BadSecret::Checksum),
        ("DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj:", BadSecret::Length),
        ("DHHC-1:00:!a6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:", BadSecret::Form),
    ] {
        assert_eq!(text.parse::<Secret>(), Err(why), "{text}");
    }
    assert_eq!("DHHC-1:00:".repeat(100).parse::<Secret>(), Err(BadSecret::Form));
}

/// What a stranger may send: messages of any form, those of others, those that are changed.
fn messages() -> impl Strategy<Value = Vec<u8>> {
    let group = prop_oneof![Just(Group::Null), Just(Group::Ffdhe2048)];
    let negotiate = (proptest::sample::select(Hash::ALL.to_vec()), group, 0u16..3)
        .prop_map(|(hash, group, transaction)| only(hash, group, transaction));
    let reply = (proptest::sample::select(vec![32usize, 48, 64]), any::<bool>(), 0u16..3, 0u8..3).prop_map(
        |(bytes, asks, transaction, fill)| {
            FromHost::Reply(crate::wire::auth::Reply {
                transaction,
                response: vec![fill; bytes],
                challenge: asks.then(|| (1, vec![fill; bytes])),
                public: if fill == 0 { Vec::new() } else { vec![fill; 256] },
            })
            .write()
        },
    );
    let short = prop_oneof![
        (0u16..3).prop_map(|transaction| FromHost::Success2 { transaction }.write()),
        (0u16..3).prop_map(|transaction| FromHost::Failure2 { transaction, reason: Some(Reason::Failed) }.write()),
    ];
    let any_bytes = proptest::collection::vec(any::<u8>(), 0..80);
    let message = prop_oneof![4 => negotiate, 4 => reply, 2 => short, 1 => any_bytes];
    (message, proptest::option::weighted(0.2, (any::<proptest::sample::Index>(), any::<u8>()))).prop_map(
        |(mut message, change)| {
            if let Some((at, byte)) = change.filter(|_| !message.is_empty()) {
                let at = at.index(message.len());
                message[at] = byte;
            }
            message
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Goal:   nobody gets in without the secret, whatever is sent and received in whatever order; each message completes.
    #[test]
    fn strangers_are_never_authenticated(script in proptest::collection::vec((messages(), 0usize..3), 1..12)) {
        let all = parties(Some(controller_secret()), Strength::default());
        let mut verifier = Verifier::new();
        for (seed, (message, receives)) in script.into_iter().enumerate() {
            prop_assert!(!matches!(send(&mut verifier, &message, &all, seed as u8 + 100), Sent::Authenticated));
            for _ in 0..receives {
                match verifier.receive(4096) {
                    Received::Authenticated(_) => prop_assert!(false, "authenticated without a secret"),
                    Received::Message(message) => {
                        let read = FromController::read(&message);
                        let is_challenge = matches!(read, Ok(FromController::Challenge(_)));
                        prop_assert!(is_challenge, "{:?}", read);
                    }
                    Received::Refused(message, reason) => {
                        let read = FromController::read(&message);
                        let is_failure =
                            matches!(read, Ok(FromController::Failure1 { reason: Some(same), .. }) if same == reason);
                        prop_assert!(is_failure, "{:?}", read);
                    }
                    Received::NotYet | Received::OutOfOrder | Received::TooLong => {}
                }
            }
        }
    }

    /// Goal:   a host refuses controllers that have not proved what they had to.
    #[test]
    fn strange_controllers_are_never_accepted(messages in proptest::collection::vec(
        prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..120),
            (proptest::sample::select(vec![32usize, 48, 64]), 0u16..2, 0u8..3).prop_map(|(bytes, transaction, fill)| {
                FromController::Success1 { transaction, hash_bytes: bytes as u8, response: Some(vec![fill; bytes]) }.write()
            }),
            (1u8..4, 0u8..2, 0u16..2).prop_map(|(hash, group, transaction)| {
                FromController::Challenge(crate::wire::auth::Challenge {
                    transaction, hash, group, sequence: 1,
                    challenge: vec![1; 16 * (usize::from(hash) + 1)],
                    public: vec![3; 256 * usize::from(group)],
                }).write()
            }),
            Just(FromController::Success1 { transaction: 1, hash_bytes: 32, response: None }.write()),
        ], 1..4)) {
        let all = parties(Some(controller_secret()), Strength::default());
        let (mut prover, _) = Prover::begin(&all, 1, draw(9));
        for message in messages {
            match prover.receive(&message) {
                Ok(Step::Exchange(_)) => {}
                Ok(step) => prop_assert!(false, "{:?}", step),
                Err(_) => break,
            }
        }
    }
}
