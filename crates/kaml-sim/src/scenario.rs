//! What a seed means: a shape of flash, a way to pass time, faults, a workload.
//!
//! Lives here:       drawing them, the named small workloads whose every cut is tried.
//! Lives elsewhere:  running them (`run`).

mod small;

use crate::array::Keep;
use crate::board::Board;
use crate::faults::Faults;
use crate::medium::Options;
use crate::rng::{Rng, mix};
use crate::timing::Timing;
use kaml_device::{BlockOptions, Compression, DIRECT_BYTES, Key, KeyKind, MergePolicy, NamespaceKind, VersionOptions};
use kaml_flash::{Geometry, Packing};
use kaml_versions::BloomOptions;
pub use small::Small;

/// What hosts do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Namespaces at the beginning.
    pub spaces: u32,
    /// Keys of each that may exist.
    pub keys: u64,
    /// Bytes of most values.
    pub len_max: u64,
    /// One value in this many is larger than the ring takes.
    pub direct_one_in: u64,
    /// This many bytes more than the least have those at most.
    pub direct_len_more: u64,
    /// Records of a Put.
    pub batch_max: u64,
    /// Commands in progress at once.
    pub depth: usize,
    /// Commands until power fails or the device is closed.
    pub commands: u64,
    /// Lives of the device, each ended by a cut, a failure or a close.
    pub lives: u32,
    /// Deletes in a hundred records.
    pub delete_percent: u64,
    /// Gets in a hundred commands.
    pub get_percent: u64,
    /// One command in this many requests a root.
    pub root_one_in: u64,
    /// One command in this many creates or deletes a namespace.
    pub namespace_one_in: u64,
    /// One command in this many takes an index out of memory, if that can be done.
    pub unload_one_in: u64,
    /// Commands on blocks in a hundred; then a second namespace holds blocks, as many as keys.
    pub disk_percent: u64,
    /// Commands about the past in a hundred; then a second namespace keeps versions.
    pub past_percent: u64,
    /// Versioned namespaces are those of an index on flash.
    pub is_on_flash: bool,
    /// Puts under conditions in a hundred Puts.
    pub condition_percent: u64,
    /// Puts in a hundred of one large value whose caller executes the program itself, where that is possible.
    pub own_program_percent: u64,
    /// Namespaces in a hundred that have byte strings for keys.
    pub string_percent: u64,
    /// Whether some namespaces of records compress their values.
    pub has_compression: bool,
    /// Namespaces in a hundred that have keys of up to a kilobyte, half of them in order; and Gets in a hundred after which a record moves
    /// next to others.
    pub long_key_percent: u64,
    /// Turns in a hundred in which a snapshot is opened, closed or read.
    pub snapshot_percent: u64,
    /// Values in a hundred that expire; then time passes on the device.
    pub expiry_percent: u64,
    /// One command in this many moves a namespace to other logs.
    pub move_one_in: u64,
    /// One turn in this many requests another size of the device, which also grows by itself; never if 0.
    pub resize_one_in: u64,
    /// Namespaces go while commands on them are in progress, come and go at once, and take the names of those that went.
    pub is_crowded: bool,
    /// How reluctant the driver is to do what is due, in percent.
    pub lazy_percent: u64,
}

/// The kind of a namespace that was drawn: blocks if it is a disk, else versions if it has a past.
/// Versions take keys of at most 16 bytes.
pub(crate) fn kind_of(keys: KeyKind, disk: Option<BlockOptions>, past: Option<VersionOptions>) -> NamespaceKind {
    match (disk, past) {
        (Some(disk), _) => NamespaceKind::Blocks(disk),
        (None, Some(past)) => {
            let keys = if keys.bytes_max() > Key::BYTES_MAX { KeyKind::Bytes } else { keys };
            NamespaceKind::Versions(keys, past)
        }
        (None, None) => NamespaceKind::Records(keys),
    }
}

