//! A controller: what one host's association has on the target's side.
//!
//! Lives here:       registers, features, asynchronous events, the error log, keep-alive.
//! Lives elsewhere:  the commands that request them (`fabrics`, `admin`), all controllers (`core`).
//! Implements:       spec:NVMe-Base "Controller Properties", "Asynchronous Event Request", "Keep Alive".

use super::backup::Lease;
use super::core::Origin;
use super::named::Lists;
use super::rights::Held;
use super::snapshots::Snapshots;
use crate::wire::fabrics::{Configuration, ready};
use crate::wire::logs::{ErrorEntry, lid};
use crate::wire::reservations::{Notice, NoticePage};
use crate::wire::status::Status;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};
use zerocopy::{FromZeros, IntoBytes};

/// Asynchronous Event Requests a host may have outstanding.
pub(crate) const EVENT_REQUESTS_MAX: usize = 4;
/// Entries of the error log that are kept.
pub(crate) const ERRORS_MAX: usize = 64;
/// I/O queues of one controller at most.
pub(crate) const IO_QUEUES_MAX: u16 = 64;
/// How long a host may be silent that looks for subsystems and has named no keep-alive time-out (spec:NVMe-oF "Discovery Service").
const DISCOVERY_SILENCE_MAX: Duration = Duration::from_secs(120);
/// Namespaces that the changed list names; more are reported as "many".
pub(crate) const CHANGED_MAX: usize = 1024;
/// Unit of the keep-alive time-out.
pub(crate) const KEEP_ALIVE_UNIT: Duration = Duration::from_secs(1);

/// The host that connected.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct HostName {
    pub(crate) nqn: String,
    pub(crate) id: [u8; 16],
}

/// What a controller is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Storage,
    Discovery,
}

/// See the module.
pub(crate) struct Controller {
    pub(crate) id: u16,
    pub(crate) kind: Kind,
    pub(crate) host: HostName,
    /// The session that its numbered commands belong to.
    pub(crate) session: Option<u64>,
    pub(crate) admin_link: u64,
    /// Links of I/O queues by their number.
    pub(crate) io_links: BTreeMap<u16, u64>,
    /// I/O queues that Set Features granted.
    pub(crate) queues_granted: u16,
    configuration: Configuration,
    status: u32,
    keep_alive: Duration,
    /// When its host connected.
    pub(crate) began: Instant,
    heard: Instant,
    /// Commands that its host has sent.
    pub(crate) command_count: u64,
    /// Feature values that are just kept, by identifier.
    pub(crate) features: BTreeMap<u8, u32>,
    /// Over and under which temperature a warning is due, in kelvin.
    pub(crate) thresholds_kelvin: [u16; 2],
    pub(crate) event_mask: u32,
    /// Critical warnings that were reported and still hold.
    warned: u8,
    waiting: VecDeque<Origin>,
    events: VecDeque<Event>,
    /// Events reported and not yet acknowledged by reading their log page; no more of the kind until then.
    told: BTreeSet<u8>,
    /// Namespaces changed since the log page was read, up to one more than it names.
    pub(crate) changed_namespaces: BTreeSet<u32>,
    /// Namespaces that are not attached to this controller; all others are.
    pub(crate) detached: BTreeSet<u32>,
    /// What its host may do with each namespace.
    pub(crate) held: Held,
    /// What others did to reservations.
    pub(crate) notices: Notices,
    /// Notices that the host has masked, by namespace (feature 82h).
    pub(crate) notice_masks: BTreeMap<u32, u32>,
    /// Keys that the host has named.
    pub(crate) lists: Lists,
    pub(crate) snapshots: Snapshots,
    /// The backup that its host takes.
    pub(crate) backup: Option<Lease>,
    pub(crate) errors: VecDeque<ErrorEntry>,
    pub(crate) error_count: u64,
}

