//! What the simulator found once, by the seed that found it. A seed means something else when the drawing of scenarios
//! changes, and so these run as `Small::Plain`, what a seed meant then; the small workloads are tried at every cut in any case.

use kaml_sim::{Cuts, Plan, Small, run};

fn passes(seed: u64, small: Option<Small>, cut: u64) {
    run(&Plan { seed, small, cuts: Cuts::Only(cut) }).unwrap_or_else(|failure| panic!("{failure}"));
}

/// Goal:   an index that was taken out of memory can be loaded again at any time.
/// Method: the seed that unloaded one whose snapshot was still in write buffers.
#[test]
fn unloaded_indexes_are_on_the_medium() {
    passes(0, Some(Small::Checkpoint), 130);
}

/// Goal:   blocks that ring frames name become free in the end.
/// Method: the seed whose Puts waited forever after roots that freed nothing.
#[test]
fn blocks_named_by_ring_frames_become_free() {
    passes(0, Some(Small::Direct), 154);
}

/// Goal:   large values of failed blocks find a place, and lost metadata is replaced, with few blocks left.
/// Method: the seed that stopped, and then waited forever.
#[test]
fn failed_blocks_with_few_left() {
    passes(5, Some(Small::Plain), 2201);
}

/// Goal:   a record whose program fails while the device is being opened is not lost.
/// Method: the seed that lost one, the cut that showed it.
#[test]
fn programs_that_fail_while_opening() {
    passes(34, Some(Small::Plain), 523);
    passes(9, Some(Small::Plain), 1769);
}

/// Goal:   a block that failed stays out of use over an opening, and failed blocks do not wait for what waits for them.
/// Method: the seed that did both.
#[test]
fn failed_blocks_are_remembered() {
    passes(43, Some(Small::Plain), 0);
}

/// Goal:   a root waits for records of failed blocks only as long as they do not wait for the blocks that it frees.
/// Method: the seed in which each waited for the other.
#[test]
fn roots_free_blocks_for_failed_ones() {
    passes(44, Some(Small::Plain), 0);
}

/// Goal:   records of failed blocks wait for as much room as they need: warm ones are not taken for metadata, which needs
///         none, and two blocks are enough.
/// Method: the seed in which they found none, and then waited for a third block forever.
#[test]
fn failed_blocks_wait_for_room() {
    passes(111, Some(Small::Plain), 0);
}

/// Goal:   programs that found no space below are tried again in their order, also those that were after them.
/// Method: the seed and cut at which the laboratory itself forgot that nothing had been programmed.
#[test]
fn programs_without_space_are_tried_again() {
    passes(104, Some(Small::Plain), 1199);
}

/// Goal:   a device whose last block is gone reports it.
/// Method: the seed in which a die dies, metadata is lost, and no block is left to write it again.
#[test]
fn a_dead_end_is_told() {
    passes(58, Some(Small::Plain), 0);
}

/// Goal:   the checkers ask of the firmware only what it can know: of a block that failed just before a power cut the
///         next life learns when it uses it.
/// Method: the seeds that were wrongly blamed; in the second a large value's block was erased before its barrier.
#[test]
fn checkers_ask_what_can_be_known() {
    passes(1_000_017, Some(Small::Plain), 0);
    passes(30, Some(Small::Plain), 0);
    passes(16_000_336, Some(Small::Plain), 0); // an index asked to leave memory while its namespace is being deleted
}

/// Goal:   a program after one that found no space below waits for it, and does not stop the device.
/// Method: the seed in which it did.
#[test]
fn programs_without_space_keep_their_order() {
    passes(2_000_013, Some(Small::Plain), 0);
}

/// Goal:   what the frames of a ring that was replayed name is free for erasing when the next epoch has begun, though
///         no frame of it was written yet.
/// Method: the seed and cut in which collection waited for such blocks, Puts for collection, and so no frame came.
#[test]
fn replayed_frames_release_their_blocks() {
    passes(3_000_097, Some(Small::Plain), 7467);
}

/// Goal:   deletes, which a full device takes, leave collection the blocks that it needs, and roots do not fill the
///         journal with pages that hold next to nothing.
/// Method: the seed and cut in which the journal took the last block while a checkpoint waited for one.
#[test]
fn deletes_leave_blocks_for_collection() {
    passes(4_000_030, Some(Small::Plain), 9646);
}

/// Goal:   a device whose collection means good, here because cuts left many blocks half full and records are half as
///         long as blocks, refuses puts as full, takes deletes, and continues when they have emptied some block.
/// Method: the seed in which puts waited forever, with the cut and without.
#[test]
fn wedged_collection_is_told() {
    passes(5_000_068, Some(Small::Plain), 2129);
    passes(5_000_068, Some(Small::Plain), 0);
}

/// Goal:   collection that gains nothing ends, and puts are refused as full, instead of moving the same records forever.
/// Method: the seed in which records of half a block each were moved until the flash was worn, while a put waited.
#[test]
fn collection_in_vain_ends() {
    passes(7_000_106, Some(Small::Plain), 716);
}

