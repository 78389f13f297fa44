//! Whether a history of transactions has a serial order.
//!
//! Every write of a value is unique: the value begins with the id of the transaction that wrote it. So a reader depends
//! on the writer of what it read. Versions of a key that are known to follow each other, because the second writer read
//! the first one's, make a *chain*. A blind write, and an insert where nothing was, begin a chain; a delete ends one.
//! Nothing lies between the versions of a chain, so one of two chains of a key lies wholly before the other. Which
//! one is deduced: if the beginning of one comes before the end of the other by what is known already (dependencies, and
//! that a transaction that completed comes before one that began later), so do all of it and its readers. One that found nothing
//! read before a chain began, unless a delete may lie between. This is repeated until nothing new follows.
//!
//! The history has no (strictly) serial order if that has a cycle, if a version has two successors, or if more
//! inserts found nothing than there were deletes, and one. Nothing is assumed, so a correct history is never refused;
//! what concurrent blind writes leave open stays open.

use std::collections::{BTreeMap, HashMap};

/// What a transaction found of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Saw {
    /// It did not look.
    Unknown,
    /// No record.
    Absent,
    /// The value of this transaction.
    Version(u64),
}

/// What it did to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Did {
    Read,
    Write,
    Delete,
}

/// One key of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    pub(crate) key: u64,
    pub(crate) saw: Saw,
    pub(crate) did: Did,
}

/// What a transaction found and did.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) id: u64,
    pub(crate) accesses: Vec<Access>,
    /// When it began and when it completed, on one clock.
    pub(crate) span: (u64, u64),
}

/// Versions of a key that follow each other: places in the history.
#[derive(Debug)]
struct Chain {
    first: usize,
    last: usize,
    /// The last one is a delete.
    deleted: bool,
    /// The first one found that there was nothing.
    on_nothing: bool,
    /// Transactions that read the last version and did not replace it.
    last_readers: Vec<usize>,
}

/// What is known of a key.
#[derive(Default)]
struct Key {
    chains: Vec<Chain>,
    /// Transactions that found nothing.
    found_nothing: Vec<usize>,
}

/// Fails with the reason when a history has no serial order.
pub(crate) fn check(history: &[Record]) -> Result<(), String> {
    let mut graph = Graph::of_time(history);
    let keys = keys(history, &mut graph)?;
    loop {
        let reach = graph.reach(history.len())?;
        let before = graph.count;
        keys.values().for_each(|key| key.deduce(&mut graph, &reach));
        if graph.count == before {
            return Ok(());
        }
    }
}

/// Chains and readers of all keys; known dependencies go into the graph.
fn keys(history: &[Record], graph: &mut Graph) -> Result<BTreeMap<u64, Key>, String> {
    let place: HashMap<u64, usize> = history.iter().enumerate().map(|(at, record)| (record.id, at)).collect();
    let mut next: HashMap<(u64, usize), usize> = HashMap::new();
    let mut readers: HashMap<(u64, usize), Vec<usize>> = HashMap::new();
    let mut keys: BTreeMap<u64, Key> = BTreeMap::new();
    let all = || history.iter().enumerate().flat_map(|(at, record)| record.accesses.iter().map(move |a| (at, a)));
    for (at, access) in all() {
        match access.saw {
            Saw::Version(id) => {
                let writer = *place.get(&id).ok_or_else(|| format!("{access:?}: nobody committed that version"))?;
                graph.edge(writer, at);
                if access.did == Did::Read {
                    readers.entry((access.key, writer)).or_default().push(at);
                } else if let Some(other) = next.insert((access.key, writer), at) {
                    return Err(format!("lost update: {:?} and {:?}", history[at], history[other]));
                }
            }
            Saw::Absent => keys.entry(access.key).or_default().found_nothing.push(at),
            Saw::Unknown => {}
        }
    }
    for (at, access) in all().filter(|(_, a)| a.did != Did::Read && !matches!(a.saw, Saw::Version(_))) {
        let mut last = at;
        loop {
            let none = Vec::new();
            let of_last = readers.get(&(access.key, last)).unwrap_or(&none);
            let Some(successor) = next.get(&(access.key, last)) else {
                let deleted = history[last].accesses.iter().any(|a| a.key == access.key && a.did == Did::Delete);
                let (on_nothing, last_readers) = (access.saw == Saw::Absent, of_last.clone());
                let chain = Chain { first: at, last, deleted, on_nothing, last_readers };
                keys.entry(access.key).or_default().chains.push(chain);
                break;
            };
            of_last.iter().for_each(|reader| graph.edge(*reader, *successor));
            last = *successor;
        }
    }
    for (number, key) in &keys {
        let inserts = key.chains.iter().filter(|chain| chain.on_nothing && !chain.is_delete()).count();
        let deletes = key.chains.iter().filter(|chain| chain.deleted).count();
        if inserts > deletes + 1 {
            return Err(format!("key {number}: {inserts} inserts found nothing, after {deletes} deletes"));
        }
    }
    Ok(keys)
}

