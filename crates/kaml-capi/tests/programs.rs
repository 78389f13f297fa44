//! C programs and the Python package against the installed library, as its users have it.
//!
//! Lives here:       installing into an empty directory, compiling with gcc and g++, linking both ways, running; what
//!                   the libraries export.
//! Lives elsewhere:  the programs (`examples`, `tests/c`), the header (`header.rs`), the tests of the package
//!                   (`python/tests`).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::time::Duration;

const WARNINGS: [&str; 4] = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"];
/// Compiler and language: both are to take the header without a word.
const COMPILERS: [(&str, &[&str]); 2] = [("gcc", &["-std=c99", "-xc"]), ("g++", &["-std=c++17", "-xc++"])];

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}{err}", output.status);
    output
}

fn text(output: Output) -> String {
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Where the library is installed for all tests of this file.
fn prefix() -> &'static Path {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    PREFIX.get_or_init(|| {
        // Next to what cargo builds, in one place: a directory that lives as long as the process is never cleaned up.
        let prefix = Path::new(env!("CARGO_TARGET_TMPDIR")).join("libkaml");
        if prefix.exists() {
            std::fs::remove_dir_all(&prefix).expect("what an earlier run left can be removed");
        }
        run(Command::new(here("install.sh")).arg(&prefix).env("KAML_PROFILE", "dev"));
        prefix
    })
}

fn pkg_config(arguments: &[&str]) -> Vec<String> {
    let pages = prefix().join("lib/pkgconfig");
    let output = run(Command::new("pkg-config").args(arguments).arg("kaml").env("PKG_CONFIG_PATH", pages));
    text(output).split_whitespace().map(str::to_owned).collect()
}

/// Compiles with every compiler, links with the shared and with the static library, runs in an empty directory each
/// time, and hands what was printed to `check`.
fn everywhere(source: &str, check: impl Fn(&str)) {
    each_program(source, |dir, program| {
        check(&text(run(Command::new(program)
            .arg(dir.join("device.kaml"))
            .env("LD_LIBRARY_PATH", prefix().join("lib")))));
    });
}

/// Compiles with every compiler, links with the shared and with the static library, and hands each program to `check`, with an empty directory.
fn each_program(source: &str, check: impl Fn(&Path, &Path)) {
    for (compiler, language) in COMPILERS {
        for linking in ["shared", "static"] {
            let dir = tempfile::tempdir().expect("a directory");
            let program = dir.path().join("program");
            let mut command = Command::new(compiler);
            command.args(language).args(WARNINGS).arg(here(source)).arg("-xnone").args(pkg_config(&["--cflags"]));
            match linking {
                "shared" => command.args(pkg_config(&["--libs"])),
                _ => command.arg(prefix().join("lib/libkaml.a")).args(private_libs()),
            };
            run(command.args(["-pthread", "-o"]).arg(&program));
            check(dir.path(), &program);
        }
    }
}

/// What a static program needs besides.
fn private_libs() -> Vec<String> {
    let mut libs = pkg_config(&["--libs", "--static"]);
    libs.retain(|lib| lib != "-lkaml");
    assert!(libs.iter().any(|lib| lib == "-lc"), "{libs:?}");
    libs
}

/// Goal:   the shortest program works as printed in the README.
/// Method: compile it in C and C++, link it both ways, run it.
#[test]
fn the_first_program_runs() {
    everywhere("examples/first.c", |printed| assert_eq!(printed, "Ada Lovelace\n"));
}

/// Goal:   every program of the C guide works, and works again; the first one is the example.
/// Method: compile each as C, run it twice in an empty directory.
#[test]
fn the_guide_runs_twice() {
    let page = std::fs::read_to_string(here("../../docs/guide/c.md")).expect("the guide");
    let programs: Vec<&str> =
        page.split("```c\n").skip(1).map(|block| block.split("```\n").next().expect("some text")).collect();
    assert!(programs.len() >= 3, "only {} were found", programs.len());
    assert_eq!(programs[0], std::fs::read_to_string(here("examples/first.c")).expect("the example"));
    for text in programs {
        let dir = tempfile::tempdir().expect("a directory");
        let (source, program) = (dir.path().join("program.c"), dir.path().join("program"));
        std::fs::write(&source, text).expect("it can be written");
        run(Command::new("gcc")
            .args(["-std=c99", "-o"])
            .arg(&program)
            .args(WARNINGS)
            .arg(source)
            .args(pkg_config(&["--cflags", "--libs"])));
        for _ in 0..2 {
            run(Command::new(&program).current_dir(dir.path()).env("LD_LIBRARY_PATH", prefix().join("lib")));
        }
    }
}