impl Workload {
    /// What a namespace of blocks is like, if there are any.
    pub(crate) fn disk(&self, rng: &mut Rng) -> Option<BlockOptions> {
        if self.disk_percent == 0 {
            return None;
        }
        let (block_bytes, unit_bytes) = [(512, 4096), (512, 2048), (512, 512), (4096, 4096)][rng.below(4) as usize];
        Some(BlockOptions { block_bytes, block_count: self.keys, unit_bytes })
    }

    /// Which keys a namespace takes.
    pub(crate) fn key_kind(&self, rng: &mut Rng) -> KeyKind {
        if self.long_key_percent > 0 && rng.below(100) < self.long_key_percent {
            return if rng.one_in(2) { KeyKind::Ordered } else { KeyKind::Any };
        }
        match self.string_percent > 0 && rng.below(100) < self.string_percent {
            true => KeyKind::Bytes,
            false => KeyKind::U64,
        }
    }

    /// How a namespace compresses: by a number of its own, so nothing is drawn.
    pub(crate) fn compression<V>(&self, kind: &NamespaceKind<V>, number: u64) -> Compression {
        match kind {
            NamespaceKind::Records(_) if self.has_compression => {
                [Compression::Zstd, Compression::Lz4, Compression::None][number as usize % 3]
            }
            _ => Compression::None,
        }
    }

    /// What a versioned namespace is like, if a new one is to be one.
    pub(crate) fn past(&self, rng: &mut Rng, holds_blocks: bool) -> Option<VersionOptions> {
        (self.past_percent > 0 && !holds_blocks && rng.one_in(2)).then(|| self.shape_of_past(rng))
    }

    /// The shape of a versioned namespace.
    pub(crate) fn shape_of_past(&self, rng: &mut Rng) -> VersionOptions {
        match self.is_on_flash {
            true => VersionOptions { rows: 1, merge_when_low: Some(newest_only(1)), ..VersionOptions::default() },
            false => draw_past(rng),
        }
    }
}

/// Everything that a seed decides.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The seed.
    pub seed: u64,
    /// The shape of the flash.
    pub geometry: Geometry,
    /// How the medium is made.
    pub options: Options,
    /// What hosts do.
    pub workload: Workload,
}

/// Longest operation of an unruly medium; only ratios matter.
const CHAOS_NS_MAX: u64 = 100_000;

impl Scenario {
    /// What a seed means.
    pub fn draw(seed: u64) -> Scenario {
        let mut scenario = Scenario::plain(seed);
        draw_more(seed, &mut scenario.geometry, &mut scenario.workload);
        scenario
    }

    /// The same without what [`draw_more`] adds.
    fn plain(seed: u64) -> Scenario {
        let mut rng = Rng::new(seed);
        let mut geometry = draw_geometry(&mut rng);
        if has_long(seed) {
            geometry.pages_per_block = pages_of_long_blocks(&geometry);
        }
        let faults = if rng.one_in(3) { Faults::default() } else { Faults::draw(&mut rng) };
        let options = Options {
            timing: draw_timing(seed),
            faults,
            keep: if rng.one_in(4) { Keep::Runs } else { Keep::Bytes },
            blank: if rng.one_in(2) { 0xFF } else { 0 },
            seed: rng.draw(),
        };
        let mut workload = draw_workload(&mut rng, &geometry);
        if has_disks(seed) {
            (workload.spaces, workload.disk_percent) = (workload.spaces.max(2), DISK_PERCENT);
        }
        if has_long(seed) {
            workload.direct_len_more = geometry.block_bytes() / 2;
            workload.direct_one_in = 4 + workload.direct_one_in % 28;
            let mean = workload.len_max / 2 + workload.direct_len_more / 2 / workload.direct_one_in;
            let keys = records_that_fill(&geometry, mean, LONG_FILL_PERCENT) / u64::from(workload.spaces);
            workload.keys = keys.clamp(4, workload.keys);
        }
        if has_pasts(seed) {
            (workload.spaces, workload.past_percent) = (workload.spaces.max(2), PAST_PERCENT);
        }
        Scenario { seed, geometry, options, workload }
    }

