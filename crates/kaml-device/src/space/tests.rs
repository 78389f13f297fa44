//! The whole table of the ledger, and what it promises.

use super::*;

impl Situation {
    /// A value for each dimension: its name and its number of values, most informative first.
    const DIMENSIONS: [(&str, usize); 13] = [
        ("below", Below::ALL.len()),
        ("collection", Collection::ALL.len()),
        ("free", Free::ALL.len()),
        ("metadata", Metadata::ALL.len()),
        ("last block", LastBlock::ALL.len()),
        ("activity", Activity::ALL.len()),
        ("root", RootState::ALL.len()),
        ("journal", JournalTail::ALL.len()),
        ("reclaimed", Reclaimed::ALL.len()),
        ("budget", Budget::ALL.len()),
        ("merging", 2),
        ("deleting", 2),
        ("programs", Programs::ALL.len()),
    ];

    fn count() -> usize {
        Situation::DIMENSIONS.iter().map(|(_, count)| count).product()
    }

    /// The places of a number's dimensions.
    fn places(number: usize) -> [usize; Situation::DIMENSIONS.len()] {
        let mut rest = number;
        let mut places = Situation::DIMENSIONS.map(|(_, count)| count);
        for place in places.iter_mut().rev() {
            (*place, rest) = (rest % *place, rest / *place);
        }
        places
    }

    /// One of all situations.
    fn numbered(number: usize) -> Situation {
        let [
            below,
            collection,
            free,
            metadata,
            last,
            activity,
            root,
            journal,
            reclaimed,
            budget,
            merging,
            deleting,
            programs,
        ] = Situation::places(number);
        Situation {
            free: Free::ALL[free],
            programs: Programs::ALL[programs],
            below: Below::ALL[below],
            budget: Budget::ALL[budget],
            collection: Collection::ALL[collection],
            is_merging: merging == 1,
            is_deleting: deleting == 1,
            metadata: Metadata::ALL[metadata],
            last_block: LastBlock::ALL[last],
            activity: Activity::ALL[activity],
            root: RootState::ALL[root],
            journal: JournalTail::ALL[journal],
            reclaimed: Reclaimed::ALL[reclaimed],
        }
    }

    /// The value of a dimension, for the table.
    fn value(&self, dimension: usize) -> String {
        match Situation::DIMENSIONS[dimension].0 {
            "below" => format!("{:?}", self.below),
            "collection" => format!("{:?}", self.collection),
            "free" => format!("{:?}", self.free),
            "metadata" => format!("{:?}", self.metadata),
            "last block" => format!("{:?}", self.last_block),
            "activity" => format!("{:?}", self.activity),
            "root" => format!("{:?}", self.root),
            "journal" => format!("{:?}", self.journal),
            "reclaimed" => format!("{:?}", self.reclaimed),
            "budget" => format!("{:?}", self.budget),
            "merging" => format!("{:?}", self.is_merging),
            "deleting" => format!("{:?}", self.is_deleting),
            "programs" => format!("{:?}", self.programs),
            other => panic!("{other} has no value"),
        }
    }

    /// Whether the firmware can be so. What is excluded follows from how the facts are computed.
    fn is_reachable(&self) -> bool {
        let is_quiet = self.activity != Activity::UnderWay && self.below == Below::Room;
        // A deadlock is noted only while nothing is in progress and no root is being committed.
        let deadlock = self.collection != Collection::Deadlocked || (is_quiet && self.root == RootState::Idle);
        // An idle firmware collects nothing, and has no program in progress.
        let idle = self.activity != Activity::Idle || self.collection != Collection::Running;
        let programs =
            self.activity == Activity::UnderWay || self.below == Below::Full || self.programs == Programs::Few;
        deadlock && idle && programs
    }
}