/// What ends with a reset.
pub(crate) struct Ended {
    /// Links of I/O queues.
    pub(crate) links: Vec<u64>,
    /// Asynchronous Event Requests, which get no completions.
    pub(crate) requests: Vec<Origin>,
}

/// An asynchronous event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Event {
    pub(crate) kind: u8,
    pub(crate) information: u8,
    pub(crate) log_page: u8,
}

impl Event {
    /// Namespaces were created, deleted, attached, or detached.
    pub(crate) const NAMESPACES: Event = Event { kind: 2, information: 0, log_page: lid::CHANGED_NAMESPACES };
    /// A reservation has changed.
    pub(crate) const RESERVATIONS: Event = Event { kind: 6, information: 0, log_page: lid::RESERVATIONS };

    /// What a critical warning is reported as.
    const fn of_warning(bit: u8) -> Event {
        let information = match bit {
            warning::SPARE => 2,
            warning::TEMPERATURE => 1,
            _ => 0,
        };
        Event { kind: 1, information, log_page: lid::HEALTH }
    }

    fn result(self) -> u64 {
        u64::from(self.kind) | u64::from(self.information) << 8 | u64::from(self.log_page) << 16
    }
}

/// Notices of reservations that a controller keeps; the oldest is dropped.
const NOTICES_MAX: usize = 256;

/// Notices of reservations, oldest first, until they are read.
#[derive(Default)]
pub(crate) struct Notices {
    waiting: VecDeque<(u64, u32, Notice)>,
    count: u64,
}

impl Notices {
    pub(crate) fn push(&mut self, nsid: u32, notice: Notice) {
        if self.waiting.len() >= NOTICES_MAX {
            self.waiting.pop_front();
        }
        self.count += 1;
        self.waiting.push_back((self.count, nsid, notice));
    }

    /// The oldest one as a log page, which is empty if there is none.
    pub(crate) fn page(&self) -> Vec<u8> {
        let mut page = NoticePage::new_zeroed();
        if let Some((number, nsid, notice)) = self.waiting.front() {
            (page.number, page.notice, page.nsid) = ((*number).into(), *notice as u8, (*nsid).into());
            page.more = (self.waiting.len() - 1).min(usize::from(u8::MAX)) as u8;
        }
        page.as_bytes().to_vec()
    }

    /// The oldest one was read. Whether there are more.
    pub(crate) fn next(&mut self) -> bool {
        self.waiting.pop_front();
        !self.waiting.is_empty()
    }
}

/// Bits of the critical warning in the health page, and of the event configuration that let a host hear of them.
pub(crate) mod warning {
    /// Few spare blocks are left.
    pub(crate) const SPARE: u8 = 1;
    /// The temperature has crossed a threshold.
    pub(crate) const TEMPERATURE: u8 = 1 << 1;
    /// The medium has failed.
    pub(crate) const RELIABILITY: u8 = 1 << 2;
    /// Nothing can be written any more.
    pub(crate) const READ_ONLY: u8 = 1 << 3;
}

/// What Identify reports, and none.
pub(crate) const THRESHOLDS_KELVIN: [u16; 2] = [super::identify::WARNING_KELVIN, 0];

/// Bit of the event configuration that lets a host hear of namespaces.
pub(crate) const NAMESPACE_EVENTS: u32 = 1 << 8;

impl Controller {
    pub(crate) fn new(
        id: u16,
        kind: Kind,
        host: HostName,
        admin_link: u64,
        keep_alive: Duration,
        lists: Lists,
        now: Instant,
    ) -> Self {
        Controller {
            id,
            kind,
            host,
            session: None,
            admin_link,
            io_links: BTreeMap::new(),
            queues_granted: IO_QUEUES_MAX,
            configuration: Configuration::default(),
            status: 0,
            keep_alive,
            began: now,
            heard: now,
            command_count: 0,
            features: BTreeMap::new(),
            thresholds_kelvin: THRESHOLDS_KELVIN,
            event_mask: 0,
            warned: 0,
            waiting: VecDeque::new(),
            events: VecDeque::new(),
            told: BTreeSet::new(),
            changed_namespaces: BTreeSet::new(),
            detached: BTreeSet::new(),
            held: Held::none(),
            notices: Notices::default(),
            notice_masks: BTreeMap::new(),
            lists,
            snapshots: Snapshots::default(),
            backup: None,
            errors: VecDeque::new(),
            error_count: 0,
        }
    }