/// Goal:   a program that is static as a whole links with what `pkg-config --static` prints, and works.
/// Method: link the shortest program with `-static`; left out where the system has no static libc.
#[test]
fn a_static_program_runs() {
    let dir = tempfile::tempdir().expect("a directory");
    let (empty, program) = (dir.path().join("empty.c"), dir.path().join("program"));
    std::fs::write(&empty, "int main(void) { return 0; }\n").expect("it can be written");
    let gcc = || {
        let mut command = Command::new("gcc");
        command.args(["-static", "-o"]).arg(&program);
        command
    };
    if !gcc().arg(&empty).output().expect("gcc runs").status.success() {
        eprintln!("no static libc here");
        return;
    }
    run(gcc().arg(here("examples/first.c")).args(pkg_config(&["--cflags", "--libs", "--static"])));
    let printed = text(run(Command::new(&program).arg(dir.path().join("device.kaml"))));
    assert_eq!(printed, "Ada Lovelace\n");
}

/// Goal:   transactions of several threads keep the total, also after reopening.
/// Method: run the bank; it compares itself.
#[test]
fn the_bank_loses_no_money() {
    everywhere("examples/bank.c", |printed| {
        assert!(printed.ends_with("total 64000, after reopening 64000\n"), "{printed}")
    });
}

/// A program with a device in a directory: what it prints for some arguments, if it succeeds.
fn prints(dir: &Path, program: &Path, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new(program);
    command.arg(dir.join("device.kaml")).args(arguments).env("LD_LIBRARY_PATH", prefix().join("lib"));
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    output.status.success().then(|| text(output))
}

/// Goal:   the work queue does each job one time and in order, again those whose lease has ended, and keeps all over the end of the process.
/// Method: jobs that are put, taken and worked on by one process after the other, two times with the same device.
#[test]
fn the_work_queue_loses_no_job() {
    each_program("examples/work_queue.c", |dir, program| {
        let queue = |arguments: &[&str]| prints(dir, program, arguments).expect("it succeeds");
        for round in 0..2 {
            assert_eq!(queue(&["show"]), format!("0 ready, {round} leased\n"));
            queue(&["put", "one", "two", "three"]);
            assert_eq!(queue(&["take", "3600"]), "one\n");
            assert_eq!(queue(&["take", "0"]), "two\n");
            assert_eq!(queue(&["show"]), format!("1 ready, {} leased\n", round + 2));
            assert_eq!(queue(&["work"]), "two\nthree\n");
            assert_eq!(queue(&["show"]), format!("0 ready, {} leased\n", round + 1));
        }
        assert_eq!(prints(dir, program, &[]), None);
    });
}

/// Goal:   a session exists until it is ended or has been silent for too long, and each use begins its time anew.
/// Method: sessions of two users, used, ended and left alone by one process after the other.
#[test]
fn sessions_end() {
    each_program("examples/sessions.c", |dir, program| {
        let sessions = |arguments: &[&str]| prints(dir, program, arguments);
        let begin = |user| sessions(&["begin", user]).expect("it succeeds").trim().to_owned();
        let (ada, alan) = (begin("ada"), begin("alan"));
        assert!(ada.len() == 48 && ada != alan, "{ada} {alan}");
        assert_eq!(sessions(&["use", &ada]).as_deref(), Some("ada, use 1\n"));
        assert_eq!(sessions(&["use", &ada]).as_deref(), Some("ada, use 2\n"));
        assert_eq!(sessions(&["use", &alan]).as_deref(), Some("alan, use 1\n"));
        sessions(&["end", &alan]).expect("it succeeds");
        assert_eq!(sessions(&["use", &alan]), None);
        sessions(&["silence", "0.05"]).expect("it succeeds");
        let brief = begin("brief");
        std::thread::sleep(Duration::from_millis(60));
        assert_eq!(sessions(&["use", &brief]), None);
        assert_eq!(sessions(&["use", &ada]).as_deref(), Some("ada, use 3\n"));
        assert_eq!(sessions(&["use", "unknown"]), None);
    });
}