/// What a purpose needs.
fn needs(purpose: Purpose) -> Vec<Need> {
    let commands = |data: &[Data]| data.iter().map(|data| Need::Command(*data)).collect::<Vec<_>>();
    let erased = Erased::ALL.iter().map(|erased| Need::Erased(*erased));
    match purpose {
        Purpose::Put => commands(Data::ALL).into_iter().chain([Need::Ring, Need::Block]).chain(erased).collect(),
        Purpose::Large => {
            let mut all = commands(Data::ALL);
            all.retain(|need| *need != Need::Command(Data::ExceedsPageBuffer)); // versions are never large values
            all.into_iter().chain([Need::Block]).collect()
        }
        Purpose::Overwrite => commands(Data::ALL).into_iter().chain([Need::Block]).collect(),
        Purpose::Timeline => commands(&[Data::Fits, Data::ExceedsWithStaged, Data::NeededByMerge, Data::Exceeds]),
        Purpose::Delete => commands(&[Data::Fits]),
        Purpose::Tombstone => commands(&[Data::Fits, Data::ExceedsPageBuffer, Data::Exceeds]),
        Purpose::Forget => commands(&[Data::Fits]),
        Purpose::Seal | Purpose::Merge | Purpose::Image | Purpose::Keep => vec![Need::Block],
        Purpose::Replay | Purpose::Move | Purpose::Rehome | Purpose::Journal => vec![Need::Block],
    }
}

/// Prints the answers of the situations from `first` on, as a tree over the dimensions from `dimension` on that make a difference.
fn print(answers: &[Answer], first: usize, dimension: usize, indent: usize, out: &mut String) {
    if answers.iter().all(|answer| *answer == answers[0]) {
        let answer = match answers[0] {
            Answer::Granted => "granted".to_owned(),
            Answer::Wait(what) => format!("wait for {what:?}"),
            Answer::Never(why) => format!("never: {why:?}"),
        };
        out.push_str(&format!(" {answer}\n"));
        return;
    }
    let (name, count) = Situation::DIMENSIONS[dimension];
    let parts: Vec<&[Answer]> = answers.chunks(answers.len() / count).collect();
    if parts.iter().all(|part| *part == parts[0]) {
        return print(parts[0], first, dimension + 1, indent, out);
    }
    if !out.ends_with('\n') {
        out.push('\n');
    }
    let mut at = 0;
    while at < parts.len() {
        let same = parts[at..].iter().take_while(|part| **part == parts[at]).count();
        let value = |part: usize| Situation::numbered(first + part * parts[0].len()).value(dimension);
        let values: Vec<String> = (at..at + same).map(value).collect();
        out.push_str(&format!("{:indent$}{name} {}:", "", values.join(" or ")));
        print(parts[at], first + at * parts[0].len(), dimension + 1, indent + 2, out);
        at += same;
    }
}

