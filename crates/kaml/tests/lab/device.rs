//! The device: everything at once, as in `stress`, where the system schedules the threads.

use crate::everything::{Disk, Owner, Rng, Scale, Spaces, disturb};
use crate::explore::{device_on, explore};
use kaml_device::Core;
use kaml_sim::{Faults, Scenario, SimMedium, Small};
use std::cell::Cell;
use std::time::Duration;

const SCALE: Scale =
    Scale { keys: 24, len_max: 8000, large_len_max: 60_000, blocks: 96, blocks_at_once: 24, in_flight: 5 };
/// Commands of each thread.
const STEPS: usize = 150;

/// Goal:   whatever threads do at the same time, each sees exactly what it stored, at once, later, and after opening again.
/// Method: for each seed an interleaving of threads with commands of every kind, one with commands in flight, one on blocks, and
///         an operator; indexes that nobody uses leave memory at once, soon or late; in one seed of two blocks fail and operations
///         take long. Every answer is compared with a model.
#[test]
fn everything_at_once() {
    let moved = explore(40, |seed| {
        let Scenario { mut geometry, mut options, .. } = Scenario::small(Small::Puts, seed);
        geometry.blocks_per_die = if seed % 2 == 0 { 48 } else { 32 }; // blocks fail, and page buffers of versions take some
        if seed % 2 == 0 {
            options.faults = Faults { program_ppm: 1000, erase_ppm: 1000, slow_ppm: 5000, ..Faults::default() };
        }
        let flash = SimMedium::new(geometry, options).unwrap();
        Core::format(&flash).unwrap();
        let mut device = device_on(&flash);
        let spaces = Spaces::create(&device, &SCALE);
        let rng = |number: u64| Rng(seed << 8 | number << 1 | 1);
        let mut owners: Vec<Owner> = (0..3).map(|thread| Owner::new(thread, rng(thread), spaces, SCALE)).collect();
        let mut disk = Disk::new(rng(10), &SCALE);
        let (mut operator, mut moved) = (rng(11), 0);
        let idle = [Duration::from_micros(50), Duration::from_millis(20), Duration::from_secs(600)][seed as usize % 3];
        for _ in 0..2 {
            device.unload_idle_after(idle);
            shuttle::thread::scope(|scope| {
                let device = &device;
                let (queued, others) = owners.split_first_mut().expect("there are three");
                scope.spawn(move || {
                    let left = Cell::new(4 * STEPS);
                    queued.queue_steps(device, || left.replace(left.get().saturating_sub(1)) == 0);
                });
                for owner in others {
                    scope.spawn(move || (0..STEPS).for_each(|_| owner.step(device)));
                }
                let (disk, operator) = (&mut disk, &mut operator);
                scope.spawn(move || (0..STEPS).for_each(|_| disk.step(device, spaces.disk)));
                scope.spawn(move || (0..STEPS / 2).for_each(|_| disturb(device, spaces, operator)));
            });
            owners.iter().for_each(|owner| owner.compare_all(&device));
            assert_eq!(device.check(&mut |_, _| {}).unwrap().problems, Vec::<String>::new());
            moved += device.stats().relocated_bytes;
            device.close().unwrap();
            flash.reopen();
            device = device_on(&flash);
            owners.iter().for_each(|owner| owner.compare_all(&device));
            disk.compare_all(&device, spaces.disk);
        }
        moved
    });
    assert!(moved.is_none_or(|moved| moved > 100_000), "{moved:?} bytes were moved by collection");
}