    /// A small workload without faults; the seed decides the interleaving.
    pub fn small(small: Small, seed: u64) -> Scenario {
        if small == Small::Plain {
            return Scenario::plain(seed);
        }
        let mut rng = Rng::new(seed);
        let mut geometry = small_geometry(if rng.one_in(2) { Packing::Across } else { Packing::WithinPage });
        let options = Options {
            timing: Timing::Chaos { ns_max: CHAOS_NS_MAX },
            faults: match small {
                Small::Readers => Faults { slow_ppm: 20_000, ..Faults::default() },
                Small::Failures => Faults { program_ppm: 4_000, erase_ppm: 4_000, ..Faults::default() },
                Small::Disks | Small::Pasts => Faults::draw(&mut rng),
                Small::LargeFailures => Faults { program_ppm: 20_000, no_space_ppm: 4_000, ..Faults::default() },
                Small::Flips => Faults { flip_ppm: 5_000, ..Faults::default() },
                _ => Faults::default(),
            },
            keep: Keep::Bytes,
            blank: if rng.one_in(2) { 0xFF } else { 0 },
            seed: rng.draw(),
        };
        if matches!(small, Small::Large | Small::LargeFailures) {
            geometry.pages_per_block *= 4; // several large values
        }
        let base = Workload {
            spaces: 2,
            keys: 40,
            len_max: 1_200,
            direct_one_in: u64::MAX,
            direct_len_more: DIRECT_LEN_MORE,
            batch_max: 4,
            depth: 3,
            commands: 60,
            lives: 1,
            delete_percent: 20,
            get_percent: 10,
            root_one_in: 20,
            namespace_one_in: u64::MAX,
            unload_one_in: u64::MAX,
            disk_percent: 0,
            past_percent: 0,
            condition_percent: 0,
            own_program_percent: 0,
            string_percent: 0,
            has_compression: false,
            is_on_flash: false,
            long_key_percent: 0,
            snapshot_percent: 0,
            expiry_percent: 0,
            move_one_in: u64::MAX,
            resize_one_in: 0,
            is_crowded: false,
            lazy_percent: 40,
        };
        let lone = Workload {
            spaces: 1,
            keys: 12,
            direct_one_in: 1,
            batch_max: 1,
            condition_percent: 20,
            own_program_percent: 80,
            ..base.clone()
        };
        let workload = match small {
            Small::Puts => Workload { spaces: 3, ..base },
            Small::Collection => Workload {
                spaces: 1,
                keys: records_that_fill(&geometry, 1_500, 90),
                len_max: 3_000,
                commands: 1_800,
                ..base
            },
            Small::Growth => Workload { keys: 6_000, len_max: 12, batch_max: 60, commands: 120, ..base },
            Small::Resized => Workload {
                spaces: 3,
                keys: records_that_fill(&geometry, 1_500, 140) / 3,
                len_max: 3_000,
                commands: 500,
                unload_one_in: 30,
                long_key_percent: 30,
                resize_one_in: 60,
                ..base
            },
            Small::Checkpoint => Workload { commands: 100, root_one_in: 4, unload_one_in: 6, ..base },
            Small::Direct => Workload { direct_one_in: 3, keys: 20, commands: 80, ..base },
            Small::Namespaces => Workload { namespace_one_in: 5, commands: 100, ..base },
            Small::Blocks => Workload { keys: 60, disk_percent: 80, unload_one_in: 10, ..base },
            Small::Disks => Workload {
                keys: 900,
                disk_percent: 90,
                commands: 1_500,
                lives: 3,
                get_percent: 25,
                root_one_in: 60,
                unload_one_in: 80,
                namespace_one_in: 100,
                ..base
            },
            Small::Versions => Workload { keys: 30, commands: 400, past_percent: 6, unload_one_in: 40, ..base },
            Small::OnFlash => Workload {
                keys: 30,
                commands: 2_500,
                past_percent: 1,
                is_on_flash: true,
                condition_percent: 20,
                unload_one_in: 60,
                ..base
            },
            Small::Pasts => Workload {
                keys: 120,
                commands: 1_500,
                lives: 3,
                past_percent: 4,
                root_one_in: 60,
                unload_one_in: 80,
                namespace_one_in: 150,
                ..base
            },
            Small::Failures => Workload { keys: 400, commands: 1_200, lives: 3, ..base },
            Small::Conditions => Workload {
                spaces: 3,
                keys: 12,
                batch_max: 12,
                depth: 5,
                commands: 150,
                past_percent: 8,
                condition_percent: 70,
                string_percent: 50,
                move_one_in: 8,
                namespace_one_in: 12,
                is_crowded: true,
                ..base
            },
            Small::LongKeys => Workload {
                keys: 24,
                direct_one_in: 8,
                batch_max: 6,
                commands: 120,
                get_percent: 30,
                condition_percent: 30,
                own_program_percent: 50,
                long_key_percent: 90,
                root_one_in: 12,
                unload_one_in: 15,
                namespace_one_in: 40,
                ..base
            },
            Small::Snapshots => Workload {
                spaces: 3,
                keys: records_that_fill(&geometry, 1_500, 45) / 3,
                len_max: 3_000,
                commands: 1_200,
                delete_percent: 30,
                long_key_percent: 60,
                snapshot_percent: 40,
                root_one_in: 12,
                unload_one_in: 40,
                namespace_one_in: 60,
                ..base
            },
            Small::Expiry => Workload {
                spaces: 3,
                keys: records_that_fill(&geometry, 1_500, 45) / 3,
                len_max: 3_000,
                direct_one_in: 20,
                commands: 500,
                get_percent: 25,
                condition_percent: 25,
                long_key_percent: 60,
                snapshot_percent: 10,
                expiry_percent: 70,
                root_one_in: 12,
                unload_one_in: 25,
                ..base
            },
            Small::Large => lone,
            // On one log a program that fails has others after it.
            Small::LargeFailures => Workload { commands: 500, lives: 2, depth: 4, move_one_in: 25, ..lone },
            Small::Plain => unreachable!("returned above"),
            Small::Flips => Workload { commands: 5_000, get_percent: 60, root_one_in: 10, ..base },
            Small::Readers => Workload {
                spaces: 1,
                keys: records_that_fill(&geometry, 1_500, 90),
                len_max: 3_000,
                depth: 40,
                commands: 12_000,
                get_percent: 30,
                lazy_percent: 10,
                ..base
            },
        };
        Scenario { seed, geometry, options, workload }
    }
}

