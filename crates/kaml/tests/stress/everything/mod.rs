//! What threads do to a device at the same time, each knowing what must come of it.
//!
//! Lives here:       how much there is of everything, what commands may fail of, values that can be made again.
//! Lives elsewhere:  records of a thread (`owner`), what there must be of older versions (`pasts`), blocks (`disk`), what happens
//!                   to everybody (`operator`); the threads and the device below (`main`, `lab`).

mod disk;
mod operator;
mod owner;
pub(crate) mod pasts;

pub(crate) use disk::Disk;
pub(crate) use operator::{disturb, roll_back, take_snapshot};
pub(crate) use owner::Owner;

use kaml::{BlockOptions, Device, Error, Key, KeyKind, NamespaceId, NamespaceOptions, VersionOptions};
use kaml_testkit::Rng;

/// How much there is of everything.
#[derive(Clone, Copy)]
pub(crate) struct Scale {
    /// Keys of each thread in each namespace.
    pub(crate) keys: u64,
    /// Longest value that is treated as a small one, and as a large one.
    pub(crate) len_max: u64,
    pub(crate) large_len_max: u64,
    /// Blocks of each half of the disk, which share a unit if they are odd, and those of one command.
    pub(crate) blocks: u64,
    pub(crate) blocks_at_once: u64,
    /// Longest value that keeps its versions, and how these are kept.
    pub(crate) kept_len_max: u64,
    pub(crate) versions: VersionOptions,
    pub(crate) in_flight: usize,
    pub(crate) trouble: Trouble,
}

/// What commands may fail of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    None,
    /// There is no space for new data: refused, and nothing has changed.
    Full,
    /// Power fails: nobody knows whether the command was executed, and there are no others after it.
    Cut,
    /// A read is refused, or a bit flips on its way: what needs it is refused, and nothing has changed. Space is short, too.
    Misread,
    /// From some moment on there is no space below for programs: what needs one is refused, and nothing has changed.
    NoSpace,
    /// Bits flip on the way of a read, so rarely that it comes right when it is repeated: nothing is refused except where there is no space.
    Flip,
}

/// What became of a command that changes something.
enum Fate {
    Done,
    Refused,
    Unknown,
}

impl Trouble {
    /// Whether it is the reason of an error, which states that there is no space.
    fn lacks_space(self, error: &Error) -> bool {
        self != Trouble::Cut && self.explains(error) && (is_full(error) || is_without_space(error))
    }

    /// Whether it is the reason of an error.
    fn explains(self, error: &Error) -> bool {
        match self {
            Trouble::None => false,
            Trouble::Full | Trouble::Flip => is_full(error),
            Trouble::Misread => is_misread(error) || is_full(error),
            Trouble::NoSpace => is_without_space(error) || is_full(error),
            Trouble::Cut => true,
        }
    }

    /// Whether it is the reason of an error, or that a namespace has gone.
    fn excuse(self, error: &Error, may_be_gone: bool) {
        assert!(self.explains(error) || may_be_gone && is_unknown(error), "{error}");
    }

    fn fate(self, result: Result<(), Error>) -> Fate {
        match (self, result) {
            (_, Ok(())) => Fate::Done,
            (Trouble::Cut, Err(_)) => Fate::Unknown,
            (_, Err(error)) if self.explains(&error) => Fate::Refused,
            (_, Err(error)) => panic!("{error}"),
        }
    }
}

pub(crate) fn is_forgotten(error: &Error) -> bool {
    matches!(error, Error::NoSnapshot { .. })
}

fn is_unknown(error: &Error) -> bool {
    matches!(error, kaml::Error::UnknownNamespace(_))
}

fn is_misread(error: &Error) -> bool {
    use Error as E;
    matches!(error, E::Corrupt { .. } | E::VersionsDamaged { .. } | E::IndexDamaged { .. } | E::ReadFailed { .. })
}

fn is_full(error: &Error) -> bool {
    matches!(error, kaml::Error::Full { .. })
}

pub(crate) fn is_without_space(error: &Error) -> bool {
    matches!(error, Error::NoSpace { .. })
}

/// Eight of them are a unit of the namespace.
const BLOCK_BYTES: usize = 512;

/// Most values are small, few are as long as take the way of large ones.
pub(crate) fn value(rng: &mut Rng, scale: &Scale) -> Content {
    let len = match rng.below(100) {
        0..=69 => rng.below(scale.len_max / 8),
        70..=96 => rng.below(scale.len_max),
        _ => rng.below(scale.large_len_max),
    };
    Content { seed: rng.draw(), len: len as usize }
}

/// A value that can be made again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Content {
    seed: u64,
    len: usize,
}

impl Content {
    pub(crate) fn bytes(self) -> Vec<u8> {
        let mut bytes: Vec<u8> = self.seed.to_le_bytes().into_iter().cycle().take(self.len).collect();
        for (i, word) in (0u64..).zip(bytes.chunks_exact_mut(64)) {
            word[8..16].copy_from_slice(&i.to_le_bytes());
        }
        bytes
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Spaces {
    numbers: NamespaceId,
    text: NamespaceId,
    pub(crate) kept: NamespaceId,
    pub(crate) disk: NamespaceId,
}

impl Spaces {
    pub(crate) fn create(device: &Device, scale: &Scale) -> Spaces {
        let records = |keys| NamespaceOptions::records(keys);
        let blocks = BlockOptions::new(BLOCK_BYTES as u32, 2 * scale.blocks);
        let create = |name: &str, options| device.create_namespace(name, &options).unwrap();
        Spaces {
            numbers: create("numbers", records(KeyKind::U64)),
            text: create("text", records(KeyKind::Bytes)),
            kept: create("kept", NamespaceOptions::versions(KeyKind::U64, scale.versions)),
            disk: create("disk", NamespaceOptions::from(blocks)),
        }
    }

    fn all(&self) -> [NamespaceId; 3] {
        [self.numbers, self.text, self.kept]
    }
}

type Address = (NamespaceId, Key);
type Change = (Address, Option<Content>);

/// How often commands ended otherwise.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Met {
    pub(crate) refused: u64,
    pub(crate) unknown: u64,
    /// Those of them that turned out to be executed.
    pub(crate) survived: u64,
}

impl std::ops::AddAssign for Met {
    fn add_assign(&mut self, other: Met) {
        self.refused += other.refused;
        self.unknown += other.unknown;
        self.survived += other.survived;
    }
}
