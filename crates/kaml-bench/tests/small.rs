//! Each bench at its smallest, and what benches refuse.

#[path = "../../kaml-cli/tests/world/mod.rs"]
mod world;

use kaml::{CreateOptions, Device};
use kaml_nvme::target::{Options, Server};
use std::fs;
use world::World;

/// Goal:   the benches run and their JSON has figures; so they cannot rot.
/// Method: each at its smallest.
#[test]
fn benches_run_small() {
    let world = World::empty();
    let quick = ["--seconds", "0.05", "--json", "--dir", "."];
    let bench = |arguments: &[&str]| world.json(&[arguments, &quick].concat());
    assert_eq!(bench(&["floor", "--threads", "1,4", "--clients", "8"]).as_array().unwrap().len(), 3);
    assert_eq!(bench(&["raw", "--file", "16M", "--depths", "1,4", "--transfers", "1"]).as_array().unwrap().len(), 5);
    let small = ["--keys", "2000", "--capacity", "256M"];
    let quick = ["--seconds", "20", "--json", "--dir", "."];
    let bench = |arguments: &[&str]| world.json(&[arguments, &quick].concat());
    assert_eq!(bench(&[&["put", "--threads", "4", "--count", "100"][..], &small].concat())[0]["operations"], 100);
    assert_eq!(bench(&[&["put", "--in-flight", "8", "--count", "100"][..], &small].concat())[0]["operations"], 100);
    assert_eq!(bench(&[&["get", "--in-flight", "8", "--count", "100"][..], &small].concat())[0]["operations"], 100);
    assert_eq!(
        bench(&[&["mixed", "--threads", "2", "--count", "100"][..], &small].concat()).as_array().unwrap().len(),
        2
    );
    let serve = world.json(&["serve", "--seconds", "0.02", "--only", "blocks,records", "--json"]);
    assert!(serve.as_array().unwrap().iter().all(|row| row["operations"].as_u64() > Some(0)), "{serve}");
    assert_eq!(serve.as_array().unwrap().len(), 7);
    assert_eq!(fs::read_dir(world.dir.path()).unwrap().count(), 0, "something was left behind");
}

