//! Traces: each format, what is refused, and replays with power cuts.

use kaml_sim::{
    Board, Extent, Pattern, Replay, ReplayCuts, ReplayError, ReplayReport, Rig, TraceError, TraceFormat, TraceOp,
    TraceReader, TraceRecord,
};
use proptest::prelude::*;

fn read(format: TraceFormat, text: &[u8]) -> Result<Vec<TraceRecord>, TraceError> {
    TraceReader::new(text, format).collect()
}

fn formats() -> Vec<TraceFormat> {
    let pattern = Pattern::new(r"(?<time>\S+) (?<op>\w) (?<offset>\d+) (?<size>\d+)", 1, 512).unwrap();
    vec![
        TraceFormat::Msr,
        TraceFormat::Alibaba,
        TraceFormat::Tencent,
        TraceFormat::Mqsim,
        TraceFormat::Twitter,
        TraceFormat::Cachelib,
        TraceFormat::OracleGeneral,
        TraceFormat::Mooncake { block_bytes: 4096 },
        TraceFormat::Regex(Box::new(pattern)),
    ]
}

fn extent(record: &TraceRecord) -> (bool, u64, u32) {
    match record.op {
        TraceOp::Read(Extent { offset, bytes, .. }) => (false, offset, bytes),
        TraceOp::Write(Extent { offset, bytes, .. }) => (true, offset, bytes),
        other => panic!("{other:?} is not of blocks"),
    }
}

/// Goal:   lines of block traces mean what their publishers wrote.
/// Method: a line of each as published; time, direction, offset and size by hand.
#[test]
fn block_traces_are_read() {
    let one = |format, text: &str| read(format, text.as_bytes()).unwrap().pop().unwrap();
    let msr = one(TraceFormat::Msr, "128166372003061629,hm,1,Read,383496192,32768,113736\r\n");
    assert_eq!((msr.at_ns, extent(&msr)), (12_816_637_200_306_162_900, (false, 383_496_192, 32_768)));
    let alibaba = one(TraceFormat::Alibaba, "419,W,8792731648,16384,1577808144360767");
    assert_eq!((alibaba.at_ns, extent(&alibaba)), (1_577_808_144_360_767_000, (true, 8_792_731_648, 16_384)));
    let tencent = one(TraceFormat::Tencent, "1538323200,12910952,128,0,1063\n");
    assert_eq!((tencent.at_ns, extent(&tencent)), (1_538_323_200_000_000_000, (false, 12_910_952 * 512, 65_536)));
    let mqsim = one(TraceFormat::Mqsim, "48513000 0 4052840 8 0\n");
    assert_eq!((mqsim.at_ns, extent(&mqsim)), (48_513_000, (true, 4_052_840 * 512, 4096)));
    let disksim = one(TraceFormat::Mqsim, "48.513000  0 4052840   8 1\n");
    assert_eq!((disksim.at_ns, extent(&disksim)), (48_513_000, (false, 4_052_840 * 512, 4096)));
    let pattern = formats().pop().unwrap();
    assert_eq!(extent(&one(pattern, "7 w 3 2\n")), (true, 1536, 1024));
}

