//! Reservations: hosts that share a namespace keep each other from using it.
//!
//! Lives here:       the registrants, the holders, their rights; the commands; notices to hosts that lose something.
//! Lives elsewhere:  fields and data (`wire::reservations`), where commands ask whether they may (`core`, `namespaces`).
//! Implements:       spec:NVMe-Base "Reservations".
//!
//! Registrations belong to a host by its identifier, whatever controllers it has, and outlive its connections. They last as
//! long as the target runs, or longer if a host has requested that they persist through power loss (`persistence`). Commands that were in progress when somebody preempted their
//! host may still be executed; Preempt and Abort completes when none of them is left.

use super::controller::{Controller, Event, Kind as ControllerKind};
use super::core::{Origin, Outcome, Target};
use super::engine::{Reply, UnderWay};
use super::persistence::{self, KeepReservations};
use super::spaces::Space;
use crate::wire::command::{Command, CommandSet, kv, nvm};
use crate::wire::reservations::{
    CAPABILITIES, HostId, Kind, Notice, PERSISTENT, Registrant, Report, Wish, opcode, persistence_of,
};
use crate::wire::status::Status;

/// Registrants of a namespace at most.
const REGISTRANTS_MAX: usize = 1024;
/// A host without an identifier.
const NOBODY: HostId = [0; 16];

/// How a command uses a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// It looks.
    Read,
    /// It changes something, or makes it durable.
    Write,
}

/// The registrations and the reservation of a namespace.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reservations {
    generation: u32,
    /// In the order of registering.
    registrants: Vec<(HostId, u64)>,
    /// What is held, by whom; if by all registrants, by whom it was acquired.
    held: Option<(Kind, HostId)>,
    /// They persist through power loss.
    persists: bool,
}

/// What a wish came to for others.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Effects {
    /// Which hosts are notified of what.
    notices: Vec<(HostId, Notice)>,
    /// Hosts whose commands have to end before the answer.
    aborted: Vec<HostId>,
}

impl Reservations {
    /// Whether a host may use the namespace so.
    ///
    /// | reservation                     | holder | registrants | others   |
    /// |---------------------------------|--------|-------------|----------|
    /// | write exclusive                 | all    | reads       | reads    |
    /// | exclusive access                | all    | nothing     | nothing  |
    /// | write exclusive, registrants    | all    | all         | reads    |
    /// | exclusive access, registrants   | all    | all         | nothing  |
    pub(crate) fn allows(&self, host: &HostId, way: Use) -> bool {
        let Some((kind, holder)) = self.held else { return true };
        way == Use::Read && !kind.excludes_readers()
            || *host == holder && self.key_of(host).is_some()
            || kind.is_for_registrants() && self.key_of(host).is_some()
    }

    /// Executes what a host needs; all of it or nothing.
    pub(crate) fn carry_out(&mut self, host: &HostId, wish: &Wish) -> Result<Effects, Status> {
        let mut next = self.clone();
        let effects = next.try_carry_out(host, wish)?;
        let counts = !matches!(wish, Wish::Acquire { .. } | Wish::Release { .. });
        next.generation = next.generation.wrapping_add(u32::from(counts));
        *self = next;
        Ok(effects)
    }

    fn try_carry_out(&mut self, host: &HostId, wish: &Wish) -> Result<Effects, Status> {
        match *wish {
            Wish::Register { key } => self.register(host, key),
            Wish::Unregister { key } => {
                self.check(host, key)?;
                Ok(Effects { notices: self.remove(&[*host], host), ..Effects::default() })
            }
            Wish::Replace { key, new } => {
                self.check(host, key)?;
                self.registrants.iter_mut().filter(|(who, _)| who == host).for_each(|(_, key)| *key = new);
                Ok(Effects::default())
            }
            Wish::Acquire { key, kind } => {
                self.check(host, Some(key))?;
                match self.held {
                    Some(held) if held != (kind, *host) && !(held.0 == kind && kind.is_held_by_all()) => {
                        return Err(Status::RESERVATION_CONFLICT);
                    }
                    Some(_) => {}
                    None => self.held = Some((kind, *host)),
                }
                Ok(Effects::default())
            }
            Wish::Preempt { key, kind, victim, abort } => {
                self.check(host, Some(key))?;
                let effects = self.preempt(host, kind, victim)?;
                Ok(if abort { effects } else { Effects { aborted: Vec::new(), ..effects } })
            }
            Wish::Release { key, kind } => {
                self.check(host, Some(key))?;
                self.release(host, kind)
            }
            Wish::Clear { key } => {
                self.check(host, Some(key))?;
                let others = self.others(host).map(|other| (other, Notice::Preempted)).collect();
                (self.registrants, self.held) = (Vec::new(), None);
                Ok(Effects { notices: others, ..Effects::default() })
            }
        }
    }

