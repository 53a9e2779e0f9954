//! How it stands with a GPU, as the driver's management library (NVML) tells it. What it does not tell is `None`, never
//! zero.

use serde::Serialize;

use crate::gpu::{HostGpu, Identity, PciAddress, Uuid};
use crate::ids::Tgid;

/// What NVML calls a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GpuId {
    /// Its number: NVML counts by places on the bus, as [`HostGpu::index`] does, but leaves out what it may not see.
    pub index: u8,
    /// Its UUID.
    #[serde(serialize_with = "crate::gpu::maybe_as_text")]
    pub uuid: Option<Uuid>,
    /// Its place.
    #[serde(serialize_with = "crate::gpu::maybe_as_text")]
    pub pci: Option<PciAddress>,
    /// Its model.
    pub name: String,
}

impl GpuId {
    /// Its number among these, by what cannot be mistaken. Where they do not list it, NVML's own number, unless that is
    /// somebody else's.
    pub fn number_among(&self, gpus: &[HostGpu]) -> Option<u8> {
        let identities = self.uuid.map(Identity::Uuid).into_iter().chain(self.pci.map(Identity::Pci));
        let listed = identities.filter_map(|identity| identity.among(gpus)).next();
        let is_free = || gpus.iter().all(|gpu| gpu.index != self.index);
        listed.map(|gpu| gpu.index).or_else(|| is_free().then_some(self.index))
    }
}

/// Something that has a clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// Graphics.
    Graphics,
    /// Multiprocessors.
    Sm,
    /// Memory.
    Memory,
    /// Encoders and decoders.
    Video,
}

impl Clock {
    /// All of them, in the order of [`GpuState::clocks_mhz`].
    pub const ALL: [Self; 4] = [Self::Graphics, Self::Sm, Self::Memory, Self::Video];

    /// The word used in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Graphics => "graphics",
            Self::Sm => "sm",
            Self::Memory => "memory",
            Self::Video => "video",
        }
    }
}

/// A part of a GPU that a process keeps busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// Multiprocessors.
    Sm,
    /// Memory.
    Memory,
    /// Encoder.
    Encoder,
    /// Decoder.
    Decoder,
}

impl Engine {
    /// All of them, in the order of [`GpuProcess::busy_percent`].
    pub const ALL: [Self; 4] = [Self::Sm, Self::Memory, Self::Encoder, Self::Decoder];

    /// The word used in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sm => "sm",
            Self::Memory => "memory",
            Self::Encoder => "encoder",
            Self::Decoder => "decoder",
        }
    }
}

/// Why clocks are lower than they could be. The words are NVML's; the bits too.
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

/// Memory of a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GpuMemory {
    /// In use.
    pub used_bytes: u64,
    /// Free.
    pub free_bytes: u64,
    /// Kept by the driver for itself; drivers before 510 count it as used.
    pub reserved_bytes: Option<u64>,
    /// All of it.
    pub total_bytes: u64,
}

/// Errors in memory that its check codes found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EccErrors {
    /// Put right.
    pub corrected: Option<u64>,
    /// Not put right.
    pub uncorrected: Option<u64>,
}

/// One GPU at a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GpuState {
    /// Which one.
    pub id: GpuId,
    /// Share of the last while in which a kernel ran.
    pub busy_percent: Option<u32>,
    /// Share of the last while in which memory was read or written.
    pub memory_busy_percent: Option<u32>,
    /// Its memory.
    pub memory: Option<GpuMemory>,
    /// Of the chip.
    pub celsius: Option<u32>,
    /// Of the memory.
    pub memory_celsius: Option<u32>,
    /// Drawn now.
    pub power_mw: Option<u32>,
    /// The most that it may draw.
    pub power_limit_mw: Option<u32>,
    /// Since the driver was loaded.
    pub energy_mj: Option<u64>,
    /// By [`Clock`].
    pub clocks_mhz: [Option<u32>; Clock::ALL.len()],
    /// Bits of [`THROTTLE_REASONS`].
    pub throttled: Option<u64>,
    /// From the host, over the last 20 ms.
    pub pcie_rx_bytes_per_second: Option<u64>,
    /// To the host, over the last 20 ms.
    pub pcie_tx_bytes_per_second: Option<u64>,
    /// Of its link, now: an idle one may go slower.
    pub pcie_generation: Option<u32>,
    /// Lanes of its link, now.
    pub pcie_width: Option<u32>,
    /// Packets sent again.
    pub pcie_replays: Option<u32>,
    /// Since the driver was loaded.
    pub ecc: EccErrors,
    /// In its whole life.
    pub ecc_lifetime: EccErrors,
    /// Of the first one, as it is meant to turn.
    pub fan_percent: Option<u32>,
    /// 0 is the fastest, 15 the slowest.
    pub performance_state: Option<u32>,
    /// Who uses it; each process once.
    #[serde(skip)]
    pub processes: Vec<GpuProcess>,
}

/// What one process has of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct GpuProcess {
    /// Its pid.
    pub pid: Tgid,
    /// Memory, with that of the context and of all that the driver keeps for it.
    pub memory_bytes: Option<u64>,
    /// How busy it kept each [`Engine`] lately; NVML does not tell it of everybody every time.
    pub busy_percent: Option<[u32; Engine::ALL.len()]>,
}

/// How often a GPU reported an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XidCount {
    /// Which GPU.
    pub id: GpuId,
    /// The number of the error.
    pub xid: u64,
    /// How often.
    pub count: u64,
}

/// All that NVML tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuReadings {
    /// Whether it answers.
    pub is_up: bool,
    /// The GPUs; none where it does not answer.
    pub gpus: Vec<GpuState>,
    /// Errors since gpuprobe began to listen.
    pub xids: Vec<XidCount>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_has_the_number_of_the_host_and_nvmls_own_only_where_it_is_nobody_elses() {
        let pci = |bus| PciAddress { domain: 0, bus, device: 0, function: 0 };
        let host = |index, uuid, bus| HostGpu { index, uuid, pci: pci(bus), minor: None, is_parted: false };
        let gpus = [host(0, None, 1), host(1, Some(Uuid([7; 16])), 2)];
        let id = |index, uuid, pci| GpuId { index, uuid, pci, name: String::new() };
        assert_eq!(id(0, Some(Uuid([7; 16])), Some(pci(9))).number_among(&gpus), Some(1), "by name");
        assert_eq!(id(5, Some(Uuid([8; 16])), Some(pci(1))).number_among(&gpus), Some(0), "by place");
        assert_eq!(id(2, None, Some(pci(9))).number_among(&gpus), Some(2), "a stranger");
        assert_eq!(id(1, None, None).number_among(&gpus), None, "a stranger with the number of another");
        assert_eq!(id(1, None, None).number_among(&[]), Some(1));
    }
}
