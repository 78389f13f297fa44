//! Runs of a test, each with a seed of its own that decides every step of every thread.

use crate::flash::Flash;
use kaml::{Device, model};
use kaml_sim::SimMedium;
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, MaxSteps, Runner};
use std::fmt::Debug;
use std::ops::AddAssign;
use std::sync::{Arc, Mutex};

/// Each run has some hundred thousand moments to switch threads at, at most; one that needs many more hangs.
const STEPS_MAX: usize = 20_000_000;
/// The firmware is not made for small stacks.
const STACK_BYTES: usize = 1 << 20;

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |value| value.parse().expect("a number"))
}

/// Runs a test for each of many seeds, each with an interleaving of its own. Returns what was met in all of them, if they
/// are as many as the test needs.
pub(crate) fn explore<M>(wanted: u64, run: fn(u64) -> M) -> Option<M>
where
    M: AddAssign + Copy + Debug + Default + Send + 'static,
{
    let (first, runs) = (number("KAML_LAB_SEED", 1), number("KAML_LAB_RUNS", wanted));
    let all = Arc::new(Mutex::new(M::default()));
    for seed in first..first + runs {
        let mut config = Config::new();
        (config.stack_size, config.max_steps) = (STACK_BYTES, MaxSteps::FailAfter(STEPS_MAX));
        config.silence_warnings = true;
        let sum = all.clone();
        let with_seed = move || {
            model::restart();
            let met = run(seed);
            *sum.lock().unwrap() += met;
        };
        let outcome = std::panic::catch_unwind(|| match seed % 3 {
            // The first of two runs is measured, the second has threads change places at three of its steps.
            0 => Runner::new(PctScheduler::new_from_seed(seed, 3, 2), config).run(with_seed),
            _ => Runner::new(RandomScheduler::new_from_seed(seed, 1), config).run(with_seed),
        });
        if let Err(why) = outcome {
            eprintln!("KAML_LAB_SEED={seed} KAML_LAB_RUNS=1 does this again");
            std::panic::resume_unwind(why);
        }
    }
    let met = *all.lock().unwrap();
    println!("{runs} seeds: {met:?}");
    (runs >= wanted).then_some(met)
}

pub(crate) fn device_on(flash: &SimMedium) -> Device {
    Device::on_medium(Arc::new(Flash(flash.clone()))).unwrap()
}
