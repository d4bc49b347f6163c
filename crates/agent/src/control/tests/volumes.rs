//! AttachVolume and DetachVolume.

use super::*;

#[test]
fn volumes_are_attached_and_detached() {
    let mut stage = Stage::new();
    let op = |stage: &mut Stage| {
        stage.job(|job| match job {
            Job::Volume { op, .. } => Some(*op),
            _ => None,
        })
    };
    let done = |stage: &mut Stage, op, result| {
        stage.feed(Input::Done(Done::Volume {
            instance: ONE,
            op,
            result,
        }));
    };
    // Volume commands wait during the launch, and are done one after the other.
    stage.send(&persistent(ONE));
    stage.send(&attach(ONE, VOLUME));
    stage.send(&attach(ONE, TWO));
    stage.send(&attach(ONE, VOLUME));
    assert_eq!(
        stage.next::<AttachVolumeFailure>().reason,
        Reason::AlreadyAttached
    );
    stage.launched(ONE);
    let first = op(&mut stage);
    assert_eq!((first.volume, first.attach), (VOLUME, true));
    assert!(stage.jobs.is_empty());
    done(&mut stage, first, Ok(()));
    let second = op(&mut stage);
    let error = Refused::new(Reason::StateFailure, "full");
    done(&mut stage, second, Err(error));
    let failure: AttachVolumeFailure = stage.next();
    assert_eq!(
        (failure.reason, failure.volume_uuid),
        (Reason::StateFailure, TWO.into())
    );
    assert_eq!(stage.stats().instances[0].volumes, [Id::from(VOLUME)]);

    stage.send(&detach(ONE, TWO));
    assert_eq!(stage.next::<DetachVolumeFailure>().reason, Reason::NotAttached);
    stage.send(&detach(ONE, VOLUME));
    let third = op(&mut stage);
    // If the instance ends, commands that wait are refused.
    stage.send(&attach(ONE, OTHER));
    stage.send(&stop(ONE));
    done(&mut stage, third, Ok(()));
    assert_eq!(
        stage.next::<AttachVolumeFailure>().reason,
        Reason::InstanceFailure
    );
    assert!(stage.stats().instances[0].volumes.is_empty());

    for _ in 0..=MAX_VOLUME_OPS {
        stage.send(&attach(ONE, Uuid::new_v4()));
    }
    assert_eq!(
        stage.next::<AttachVolumeFailure>().reason,
        Reason::InstanceFailure
    );

    Arc::make_mut(&mut stage.control.settings).has_volumes = false;
    stage.send(&detach(ONE, VOLUME));
    assert_eq!(stage.next::<DetachVolumeFailure>().reason, Reason::NotSupported);
}

#[test]
fn a_volume_command_under_way_when_its_instance_ends_is_done_once() {
    let mut stage = Stage::new();
    stage.run(&persistent(ONE));
    stage.send(&attach(ONE, VOLUME));
    stage.end(ONE, 0);
    let is_volume = |job: &&Job| matches!(job, Job::Volume { .. });
    assert_eq!(stage.jobs.iter().filter(is_volume).count(), 1);
}