    // --- registers --------------------------------------------------------------------------------------------------

    pub(crate) fn configuration(&self) -> Configuration {
        self.configuration
    }

    pub(crate) fn status(&self) -> u32 {
        self.status
    }

    /// Whether commands other than fabrics ones are taken.
    pub(crate) fn is_ready(&self) -> bool {
        self.status & ready::READY != 0
    }

    /// Writes CC. If that is a reset, answers what ends with it.
    pub(crate) fn configure(&mut self, new: Configuration) -> Result<Option<Ended>, Status> {
        let mut ended = None;
        match (self.configuration.enabled(), new.enabled()) {
            (false, true) if !new.is_supported() => {
                self.status |= ready::FATAL;
                return Err(Status::INVALID_FIELD);
            }
            (false, true) => self.status = ready::READY,
            (true, false) => {
                self.status = 0;
                self.forget_settings();
                let links = std::mem::take(&mut self.io_links).into_values().collect();
                ended = Some(Ended { links, requests: std::mem::take(&mut self.waiting).into() });
            }
            (true, true) | (false, false) => {}
        }
        if new.shutdown() && !self.configuration.shutdown() {
            // Every completed write is durable: there is nothing to wait for.
            self.status |= ready::SHUTDOWN_COMPLETE;
        }
        self.configuration = new;
        Ok(ended)
    }

    /// A reset: features are as at first, no event is pending, and no backup is taken.
    fn forget_settings(&mut self) {
        self.backup = None;
        self.events.clear();
        self.told.clear();
        self.features.clear();
        self.notice_masks.clear();
        (self.thresholds_kelvin, self.event_mask, self.warned) = (THRESHOLDS_KELVIN, 0, 0);
        self.queues_granted = IO_QUEUES_MAX;
    }

    // --- keep-alive ---------------------------------------------------------------------------------------------------

    /// A command came.
    pub(crate) fn hear(&mut self, now: Instant) {
        self.heard = now;
    }

    /// The time-out in milliseconds; 0 for none.
    pub(crate) fn keep_alive_ms(&self) -> u32 {
        self.keep_alive.as_millis() as u32
    }

    /// Sets the time-out, rounded up to whole units; 0 for none.
    pub(crate) fn set_keep_alive_ms(&mut self, ms: u32) {
        self.keep_alive = round_keep_alive(ms);
    }

    /// Whether the host has been silent for too long.
    pub(crate) fn is_silent(&self, now: Instant) -> bool {
        let limit = match (self.keep_alive.is_zero(), self.kind) {
            (false, _) => self.keep_alive + KEEP_ALIVE_UNIT,
            (true, Kind::Discovery) => DISCOVERY_SILENCE_MAX,
            (true, Kind::Storage) => return false,
        };
        now.duration_since(self.heard) > limit
    }

    // --- events -------------------------------------------------------------------------------------------------------

    /// Takes an Asynchronous Event Request.
    pub(crate) fn wait_for_event(&mut self, origin: Origin) -> Result<(), Status> {
        if self.waiting.len() >= EVENT_REQUESTS_MAX {
            return Err(Status::EVENT_LIMIT);
        }
        self.waiting.push_back(origin);
        Ok(())
    }

    /// Records an event. It completes the next request, and is not repeated until its log page is read.
    pub(crate) fn raise(&mut self, event: Event) {
        if !self.events.contains(&event) {
            self.events.push_back(event);
        }
    }

    /// A namespace has changed, which the host needs to hear of.
    pub(crate) fn change_namespace(&mut self, nsid: u32) {
        if self.changed_namespaces.len() <= CHANGED_MAX {
            self.changed_namespaces.insert(nsid);
        }
        self.raise(Event::NAMESPACES);
    }