/// Goal:   lines of cache traces mean what their publishers wrote.
/// Method: lines of each; operations by hand. Names of keys are hashed, the same way each time.
#[test]
fn cache_traces_are_read() {
    let twitter = b"0,nz:u:Oh,12,0,1,get,0\n0,nz:u:Oh,12,321,1,set,3600\n1,nz:u:Oh,12,0,1,delete,0\n";
    let ops: Vec<TraceOp> = read(TraceFormat::Twitter, twitter).unwrap().iter().map(|record| record.op).collect();
    let TraceOp::Get { key, fill: None } = ops[0] else { panic!("{ops:?}") };
    assert_eq!(ops[1..], [TraceOp::Put { key, bytes: 321 }, TraceOp::Delete { key }]);

    let cachelib = b"op_time,key,key_size,op,op_count,size\n5,77,4,GET,3,100\n6,77,4,SET,1,100\n";
    let records = read(TraceFormat::Cachelib, cachelib).unwrap();
    assert_eq!(records.len(), 4);
    assert_eq!((records[2].at_ns, records[2].op), (5_000_000_000, TraceOp::Get { key: 77, fill: Some(100) }));

    let mut oracle = Vec::new();
    oracle.extend(9u32.to_le_bytes());
    oracle.extend(0x0102_0304_0506_0708u64.to_le_bytes());
    oracle.extend(5000u32.to_le_bytes());
    oracle.extend((-1i64).to_le_bytes());
    let record = read(TraceFormat::OracleGeneral, &oracle).unwrap()[0];
    let op = TraceOp::Get { key: 0x0102_0304_0506_0708, fill: Some(5000) };
    assert_eq!(record, TraceRecord { at_ns: 9_000_000_000, op });

    let mooncake = br#"{"timestamp": 27, "input_length": 1024, "output_length": 3, "hash_ids": [0, 14]}"#;
    let records = read(TraceFormat::Mooncake { block_bytes: 4096 }, mooncake).unwrap();
    let get = |key| TraceRecord { at_ns: 27_000_000, op: TraceOp::Get { key, fill: Some(4096) } };
    assert_eq!(records, [get(0), get(14)]);
}