/// Goal:   journal entries that fill no whole program unit and are more than a root takes get a padded place of their own.
/// Method: the seed whose device has pages of 8 KiB, programs of four and a small root: its Puts waited for a root forever.
#[test]
fn long_journal_tails_get_pages() {
    passes(131, Some(Small::Plain), 0);
}

/// Goal:   devices that are nearly full, with namespaces of blocks, can be opened after many cuts.
/// Method: the seeds that could not while each root padded a page of the journal and so took blocks that opening needs.
#[test]
fn nearly_full_devices_open_again() {
    passes(147, Some(Small::Plain), 4808);
    passes(467, Some(Small::Plain), 11_069);
}

/// Goal:   a nearly full device opens when cuts have left one free block and no open one: moved records may have the last.
/// Method: the seed and cut at which neither collection nor the ring's records were given it; one with long records, of which the
///         journal contains little.
#[test]
fn the_last_block_gives_others_back() {
    passes(15_000_051, Some(Small::Plain), 4212);
    passes(17_001_279, Some(Small::Plain), 11_653);
}

/// Goal:   changes of parts of blocks that wait for room keep no block from being erased.
/// Method: the seed in which such changes had pinned all free blocks of a full device, so collection waited for them.
#[test]
fn waiting_changes_pin_nothing() {
    passes(9_000_819, Some(Small::Plain), 0);
}

/// Goal:   a torn frame that begins a lap, with the next one whole after it, is taken for what a power cut leaves.
/// Method: the seed and cut at which opening took it for damage.
#[test]
fn torn_frames_at_the_start_of_a_lap_are_no_damage() {
    passes(10_000_021, Some(Small::Plain), 3440);
}

/// Goal:   an index whose snapshot is being written is kept in memory.
/// Method: the seed and cut at which it left, and the checkpoint found none.
#[test]
fn indexes_being_written_stay() {
    passes(11_000_372, Some(Small::Plain), 7151);
}

/// Goal:   a bit that flips while opening reads a large value takes no acknowledged frame back.
/// Method: the seed and cut at which the value was read once and taken for torn.
#[test]
fn flipped_bits_are_not_torn_writes() {
    passes(17_000_141, Some(Small::Plain), 1148);
}

/// Goal:   a device whose flash dies block by block reports that none is left when reclaimed ones are kept by ring frames that the
///         records of failed blocks keep, and uses those emptied while a root waited.
/// Method: the seed in which its Puts waited forever.
#[test]
fn kept_blocks_are_a_dead_end_too() {
    passes(17_001_004, Some(Small::Plain), 0);
}

/// Goal:   a device whose page buffers take all of its capacity does not merge forever, but reports that it is full.
/// Method: the seed and cut after which merges because there is no space followed each other, each worth nothing, and a Put waited.
#[test]
fn merges_that_gain_nothing_end() {
    passes(18_000_693, Some(Small::Plain), 276);
}

/// Goal:   when a block fails and one is left, what was in its buffers may have that one, and releases others.
/// Method: the seed and cut at which a nearly full device with 3 of 52 blocks failed stopped instead.
#[test]
fn failed_blocks_may_have_the_last() {
    passes(19_000_186, Some(Small::Plain), 1790);
}

/// Goal:   a large value whose OOB entry an erase left behind, and the cut kept from being written, is not in its place.
/// Method: the seed and cut at which it counted as whole, because the old entry looked the same, and collection did not find it.
#[test]
fn entries_of_erased_pages_are_not_the_missing_ones() {
    passes(21_000_009, Some(Small::Plain), 737);
}

/// Goal:   where metadata went down with a block and one is left, the checkpoint that replaces it may have that one, and the root
///         after it releases others.
/// Method: the seed and cut at which the device stopped with five blocks waiting for that root.
#[test]
fn lost_metadata_may_have_the_last() {
    passes(21_000_300, Some(Small::Plain), 339);
}

/// Goal:   on a device where one program takes a block, and a tenth of the blocks have failed, collection gathers what remains of several
///         blocks into the last one, instead of moving one block into another forever.
/// Method: the seed and cut after which the device, two fifths full, could not be opened again.
#[test]
fn collection_gathers_in_the_last_block() {
    passes(21_000_300, Some(Small::Plain), 4330);
}

/// Goal:   what the ring has is placed again at the pace of the journal and of roots, which need blocks, too.
/// Method: the seed and cut after which a device with a fifth of its blocks reclaimed had none for the journal, and no root.
#[test]
fn opening_keeps_pace_with_its_journal() {
    passes(21_000_311, Some(Small::Plain), 3026);
}

/// Goal:   a Put waits for a namespace that is being deleted, whose blocks collection leaves alone meanwhile, and is not refused for lack
///         of room.
/// Method: the seed that refused one; it means what is drawn now.
#[test]
fn deletions_under_way_are_waited_for() {
    passes(99_000_362, None, 2053);
}

/// Goal:   a Put is not refused because there is no room while there are as many free blocks as collection has to keep, only because collection
///         gains no more.
/// Method: the seed and cut that refused one on a device four fifths full of long records; it means what is drawn now.
#[test]
fn collection_that_gains_nothing_stops_no_host() {
    passes(733_000_000_123, None, 28455);
}
