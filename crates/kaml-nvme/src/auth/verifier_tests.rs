//! Each state of a controller with each message that a host may send.

use super::super::tests::{controller_secret, draw, only, parties, send};
use super::super::{Prover, Step};
use super::*;
use std::fmt::Write;

/// What a cell of the matrix begins with: the state, and what a host has that knows the secret.
struct Setup {
    verifier: Verifier,
    parties: Arc<Parties>,
    reply: Vec<u8>,
    work: Option<Work>,
}

const TRANSACTION: u16 = 0x0203;

/// The states in the order in which a transaction passes through them.
const STATES: [&str; 9] = [
    "Idle",
    "Preparing",
    "Challenging",
    "Awaiting",
    "Checking",
    "Accepting",
    "Accepting, with a response",
    "AwaitingHost",
    "Refusing",
];

fn name(state: &State) -> &'static str {
    match state {
        State::Idle => "Idle",
        State::Preparing => "Preparing",
        State::Challenging(_) => "Challenging",
        State::Awaiting(_) => "Awaiting",
        State::Checking => "Checking",
        State::Accepting { response: None, .. } => "Accepting",
        State::Accepting { response: Some(_), .. } => "Accepting, with a response",
        State::AwaitingHost { .. } => "AwaitingHost",
        State::Refusing { .. } => "Refusing",
    }
}

/// Brings a controller into a state.
fn setup(state: &str) -> Setup {
    let is_mutual = matches!(state, "Accepting, with a response" | "AwaitingHost");
    let parties = parties(Some(controller_secret()), Strength::default());
    let mut host = super::super::tests::parties(None, Strength::default());
    if is_mutual {
        host = Arc::clone(&parties);
    }
    let mut setup = Setup { verifier: Verifier::new(), parties, reply: Vec::new(), work: None };
    let step = |setup: &mut Setup, message: &[u8], ends: bool| {
        let Sent::Work(work) = setup.verifier.send(message, &setup.parties, draw(1), 1) else {
            panic!("there is work")
        };
        match ends {
            true => setup.work = Some(*work),
            false => setup.verifier.finish(work.run()),
        }
    };
    let (mut prover, _) = Prover::begin(&host, TRANSACTION, draw(2));
    let offer = only(Hash::Sha256, Group::Null, TRANSACTION);
    // The reply of the host to the challenge that each setup has: challenges are the same, because what is random is.
    let mut model = Verifier::new();
    send(&mut model, &offer, &setup.parties, 1);
    let Received::Message(challenge) = model.receive(4096) else { panic!("a challenge") };
    let Ok(Step::Exchange(reply)) = prover.receive(&challenge) else { panic!("a reply") };
    setup.reply = reply.clone();
    if state == "Refusing" {
        setup.verifier.send(&[], &setup.parties, draw(1), 1);
    } else if state != "Idle" {
        step(&mut setup, &offer, state == "Preparing");
    }
    if !matches!(state, "Idle" | "Preparing" | "Challenging" | "Refusing") {
        setup.verifier.receive(4096);
    }
    if matches!(state, "Checking" | "Accepting" | "Accepting, with a response" | "AwaitingHost") {
        step(&mut setup, &reply, state == "Checking");
    }
    if state == "AwaitingHost" {
        setup.verifier.receive(4096);
    }
    assert_eq!(name(&setup.verifier.state), state);
    setup
}