    fn register(&mut self, host: &HostId, key: u64) -> Result<Effects, Status> {
        match self.key_of(host) {
            Some(present) if present != key => return Err(Status::RESERVATION_CONFLICT),
            Some(_) => {}
            None if *host == NOBODY || self.registrants.len() >= REGISTRANTS_MAX => {
                return Err(Status::OPERATION_DENIED);
            }
            None => self.registrants.push((*host, key)),
        }
        Ok(Effects::default())
    }

    /// Takes registrations away, and the reservation if it is one of theirs.
    fn preempt(&mut self, host: &HostId, kind: Kind, victim: u64) -> Result<Effects, Status> {
        let with_key: Vec<HostId> =
            self.registrants.iter().filter(|(_, key)| *key == victim).map(|(who, _)| *who).collect();
        let (losers, takes) = match self.held {
            Some((held, _)) if held.is_held_by_all() && victim == 0 => (self.others(host).collect(), true),
            Some((held, holder)) if !held.is_held_by_all() && self.key_of(&holder) == Some(victim) => {
                (with_key.into_iter().filter(|who| who != host).collect(), true)
            }
            Some((held, _)) if !held.is_held_by_all() && victim == 0 => return Err(Status::INVALID_FIELD),
            Some(_) | None if with_key.is_empty() => return Err(Status::RESERVATION_CONFLICT),
            Some(_) | None => (with_key, false),
        };
        let before = self.held;
        if takes {
            // Held by the taker before anybody leaves: no host gets a notice that it was released.
            self.held = Some((kind, *host));
        }
        let aborted: Vec<HostId> = losers.iter().copied().filter(|who| who != host).collect();
        let mut notices = self.remove(&losers, host);
        if takes && before.is_some_and(|(held, _)| held != kind) {
            notices.extend(self.others(host).map(|other| (other, Notice::Released)));
        }
        notices.extend(aborted.iter().map(|who| (*who, Notice::RegistrationPreempted)));
        Ok(Effects { notices, aborted })
    }

    fn release(&mut self, host: &HostId, kind: Kind) -> Result<Effects, Status> {
        let Some((held, holder)) = self.held else { return Ok(Effects::default()) };
        if holder != *host && !held.is_held_by_all() {
            return Ok(Effects::default());
        }
        if held != kind {
            return Err(Status::INVALID_FIELD);
        }
        self.held = None;
        let told = held.is_for_registrants();
        let notices = self.others(host).filter(|_| told).map(|other| (other, Notice::Released)).collect();
        Ok(Effects { notices, ..Effects::default() })
    }

    /// Removes registrants. A reservation ends with its holder, or with the last of all holders; the hosts that this concerns are notified,
    /// except the host that did it.
    fn remove(&mut self, losers: &[HostId], by: &HostId) -> Vec<(HostId, Notice)> {
        self.registrants.retain(|(who, _)| !losers.contains(who));
        let Some((held, holder)) = self.held else { return Vec::new() };
        let is_over = match held.is_held_by_all() {
            true => self.registrants.is_empty(),
            false => self.key_of(&holder).is_none(),
        };
        if !is_over {
            return Vec::new();
        }
        self.held = None;
        self.others(by).filter(|_| held.is_for_registrants()).map(|other| (other, Notice::Released)).collect()
    }

    /// Refuses hosts that are no registrants, or name another key.
    fn check(&self, host: &HostId, key: Option<u64>) -> Result<(), Status> {
        let fits = self.key_of(host).is_some_and(|present| key.is_none_or(|key| key == present));
        if fits { Ok(()) } else { Err(Status::RESERVATION_CONFLICT) }
    }

    fn key_of(&self, host: &HostId) -> Option<u64> {
        self.registrants.iter().find(|(who, _)| who == host).map(|(_, key)| *key)
    }

    fn others<'a>(&'a self, host: &'a HostId) -> impl Iterator<Item = HostId> + 'a {
        self.registrants.iter().map(|(who, _)| *who).filter(move |who| who != host)
    }

    pub(crate) fn persists(&self) -> bool {
        self.persists
    }

