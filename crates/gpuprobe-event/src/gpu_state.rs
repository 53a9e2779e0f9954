//! The state of GPUs as NVML reports it, and ROCm SMI for AMD's. Values that they do not report are `None`, never zero.

use serde::{Deserialize, Serialize};

use crate::gpu::{HostGpu, Identity, PciAddress, Uuid};
use crate::gpu_activity::Activity;
use crate::gpu_health::GpuHealth;
use crate::ids::Tgid;
use crate::mig::Mig;

/// The identity of a GPU in NVML.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuId {
    /// Its number: NVML numbers by PCI address, as [`HostGpu::index`] does, but skips GPUs that it may not access.
    pub index: u8,
    #[serde(serialize_with = "crate::gpu::maybe_as_text", deserialize_with = "crate::gpu::maybe_uuid")]
    pub uuid: Option<Uuid>,
    #[serde(serialize_with = "crate::gpu::maybe_as_text", deserialize_with = "crate::gpu::maybe_pci")]
    pub pci: Option<PciAddress>,
    pub name: String,
}

impl GpuId {
    /// Its number among the host's GPUs, by UUID or PCI address. If they do not include it, NVML's own number, unless
    /// another GPU has that.
    pub fn number_among(&self, gpus: &[HostGpu]) -> Option<u8> {
        let identities = self.uuid.map(Identity::Uuid).into_iter().chain(self.pci.map(Identity::Pci));
        let listed = identities.filter_map(|identity| identity.among(gpus)).next();
        let is_free = || gpus.iter().all(|gpu| gpu.index != self.index);
        listed.map(|gpu| gpu.index).or_else(|| is_free().then_some(self.index))
    }
}

/// A clock domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    Graphics,
    /// Multiprocessors.
    Sm,
    Memory,
    /// Encoders and decoders.
    Video,
}

impl Clock {
    /// All of them, in the order of [`GpuState::clocks_mhz`].
    pub const ALL: [Self; 4] = [Self::Graphics, Self::Sm, Self::Memory, Self::Video];

    /// The word in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Graphics => "graphics",
            Self::Sm => "sm",
            Self::Memory => "memory",
            Self::Video => "video",
        }
    }
}

/// An engine of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// Multiprocessors.
    Sm,
    Memory,
    Encoder,
    Decoder,
}

impl Engine {
    /// All of them, in the order of [`GpuProcess::busy_percent`].
    pub const ALL: [Self; 4] = [Self::Sm, Self::Memory, Self::Encoder, Self::Decoder];

    /// The word in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sm => "sm",
            Self::Memory => "memory",
            Self::Encoder => "encoder",
            Self::Decoder => "decoder",
        }
    }
}

/// A video engine of a whole GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VideoEngine {
    Encoder,
    Decoder,
    Jpeg,
    /// It computes the motion between images.
    OpticalFlow,
}

impl VideoEngine {
    /// All of them, in the order of [`GpuState::video_percent`].
    pub const ALL: [Self; 4] = [Self::Encoder, Self::Decoder, Self::Jpeg, Self::OpticalFlow];

    /// The word in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Encoder => "encoder",
            Self::Decoder => "decoder",
            Self::Jpeg => "jpeg",
            Self::OpticalFlow => "optical_flow",
        }
    }
}

/// The sessions of the encoder; NVML has no such figures for the decoder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EncoderSessions {
    pub count: u32,
    /// Averages over all sessions.
    pub frames_per_second: u32,
    pub latency_us: u32,
}

/// Reasons why clocks are reduced: NVML's names and bits.
pub const THROTTLE_REASONS: [(&str, u64); 9] = [
    ("gpu_idle", 0x1),
    ("applications_clocks_setting", 0x2),
    ("sw_power_cap", 0x4),
    ("hw_slowdown", 0x8),
    ("sync_boost", 0x10),
    ("sw_thermal_slowdown", 0x20),
    ("hw_thermal_slowdown", 0x40),
    ("hw_power_brake_slowdown", 0x80),
    ("display_clock_setting", 0x100),
];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuMemory {
    pub used_bytes: u64,
    pub free_bytes: u64,
    /// Reserved by the NVIDIA kernel module; versions before 510 count it as used.
    pub reserved_bytes: Option<u64>,
    pub total_bytes: u64,
}

/// ECC memory errors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EccErrors {
    pub corrected: Option<u64>,
    pub uncorrected: Option<u64>,
}