/// Goal:   what cannot be read is refused with the line and the remedy, or left out if that is requested.
/// Method: a mistake of each kind; the words of the errors.
#[test]
fn mistakes_name_the_line_and_the_remedy() {
    let error = |format, text: &[u8]| read(format, text).unwrap_err().to_string();
    let good = "1,hm,1,Read,0,512,1\n";
    let bad = format!("{good}1,hm,1,Erase,0,512,1\n{good}");
    let found = error(TraceFormat::Msr, bad.as_bytes());
    assert!(found.contains("line 2") && found.contains("`Erase`") && found.contains("--skip-bad"), "{found}");
    let mut left_out = TraceReader::new(bad.as_bytes(), TraceFormat::Msr).skipping_bad(true);
    assert_eq!(left_out.by_ref().filter(Result::is_ok).count(), 2);
    assert_eq!(left_out.skipped(), 1);
    let found = error(TraceFormat::Alibaba, b"419,W,87");
    assert!(found.contains("no field 4 (length)"), "{found}");
    let found = error(TraceFormat::Twitter, &[0x28, 0xB5, 0x2F, 0xFD, 1, 2]);
    assert!(found.contains("zstd -dc"), "{found}");
    let found = error(TraceFormat::OracleGeneral, &[1; 30]);
    assert!(found.contains("record 2 has 6 bytes of 24"), "{found}");
    let found = error(TraceFormat::Cachelib, b"a,b,c\n");
    assert!(found.contains("key, op and size"), "{found}");
    let found = error(TraceFormat::Msr, &vec![b'1'; 3 << 20]);
    assert!(found.contains("longer than"), "{found}");
    assert!(Pattern::new("(?<op>r) (?<size>1)", 1, 1).unwrap_err().to_string().contains("offset"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Goal:   no bytes make a reader panic, wait, or return more operations than they can mean.
    /// Method: noise, and lines of digits, letters and separators, in each format.
    #[test]
    fn readers_stand_anything(
        noise in proptest::collection::vec(any::<u8>(), 0..400),
        lines in "([0-9]{1,22}[,. ]|[RWrw]|Read|get|set|key,op,size|\\{\"timestamp\"|\\n){0,60}",
    ) {
        for format in formats() {
            for text in [&noise[..], lines.as_bytes()] {
                let mut reader = TraceReader::new(text, format.clone()).skipping_bad(true);
                let count = reader.by_ref().take(1 << 20).count();
                prop_assert!(count <= 1 << 20);
                prop_assert!(reader.bytes_read() <= text.len() as u64);
            }
        }
    }
}

fn board() -> Board {
    let mut board = Board::preset("kaml-2017").unwrap();
    board.geometry.channel_count = 2;
    board.geometry.dies_per_channel = 2;
    board.geometry.blocks_per_die = 40;
    board.geometry.pages_per_block = 32;
    board.geometry.ring_bytes = 4 << 20;
    board
}

fn options(cuts: ReplayCuts) -> Replay {
    Replay { depth: 16, pace: None, disk_bytes: 8 << 20, object_bytes_max: 100_000, cuts, seed: 3 }
}

fn replay(ops: &[TraceOp], options: &Replay) -> Result<ReplayReport, ReplayError> {
    let mut rig = Rig::new(&board(), 7).unwrap();
    let records = ops.iter().enumerate().map(|(i, op)| Ok(TraceRecord { at_ns: i as u64 * 100_000, op: *op }));
    rig.replay(&mut { records }, options, &mut |_| true)
}

/// Operations on few objects and few blocks, which therefore meet.
fn mixed(count: u64) -> Vec<TraceOp> {
    let op = |i: u64| {
        let draw = kaml_sim::mix(i);
        let (key, bytes) = (draw % 50, (draw >> 8) as u32 % 40_000);
        let extent =
            Extent { volume: draw % 2, offset: (draw >> 9) % 3000 * 512, bytes: 512 * (1 + (draw >> 30) as u32 % 40) };
        match draw >> 60 {
            0..=3 => TraceOp::Put { key, bytes },
            4..=6 => TraceOp::Get { key, fill: Some(bytes) },
            7 => TraceOp::Delete { key },
            8..=11 => TraceOp::Write(extent),
            _ => TraceOp::Read(extent),
        }
    };
    (0..count).map(op).collect()
}

/// Goal:   a replay finds everything that it stored, survives power cuts anywhere, and repeats byte for byte.
/// Method: objects of several pieces and writes of parts of units on a small device, cut after one in 100 records, two times.
#[test]
fn replays_survive_cuts_and_repeat() {
    let ops = mixed(3000);
    let report = replay(&ops, &options(ReplayCuts::OneIn(100))).unwrap();
    assert!(report.cuts >= 10 && report.compared > 10_000, "{report:?}");
    assert!(report.records >= 3000 && report.erases > 0, "{report:?}");
    assert_eq!(report, replay(&ops, &options(ReplayCuts::OneIn(100))).unwrap());
    let uncut = replay(&ops, &options(ReplayCuts::Never)).unwrap();
    assert_eq!(uncut.fingerprint, report.fingerprint, "cuts are tried on forks");
    assert_eq!(replay(&ops, &options(ReplayCuts::At(500))).unwrap().cuts, 1);
}

/// Goal:   at the pace of the trace, time is that of the trace.
/// Method: writes 1 ms apart, two times as fast, and as fast as possible.
#[test]
fn the_pace_of_the_trace_is_kept() {
    let write = |i: u64| TraceOp::Write(Extent { volume: 0, offset: i * 4096, bytes: 4096 });
    let ops: Vec<TraceOp> = (0..1000).map(write).collect();
    let at = |pace| replay(&ops, &Replay { pace, ..options(ReplayCuts::Never) }).unwrap().virtual_seconds;
    let (once, twice, fastest) = (at(Some(0.1)), at(Some(0.2)), at(None));
    assert!((once - 1.0).abs() < 0.01 && (twice - 0.5).abs() < 0.01, "{once} {twice}");
    assert!(fastest < twice, "{fastest}");
}

/// Goal:   a disk that is too small is refused with the remedy.
/// Method: writes over more extents than fit.
#[test]
fn a_full_disk_names_the_remedy() {
    let write = |i: u64| TraceOp::Write(Extent { volume: i, offset: 0, bytes: 4096 });
    let ops: Vec<TraceOp> = (0..20).map(write).collect();
    let error = replay(&ops, &options(ReplayCuts::Never)).unwrap_err().to_string();
    assert!(error.contains("record 9") && error.contains("--disk"), "{error}");
}