    /// Whether the host needs to hear of any critical warning. Discovery has no health page to report them in.
    pub(crate) fn hears_warnings(&self) -> bool {
        self.kind == Kind::Storage && self.event_mask as u8 != 0
    }

    /// These critical warnings hold now: those that the host needs to hear of are reported, once until they have passed.
    pub(crate) fn warn(&mut self, warnings: u8) {
        let wanted = if self.hears_warnings() { self.event_mask as u8 } else { 0 };
        let news = warnings & wanted & !self.warned;
        self.warned = (self.warned | news) & warnings;
        (0..u8::BITS)
            .map(|bit| news & 1 << bit)
            .filter(|bit| *bit != 0)
            .for_each(|bit| self.raise(Event::of_warning(bit)));
    }

    /// The next request that can complete, and its result.
    pub(crate) fn next_event(&mut self) -> Option<(Origin, u64)> {
        let place = self.events.iter().position(|event| !self.told.contains(&event.log_page))?;
        let origin = self.waiting.pop_front()?;
        let event = self.events.remove(place).expect("just found");
        self.told.insert(event.log_page);
        Some((origin, event.result()))
    }

    /// Gives up a request that waits, because it is to be aborted.
    pub(crate) fn abort_event(&mut self, cid: u16) -> Option<Origin> {
        let place = self.waiting.iter().position(|origin| origin.cid == cid)?;
        self.waiting.remove(place)
    }

    /// The log page of an event was read.
    pub(crate) fn acknowledge(&mut self, log_page: u8) {
        self.told.remove(&log_page);
    }

    // --- errors -------------------------------------------------------------------------------------------------------

    /// Notes a failed command, newest first.
    pub(crate) fn note_error(&mut self, mut entry: ErrorEntry) {
        self.error_count += 1;
        entry.number = self.error_count.into();
        self.errors.truncate(ERRORS_MAX - 1);
        self.errors.push_front(entry);
    }
}

/// A keep-alive time-out in whole units, no longer than its 32 bits can determine.
pub(crate) fn round_keep_alive(ms: u32) -> Duration {
    let unit = KEEP_ALIVE_UNIT.as_millis() as u64;
    let max = u64::from(u32::MAX) / unit * unit;
    Duration::from_millis(u64::from(ms).next_multiple_of(unit).min(max))
}

#[cfg(test)]
mod tests {
    use super::super::budget::Budget;
    use super::super::errors::CommandSummary;
    use super::*;

    fn controller() -> Controller {
        let host = HostName { nqn: "nqn.test".into(), id: [1; 16] };
        let lists = Lists::new(Budget::new(1 << 20));
        Controller::new(1, Kind::Storage, host, 0, round_keep_alive(4500), lists, Instant::now())
    }

    /// Goal:   enabling, resetting and shutting down move the status as hosts wait for it.
    /// Method: the writes that Linux does.
    #[test]
    fn the_status_follows_the_configuration() {
        let mut controller = controller();
        let enabled = Configuration::ALL_COMMAND_SETS;
        assert_eq!(enabled.0, 0x0046_0061, "as Linux writes it");
        controller.configure(Configuration(enabled.0 & !1)).unwrap();
        assert!(!controller.is_ready());
        controller.configure(enabled).unwrap();
        assert_eq!(controller.status(), ready::READY);
        controller.io_links.insert(1, 77);
        controller.configure(Configuration(enabled.0 | Configuration::SHUTDOWN)).unwrap();
        assert_eq!(controller.status(), ready::READY | ready::SHUTDOWN_COMPLETE);
        assert_eq!(controller.configure(Configuration(0)).unwrap().unwrap().links, [77]);
        assert_eq!(controller.status(), 0);
        assert_eq!(
            controller.configure(Configuration(0x0046_0011)).err(),
            Some(Status::INVALID_FIELD),
            "no such command set"
        );
    }