/// Goal:   the answer for each purpose, need and situation is the stored one, so a change is seen and can be judged.
/// Method: all of them, as the types list them; the table shows only the dimensions that make a difference. With the variable
///         `KAML_BLESS` set the table is stored again.
#[test]
fn the_table_is_the_stored_one() {
    let situations: Vec<Situation> = (0..Situation::count()).map(Situation::numbered).collect();
    let mut table = String::new();
    for purpose in Purpose::ALL {
        for need in needs(*purpose) {
            let answers: Vec<Answer> = situations.iter().map(|now| now.ask(*purpose, need)).collect();
            let need = match need {
                Need::Command(data) => format!("a command, data {data:?}"),
                Need::Ring => "the ring is short".to_owned(),
                Need::Erased(erased) => format!("several erased blocks, {erased:?}"),
                Need::Block => "another block".to_owned(),
            };
            table.push_str(&format!("{purpose:?}, {need}:"));
            print(&answers, 0, 0, 2, &mut table);
        }
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/space/table.txt");
    if std::env::var_os("KAML_BLESS").is_some() {
        std::fs::write(path, &table).expect("the source can be written");
    }
    let stored = std::fs::read_to_string(path).expect("the table is stored next to the source");
    let differs = table.lines().zip(stored.lines()).find(|(now, stored)| now != stored);
    assert!(table == stored, "the table has changed, first at {differs:?}");
}

/// Whether what a command waits for comes without the host that waits.
fn comes(what: WaitFor, now: &Situation) -> bool {
    match what {
        // The caller that waits for a frame writes it. Drivers end merges and deletions: the rules below show that a merge never waits
        // for what does not come, and a deletion takes no room.
        WaitFor::Commit | WaitFor::Merge | WaitFor::Deletion => true,
        WaitFor::Programs => now.activity == Activity::UnderWay,
        // The next poll begins what there is to do, or notes the deadlock.
        WaitFor::Collection => now.collection != Collection::Deadlocked,
        // A root needs a block only for a journal that does not fit it.
        WaitFor::Root => {
            let needs_none = now.journal == JournalTail::FitsRoot || now.root == RootState::Committing;
            now.activity == Activity::UnderWay || needs_none || now.free > Free::None
        }
    }
}

/// Goal:   in each reachable situation every wait ends, or the answer is never.
/// Method: all reachable situations and all that purposes need. Commands wait only for what comes. Those that they wait for are granted
///         blocks in their order: the last free block is the journal's, the next are collection's and failed blocks'. Where there is none
///         and the next root needs one, the journal's answer is never, and so is that of those who wait for the root.
#[test]
fn every_wait_ends() {
    for now in (0..Situation::count()).map(Situation::numbered).filter(Situation::is_reachable) {
        let commands =
            Purpose::ALL.iter().filter(|purpose| **purpose <= Purpose::Forget || **purpose == Purpose::Merge);
        for purpose in commands {
            for need in needs(*purpose) {
                if let Answer::Wait(what) = now.ask(*purpose, need) {
                    assert!(comes(what, &now), "{purpose:?} waits with {need:?} for {what:?}: {now:?}");
                }
            }
        }
        let block = |purpose: Purpose| now.ask(purpose, Need::Block);
        assert!(now.free == Free::None || block(Purpose::Journal) == Answer::Granted, "{now:?}");
        if now.free > Free::One {
            assert_eq!((block(Purpose::Move), block(Purpose::Rehome)), (Answer::Granted, Answer::Granted), "{now:?}");
        }
        let is_lost = |purpose: Purpose| block(purpose) == Answer::Never(Why::NoBlocks);
        let is_still = now.activity != Activity::UnderWay && now.below == Below::Room;
        let needs_block = now.root == RootState::Idle && now.journal == JournalTail::Urgent && now.free == Free::None;
        assert_eq!(is_lost(Purpose::Journal), is_still && needs_block, "{now:?}");
        // In a deadlock Puts are refused, and deletes are accepted as long as the journal can take them.
        if now.collection == Collection::Deadlocked && !now.is_merging && !now.is_deleting {
            assert_eq!(now.without_block(Purpose::Put), Answer::Never(Why::Deadlock), "{now:?}");
            let delete = now.ask(Purpose::Delete, Need::Command(Data::Fits));
            assert!(now.free == Free::None || delete == Answer::Granted, "{now:?}");
        }
    }
}

/// Goal:   those who need blocks more urgently leave fewer to others, in each state of the metadata.
/// Method: the floors in the order in which each serves the next.
#[test]
fn floors_are_in_order() {
    use Purpose::{Image, Journal, Move, Put, Seal};
    for last_block in LastBlock::ALL {
        for metadata in Metadata::ALL {
            let floor = |purpose: Purpose| purpose.floor(*metadata, *last_block);
            assert!(floor(Journal) <= floor(Move) && floor(Move) <= floor(Seal) && floor(Seal) < floor(Put));
            assert!(floor(Journal) <= floor(Image) && floor(Image) < floor(Put));
        }
    }
}
