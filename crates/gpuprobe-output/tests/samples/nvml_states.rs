//! NVML readings of two GPUs, one of which supports few values.

use std::collections::HashMap;

use gpuprobe_analysis::{Compared, GpuStates, Snapshot};
use gpuprobe_event::gpu_activity::{Activity, Share};
use gpuprobe_event::gpu_health::{GpuHealth, NvLink, NvLinkError, RemappedRows, RetiredPages};
use gpuprobe_event::gpu_state::{EccErrors, EncoderSessions, GpuId, GpuMemory, XidCount};
use gpuprobe_event::mig::{Mig, MigInstance};
use gpuprobe_event::{GpuProcess, GpuReadings, GpuState, PciAddress, Tgid, Uuid};

use super::MIB;

/// It has no NVLink.
fn activity() -> Activity {
    let percent = [99.0, 86.4, 54.25, 83.0, 0.0, 83.0, 0.0, 15.125, 0.0, 3.0001, 0.0, 12.0];
    Activity {
        shares: percent.map(Share::from_percent),
        bytes_per_second: [Some(1_500_000_000), Some(2_000_000), None, None],
    }
}

/// Two instances, the second with two compute instances that share its memory; it has no GPM yet.
fn mig() -> Mig {
    let instance = |gpu_instance, compute_instance, profile: &str, used: Option<u64>| MigInstance {
        gpu_instance,
        compute_instance,
        uuid: format!("MIG-{gpu_instance}-{compute_instance}\""),
        profile: profile.to_owned(),
        multiprocessors: used.map(|_| 16),
        memory: used.map(|used_bytes| GpuMemory {
            used_bytes,
            free_bytes: 9,
            reserved_bytes: None,
            total_bytes: 10,
        }),
    };
    Mig {
        is_enabled: true,
        will_be_enabled: false,
        instances: vec![
            instance(7, 0, "1g.18gb", Some(1)),
            instance(1, 0, "1c.2g.35gb", Some(2)),
            instance(1, 1, "1c.2g.35gb", None),
        ],
        activities: vec![(7, activity())],
    }
}

/// An NVLink that is up and one that is down.
fn health() -> GpuHealth {
    let mut up = NvLink {
        number: 0,
        is_up: true,
        bytes_per_second: Some(26_562_000_000),
        received_bytes: Some(1024),
        sent_bytes: Some(2048),
        ..NvLink::default()
    };
    up.errors[NvLinkError::Replay as usize] = Some(3);
    up.errors[NvLinkError::Crc as usize] = Some(0);
    GpuHealth {
        rows: RemappedRows {
            corrected: Some(2),
            uncorrected: Some(1),
            is_pending: Some(true),
            has_failed: Some(false),
        },
        pages: RetiredPages { corrected: Some(4), uncorrected: None, is_pending: Some(false) },
        nvlinks: vec![up, NvLink { number: 17, ..NvLink::default() }],
    }
}

fn first() -> GpuState {
    GpuState {
        id: GpuId {
            index: 1,
            uuid: Some(Uuid([0x5a; 16])),
            pci: None,
            name: "NVIDIA H200\x1b[31m\"".to_owned(),
        },
        busy_percent: Some(100),
        memory_busy_percent: Some(7),
        memory: Some(GpuMemory {
            used_bytes: 900 * MIB,
            free_bytes: 142_000 * MIB,
            reserved_bytes: Some(871 * MIB),
            total_bytes: 143_771 * MIB,
        }),
        celsius: Some(31),
        memory_celsius: Some(40),
        power_mw: Some(77_023),
        power_limit_mw: Some(700_000),
        energy_mj: Some(1_234_567_890_005),
        clocks_mhz: [Some(1980), Some(1980), Some(3201), Some(1545)],
        throttled: Some(0x24),
        pcie_rx_bytes_per_second: Some(1_000_000),
        pcie_tx_bytes_per_second: Some(0),
        pcie_generation: Some(5),
        pcie_width: Some(16),
        pcie_replays: Some(0),
        ecc: EccErrors { corrected: Some(2), uncorrected: Some(0) },
        ecc_lifetime: EccErrors { corrected: Some(5), uncorrected: Some(1) },
        fan_percent: Some(35),
        performance_state: Some(0),
        activity: Some(activity()),
        video_percent: [Some(12), Some(0), None, Some(100)],
        encoder_sessions: Some(EncoderSessions { count: 2, frames_per_second: 60, latency_us: 4_321 }),
        mig: Some(mig()),
        health: health(),
        processes: vec![
            GpuProcess { pid: Tgid(4242), memory_bytes: Some(520 * MIB), busy_percent: Some([98, 6, 0, 0]) },
            GpuProcess { pid: Tgid(5000), memory_bytes: Some(380 * MIB), busy_percent: None },
            // it has exited meanwhile
            GpuProcess { pid: Tgid(5001), memory_bytes: Some(MIB), busy_percent: None },
        ],
    }
}

fn second() -> GpuState {
    let pci = PciAddress { domain: 0, bus: 0x1b, device: 0, function: 0 };
    GpuState {
        id: GpuId { index: 0, uuid: None, pci: Some(pci), name: "Old".to_owned() },
        celsius: Some(60),
        power_mw: Some(9),
        throttled: Some(1),
        // no session has no average
        encoder_sessions: Some(EncoderSessions::default()),
        mig: Some(Mig::default()),
        processes: vec![
            GpuProcess { pid: Tgid(4242), memory_bytes: Some(4_000_000), busy_percent: None },
            GpuProcess { pid: Tgid(5000), memory_bytes: None, busy_percent: None },
        ],
        ..GpuState::default()
    }
}

/// Combined with the sample snapshot, which has 8,000,000 bytes on the host's second GPU.
pub(crate) fn states(snapshot: &Snapshot) -> GpuStates {
    let xids = vec![XidCount { id: first().id, xid: 79, count: 2 }];
    let readings = GpuReadings { is_up: true, gpus: vec![first(), second()], xids, amd: Vec::new() };
    let others = HashMap::from([(Tgid(5000), "other\x1b".to_owned())]);
    GpuStates::build(&readings, snapshot, &others, Compared::AllProcesses)
}
