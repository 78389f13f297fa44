use super::*;
use crate::wire::pdu::{Init, Terminate, flags, kind};
use zerocopy::FromZeros;

/// A connection with `count` commands outstanding, and nothing to send.
fn asked(flow_control: bool, count: usize) -> Connection {
    let mut host = Outbox::new(End::Host);
    host.push(&Header::InitRequest(Init::new_zeroed()));
    (0..count).for_each(|_| host.push(&Header::Command(Command::new(2, 1))));
    let mut connection = Connection::new(Budget::new(1 << 20));
    connection.set_queue(NewQueue { entries: 64, flow_control, is_authenticated: true });
    for bytes in host.slices() {
        connection.space()[..bytes.len()].copy_from_slice(&bytes);
        connection.received(bytes.len());
    }
    for _ in 0..count {
        connection.next_request().expect("a command has come");
    }
    connection.sent(connection.outbox().bytes());
    connection
}

/// Goal:   a command that moves nothing does not wait for the memory that those before it wait for: a host that is kept waiting
///         can still keep its controller alive.
/// Method: a read that finds no room, then a Keep Alive, then a short read, which keeps its place after the first.
#[test]
fn commands_without_data_pass_those_that_wait() {
    let budget = Budget::new(2 << 20);
    let mut other = Connection::new(budget.clone());
    other.share.reserve(2 << 20);
    other.count();
    let mut connection = Connection::new(budget);
    connection.set_queue(NewQueue { entries: 64, flow_control: true, is_authenticated: true });
    connection.set_transfers(Transfers::Long);
    let long = Command { sgl: crate::wire::command::Sgl::transport(1 << 20), ..Command::new(2, 1) };
    let short = Command { sgl: crate::wire::command::Sgl::transport(512), ..Command::new(2, 1) };
    let mut host = Outbox::new(End::Host);
    host.push(&Header::InitRequest(Init::new_zeroed()));
    [long, Command::new(0x18, 0), short].iter().for_each(|command| host.push(&Header::Command(*command)));
    for bytes in host.slices() {
        connection.space()[..bytes.len()].copy_from_slice(&bytes);
        connection.received(bytes.len());
    }
    assert_eq!(connection.next_request().map(|request| request.command.opcode), Some(0x18));
    assert!(connection.next_request().is_none());
    drop(other);
    let lengths = [(); 2].map(|()| connection.next_request().map(|request| request.command.sgl.length.get()));
    assert_eq!(lengths, [Some(1 << 20), Some(512)]);
}

/// A command that moves so many bytes.
fn moving(opcode: u8, bytes: u32) -> Command {
    Command { sgl: crate::wire::command::Sgl::transport(bytes), ..Command::new(opcode, 1) }
}

/// A new connection, which has received such commands.
fn with_commands(budget: Budget, commands: &[Command]) -> Connection {
    let mut connection = Connection::new(budget);
    connection.set_queue(NewQueue { entries: 64, flow_control: true, is_authenticated: true });
    connection.set_transfers(Transfers::Long);
    let mut host = Outbox::new(End::Host);
    host.push(&Header::InitRequest(Init::new_zeroed()));
    commands.iter().for_each(|command| host.push(&Header::Command(*command)));
    for bytes in host.slices() {
        connection.space()[..bytes.len()].copy_from_slice(&bytes);
        connection.received(bytes.len());
    }
    connection
}

/// Goal:   what a host does not take counts as held while nobody listens to it, and so does the time that its commands wait; not the
///         time that it takes to send what nobody receives.
/// Method: a connection with an answer of 100 KB that is not sent, data it was requested, a command that is being executed and one
///         that waits, while others have all memory.
#[test]
fn time_passes_for_who_is_not_listened_to() {
    let budget = Budget::new(1 << 20);
    let commands = [moving(2, 100_000), moving(2, 100_000), moving(1, 100_000), moving(2, 1 << 20)];
    let mut connection = with_commands(budget.clone(), &commands);
    let requests = [(); 3].map(|()| connection.next_request().map(|request| request.reserved));
    assert_eq!(requests, [Some(100_000), Some(100_000), None]);
    let mut other = Connection::new(budget);
    other.share.reserve(2 << 20);
    other.count();
    (0..5).for_each(|_| connection.tick());
    assert!(connection.is_full() && connection.is_parked());
    assert_eq!((connection.held_ticks(), connection.waiting_ticks()), (0, 5), "nobody listens");
    let data = vec![0; 100_000];
    connection.answer(Answer { cid: 0, status: Status::SUCCESS, result: 0, data: data.into(), reserved: 100_000 });
    (0..5).for_each(|_| connection.tick());
    assert_eq!((connection.held_ticks(), connection.waiting_ticks()), (5, 10), "it takes nothing");
}

