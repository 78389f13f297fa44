//! The checkers can fail: firmware and media that break one promise each are caught, and fast.

use kaml_device::Broken;
use kaml_sim::{BrokenMedium, Cuts, Plan, Small, run, run_on};
use std::time::{Duration, Instant};

/// What the laboratory has to notice anything in.
const CAUGHT_WITHIN: Duration = Duration::from_secs(60);

fn plans() -> impl Iterator<Item = Plan> {
    (0..).map(|seed| match seed % 5 {
        0 => Plan { seed, small: Some(Small::Readers), cuts: Cuts::Only(0) },
        1 => Plan { seed, small: Some(Small::Flips), cuts: Cuts::Only(0) },
        2 => Plan { seed, small: Some(Small::Failures), cuts: Cuts::Only(0) },
        3 => Plan { seed, small: None, cuts: Cuts::OneIn(1_000) },
        _ => Plan { seed, small: None, cuts: Cuts::OneIn(30) },
    })
}

/// Whether a failure reports the broken promise: a value served without its checksum is a wrong answer, nothing else.
fn told(name: &str, said: &str) -> bool {
    let wrong = said.contains("a wrong answer") || said.contains("found");
    !said.contains("waits for ever") && (wrong || name != "DropsValueChecksum")
}

/// Tries seeds until one fails; returns its message.
fn caught(name: &str, mut attempt: impl FnMut(&Plan) -> Option<String>) {
    let begin = Instant::now();
    let said = plans()
        .take_while(|_| begin.elapsed() < CAUGHT_WITHIN)
        .find_map(|plan| attempt(&plan).filter(|said| told(name, said)));
    let said = said.unwrap_or_else(|| panic!("{name} was not noticed in {CAUGHT_WITHIN:?}"));
    println!("{name}: noticed after {:.1} s: {}", begin.elapsed().as_secs_f64(), said.lines().next().unwrap_or(""));
}

/// Goal:   firmware that breaks a promise is caught within a minute, whichever promise it is.
/// Method: each broken variant runs seeds of the swarm until one fails.
#[test]
fn broken_firmware_is_noticed() {
    std::panic::set_hook(Box::new(|_| {}));
    for broken in Broken::ALL {
        Broken::set(Some(broken));
        caught(&format!("{broken:?}"), |plan| run(plan).err().map(|failure| failure.to_string()));
        Broken::set(None);
    }
}

/// Goal:   the same for media: the checkers do not rely on what the firmware makes of it.
/// Method: as above, with media that report what they have not done.
#[test]
fn broken_media_are_noticed() {
    std::panic::set_hook(Box::new(|_| {}));
    for broken in BrokenMedium::ALL {
        let attempt = |plan: &Plan| run_on(plan, Some(broken)).err().map(|failure| failure.to_string());
        caught(&format!("{broken:?}"), attempt);
    }
}

/// Goal:   what was caught above was the broken promise: the same seeds pass without it.
/// Method: the first seeds, unbroken.
#[test]
fn unbroken_firmware_passes() {
    for plan in plans().take(5) {
        run(&plan).unwrap_or_else(|failure| panic!("{failure}"));
    }
}