/// One seed in eight runs with the times of a board, in turn; drawn from the seed itself, so the others are as they
/// were.
fn draw_timing(seed: u64) -> Timing {
    match seed % 8 {
        7 => {
            let presets = Board::presets();
            Timing::Board(presets[(seed / 8) as usize % presets.len()].flash.clone())
        }
        _ => Timing::Chaos { ns_max: CHAOS_NS_MAX },
    }
}

/// Commands on blocks in seeds that have namespaces of blocks, in percent.
const DISK_PERCENT: u64 = 60;

/// One seed in sixteen has namespaces of blocks; from the seed itself, as [`draw_timing`].
fn has_disks(seed: u64) -> bool {
    seed % 16 == 3
}

/// By default, large values are at most so much longer than the least.
const DIRECT_LEN_MORE: u64 = 12_000;
/// An erase block that takes several write buffers to fill, and so much of the flash that is filled then.
const LONG_BLOCK_BYTES: u32 = 1 << 20;
const LONG_FILL_PERCENT: u64 = 40;

fn pages_of_long_blocks(geometry: &Geometry) -> u32 {
    (LONG_BLOCK_BYTES / geometry.page_bytes).next_multiple_of(geometry.pages_per_program)
}

/// One seed in sixteen has erase blocks of several write buffers, and values of as many; from the seed itself, as [`draw_timing`].
fn has_long(seed: u64) -> bool {
    seed % 16 == 9
}

