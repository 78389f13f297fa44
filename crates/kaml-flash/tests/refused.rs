//! Buffers where the system refuses huge pages. The limit is that of a process of its own.

use kaml_flash::AlignedBuf;
use rustix::process::{Resource, Rlimit, setrlimit};
use std::process::Command;

const LIMITED: &str = "KAML_TEST_LIMITED";

/// Goal:   a buffer that gets no huge pages, which take up to 2 MiB more than it, lies in small ones.
/// Method: lengths around that of a huge page, in a process whose address space has room for the buffer alone.
#[test]
fn buffers_lie_in_small_pages_where_no_huge_ones_fit() {
    const TEST: &str = "buffers_lie_in_small_pages_where_no_huge_ones_fit";
    if std::env::var_os(LIMITED).is_none() {
        let mut alone = Command::new(std::env::current_exe().unwrap());
        let ended = alone.args(["--exact", TEST, "--nocapture"]).env(LIMITED, "1").output().unwrap();
        let (shown, said) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
        return assert!(ended.status.success() && shown.contains("1 passed"), "{shown}{said}");
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let used = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
    let used_kib: u64 = used.trim().trim_end_matches(" kB").parse().unwrap();
    let bytes = (used_kib << 10) + (3 << 20);
    setrlimit(Resource::As, Rlimit { current: Some(bytes), maximum: None }).unwrap();
    for len in [1 << 20, (1 << 20) + 1, 3 << 19, (2 << 20) - 1, 2 << 20] {
        let mut buf = AlignedBuf::for_transfers(len);
        assert_eq!(buf.capacity(), len.next_multiple_of(AlignedBuf::ALIGN), "not in whole huge pages");
        assert!(buf.len() == len && buf.iter().all(|byte| *byte == 0));
        buf.fill(7);
    }
}