/// Goal:   every mistake is returned with its status and a message, and nothing breaks.
/// Method: a program that makes them all.
#[test]
fn mistakes_have_defined_answers() {
    everywhere("tests/c/misuse.c", |printed| assert_eq!(printed, "0 mistakes with another status\n"));
}

/// Goal:   keys of any length, and ranges in both directions, are those of a sorted array; mistakes have defined statuses.
/// Method: a program that walks them in batches of several lengths, through devices, stores and transactions, and makes every mistake.
#[test]
fn ranges_are_in_order() {
    everywhere("tests/c/ranges.c", |printed| assert_eq!(printed, "0 mistakes with another status\n"));
}

/// Goal:   a snapshot shows exactly what was stored at its moment, through every call, also after the store or its handle was closed; expected records
///         are in the cache; mistakes have defined statuses, and nothing stays open.
/// Method: a program that reads two snapshots of different moments while everything changes, lets one expire, and makes every mistake.
#[test]
fn snapshots_show_their_moment() {
    everywhere("tests/c/snapshots.c", |printed| assert_eq!(printed, "0 mistakes with another status\n"));
}

/// Goal:   reads of many keys return what single reads do; a transaction reads into a buffer; a store that eight threads read is closed between two of
///         their calls, never in one, and every later call is refused.
/// Method: a program that compares all, makes every mistake, and closes until it succeeds.
#[test]
fn many_records_and_many_threads() {
    everywhere("tests/c/many.c", |printed| assert_eq!(printed, "0 mistakes with another status\n"));
}

/// Goal:   records expire, counters count, expected values are compared, changes are streamed, a restored backup is what was backed up; mistakes have
///         defined statuses.
/// Method: a program that does all of it and compares, with a device, a store and a transaction, and makes every mistake.
#[test]
fn what_lasts_and_what_expires() {
    everywhere("tests/c/lasting.c", |printed| assert_eq!(printed, "0 mistakes with another status\n"));
}

/// Goal:   a child that was forked while other threads opened and closed handles waits for none of them: it can open its own.
/// Method: a program that forks hundreds of times under four such threads.
#[test]
fn forked_children_wait_for_nobody() {
    everywhere("tests/c/fork.c", |printed| assert_eq!(printed, "0 children failed\n"));
}

/// Goal:   the shared library exports the functions of the header and nothing else, under its soname.
/// Method: ask `nm` and `readelf`.
#[test]
fn the_shared_library_exports_the_header() {
    let library = prefix().join("lib/libkaml.so");
    let symbols = text(run(Command::new("nm").args(["-D", "--defined-only", "--format=posix"]).arg(&library)));
    let exported: BTreeSet<&str> = symbols.lines().filter_map(|line| line.split(' ').next()).collect();
    let header = std::fs::read_to_string(here("include/kaml.h")).expect("the header");
    let declarations =
        header.lines().filter(|line| line.contains("kaml_") && line.contains('(') && !line.starts_with("//"));
    let names = declarations.filter_map(|line| line.split('(').next()?.rsplit([' ', '*']).next());
    let declared: BTreeSet<&str> = names.filter(|name| name.starts_with("kaml_")).collect();
    assert!(declared.len() > 30, "{declared:?}");
    assert_eq!(exported, declared);
    let dynamic = text(run(Command::new("readelf").arg("-d").arg(&library)));
    assert!(dynamic.contains(&format!("[libkaml.so.{}]", env!("CARGO_PKG_VERSION_MAJOR"))), "{dynamic}");
}

/// Goal:   the Python package does what its documentation states, and its declarations are those of the header.
/// Method: its own tests, on the installed library.
#[test]
fn the_python_package_works() {
    let package = here("../../python");
    let mut python = Command::new("python3");
    python.args(["-B", "-m", "unittest", "discover", "-s", "tests"]).current_dir(&package);
    let ran = run(python.env("PYTHONPATH", &package).env("KAML_LIBRARY", prefix().join("lib/libkaml.so")));
    let report = String::from_utf8(ran.stderr).expect("UTF-8");
    assert!(report.contains("Ran ") && !report.contains("Ran 0 tests"), "{report}");
}

/// Goal:   the installer refuses what it does not understand.
/// Method: no prefix, and too many.
#[test]
fn the_installer_wants_one_prefix() {
    for arguments in [&[][..], &[""], &["/a", "/b"]] {
        let output = Command::new(here("install.sh")).args(arguments).output().expect("it can be run");
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
}