/// Commands about the past in seeds that have versioned namespaces, in percent.
const PAST_PERCENT: u64 = 4;

/// One seed in eight has versioned namespaces; from the seed itself, as [`draw_timing`].
fn has_pasts(seed: u64) -> bool {
    seed % 8 == 5
}

/// The shape of a versioned namespace: often what suits the device, else one that reads in vain or has few long chains. One in
/// three has the paper's index, its filters often wrong; one in two is merged when space runs low, and a third of these as soon as half of it is old, as
/// one with its index on flash is.
fn draw_past(rng: &mut Rng) -> VersionOptions {
    let (shape, bits) = (rng.below(4) as usize, rng.below(3) as usize);
    let policy = match bits {
        0 => newest_only(0),
        _ => MergePolicy { keep_last: bits as u32, ..MergePolicy::default() },
    };
    VersionOptions {
        rows: [0, 0, 1, 5][shape],
        fingerprint_bits: [0, 0, 4][bits],
        bloom: (bits == 1).then(|| BloomOptions {
            false_positives_ppm: 20_000,
            combined: 3,
            ..BloomOptions::default()
        }),
        merge_when_low: (shape % 2 == 1).then_some(policy),
        ..VersionOptions::default()
    }
}

/// What a namespace with its index on flash keeps.
fn newest_only(keep_last: u32) -> MergePolicy {
    MergePolicy { keep_last, newest_only: true, ..MergePolicy::default() }
}

fn small_geometry(packing: Packing) -> Geometry {
    let (page_bytes, pages_per_program) = match packing {
        Packing::Across => (4096, 1),
        Packing::WithinPage => (8192, 2),
    };
    Geometry {
        channel_count: 2,
        dies_per_channel: 1,
        blocks_per_die: 20,
        pages_per_block: 16,
        page_bytes,
        oob_bytes: 32,
        chunk_bytes: 128,
        pages_per_program,
        packing,
        ring_bytes: 1 << 20,
        sector_bytes: 512,
        root_bytes: 1 << 16,
    }
}

fn draw_geometry(rng: &mut Rng) -> Geometry {
    let page_bytes = [4096, 8192, 16_384][rng.below(3) as usize];
    let pages_per_program = [1, 1, 2, 4][rng.below(4) as usize];
    let dies = rng.within(1, 4) as u32;
    let channel_count = if dies.is_multiple_of(2) { 2 } else { 1 };
    let pages = (rng.within(64, 256) << 10) as u32 / page_bytes;
    Geometry {
        channel_count,
        dies_per_channel: dies / channel_count,
        blocks_per_die: rng.within(24, 72) as u32 / dies + 10,
        pages_per_block: pages.max(4).next_multiple_of(pages_per_program),
        page_bytes,
        oob_bytes: 32 << rng.below(3),
        chunk_bytes: page_bytes / 64 * [1, 2][rng.below(2) as usize],
        pages_per_program,
        packing: if rng.one_in(2) { Packing::Across } else { Packing::WithinPage },
        ring_bytes: (1 << 20) + rng.below(64) * 4096,
        sector_bytes: [512, 4096][rng.below(2) as usize],
        root_bytes: 1 << 16,
    }
}

