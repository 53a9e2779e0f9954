//! What the NVML helper writes: one JSON object per line.

use gpuprobe_event::GpuReadings;
use gpuprobe_event::gpu_state::{GpuProcess, GpuState, XidCount};
use serde::{Deserialize, Serialize};

/// A new reading, or what kept the helper from reading.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Message {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) readings: Option<Readings>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) refusals: Vec<String>,
}

/// [`GpuReadings`], with the processes of each GPU, which a [`GpuState`] does not write.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Readings {
    is_up: bool,
    gpus: Vec<(GpuState, Vec<GpuProcess>)>,
    xids: Vec<XidCount>,
    amd: Vec<(GpuState, Vec<GpuProcess>)>,
}

impl From<GpuReadings> for Readings {
    fn from(readings: GpuReadings) -> Self {
        let split = |mut gpu: GpuState| {
            let processes = std::mem::take(&mut gpu.processes);
            (gpu, processes)
        };
        let all = |gpus: Vec<GpuState>| gpus.into_iter().map(split).collect();
        Self { is_up: readings.is_up, gpus: all(readings.gpus), xids: readings.xids, amd: all(readings.amd) }
    }
}

impl From<Readings> for GpuReadings {
    fn from(readings: Readings) -> Self {
        let join = |(gpu, processes): (GpuState, Vec<GpuProcess>)| GpuState { processes, ..gpu };
        let all = |gpus: Vec<(GpuState, Vec<GpuProcess>)>| gpus.into_iter().map(join).collect();
        Self { is_up: readings.is_up, gpus: all(readings.gpus), xids: readings.xids, amd: all(readings.amd) }
    }
}

#[cfg(test)]
mod tests {
    use gpuprobe_event::gpu::{PciAddress, Uuid};
    use gpuprobe_event::gpu_activity::{Activity, Share};
    use gpuprobe_event::gpu_health::{GpuHealth, NvLink};
    use gpuprobe_event::gpu_state::{EncoderSessions, GpuId, GpuMemory};
    use gpuprobe_event::mig::{Mig, MigInstance};
    use gpuprobe_event::{GpuReadings, Tgid};

    use super::*;

    #[test]
    fn a_reading_arrives_as_it_was() {
        let id = GpuId {
            index: 3,
            uuid: Some(Uuid([7; 16])),
            pci: Some(PciAddress { domain: 1, bus: 0x1b, device: 2, function: 0 }),
            name: "stand-in \"\u{e9}\"\n".to_owned(),
        };
        let mut activity = Activity::default();
        activity.shares[3] = Share::from_percent(12.3457);
        activity.bytes_per_second[2] = Some(u64::MAX);
        let memory = Some(GpuMemory { used_bytes: 1, free_bytes: 2, reserved_bytes: None, total_bytes: 3 });
        let instance =
            MigInstance { gpu_instance: 1, uuid: "MIG-1".to_owned(), memory, ..MigInstance::default() };
        let gpu = GpuState {
            id: id.clone(),
            busy_percent: Some(0),
            memory,
            clocks_mhz: [Some(1), None, Some(3), None],
            activity: Some(activity.clone()),
            encoder_sessions: Some(EncoderSessions { count: 1, frames_per_second: 60, latency_us: 9 }),
            mig: Some(Mig {
                is_enabled: true,
                instances: vec![instance],
                activities: vec![(1, activity)],
                ..Mig::default()
            }),
            health: GpuHealth {
                nvlinks: vec![NvLink { number: 4, is_up: true, ..NvLink::default() }],
                ..GpuHealth::default()
            },
            processes: vec![GpuProcess {
                pid: Tgid(42),
                memory_bytes: Some(5),
                busy_percent: Some([1, 2, 3, 4]),
            }],
            ..GpuState::default()
        };
        let xids = vec![XidCount { id, xid: 79, count: 2 }];
        let amd = vec![GpuState { celsius: Some(45), ..gpu.clone() }];
        let readings = GpuReadings { is_up: false, gpus: vec![gpu, GpuState::default()], xids, amd };
        let message = Message { readings: Some(readings.clone().into()), ..Message::default() };
        let line = serde_json::to_string(&message).unwrap();
        assert!(!line.contains('\n'));
        let read: Message = serde_json::from_str(&line).unwrap();
        assert_eq!(GpuReadings::from(read.readings.unwrap()), readings);
    }
}