    pub(crate) fn set_persists(&mut self, persists: bool) {
        self.persists = persists;
    }

    /// Who has acquired what is held.
    pub(crate) fn holder(&self) -> Option<HostId> {
        self.held.map(|(_, holder)| holder)
    }

    /// What was reported once, acquired by this host if anything is held. Nothing if it makes no sense.
    pub(crate) fn restored(report: &Report, holder: &HostId) -> Option<Reservations> {
        let registrants: Vec<_> = report.registrants.iter().map(|one| (one.host, one.key)).collect();
        let held = report.kind.map(|kind| (kind, *holder));
        // Of several holders the one that acquired it can have left.
        let is_possible = held.is_none_or(|(kind, holder)| {
            !registrants.is_empty() && (kind.is_held_by_all() || registrants.iter().any(|(who, _)| *who == holder))
        });
        let restored = Reservations { generation: report.generation, registrants, held, persists: report.persists };
        (is_possible && restored.registrants.len() <= REGISTRANTS_MAX).then_some(restored)
    }

    /// How it is.
    pub(crate) fn report(&self) -> Report {
        let is_holder = |host: &HostId| self.held.is_some_and(|(kind, who)| kind.is_held_by_all() || who == *host);
        let of = |(host, key): &(HostId, u64)| Registrant { host: *host, key: *key, is_holder: is_holder(host) };
        Report {
            generation: self.generation,
            kind: self.held.map(|(kind, _)| kind),
            persists: self.persists,
            registrants: self.registrants.iter().map(of).collect(),
        }
    }
}

/// How a command that is not about reservations uses its namespace.
pub(crate) fn use_of(set: CommandSet, opcode: u8) -> Use {
    let reads = match set {
        CommandSet::Nvm => matches!(opcode, nvm::READ | nvm::COMPARE | nvm::VERIFY),
        CommandSet::KeyValue => matches!(
            opcode,
            kv::RETRIEVE
                | kv::LIST
                | kv::EXIST
                | kv::NAME_KEYS
                | kv::RETRIEVE_NAMED
                | kv::EXIST_NAMED
                | kv::NAME_RANGE
                | kv::RETRIEVE_RANGE
                | kv::COUNT_RANGE
                | kv::OPEN_SNAPSHOT
                | kv::CLOSE_SNAPSHOT
                | kv::RETRIEVE_VERSION
                | kv::HISTORY
                | kv::VERSIONS
                | kv::DIFF
        ),
    };
    if reads { Use::Read } else { Use::Write }
}

/// A Preempt and Abort whose victims have commands in progress.
pub(crate) struct Fence {
    origin: Origin,
    /// These, also of those of their connections that have gone.
    victims: Vec<UnderWay>,
}

impl Target {
    /// Refuses what a reservation keeps a controller's host from.
    pub(crate) fn check_reservation(&self, id: u16, nsid: u32, way: Use) -> Result<(), Status> {
        let Some(reservations) = self.reservations.get(&nsid) else { return Ok(()) };
        let host = &self.controllers.get(&id).ok_or(Status::INTERNAL)?.host.id;
        if reservations.allows(host, way) { Ok(()) } else { Err(Status::RESERVATION_CONFLICT) }
    }

    /// Reservation Register, Report, Acquire and Release.
    pub(crate) fn reserve(
        &mut self,
        origin: Origin,
        id: u16,
        space: &Space,
        command: &Command,
        data: &[u8],
    ) -> Outcome {
        if command.opcode == opcode::REPORT {
            let reservations = self.reservations.get(&space.id);
            let report = || reservations.map_or_else(|| Report::default().encode(), |all| all.report().encode());
            return Report::room(command)
                .map(|room| {
                    let mut data = report();
                    // What lies after the registrants reads as zeros.
                    data.resize(room.min(command.sgl.length.get() as usize), 0);
                    data
                })
                .into();
        }
        let Some(host) = self.controllers.get(&id).map(|controller| controller.host.id) else {
            return Status::INTERNAL.into();
        };
        match self.change_reservations(&host, space.id, command, data) {
            Ok(effects) => self.follow(origin, space.id, &effects),
            Err(status) => status.into(),
        }
    }

