//! Distributions over all processes of the host. A histogram has a dozen series, so processes have only sums.

use std::collections::BTreeMap;

use gpuprobe_analysis::{GapTotals, Gaps, Snapshot};
use gpuprobe_event::counters::{GapKind, LATENCY_BUCKETS};

use super::metric::{Kind, Metric, metric, with_unit};
use super::process_counters::is_timed;
use super::samples::{Distribution, Samples};

pub(super) const METRICS: &[Metric] = &[
    with_unit(
        metric(
            "gpuprobe_call_duration_seconds",
            Kind::Histogram,
            &["api", "function"],
            "Time inside a call, as its caller saw it, over all processes; not the time of the operation on the GPU.",
            durations,
        ),
        "seconds",
    ),
    with_unit(
        metric(
            "gpuprobe_stream_gap_seconds",
            Kind::Histogram,
            &["after"],
            "Time in which nothing was launched on a stream, over all processes: from the return of a synchronization or a launch to the next launch.",
            gaps,
        ),
        "seconds",
    ),
];

/// The count is the sum of the buckets, because a histogram must add up although rows change while they are read.
fn distribution(buckets: &[u64; LATENCY_BUCKETS], sum_ns: u64) -> Distribution {
    Distribution { latency: *buckets, sum_ns, count: buckets.iter().sum() }
}

fn durations(snapshot: &Snapshot, samples: &mut Samples) {
    let running = snapshot.processes.iter().flat_map(|process| &process.functions);
    let past = snapshot.past.iter().flat_map(|past| &past.functions);
    for f in running.chain(past).filter(|f| is_timed(f)) {
        samples.histogram(&[f.api.as_str(), f.function], &distribution(&f.latency, f.total_ns));
    }
}

fn gaps(snapshot: &Snapshot, samples: &mut Samples) {
    let running = snapshot.processes.iter().map(|process| &process.gpu_ops.gaps);
    let past = snapshot.past.iter().map(|past| &past.gpu_ops.gaps);
    let mut kinds: BTreeMap<&str, Vec<&GapTotals>> = BTreeMap::new();
    for Gaps { after_sync, after_launch, .. } in running.chain(past) {
        kinds.entry(GapKind::AfterSync.as_str()).or_default().push(after_sync);
        kinds.entry(GapKind::AfterLaunch.as_str()).or_default().push(after_launch);
    }
    for (kind, all) in kinds {
        for gaps in all {
            let distribution = distribution(&gaps.lengths, gaps.total_ns);
            if distribution.count > 0 {
                samples.histogram(&[kind], &distribution);
            }
        }
    }
}
