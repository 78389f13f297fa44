use super::*;

/// Enough for the largest frame of the tests.
const FILE_BYTES: u64 = 8 << 20;

fn floor(clients: usize, batch_records: usize, writes_in_flight: usize) -> Floor {
    Floor {
        record_bytes: 100,
        batch_records,
        clients,
        writes_in_flight,
        sector_bytes: SECTOR_BYTES,
        pages: false,
        mix: Mix::PUTS,
        duration: Duration::from_millis(60),
    }
}

/// Goal:   every put of every caller returns, whatever the number of callers and writes in flight.
/// Method: run short floors of all shapes; a lost wake-up would hang, a lost put would change the counts.
#[test]
fn all_callers_are_answered() {
    let dir = tempfile::tempdir().unwrap();
    let scratch = Scratch::create(dir.path(), FILE_BYTES).unwrap();
    let mixed = Floor { mix: Mix { puts: 0.25, reads: 0.5 }, ..floor(8, 3, 2) };
    let figures = blocking_on(&scratch, &mixed).unwrap();
    let puts_min = figures.operations * figures.bytes / 10 / figures.records;
    assert!(
        figures.disk_read_bytes.is_none_or(|read| read > figures.operations * 512 / 4)
            && figures.disk_write_bytes.is_none_or(|written| written > puts_min),
        "{figures:?}"
    );
    let with_pages = Floor { pages: true, record_bytes: 4096, ..floor(8, 4, 1) };
    let figures = blocking_on(&scratch, &with_pages).unwrap();
    assert!(figures.disk_write_bytes.is_none_or(|written| written as f64 > 1.5 * figures.bytes as f64), "{figures:?}");
    for (clients, batch_records, writes_in_flight) in [(1, 1, 1), (2, 1, 1), (8, 3, 2), (40, 1, 2), (16, 32, 1)] {
        let figures = blocking_on(&scratch, &floor(clients, batch_records, writes_in_flight)).unwrap();
        assert!(figures.operations >= clients as u64, "{figures:?}");
        assert_eq!(figures.records, figures.operations * batch_records as u64);
        let figures = event_loop_on(&scratch, &floor(clients, batch_records, writes_in_flight)).unwrap();
        assert!(figures.operations >= clients as u64, "{figures:?}");
        assert_eq!(figures.bytes, figures.records * 100);
    }
}

/// Goal:   what the floor writes are whole frames: the work it is measured at is really done.
/// Method: run one caller, read the file back, and follow the frames' sequence, lengths and checksums.
#[test]
fn the_log_holds_whole_frames() {
    let dir = tempfile::tempdir().unwrap();
    let scratch = Scratch::create(dir.path(), FILE_BYTES).unwrap();
    let figures = blocking_on(&scratch, &floor(1, 2, 1)).unwrap();
    let mut bytes = AlignedBuf::zeroed(1 << 20);
    scratch.open(false).unwrap().read_exact_at(&mut bytes, 0).unwrap();
    let frame_count = figures.operations.min((1 << 20) / SECTOR_BYTES as u64);
    for (i, frame) in bytes.chunks(SECTOR_BYTES).take(frame_count as usize).enumerate() {
        let word = |at: usize| u32::from_le_bytes(frame[at..at + 4].try_into().unwrap());
        assert_eq!(u64::from_le_bytes(frame[..8].try_into().unwrap()), i as u64 + 1);
        assert_eq!(word(8) as usize, FRAME_HEADER_BYTES + 2 * (RECORD_HEADER_BYTES + 100));
        let body = &frame[FRAME_HEADER_BYTES + RECORD_HEADER_BYTES..][..100];
        assert_eq!(word(FRAME_HEADER_BYTES + 12), kaml_crc::crc32c(body));
    }
}

/// Goal:   bars are measured against the best of as many writes in flight as the driver next to it may have.
/// Method: rates that are best at one, two and three writes; which were run, and for how long; the real ones, short.
#[test]
fn the_best_number_of_writes_counts() {
    let figures = Meter::start().stop(String::new(), 0, 0, &histogram());
    for best in 1..=3 {
        let mut runs = Vec::new();
        let found = best_of(&floor(4, 1, 1), &[1, 2, 3], |floor| {
            runs.push((floor.writes_in_flight, floor.duration));
            let operations_per_s = if floor.writes_in_flight == best { 2.0 } else { 1.0 };
            Ok(Figures { what: floor.writes_in_flight.to_string(), operations_per_s, ..figures.clone() })
        });
        assert_eq!(found.unwrap().what, best.to_string());
        assert_eq!(runs, [1, 2, 3].map(|writes| (writes, Duration::from_millis(20))));
    }
    let dir = tempfile::tempdir().unwrap();
    let scratch = Scratch::create(dir.path(), FILE_BYTES).unwrap();
    for clients in [1, 2, 8] {
        assert!(better(&scratch, &floor(clients, 1, 1)).unwrap().operations > 0);
        assert!(better_event_loop(&scratch, &floor(clients, 1, 1)).unwrap().operations > 0);
    }
}

/// Goal:   shapes that cannot be run are refused with words.
/// Method: no clients; frames larger than the log.
#[test]
fn impossible_floors_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(blocking(dir.path(), &floor(0, 1, 1)), Err(Error::Parameters(_))));
    for (puts, reads) in [(0.0, 0.0), (1.1, 0.0), (1.0, -0.1), (f64::NAN, 1.0)] {
        let mixed = Floor { mix: Mix { puts, reads }, ..floor(1, 1, 1) };
        assert!(matches!(blocking(dir.path(), &mixed), Err(Error::Parameters(_))), "{puts} put, {reads} read");
    }
    let huge = Floor { record_bytes: 1 << 20, ..floor(1000, 1, 1) };
    assert!(matches!(event_loop(dir.path(), &huge), Err(Error::Parameters(_))));
}