/// The state of one GPU at a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuState {
    pub id: GpuId,
    /// Share of the last sampling period in which a CUDA kernel ran.
    pub busy_percent: Option<u32>,
    /// Share of the last sampling period in which memory was read or written.
    pub memory_busy_percent: Option<u32>,
    pub memory: Option<GpuMemory>,
    /// GPU temperature.
    pub celsius: Option<u32>,
    /// Memory temperature.
    pub memory_celsius: Option<u32>,
    /// Current power draw.
    pub power_mw: Option<u32>,
    /// Power limit.
    pub power_limit_mw: Option<u32>,
    /// Since the NVIDIA kernel module was loaded.
    pub energy_mj: Option<u64>,
    /// Clock rates by [`Clock`].
    pub clocks_mhz: [Option<u32>; Clock::ALL.len()],
    /// Bits of [`THROTTLE_REASONS`].
    pub throttled: Option<u64>,
    /// Received from the host, over the last 20 ms.
    pub pcie_rx_bytes_per_second: Option<u64>,
    /// Sent to the host, over the last 20 ms.
    pub pcie_tx_bytes_per_second: Option<u64>,
    /// Current PCIe generation: an idle link may be slower.
    pub pcie_generation: Option<u32>,
    /// Current PCIe lanes.
    pub pcie_width: Option<u32>,
    /// PCIe packets that were sent again.
    pub pcie_replays: Option<u32>,
    /// Since the NVIDIA kernel module was loaded.
    pub ecc: EccErrors,
    /// Over the lifetime of the GPU.
    pub ecc_lifetime: EccErrors,
    /// Target speed of the first fan.
    pub fan_percent: Option<u32>,
    /// 0 is the fastest, 15 the slowest.
    pub performance_state: Option<u32>,
    /// What its parts did since the reading before; GPUs before Hopper do not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activity: Option<Activity>,
    /// Use of each [`VideoEngine`].
    pub video_percent: [Option<u32>; VideoEngine::ALL.len()],
    pub encoder_sessions: Option<EncoderSessions>,
    /// `None` if it cannot be partitioned.
    pub mig: Option<Mig>,
    pub health: GpuHealth,
    /// The processes that use it, each once.
    #[serde(skip)]
    pub processes: Vec<GpuProcess>,
}

/// The use of a GPU by one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuProcess {
    pub pid: Tgid,
    /// Memory, including that of the context and other internal allocations.
    pub memory_bytes: Option<u64>,
    /// Recent load of each [`Engine`]; NVML does not report it for every process every time.
    pub busy_percent: Option<[u32; Engine::ALL.len()]>,
}

/// The number of XIDs of one kind of a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct XidCount {
    pub id: GpuId,
    pub xid: u64,
    pub count: u64,
}

/// All values from NVML and ROCm SMI.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuReadings {
    /// Whether NVML answers.
    pub is_up: bool,
    /// The GPUs; none if it does not answer.
    pub gpus: Vec<GpuState>,
    /// XIDs since gpuprobe started to listen.
    pub xids: Vec<XidCount>,
    /// AMD's GPUs, which ROCm SMI reports and numbers by itself.
    pub amd: Vec<GpuState>,
}

impl GpuReadings {
    /// Every GPU with its number on the host. Those of AMD follow all others.
    pub fn numbered(&self, host: &[HostGpu]) -> Vec<(u8, &GpuState)> {
        let mut all: Vec<_> =
            self.gpus.iter().filter_map(|gpu| Some((gpu.id.number_among(host)?, gpu))).collect();
        let taken = host.iter().map(|gpu| gpu.index).chain(all.iter().map(|(number, _)| *number)).max();
        let first = taken.map_or(Some(0), |number| number.checked_add(1));
        all.extend(self.amd.iter().filter_map(|gpu| Some((first?.checked_add(gpu.id.index)?, gpu))));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_of_amd_are_numbered_after_all_others() {
        let gpu = |index| GpuState { id: GpuId { index, ..GpuId::default() }, ..GpuState::default() };
        let pci = PciAddress { domain: 0, bus: 1, device: 0, function: 0 };
        let host = |index| HostGpu { index, uuid: None, pci, minor: None, is_parted: false };
        let numbers = |gpus: &[u8], amd: &[u8], host: &[HostGpu]| -> Vec<u8> {
            let all = |indices: &[u8]| indices.iter().map(|index| gpu(*index)).collect();
            let readings = GpuReadings { gpus: all(gpus), amd: all(amd), ..GpuReadings::default() };
            readings.numbered(host).iter().map(|(number, _)| *number).collect()
        };
        assert_eq!(numbers(&[], &[0, 1], &[]), [0, 1]);
        assert_eq!(numbers(&[0, 1], &[0, 1], &[]), [0, 1, 2, 3]);
        assert_eq!(numbers(&[], &[0], &[host(0), host(1)]), [2], "those that NVML cannot read count too");
        assert!(numbers(&[], &[0], &[host(u8::MAX)]).is_empty(), "there is no number left");
    }

    #[test]
    fn a_gpu_has_the_number_of_the_host_or_nvmls_number_if_that_is_free() {
        let pci = |bus| PciAddress { domain: 0, bus, device: 0, function: 0 };
        let host = |index, uuid, bus| HostGpu { index, uuid, pci: pci(bus), minor: None, is_parted: false };
        let gpus = [host(0, None, 1), host(1, Some(Uuid([7; 16])), 2)];
        let id = |index, uuid, pci| GpuId { index, uuid, pci, name: String::new() };
        assert_eq!(id(0, Some(Uuid([7; 16])), Some(pci(9))).number_among(&gpus), Some(1), "by UUID");
        assert_eq!(id(5, Some(Uuid([8; 16])), Some(pci(1))).number_among(&gpus), Some(0), "by PCI address");
        assert_eq!(id(2, None, Some(pci(9))).number_among(&gpus), Some(2), "not listed");
        assert_eq!(id(1, None, None).number_among(&gpus), None, "not listed, and its number is taken");
        assert_eq!(id(1, None, None).number_among(&[]), Some(1));
    }
}