impl Chain {
    /// A delete of whatever existed, and nothing else.
    fn is_delete(&self) -> bool {
        self.deleted && self.first == self.last
    }
}

impl Key {
    fn deduce(&self, graph: &mut Graph, reach: &Reach) {
        for (at, chain) in self.chains.iter().enumerate() {
            for (_, other) in self.chains.iter().enumerate().filter(|(place, _)| *place != at) {
                let is_before = |node: &usize| reach.has(chain.first, *node);
                if is_before(&other.last) || other.last_readers.iter().any(is_before) {
                    graph.edge(chain.last, other.first);
                    chain.last_readers.iter().for_each(|reader| graph.edge(*reader, other.first));
                }
            }
            if chain.is_delete() {
                continue; // there is nothing after it, too
            }
            for reader in self.found_nothing.iter().filter(|reader| **reader != chain.first) {
                if !self.can_be_after(*reader, at, reach) {
                    graph.edge(*reader, chain.first);
                } else if chain.deleted && reach.has(chain.first, *reader) {
                    graph.edge(chain.last, *reader);
                }
            }
        }
    }

    /// Whether somebody who found nothing may have come after a chain: then it was deleted, at its end or by another
    /// chain after it.
    fn can_be_after(&self, reader: usize, at: usize, reach: &Reach) -> bool {
        let chain = &self.chains[at];
        let is_behind = |node: &usize| reach.has(reader, *node);
        if is_behind(&chain.last) || chain.last_readers.iter().any(is_behind) {
            return false;
        }
        let others = self.chains.iter().enumerate().filter(|(place, other)| *place != at && other.deleted);
        chain.deleted || others.into_iter().any(|(_, o)| !reach.has(o.first, chain.last) && !reach.has(reader, o.last))
    }
}

/// Which precedes which: transactions, and after them the moments of the clock.
struct Graph {
    edges: Vec<Vec<usize>>,
    count: usize,
}

impl Graph {
    fn of_time(history: &[Record]) -> Graph {
        let ticks = 1 + history.iter().map(|record| record.span.1).max().unwrap_or(0) as usize;
        let mut graph = Graph { edges: vec![Vec::new(); history.len() + ticks], count: 0 };
        (1..ticks).for_each(|tick| graph.edge(history.len() + tick - 1, history.len() + tick));
        for (at, record) in history.iter().enumerate() {
            graph.edge(history.len() + record.span.0 as usize, at);
            graph.edge(at, history.len() + record.span.1 as usize);
        }
        graph
    }

    /// What is its own successor reports nothing.
    fn edge(&mut self, from: usize, to: usize) {
        if from != to && !self.edges[from].contains(&to) {
            self.edges[from].push(to);
            self.count += 1;
        }
    }

    /// Which of the first `count` nodes come after which node; an error if there is a cycle.
    fn reach(&self, count: usize) -> Result<Reach, String> {
        let order = self.order()?;
        let words = count.div_ceil(64);
        let mut bits = vec![0u64; self.edges.len() * words];
        for node in order.into_iter().rev() {
            let mut own = vec![0; words];
            for to in &self.edges[node] {
                let of_to = &bits[to * words..(to + 1) * words];
                own.iter_mut().zip(of_to).for_each(|(word, other)| *word |= other);
                if *to < count {
                    own[to / 64] |= 1 << (to % 64);
                }
            }
            bits[node * words..(node + 1) * words].copy_from_slice(&own);
        }
        Ok(Reach { bits, words })
    }

    fn order(&self) -> Result<Vec<usize>, String> {
        let mut incoming = vec![0; self.edges.len()];
        self.edges.iter().flatten().for_each(|to| incoming[*to] += 1);
        let mut order: Vec<usize> = (0..self.edges.len()).filter(|node| incoming[*node] == 0).collect();
        let mut next = 0;
        while next < order.len() {
            for to in &self.edges[order[next]] {
                incoming[*to] -= 1;
                if incoming[*to] == 0 {
                    order.push(*to);
                }
            }
            next += 1;
        }
        match self.edges.len() - order.len() {
            0 => Ok(order),
            count => Err(format!("{count} transactions and moments in or after cycles")),
        }
    }
}