    /// Goal:   a host that does not read which namespaces have changed takes no more memory than to know that they are many.
    #[test]
    fn unread_changes_are_bounded() {
        let mut controller = controller();
        (0..10_000).for_each(|nsid| controller.change_namespace(nsid));
        assert_eq!(controller.changed_namespaces.len(), CHANGED_MAX + 1);
    }

    /// Goal:   each critical warning that a host needs to hear of is reported as what the specification calls it, once while it holds.
    #[test]
    fn warnings_are_told_once() {
        let mut controller = controller();
        let mut told = |mask: u32, warnings: u8| {
            controller.event_mask = mask;
            controller.warn(warnings);
            controller.acknowledge(lid::HEALTH);
            let _ = controller.wait_for_event(Origin {
                link: 0,
                controller: 1,
                host: [1; 16],
                cid: 1,
                reserved: 0,
                summary: CommandSummary::default(),
                numbered: None,
            });
            controller.next_event().map(|(_, result)| result)
        };
        assert_eq!(told(!0xff, warning::SPARE), None, "masked");
        assert_eq!(told(1, warning::SPARE), Some(0x02_0201));
        assert_eq!(told(1, warning::SPARE), None, "reported before");
        assert_eq!(told(9, warning::SPARE | warning::READ_ONLY), Some(0x02_0001));
        assert_eq!(told(9, 0), None, "all is well again");
        assert_eq!(told(9, warning::SPARE), Some(0x02_0201));
    }

    /// Goal:   an event is reported once until its page is read; requests beyond the limit are refused.
    /// Method: raise, request, raise again, acknowledge.
    #[test]
    fn events_are_told_once_until_acknowledged() {
        let mut controller = controller();
        let origin = |cid| Origin {
            link: 0,
            controller: 1,
            host: [1; 16],
            cid,
            reserved: 0,
            summary: CommandSummary::default(),
            numbered: None,
        };
        controller.raise(Event::NAMESPACES);
        controller.raise(Event::NAMESPACES);
        assert!(controller.next_event().is_none(), "nobody waits");
        controller.wait_for_event(origin(1)).unwrap();
        assert_eq!(controller.next_event().map(|(origin, result)| (origin.cid, result)), Some((1, 0x04_0002)));
        controller.wait_for_event(origin(2)).unwrap();
        controller.raise(Event::NAMESPACES);
        assert!(controller.next_event().is_none(), "the page was not read yet");
        controller.acknowledge(Event::NAMESPACES.log_page);
        assert_eq!(controller.next_event().map(|(origin, _)| origin.cid), Some(2));
        (3..7).for_each(|cid| controller.wait_for_event(origin(cid)).unwrap());
        assert_eq!(controller.wait_for_event(origin(9)), Err(Status::EVENT_LIMIT));
        assert_eq!(controller.abort_event(4).map(|origin| origin.cid), Some(4));
        assert!(controller.abort_event(4).is_none());
    }

    /// Goal:   silence is noticed after the rounded time-out and one unit, and not without a time-out.
    /// Method: the clock as a parameter.
    #[test]
    fn silence_is_noticed() {
        let mut controller = controller();
        let begin = Instant::now();
        controller.hear(begin);
        assert_eq!(controller.keep_alive_ms(), 5000);
        assert!(!controller.is_silent(begin + Duration::from_secs(6)));
        assert!(controller.is_silent(begin + Duration::from_millis(6001)));
        controller.set_keep_alive_ms(u32::MAX);
        assert_eq!(controller.keep_alive_ms(), 4_294_967_000);
        controller.set_keep_alive_ms(0);
        assert!(!controller.is_silent(begin + Duration::from_secs(6000)));
        controller.kind = Kind::Discovery;
        assert!(!controller.is_silent(begin + Duration::from_secs(120)));
        assert!(controller.is_silent(begin + Duration::from_secs(121)), "it only looked what there is");
    }
}