fn draw_workload(rng: &mut Rng, geometry: &Geometry) -> Workload {
    let spaces = rng.within(1, 4) as u32;
    let len_max = [20, 300, 1_500, 4_000, 12_000][rng.below(5) as usize];
    // Fuller ones are for later: docs/simulation.md, "Not yet".
    let fill = rng.within(10, 60);
    let keys = (records_that_fill(geometry, len_max / 2, fill) / u64::from(spaces)).clamp(4, 1_500);
    let often = |rng: &mut Rng, n: u64| if rng.one_in(2) { u64::MAX } else { rng.within(n / 4, n) };
    Workload {
        spaces,
        keys,
        len_max,
        direct_one_in: often(rng, 80),
        direct_len_more: DIRECT_LEN_MORE,
        batch_max: [1, 3, 8, 30][rng.below(4) as usize],
        depth: rng.within(1, 12) as usize,
        commands: rng.within(200, 2_500),
        lives: rng.within(2, 5) as u32,
        delete_percent: rng.within(0, 40),
        get_percent: rng.within(0, 50),
        root_one_in: often(rng, 200),
        namespace_one_in: often(rng, 400),
        unload_one_in: often(rng, 200),
        disk_percent: 0,
        past_percent: 0,
        condition_percent: 0,
        own_program_percent: 0,
        string_percent: 0,
        has_compression: false,
        is_on_flash: false,
        long_key_percent: 0,
        snapshot_percent: 0,
        expiry_percent: 0,
        move_one_in: u64::MAX,
        resize_one_in: 0,
        is_crowded: false,
        lazy_percent: rng.within(0, 80),
    }
}

/// What was added later: each in some seeds only, drawn separately, so a seed is otherwise what it was
/// ([`Small::Plain`]).
fn draw_more(seed: u64, geometry: &mut Geometry, workload: &mut Workload) {
    let mut rng = Rng::new(mix(seed ^ 0xADD5));
    if rng.one_in(2) {
        workload.condition_percent = rng.within(5, 70);
    }
    workload.string_percent = [0, 0, 50, 100][rng.below(4) as usize];
    if rng.one_in(2) {
        workload.move_one_in = rng.within(10, 200);
    }
    workload.is_crowded = rng.one_in(2);
    if workload.is_crowded && rng.one_in(2) {
        workload.namespace_one_in = workload.namespace_one_in.min(rng.within(20, 100));
    }
    workload.own_program_percent = [0, 50, 100][rng.below(3) as usize];
    workload.long_key_percent = long_key_percent(seed);
    workload.snapshot_percent = snapshot_percent(seed);
    workload.has_compression = seed % 3 == 1; // from the seed itself, as `draw_timing`
    if has_lone(seed) {
        // A caller executes a program only where there is no other, and not the first of a block.
        geometry.pages_per_block = pages_of_long_blocks(geometry);
        (workload.direct_one_in, workload.batch_max, workload.depth) = (rng.within(1, 3), 1, rng.within(1, 3) as usize);
        let mean = workload.len_max / 2 + (DIRECT_BYTES as u64 + workload.direct_len_more / 2) / workload.direct_one_in;
        let keys = records_that_fill(geometry, mean, LONG_FILL_PERCENT) / u64::from(workload.spaces);
        workload.keys = keys.clamp(4, workload.keys);
        workload.own_program_percent = workload.own_program_percent.max(50);
    }
}

/// One seed in four has keys above 16 bytes; from the seed itself, as [`draw_timing`].
fn long_key_percent(seed: u64) -> u64 {
    if seed % 4 == 2 { 75 } else { 0 }
}

/// Two seeds in five have snapshots; from the seed itself, as [`draw_timing`].
fn snapshot_percent(seed: u64) -> u64 {
    [0, 0, 4, 0, 20][seed as usize % 5]
}

/// One seed in eight puts large values alone, few at once; from the seed itself, as [`draw_timing`].
fn has_lone(seed: u64) -> bool {
    seed % 8 == 4
}

/// Records with values of this many bytes that fill so much of the flash, or what the firmware gives of it.
fn records_that_fill(geometry: &Geometry, value_bytes: u64, percent: u64) -> u64 {
    let blocks = u64::from(geometry.block_count()).saturating_sub(8 + 5 * u64::from(geometry.die_count()));
    let chunk = u64::from(geometry.chunk_bytes);
    let record = (value_bytes + 28).next_multiple_of(chunk) + chunk / 2;
    (blocks * geometry.block_bytes() * percent / 100 / record).max(4)
}
