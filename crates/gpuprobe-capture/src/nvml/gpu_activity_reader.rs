//! Reads what the parts of a GPU did between two readings, by GPM.

use gpuprobe_event::gpu_activity::{Activity, Part, Share, Traffic};
use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::gpm::{GpmSample, gpm_metrics_get};

/// The metrics of [`Part::ALL`], in that order, in percent.
const PARTS: [GpmMetricId; Part::ALL.len()] = [
    GpmMetricId::GraphicsUtil,
    GpmMetricId::SmUtil,
    GpmMetricId::SmOccupancy,
    GpmMetricId::AnyTensorUtil,
    GpmMetricId::DfmaTensorUtil,
    GpmMetricId::HmmaTensorUtil,
    GpmMetricId::ImmaTensorUtil,
    GpmMetricId::DramBwUtil,
    GpmMetricId::Fp64Util,
    GpmMetricId::Fp32Util,
    GpmMetricId::Fp16Util,
    GpmMetricId::IntegerUtil,
];
/// The metrics of [`Traffic::ALL`], in that order, in MiB per second.
const TRAFFIC: [GpmMetricId; Traffic::ALL.len()] = [
    GpmMetricId::PcieRxPerSec,
    GpmMetricId::PcieTxPerSec,
    GpmMetricId::NvlinkTotalRxPerSec,
    GpmMetricId::NvlinkTotalTxPerSec,
];
const MIB: f64 = 1_048_576.0;

/// The last sample of a GPU, or of an instance of one. The activity is computed between two samples.
#[derive(Debug, Default)]
pub(super) struct ActivityReader<'a> {
    before: Option<GpmSample<'a>>,
}

impl<'a> ActivityReader<'a> {
    /// `None` the first time, and if NVML fails.
    pub(super) fn read(&mut self, now: GpmSample<'a>) -> Option<Activity> {
        let before = self.before.replace(now)?;
        let now = self.before.as_ref()?;
        let wanted: Vec<GpmMetricId> = PARTS.into_iter().chain(TRAFFIC).collect();
        let read = gpm_metrics_get(now.nvml(), &before, now, &wanted).ok()?;
        let mut values = read.into_iter().map(|result| result.ok().map(|metric| metric.value));
        let mut next = || values.next().flatten();
        Some(Activity {
            shares: PARTS.map(|_| next().and_then(Share::from_percent)),
            bytes_per_second: TRAFFIC.map(|_| next().and_then(bytes)),
        })
    }
}

/// Bytes of a number of MiB, if it is one.
fn bytes(mib: f64) -> Option<u64> {
    let bytes = (mib * MIB).round();
    // less than what any link can do, so that the cast is exact enough
    (0.0..1e15).contains(&bytes).then_some(bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traffic_is_in_bytes() {
        assert_eq!([0.0, 1.5, 2048.0].map(bytes), [Some(0), Some(1_572_864), Some(2 << 30)]);
        assert_eq!([-1.0, 1e18, f64::NAN].map(bytes), [None; 3]);
    }
}