    /// Executes what a host needs, and makes it durable if it persists through power loss.
    fn change_reservations(
        &mut self,
        host: &HostId,
        nsid: u32,
        command: &Command,
        data: &[u8],
    ) -> Result<Effects, Status> {
        let persists = if command.opcode == opcode::REGISTER { persistence_of(command)? } else { None };
        if persists == Some(true) && self.options.reservations == KeepReservations::Nowhere {
            tracing::info!(namespace = nsid, "refused: reservations cannot persist, because there is no file for them");
            return Err(Status::INVALID_FIELD);
        }
        let wish = Wish::decode(command, data)?;
        let before = self.reservations.get(&nsid).cloned();
        let now = self.reservations.entry(nsid).or_default();
        let effects = now.carry_out(host, &wish)?;
        now.set_persists(persists.unwrap_or(now.persists));
        let was_persistent = before.as_ref().is_some_and(|before| before.persists);
        if now.persists || was_persistent {
            self.keep_reservations().inspect_err(|_| {
                match before {
                    Some(before) => self.reservations.insert(nsid, before),
                    None => self.reservations.remove(&nsid),
                };
            })?;
        }
        Ok(effects)
    }

    /// Whether reservations of a namespace persist from now on (feature 83h).
    pub(crate) fn set_persistence(&mut self, nsid: u32, persists: bool) -> Result<(), Status> {
        if persists && self.options.reservations == KeepReservations::Nowhere {
            return Err(Status::INVALID_FIELD);
        }
        let before = self.reservations.get(&nsid).is_some_and(|reservations| reservations.persists);
        if before != persists {
            self.reservations.entry(nsid).or_default().persists = persists;
            self.keep_reservations().inspect_err(|_| {
                self.reservations.entry(nsid).or_default().persists = before;
            })?;
        }
        Ok(())
    }

    fn keep_reservations(&self) -> Result<(), Status> {
        persistence::write(&self.options.reservations, self.limits.identity, &self.reservations).map_err(|error| {
            tracing::error!(%error, "reservations cannot be made durable; the command is refused");
            Status::INTERNAL
        })
    }

    /// What namespaces support.
    pub(crate) fn reservation_capabilities(&self) -> u8 {
        match self.options.reservations {
            KeepReservations::Nowhere => CAPABILITIES,
            _ => CAPABILITIES | PERSISTENT,
        }
    }

    /// Notifies hosts of what they lost, and waits for the end of what they may do no more.
    fn follow(&mut self, origin: Origin, nsid: u32, effects: &Effects) -> Outcome {
        for (host, notice) in &effects.notices {
            let theirs = |controller: &&mut Controller| {
                controller.kind == ControllerKind::Storage && controller.host.id == *host
            };
            self.controllers.values_mut().filter(theirs).for_each(|controller| controller.notify(nsid, *notice));
        }
        if effects.aborted.is_empty() {
            return Status::SUCCESS.into();
        }
        let is_victim = |of: &Origin| effects.aborted.contains(&of.host) && of.summary.may_touch(nsid);
        let fence = Fence { origin, victims: self.engine.under_way(is_victim) };
        if fence.victims.is_empty() {
            return Status::SUCCESS.into();
        }
        self.fences.push(fence);
        Outcome::Later
    }

    /// Returns those who wait until preempted hosts have nothing in progress.
    pub(crate) fn open_fences(&mut self) {
        for fence in std::mem::take(&mut self.fences) {
            if !fence.victims.iter().any(|victim| self.engine.is_under_way(victim)) {
                self.replies.push(Reply::of(fence.origin, Status::SUCCESS));
            } else {
                self.fences.push(fence);
            }
        }
    }
}