/// Which follows which.
struct Reach {
    bits: Vec<u64>,
    words: usize,
}

impl Reach {
    fn has(&self, from: usize, to: usize) -> bool {
        self.bits[from * self.words + to / 64] >> (to % 64) & 1 == 1
    }
}

/// Goal:   the checker finds what is wrong, and refuses nothing that is right.
/// Method: histories of two and three transactions: lost updates, write skew, reads of the past, dirty reads, lost
///         inserts, reads of what was deleted, blind writes out of order; and the same in a right order.
#[test]
fn the_checker_finds_anomalies() {
    use Did::{Delete, Read, Write};
    let seen = |id: u64| if id == 0 { Saw::Absent } else { Saw::Version(id) };
    let read = |key, id| Access { key, saw: seen(id), did: Read };
    let write = |key, id| Access { key, saw: seen(id), did: Write };
    let delete = |key, id| Access { key, saw: seen(id), did: Delete };
    let blind = |key, did| Access { key, saw: Saw::Unknown, did };
    let record = |id, accesses: &[Access], span| Record { id, accesses: accesses.to_vec(), span };
    let is_right = |history: &[Record]| check(history).is_ok();
    let together = (0, 9);

    assert!(is_right(&[record(1, &[write(0, 0)], together), record(2, &[write(0, 1)], together)]));
    assert!(!is_right(&[record(1, &[write(0, 0)], together), record(2, &[write(0, 0)], together)]), "lost insert");
    let lost = [&[write(0, 0)][..], &[write(0, 1)], &[write(0, 1)]];
    let lost: Vec<_> = (1..).zip(lost).map(|(id, accesses)| record(id, accesses, together)).collect();
    assert!(!is_right(&lost), "lost update");
    let skew =
        |other| [record(1, &[read(0, 0), write(1, 0)], together), record(2, &[read(1, other), write(0, 0)], together)];
    assert!(!is_right(&skew(0)), "write skew");
    assert!(is_right(&skew(1)));
    let past = |begin| [record(1, &[write(0, 0)], (0, 2)), record(2, &[read(0, 0)], (begin, 4))];
    assert!(!is_right(&past(3)), "absence read after an acknowledged insert");
    assert!(is_right(&past(1)));
    assert!(!is_right(&[record(2, &[read(0, 77)], together)]), "dirty read");

    // 1 inserts, 2 deletes, then somebody looks.
    let deleted = |looks: Access, begin| {
        let then = record(3, &[looks], (begin, 9));
        [record(1, &[write(0, 0)], (0, 1)), record(2, &[delete(0, 1)], (2, 4)), then]
    };
    assert!(is_right(&deleted(read(0, 0), 5)));
    assert!(!is_right(&deleted(read(0, 1), 5)), "read of what was deleted");
    assert!(is_right(&deleted(read(0, 1), 3)));
    assert!(is_right(&deleted(write(0, 0), 5)), "inserted again");
    assert!(!is_right(&[&deleted(write(0, 0), 5)[..], &[record(4, &[write(0, 0)], (5, 9))]].concat()), "twice");

    // Blind writes: 1, then 2, then somebody reads.
    let blindly = |second: Did, looks: Access| {
        [record(1, &[blind(0, Write)], (0, 1)), record(2, &[blind(0, second)], (2, 3)), record(3, &[looks], (4, 5))]
    };
    assert!(is_right(&blindly(Write, read(0, 2))));
    assert!(!is_right(&blindly(Write, read(0, 1))), "the first of two blind writes is read after the second");
    assert!(is_right(&blindly(Delete, read(0, 0))));
    assert!(!is_right(&blindly(Delete, read(0, 1))), "read of what was blindly deleted");
    assert!(!is_right(&blindly(Delete, write(0, 1))), "replaced what was blindly deleted");
    // Two readers see two concurrent blind writes in opposite orders, one after the other each.
    let orders = |third, fourth| {
        let writers = [record(1, &[blind(0, Write)], (0, 9)), record(2, &[blind(0, Write)], (0, 9))];
        let readers = [(3, 1, 1), (4, 2, 2), (5, third, 3), (6, fourth, 4)];
        let readers = readers.map(|(id, version, time)| record(id, &[read(0, version)], (2 * time, 2 * time + 1)));
        is_right(&[&writers[..], &readers[..]].concat())
    };
    assert!(orders(2, 2));
    assert!(!orders(1, 2), "there and back");
}