/// Goal:   a host that was requested data is listened to, though all memory is in use and a command of its is being executed, for
///         minutes perhaps: its data, for which others wait, could not come.
#[test]
fn who_was_asked_is_listened_to() {
    let budget = Budget::new(1 << 20);
    let mut connection = with_commands(budget.clone(), &[moving(1, 512 << 10), moving(2, 8192)]);
    assert_eq!(connection.next_request().map(|request| request.reserved), Some(8192));
    let mut other = Connection::new(budget);
    other.share.reserve(1 << 20);
    other.count();
    assert!(connection.share.is_scarce() && !connection.is_full());
}

/// Goal:   an answer counts as long as its memory is held: what was sent of it is not free before all of it is sent.
/// Method: an answer of 16 MiB, of which all but the last 1000 bytes are sent, then these.
#[test]
fn answers_count_until_they_are_sent_whole() {
    const BYTES: usize = 16 << 20;
    let budget = Budget::new(64 << 20);
    let mut connection = with_commands(budget.clone(), &[moving(2, BYTES as u32)]);
    assert_eq!(connection.next_request().map(|request| request.reserved), Some(BYTES));
    let data = vec![0; BYTES].into();
    connection.answer(Answer { cid: 0, status: Status::SUCCESS, result: 0, data, reserved: BYTES });
    connection.sent(connection.outbox().bytes() - 1000);
    assert!(budget.used() >= BYTES, "{} bytes count", budget.used());
    connection.sent(1000);
    assert_eq!(budget.used(), 0);
}

/// Goal:   who waits for nothing but what it does not take itself has its turn no more: others would wait for it in vain.
/// Method: a connection has 16 MiB of results, which are not sent, and takes the turn for as much again, which is more than it may have
///         by the headers; another one waits. Then all is sent, and others have what the first waits for.
#[test]
fn nobody_has_the_turn_whose_own_answers_are_in_the_way() {
    const BYTES: usize = 16 << 20;
    let budget = Budget::new(BYTES + (1 << 20));
    let mut connection = with_commands(budget.clone(), &[moving(2, BYTES as u32), moving(2, BYTES as u32)]);
    assert_eq!(connection.next_request().map(|request| request.reserved), Some(BYTES));
    connection.sent(connection.outbox().bytes());
    assert!(connection.next_request().is_none() && connection.is_parked());
    let mut other = with_commands(budget.clone(), &[moving(2, 2 << 20)]);
    assert!(other.next_request().is_none());
    (0..5).for_each(|_| connection.tick());
    assert_eq!(connection.waiting_ticks(), 5);
    connection.take_turn();
    let data = vec![0; BYTES].into();
    connection.answer(Answer { cid: 0, status: Status::SUCCESS, result: 0, data, reserved: BYTES });
    assert_eq!(connection.waiting_ticks(), 0);
    assert!(budget.is_nobodys_turn());
    other.share.reserve(BYTES);
    other.count();
    connection.sent(connection.outbox().bytes());
    assert_eq!(connection.waiting_ticks(), 5, "it has not waited in vain");
}

/// Goal:   a connection that is closing waits for nothing, and has no turn.
/// Method: one with a command that waits, whose turn it is, receives what makes no sense, or a terminate request.
#[test]
fn who_is_closing_waits_for_nothing() {
    let terminate = Terminate { status: 1.into(), ..Terminate::new_zeroed() };
    for end in [Header::InitRequest(Init::new_zeroed()), Header::Terminate(terminate)] {
        let budget = Budget::new(1 << 20);
        let mut other = Connection::new(budget.clone());
        other.share.reserve(4 << 20);
        other.count();
        let mut connection = with_commands(budget.clone(), &[moving(2, 1 << 20)]);
        assert!(connection.next_request().is_none() && connection.is_parked());
        (0..5).for_each(|_| connection.tick());
        connection.take_turn();
        let mut host = Outbox::new(End::Host);
        host.push(&end);
        for bytes in host.slices() {
            connection.space()[..bytes.len()].copy_from_slice(&bytes);
            connection.received(bytes.len());
        }
        assert!(connection.next_request().is_none() && connection.is_closing());
        assert!(!connection.is_parked() && budget.is_nobodys_turn(), "after {end:?}");
        assert_eq!(connection.waiting_ticks(), 0);
    }
}

