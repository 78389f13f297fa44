//! The commit ring: full, of small frames, and not to be written.

use crate::rig::{Rig, value};
use kaml_device::{Body, Condition, Core, Error, Key, Op, StageError, VersionOptions};
use kaml_flash::MediumError;
use kaml_testkit::{Access, Watched};
use std::sync::atomic::{AtomicU64, Ordering};

/// Goal:   a Put that is staged can be written, whatever keeps the ring's tail from moving; others wait for that.
/// Method: put without housekeeping until the ring is full, with one and with several records in a frame, then let it continue.
#[test]
fn what_is_staged_has_a_place() {
    for frame_puts in [1, 7] {
        let mut rig = Rig::new();
        let value = value(1, 1);
        let body = Body::Value { value: &value, crc32c: kaml_crc::crc32c(&value) };
        let op = |key| Op {
            namespace: rig.namespace,
            key: Key::from(key).into(),
            body,
            condition: Condition::Always,
            expires: Default::default(),
        };
        let ops: Vec<_> = (0..100_000u64).map(op).collect();
        let mut frames = 0;
        let refused = ops.chunks(frame_puts).find_map(|puts| {
            let refused = puts.iter().find_map(|op| rig.core.stage(&[*op]).err());
            if let Some((id, io)) = rig.core.begin_persist() {
                frames += 1;
                rig.execute(id, io);
            }
            assert!(rig.core.begin_persist().is_none(), "all of it was written");
            assert_eq!(rig.core.committed(), rig.core.staging_frame(), "what is staged is committed");
            refused
        });
        assert_eq!(refused, Some(StageError::Busy), "the ring is full");
        assert!(frames > 50, "{frames}");
        rig.put(5, Some(b"again")).unwrap();
    }
}

/// Goal:   opening after a crash reads the ring in large pieces, however small its frames are, also over the end of a lap.
/// Method: many single puts, opened again occasionally through a medium that counts; a lap is less than two pieces here.
#[test]
fn small_frames_are_read_together() {
    let mut rig = Rig::new();
    let mut frames_max = 0;
    for key in 0..5000u64 {
        rig.put(key, Some(&key.to_le_bytes())).unwrap();
        if key % 500 == 499 {
            let reads = AtomicU64::new(0);
            let watch = |seen: Access<'_>| {
                reads.fetch_add(u64::from(matches!(seen, Access::RingRead)), Ordering::Relaxed);
                Ok(())
            };
            let (core, report) =
                Core::open(&Watched { medium: rig.medium.clone(), watch, before: |queue| queue }).unwrap();
            let reads = reads.into_inner();
            assert!(reads <= 32, "{reads} reads for {} frames", report.ring_frames);
            frames_max = frames_max.max(report.ring_frames);
            rig.core = core;
            (0..=key).for_each(|key| assert_eq!(rig.get(key).unwrap(), key.to_le_bytes()));
        }
    }
    assert!(frames_max > 300, "{frames_max} frames");
}

/// Goal:   a ring that cannot be written stops the device: nothing is acknowledged, what was stays readable.
/// Method: fail one ring write; puts are refused from then on, reads continue, reopening recovers everything else.
#[test]
fn a_failed_ring_write_stops_the_device() {
    let mut rig = Rig::new();
    rig.put(1, Some(b"kept")).unwrap();
    rig.world.no_ring = true;
    assert!(matches!(rig.put(1, Some(b"lost")), Err(Error::Stopped(MediumError::NotDurable { .. }))));
    rig.world.no_ring = false;
    assert!(matches!(rig.put(2, Some(b"refused")), Err(Error::Stopped(_))));
    assert_eq!(rig.get(1).unwrap(), b"kept");
    rig.reopen();
    assert_eq!(rig.get(1).unwrap(), b"kept");
    rig.put(2, Some(b"taken")).unwrap();
}

/// Goal:   a device that stopped rests, whatever it was about to do: nobody polls it forever.
/// Method: a ring write fails after a page buffer of versions has become full, and one while a checkpoint is being taken.
#[test]
fn stopped_devices_rest() {
    let mut rig = Rig::new();
    let versions = VersionOptions { buffer_bytes: 64 << 10, ..VersionOptions::default() };
    rig.namespace = rig.core.create_namespace("versions", &versions.into()).unwrap();
    rig.settle();
    rig.poll_after_puts = false;
    let fills_buffer = |key: u64| {
        rig.put(key, Some(&[7; 3000])).unwrap();
        rig.core.wants_poll()
    };
    assert!((0..1000).any(fills_buffer));
    rig.stop();
    assert!(!rig.core.wants_poll());

    let mut rig = Rig::new();
    (0..30_000).for_each(|key| rig.put(key, Some(b"some")).unwrap());
    rig.core.request_checkpoint();
    rig.poll_after_puts = false;
    rig.core.poll(rig.now_ns, &mut Vec::new());
    assert!(rig.core.wants_poll(), "it is being taken");
    rig.stop();
    assert!(!rig.core.wants_poll());
}