type Event = (&'static str, fn(&mut Setup) -> String);

fn sends(setup: &mut Setup, message: &[u8]) -> String {
    let sent = match setup.verifier.send(message, &setup.parties, draw(1), 1) {
        Sent::Taken => "taken",
        Sent::Work(_) => "taken, with work",
        Sent::Authenticated => "authenticated",
        Sent::HostRefuses(_) => "the host refuses",
    };
    sent.to_owned()
}

fn receives(setup: &mut Setup, room: usize) -> String {
    match setup.verifier.receive(room) {
        Received::NotYet => "waits".to_owned(),
        Received::OutOfOrder => "command sequence error".to_owned(),
        Received::TooLong => "invalid field".to_owned(),
        Received::Message(message) => format!("message {}", message[1]),
        Received::Authenticated(message) => format!("message {}, authenticated", message[1]),
        Received::Refused(_, reason) => format!("refused: {reason:?}"),
    }
}

const EVENTS: [Event; 15] = [
    ("sends Negotiate", |setup| sends(setup, &only(Hash::Sha256, Group::Null, TRANSACTION))),
    ("sends Negotiate, one byte short", |setup| sends(setup, &only(Hash::Sha256, Group::Null, TRANSACTION)[..71])),
    ("sends the right Reply", |setup| sends(setup, &setup.reply.clone())),
    ("sends a wrong Reply", |setup| {
        let mut reply = setup.reply.clone();
        reply[20] ^= 1;
        sends(setup, &reply)
    }),
    ("sends a Reply of another transaction", |setup| {
        let mut reply = setup.reply.clone();
        reply[4] ^= 1;
        sends(setup, &reply)
    }),
    ("sends a Reply, one byte short", |setup| {
        let reply = setup.reply.clone();
        sends(setup, &reply[..reply.len() - 1])
    }),
    ("sends a Reply with 256 bytes more", |setup| {
        let reply = [setup.reply.clone(), vec![0; 256]].concat();
        sends(setup, &reply)
    }),
    ("sends a Reply with a public value", |setup| {
        let mut reply = [setup.reply.clone(), vec![3; 256]].concat();
        reply[11] = 1;
        sends(setup, &reply)
    }),
    ("sends Success2", |setup| sends(setup, &FromHost::Success2 { transaction: TRANSACTION }.write())),
    ("sends Success2 of another transaction", |setup| sends(setup, &FromHost::Success2 { transaction: 7 }.write())),
    ("sends Failure2", |setup| {
        sends(setup, &FromHost::Failure2 { transaction: TRANSACTION, reason: Some(Reason::Failed) }.write())
    }),
    ("sends what a controller sends", |setup| {
        let message = FromController::Success1 { transaction: TRANSACTION, hash_bytes: 32, response: None };
        sends(setup, &message.write())
    }),
    ("receives", |setup| receives(setup, 4096)),
    ("receives into 4 bytes", |setup| receives(setup, 4)),
    ("work ends", |setup| match setup.work.take() {
        None => "-".to_owned(),
        Some(work) => {
            setup.verifier.finish(work.run());
            "-".to_owned()
        }
    }),
];

fn state_of(state: &State) -> String {
    match state {
        State::Refusing { reason, .. } => format!("Refusing({reason:?})"),
        state => name(state).to_owned(),
    }
}

/// Goal:   in each state each message has the consequence that was decided on, and no message authenticates a host but the last Receive
///         after a right Reply, or Success2 after it.
/// Method: all states times all messages, compared with the stored table. `KAML_BLESS=1` writes it.
#[test]
fn handshake_is_as_stored() {
    let mut table = String::new();
    for state in STATES {
        writeln!(table, "{state}:").unwrap();
        for (event, happens) in EVENTS {
            let mut setup = setup(state);
            let outcome = happens(&mut setup);
            let after = state_of(&setup.verifier.state);
            if outcome.contains("authenticated") {
                let is_due =
                    (state, event) == ("Accepting", "receives") || (state, event) == ("AwaitingHost", "sends Success2");
                assert!(is_due, "{state}: {event}");
            }
            let after = if after.starts_with(state) && state != "Accepting" { "the same".to_owned() } else { after };
            writeln!(table, "  {event}: {outcome} -> {after}").unwrap();
        }
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/auth/handshake.txt");
    if std::env::var_os("KAML_BLESS").is_some() {
        std::fs::write(path, &table).expect("the source can be written");
    }
    let stored = std::fs::read_to_string(path).expect("the table is stored next to the source");
    let differs = table.lines().zip(stored.lines()).find(|(now, stored)| now != stored);
    assert!(table == stored, "the table has changed, first at {differs:?}");
}

/// Goal:   work whose transaction is over changes nothing.
#[test]
fn late_work_is_dropped() {
    let mut setup = setup("Checking");
    sends(&mut setup, &[]);
    assert_eq!(state_of(&setup.verifier.state), "Refusing(Payload)");
    setup.verifier.finish(setup.work.take().unwrap().run());
    assert_eq!(state_of(&setup.verifier.state), "Refusing(Payload)");
}