/// Goal:   who has its turn can use it, however many others keep short commands in progress, and however little memory there is; not
///         while others have long ones.
/// Method: 64 connections with a command of 60 KiB each; one whose turn it is waits for as much as all memory, while another has
///         2 MiB, and a command of 2 MiB of a host that has gone, until these are over.
#[test]
fn short_commands_do_not_keep_the_turn_from_being_used() {
    const BYTES: usize = 16 << 20;
    let budget = Budget::new(BYTES);
    let having = |bytes| {
        let mut connection = Connection::new(budget.clone());
        connection.share.reserve(bytes);
        connection.count();
        connection
    };
    let _short: Vec<Connection> = (0..64).map(|_| having(60 << 10)).collect();
    let long = having(2 << 20);
    budget.take(2 << 20);
    let mut connection = with_commands(budget.clone(), &[moving(2, BYTES as u32)]);
    assert!(connection.next_request().is_none() && connection.is_parked());
    connection.take_turn();
    drop(long);
    assert!(connection.next_request().is_none(), "of one that has gone");
    budget.give_back(2 << 20);
    assert_eq!(connection.next_request().map(|request| request.reserved), Some(BYTES));
    assert!(budget.is_nobodys_turn());
}

/// Goal:   a connection that has nothing to send keeps no memory for it.
/// Method: a tick passes while an answer is not sent, and another one afterwards.
#[test]
fn nothing_is_kept_for_nothing_to_send() {
    let mut connection = asked(true, 1);
    let data = vec![0; 8192].into();
    connection.answer(Answer { cid: 0, status: Status::SUCCESS, result: 0, data, reserved: 0 });
    connection.tick();
    connection.sent(connection.outbox().bytes());
    assert!(connection.outbox().spare_bytes() >= 8192, "there may be another answer at once");
    connection.tick();
    assert_eq!(connection.outbox().spare_bytes(), 0);
}

/// Types and flags of the PDUs of an answer.
fn answered(flow_control: bool, status: Status, result: u64, data: Vec<u8>) -> Vec<(u8, u8)> {
    let mut connection = asked(flow_control, 1);
    connection.answer(Answer { cid: 0, status, result, data: data.into(), reserved: 0 });
    let bytes: Vec<u8> = connection.outbox().slices().iter().flat_map(|slice| slice.to_vec()).collect();
    let mut pdus = Vec::new();
    let mut rest = &bytes[..];
    while let [kind, flags, _, _, a, b, c, d, ..] = *rest {
        pdus.push((kind, flags));
        rest = &rest[u32::from_le_bytes([a, b, c, d]) as usize..];
    }
    pdus
}

/// Goal:   data replace a completion that would carry nothing else, and for no other.
#[test]
fn data_alone_are_an_answer() {
    let (data, response) = ((kind::C2H_DATA, flags::LAST), (kind::RESPONSE, 0));
    let alone = (kind::C2H_DATA, flags::LAST | flags::SUCCESS);
    assert_eq!(answered(false, Status::SUCCESS, 0, vec![1; 8]), [alone]);
    assert_eq!(answered(true, Status::SUCCESS, 0, vec![1; 8]), [data, response], "the host needs the head");
    assert_eq!(answered(false, Status::SUCCESS, 8, vec![1; 8]), [data, response], "there is a result");
    assert_eq!(answered(false, Status::SUCCESS, 0, vec![]), [response]);
    assert_eq!(answered(false, Status::INVALID_FIELD, 0, vec![1; 8]), [response]);
}

/// Goal:   the answers of a turn are one packet, if there may be so few, and many short ones share a system call.
#[test]
fn turns_fit_packets() {
    for (bytes, turn) in [(0, 16), (512, 16), (4096, 15), (8192, 7), (16 << 10, 3), (1 << 20, 3)] {
        let mut connection = asked(false, 1);
        assert_eq!(connection.turn(), 16);
        connection.answer(Answer {
            cid: 0,
            status: Status::SUCCESS,
            result: 1,
            data: vec![0; bytes].into(),
            reserved: 0,
        });
        assert_eq!(connection.turn(), turn, "{bytes} bytes");
        assert!(turn == 3 || turn * connection.outbox().bytes() < 65_483, "what Linux sends as one packet at most");
    }
}