impl Controller {
    /// Notes that a reservation has changed, unless the host has masked the notice.
    fn notify(&mut self, nsid: u32, notice: Notice) {
        if self.notice_masks.get(&nsid).is_none_or(|mask| mask & notice.mask() == 0) {
            self.notices.push(nsid, notice);
            self.raise(Event::RESERVATIONS);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: HostId = [1; 16];
    const B: HostId = [2; 16];
    const C: HostId = [3; 16];
    const D: HostId = [4; 16];

    /// A, B and C have registered with keys 10, 20 and 30; A holds it.
    fn held(kind: Kind) -> Reservations {
        let mut all = Reservations::default();
        for (host, key) in [(A, 10), (B, 20), (C, 30)] {
            all.carry_out(&host, &Wish::Register { key }).unwrap();
        }
        all.carry_out(&A, &Wish::Acquire { key: 10, kind }).unwrap();
        all
    }

    fn registered(all: &Reservations) -> Vec<HostId> {
        all.report().registrants.iter().map(|registrant| registrant.host).collect()
    }

    /// Goal:   each kind of reservation lets through exactly what the specification's table lets through.
    /// Method: all kinds × holder, registrant, stranger × reads, writes, as a printed matrix.
    #[test]
    fn kinds_let_through_what_the_table_says() {
        let mut matrix = String::new();
        for kind in Kind::ALL {
            let all = held(kind);
            let may = |host| {
                let (reads, writes) = (all.allows(&host, Use::Read), all.allows(&host, Use::Write));
                format!("{}{}", if reads { 'r' } else { '-' }, if writes { 'w' } else { '-' })
            };
            matrix += &format!("{kind:?}: {} {} {}\n", may(A), may(B), may(D));
        }
        let stored = "WriteExclusive: rw r- r-\n\
                      ExclusiveAccess: rw -- --\n\
                      WriteExclusiveRegistrants: rw rw r-\n\
                      ExclusiveAccessRegistrants: rw rw --\n\
                      WriteExclusiveAll: rw rw r-\n\
                      ExclusiveAccessAll: rw rw --\n";
        assert_eq!(matrix, stored);
        assert!(Reservations::default().allows(&D, Use::Write), "nothing is held");
    }

    /// Goal:   registering is once for each host; keys are checked unless they are to be ignored.
    /// Method: each wish with the right key, another one, none, by a registrant and by a stranger.
    #[test]
    fn keys_are_checked() {
        let conflict = Err(Status::RESERVATION_CONFLICT);
        let mut all = Reservations::default();
        let mut wish = |host, wish: Wish| all.carry_out(&host, &wish).map(|effects| effects.notices);
        assert_eq!(wish(NOBODY, Wish::Register { key: 10 }), Err(Status::OPERATION_DENIED));
        assert_eq!(wish(A, Wish::Acquire { key: 10, kind: Kind::WriteExclusive }), conflict);
        assert_eq!(wish(A, Wish::Unregister { key: None }), conflict);
        assert_eq!(wish(A, Wish::Register { key: 10 }), Ok(vec![]));
        assert_eq!(wish(A, Wish::Register { key: 10 }), Ok(vec![]), "nothing new");
        assert_eq!(wish(A, Wish::Register { key: 11 }), conflict);
        assert_eq!(wish(A, Wish::Replace { key: Some(11), new: 12 }), conflict);
        assert_eq!(wish(A, Wish::Replace { key: Some(10), new: 12 }), Ok(vec![]));
        assert_eq!(wish(A, Wish::Replace { key: None, new: 13 }), Ok(vec![]));
        for refused in [
            Wish::Acquire { key: 12, kind: Kind::WriteExclusive },
            Wish::Preempt { key: 12, kind: Kind::WriteExclusive, victim: 13, abort: false },
            Wish::Release { key: 12, kind: Kind::WriteExclusive },
            Wish::Clear { key: 12 },
            Wish::Unregister { key: Some(12) },
        ] {
            assert_eq!(wish(A, refused), conflict);
        }
        assert_eq!(wish(A, Wish::Release { key: 13, kind: Kind::WriteExclusive }), Ok(vec![]), "nothing is held");
        assert_eq!(wish(A, Wish::Unregister { key: Some(13) }), Ok(vec![]));
        assert_eq!(all.report(), Report { generation: 5, ..Report::default() }, "two refused or without effect on it");
    }

    /// Goal:   one host holds a reservation, or all registrants do; releasing it notifies the hosts concerned.
    /// Method: acquire again, by others, of another kind; release by others, of another kind, by the holder; unregister.
    #[test]
    fn reservations_are_held_and_given_up() {
        let conflict = Err(Status::RESERVATION_CONFLICT);
        for kind in Kind::ALL {
            let all_hold = kind.is_held_by_all();
            let other = Kind::ALL[(kind as usize) % 6];
            let mut all = held(kind);
            let before = all.report();
            let holders = before.registrants.iter().filter(|registrant| registrant.is_holder).count();
            assert_eq!((before.kind, holders), (Some(kind), if all_hold { 3 } else { 1 }));
            assert_eq!(all.carry_out(&A, &Wish::Acquire { key: 10, kind }), Ok(Effects::default()));
            assert_eq!(all.carry_out(&A, &Wish::Acquire { key: 10, kind: other }), conflict);
            assert_eq!(all.carry_out(&B, &Wish::Acquire { key: 20, kind }).is_ok(), all_hold);
            assert_eq!(all.carry_out(&A, &Wish::Release { key: 10, kind: other }), Err(Status::INVALID_FIELD));
            assert_eq!(all.report(), before, "nothing of this has changed anything");
            let told = |effects: Effects| effects.notices;
            let both = |notice| vec![(B, notice), (C, notice)];
            let expected = if kind.is_for_registrants() { both(Notice::Released) } else { vec![] };
            let mut released = all.clone();
            assert_eq!(released.carry_out(&A, &Wish::Release { key: 10, kind }).map(told), Ok(expected.clone()));
            assert_eq!((released.report().kind, released.report().generation), (None, before.generation));
            let mut left = all.clone();
            let expected = if all_hold { vec![] } else { expected };
            assert_eq!(left.carry_out(&A, &Wish::Unregister { key: Some(10) }).map(told), Ok(expected));
            assert_eq!(left.report().kind, all_hold.then_some(kind), "others may continue to hold it");
            left.carry_out(&B, &Wish::Unregister { key: None }).unwrap();
            left.carry_out(&C, &Wish::Unregister { key: None }).unwrap();
            assert_eq!(left.report(), Report { generation: 6, ..Report::default() });
            let mut cleared = all.clone();
            let told = cleared.carry_out(&B, &Wish::Clear { key: 20 }).map(told);
            assert_eq!(told, Ok(vec![(A, Notice::Preempted), (C, Notice::Preempted)]));
            assert_eq!(cleared.report(), Report { generation: 4, ..Report::default() });
        }
    }

    /// Goal:   preempting removes what the command names, and notifies those that lose.
    /// Method: the holder's key, another's, one's own, nobody's, zero, for reservations of one and of all holders, and
    ///         without a reservation.
    #[test]
    fn preempting_takes_away() {
        let preempt = |key, kind, victim| Wish::Preempt { key, kind, victim, abort: true };
        let one = Kind::WriteExclusiveRegistrants;
        let lost = |who| (who, Notice::RegistrationPreempted);

        let mut all = held(one);
        let effects = all.carry_out(&B, &preempt(20, Kind::ExclusiveAccess, 10)).unwrap();
        assert_eq!(effects, Effects { notices: vec![(C, Notice::Released), lost(A)], aborted: vec![A] });
        assert_eq!((registered(&all), all.held), (vec![B, C], Some((Kind::ExclusiveAccess, B))));

        let mut all = held(one);
        let effects = all.carry_out(&B, &preempt(20, one, 30)).unwrap();
        assert_eq!(effects, Effects { notices: vec![lost(C)], aborted: vec![C] });
        assert_eq!((registered(&all), all.held), (vec![A, B], Some((one, A))), "the holder's is another");

        let mut all = held(one);
        let effects = all.carry_out(&A, &preempt(10, Kind::WriteExclusive, 10)).unwrap();
        assert_eq!(effects.notices, [(B, Notice::Released), (C, Notice::Released)], "it is of another kind now");
        assert_eq!((registered(&all), all.held), (vec![A, B, C], Some((Kind::WriteExclusive, A))));

        let mut all = held(one);
        assert_eq!(all.carry_out(&B, &preempt(20, one, 0)), Err(Status::INVALID_FIELD));
        assert_eq!(all.carry_out(&B, &preempt(20, one, 99)), Err(Status::RESERVATION_CONFLICT));
        assert_eq!(all.report(), held(one).report());

        let every = Kind::ExclusiveAccessAll;
        let mut all = held(every);
        let effects = all.carry_out(&B, &preempt(20, Kind::WriteExclusive, 0)).unwrap();
        assert_eq!(effects, Effects { notices: vec![lost(A), lost(C)], aborted: vec![A, C] });
        assert_eq!((registered(&all), all.held), (vec![B], Some((Kind::WriteExclusive, B))));
        let mut all = held(every);
        assert_eq!(all.carry_out(&B, &preempt(20, every, 10)).unwrap().notices, [lost(A)]);
        assert_eq!((registered(&all), all.report().kind), (vec![B, C], Some(every)), "those who are left hold it");
        assert_eq!(all.carry_out(&B, &preempt(20, every, 10)), Err(Status::RESERVATION_CONFLICT));

        let mut all = held(one);
        all.carry_out(&A, &Wish::Release { key: 10, kind: one }).unwrap();
        assert_eq!(all.carry_out(&B, &preempt(20, one, 10)).unwrap().notices, [lost(A)]);
        assert_eq!((registered(&all), all.held), (vec![B, C], None), "nothing was held, and nothing is");
    }
}
