//! STATS: the line of each instance, and the frame.

use ssntp::payload::yaml::MAX_DOCUMENT_LEN;
use ssntp::proto::Frame;
use ssntp_payload::timestamp;
use ssntp_payload::{HealthState, InstanceState, InstanceStats, Stats};
use uuid::Uuid;

use super::instance::{Ending, Instance, Life, Next};
use crate::store::millis;

/// STATS in a frame that receivers can decode. If many instances make it too long, labels and
/// details are left out first, and then names and times.
pub(super) fn readable(mut stats: Stats) -> Frame {
    let shortened: [fn(&mut InstanceStats); 2] = [
        |instance| {
            instance.labels.clear();
            for text in [
                &mut instance.detail,
                &mut instance.last_lines,
                &mut instance.health_detail,
            ] {
                *text = Box::default();
            }
        },
        |instance| {
            instance.name = Box::default();
            instance.private_ip = None;
            for text in [
                &mut instance.started,
                &mut instance.ended,
                &mut instance.health_since,
            ] {
                *text = Box::default();
            }
        },
    ];
    for shorten in shortened {
        let frame = Frame::of(&stats);
        if frame.payload_bytes().len() <= MAX_DOCUMENT_LEN {
            return frame;
        }
        stats.instances.iter_mut().for_each(shorten);
    }
    Frame::of(&stats)
}

/// The line of an instance in STATS.
pub(super) fn instance_stats(id: Uuid, instance: &Instance) -> InstanceStats {
    let record = &instance.record;
    let start = instance.start.as_ref().map(|start| &start.start);
    // During a launch the record still describes the run before.
    let run = !matches!(instance.life, Life::Launching(_));
    let time = |millis: u64| -> Box<str> {
        timestamp::format(if run { millis.saturating_mul(1_000_000) } else { 0 }).into()
    };
    let text = |text: &str, is_shown: bool| Box::from(if is_shown { text } else { "" });
    let (is_over, health) = (!instance.is_running(), instance.health());
    let state = match instance.life {
        Life::Launching(_) => InstanceState::Pending,
        Life::Active => InstanceState::Active,
        Life::Terminating(Ending::Hung) => InstanceState::Hung,
        Life::Terminating(_) | Life::Removing(_) => InstanceState::Stopping,
        Life::Stopped(_) if instance.start.is_none() || instance.driver.is_none() => InstanceState::Missing,
        Life::Stopped(_) => InstanceState::Exited,
    };
    InstanceStats {
        instance_uuid: id.into(),
        state,
        restarts: instance.record.restarts.into(),
        restart_due: matches!(instance.life, Life::Stopped(Next::StartAgain(_))),
        memory_usage_mb: instance.usage.memory_mb,
        disk_usage_mb: instance.usage.disk_mb,
        cpu_usage: instance.usage.cpu_percent,
        volumes: instance.volumes.ids(),
        private_ip: start.and_then(|start| start.networking.private_ip.parse().ok()),
        name: start.map(|start| start.name.as_str().into()).unwrap_or_default(),
        labels: start.map(|start| start.labels.clone()).unwrap_or_default(),
        started: time(record.started),
        ended: time(record.ended),
        exit_code: if is_over { record.exit_code.into() } else { -1 },
        exit_signal: if is_over { record.exit_signal.into() } else { 0 },
        out_of_memory: is_over && record.out_of_memory,
        detail: text(&record.detail, run),
        last_lines: text(&record.last_lines, is_over),
        health: health.map_or(HealthState::Unset, |health| health.state.clone()),
        health_since: health
            .map(|health| time(millis(health.since)))
            .unwrap_or_default(),
        health_detail: health
            .map(|health| health.why.as_str().into())
            .unwrap_or_default(),
        ..InstanceStats::default()
    }
}