/// Goal:   the database workloads run from the command line, with figures, and what they refuse is a matter of usage.
/// Method: tiny runs as JSON and as a table, a property file, mistakes.
#[test]
fn database_workloads_run_small() {
    let world = World::empty();
    const SMALL: [&str; 9] =
        ["--threads", "2", "--operations", "300", "--warm-up", "0", "--capacity", "128M", "--json"];
    fn bench<'a>(arguments: &[&'a str]) -> Vec<&'a str> {
        [arguments, &SMALL].concat()
    }
    let remote = ["tpcb", "--scale", "2", "--accounts-per-branch", "500", "--cache", "1M", "--served", "2"];
    let remote = world.json(&bench(&remote));
    assert_eq!(remote[0]["operations"], 300, "{remote}");
    let ycsb = world.json(&bench(&["ycsb", "a,f", "--records", "2000", "--cache", "1M"]));
    assert_eq!(ycsb.as_array().unwrap().len(), 2);
    assert_eq!(
        (ycsb[0]["operations"].as_u64(), ycsb[1]["kinds"][1]["kind"].as_str()),
        (Some(300), Some("read-modify-write"))
    );
    let scans = world.json(&bench(&["ycsb", "e", "--records", "2000", "--cache", "1M"]));
    assert_eq!((scans[0]["operations"].as_u64(), scans[0]["kinds"][1]["kind"].as_str()), (Some(300), Some("scan")));
    let scan = world.json(&bench(&["scan", "--records", "2000", "--cache", "1M", "--reverse"]));
    assert_eq!((scan[0]["operations"].as_u64(), scan[0]["workload"].as_str()), (Some(300), Some("scan 100")));
    assert!(scan[0]["reads"].as_u64() > Some(15_000), "{scan}");
    let file = world.path("mine.properties");
    fs::write(&file, "recordcount=500\noperationcount=100\nfieldcount=1\nworkload=x.CoreWorkload\n").unwrap();
    let as_is = ["ycsb", "mine.properties", "--as-is", "--threads", "1", "--warm-up", "0", "--capacity", "128M"];
    let table = world.ok(&[&as_is[..], &["--cache", "200K"]].concat());
    assert!(table.contains("ycsb mine.properties") && table.contains("last writes are stored"), "{table}");
    let tpcb = world.json(&bench(&["tpcb", "--scale", "2", "--accounts-per-branch", "500", "--cache", "1M"]));
    assert_eq!((tpcb[0]["operations"].as_u64(), tpcb[0]["checked"].as_array().unwrap().len()), (Some(300), 3));
    let tiny = ["tpcc", "--scale", "1", "--items", "100", "--customers-per-district", "20", "--cache", "2M"];
    let tpcc =
        world.json(&bench(&[&tiny[..], &["--records-per-lock", "16", "--early-release", "--fill-cache"]].concat()));
    assert_eq!((tpcc[0]["operations"].as_u64(), tpcc[0]["checked"].as_array().unwrap().len()), (Some(300), 7));
    let full = world.json(&bench(&[&tiny[..], &["--mix", "full"]].concat()));
    assert_eq!((full[0]["operations"].as_u64(), full[0]["kinds"].as_array().unwrap().len()), (Some(300), 5));
    assert!(full[0]["tpm_c"].as_f64().unwrap() > 0.0, "{full}");
    let later = ["tpcb", "--scale", "2", "--accounts-per-branch", "500", "--cache", "1M", "--delay", "2.5"];
    let later = world.json(&bench(&later));
    assert!(later[0]["engine"].as_str().unwrap().contains("durable after 2.5ms"), "{}", later[0]);
    assert_eq!((later[0]["operations"].as_u64(), later[0]["checked"].as_array().unwrap().len()), (Some(300), 3));
    let conflicts = ["conflicts", "--records", "64", "--threads", "4", "--rounds", "20", "--svg", "c.svg"];
    let conflicts = world.json(&[&conflicts[..], &["--records-per-lock", "1,64", "--json"]].concat());
    assert_eq!(conflicts[1]["measured"].as_f64(), Some(3.0));
    assert!(fs::read_to_string(world.path("c.svg")).unwrap().contains("records per lock"));
    for wrong in [
        &["ycsb", "g"][..],
        &["ycsb", "e", "--in-flight", "2"],
        &["ycsb", "e", "--served", "1"],
        &["ycsb", "a", "-p", "fieldcount=0"],
        &["ycsb", "a", "-p", "fieldcount"],
        &["ycsb", "a", "--cache", "0%"],
        &["ycsb", "a", "--cache", "1"],
        &["scan", "--length", "0"],
        &["scan", "--length", "5", "--all"],
        &["tpcb", "--zipf", "1"],
        &["tpcc", "--scale", "0"],
        &["tpcc", "--think=-1"],
        &["tpcc", "--mix", "full", "--served", "2"],
        &["tpcb", "--zipf", "-1"],
        &["tpcb", "--delay", "soon"],
        &["tpcb", "--delay=-1"],
    ] {
        let output = world.run(&bench(wrong));
        assert_eq!(output.status.code(), Some(2), "{wrong:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// Goal:   benches refuse times and numbers that make no sense, as a matter of usage, and leave no files.
/// Method: none, too many, none at all and no number; for each flag that takes them.
#[test]
fn benches_refuse_senseless_numbers() {
    let world = World::empty();
    for wrong in [
        &["floor", "--seconds", "0"][..],
        &["put", "--seconds", "1e19"],
        &["get", "--seconds", "NaN"],
        &["raw", "--seconds=-1"],
        &["serve", "--seconds", "0"],
        &["compare", "--seconds", "0"],
        &["compare", "--steady-seconds-max", "1e19"],
        &["floor", "--threads", "100000"],
        &["floor", "--clients", "5000000000"],
        &["floor", "--batch", "0"],
        &["floor", "--put-share", "0.5"],
        &["floor", "--clients", "none", "--put-share", "2"],
        &["mixed", "--get-share", "NaN"],
        &["floor", "--in-flight", "0"],
        &["raw", "--depths", "5000000000"],
        &["raw", "--transfers", "5000"],
        &["put", "--threads", "0"],
        &["put", "--in-flight", "5000000000"],
        &["put", "--in-flight", "0"],
        &["put", "--batch", "5000000000"],
        &["mixed", "--keys", "0"],
        &["ycsb", "a", "--seconds", "0"],
        &["ycsb", "a", "--warm-up", "1e19"],
        &["ycsb", "a", "--warm-up=-1"],
        &["ycsb", "a", "--threads", "1,0"],
        &["tpcb", "--threads", "100000"],
        &["tpcc", "--load-threads", "0"],
        &["ycsb", "a", "--in-flight", "5000000000"],
        &["ycsb", "a", "--threads", "4096", "--in-flight", "65536"],
        &["conflicts", "--threads", "0"],
        &["conflicts", "--threads", "5000000000"],
    ] {
        let said = world.fails(2, wrong);
        assert!(said.contains("--"), "{wrong:?}: {said}");
        assert_eq!(fs::read_dir(world.dir.path()).unwrap().count(), 0, "{wrong:?} left files");
    }
}

/// Goal:   killed again and again, a device loses nothing that was acknowledged.
/// Method: twelve kill cycles (`kaml-bench kill` runs hundreds).
#[test]
fn kill_cycles_lose_nothing() {
    let world = World::empty();
    let outcome = world.json(&["kill", "--cycles", "12", "--json"]);
    assert_eq!(outcome["cycles"], 12, "{outcome}");
    assert!(outcome["acknowledged_batches"].as_u64().unwrap() > 0, "{outcome}");
    assert_eq!(outcome["problems"], serde_json::json!([]));
}

/// Goal:   TPC-C, killed again and again, leaves warehouses that obey the consistency conditions.
/// Method: six kill cycles with all five transactions (`kaml-bench kill --tpcc` runs hundreds).
#[test]
fn killed_warehouses_are_consistent() {
    let world = World::empty();
    let outcome = world.json(&["kill", "--tpcc", "--cycles", "6", "--json"]);
    assert_eq!(outcome["cycles"], 6, "{outcome}");
    assert!(outcome["new_orders"].as_u64().unwrap() > 0, "{outcome}");
}

/// Goal:   a target in another thread is measured as one that a bench starts itself.
/// Method: a device in memory with a namespace of each kind is served; both are measured by their numbers.
#[test]
fn a_running_target_is_measured() {
    let world = World::empty();
    let device = Device::in_memory(&CreateOptions::new(256 << 20)).unwrap();
    let blocks = kaml::BlockOptions { block_count: 16_384, ..kaml::BlockOptions::default() };
    let disk = device.create_namespace("disk", &blocks.into()).unwrap().to_string();
    let records = device.create_namespace("records", &kaml::NamespaceOptions::default()).unwrap().to_string();
    let server = Server::bind(&device, "127.0.0.1:0", Options::for_device(&device)).unwrap();
    let url = format!("nvme+tcp://{}/{}", server.address(), server.options().subsystem);
    let stopper = server.stopper();
    let serving = std::thread::spawn(move || server.run());
    let bench = ["serve", "--target", &url, "--blocks", &disk, "--records", &records, "--json"];
    let figures = world.json(&[&bench[..], &["--seconds", "0.02", "--only", "blocks,records"]].concat());
    assert!(figures.as_array().unwrap().iter().all(|row| row["operations"].as_u64() > Some(0)), "{figures}");
    stopper.stop();
    serving.join().unwrap().unwrap();
}

/// Goal:   a value that no device takes is refused as a matter of usage, and nothing is left behind.
/// Method: values of 99 GiB.
#[test]
fn too_large_values_are_refused() {
    let world = World::empty();
    let long = ["put", "--bytes", "99G", "--keys", "1", "--capacity", "1G", "--dir", "."];
    assert!(world.fails(2, &long).contains("this device takes at most"));
    assert_eq!(fs::read_dir(world.dir.path()).unwrap().count(), 0, "something was left behind");
}

/// Goal:   figures that were measured beside other work meet no bar.
/// Method: this process keeps a processor busy while the index is measured.
#[test]
fn disturbed_figures_meet_no_bar() {
    let world = World::empty();
    let done = std::sync::atomic::AtomicBool::new(false);
    let (started, enough) = (std::time::Instant::now(), std::time::Duration::from_secs(100));
    let rows = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(std::sync::atomic::Ordering::Relaxed) && started.elapsed() < enough {
                std::hint::spin_loop()
            }
        });
        let rows = world.json(&["index", "--keys", "100000", "--json"]);
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        rows
    });
    let with_bars: Vec<_> = rows.as_array().unwrap().iter().filter(|row| !row["bar"].is_null()).collect();
    assert!(with_bars.len() >= 10);
    assert!(with_bars.iter().all(|row| row["met"].is_null() && row["disturbed"].is_string()), "{rows}");
}
