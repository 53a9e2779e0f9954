//! Reads the state of every GPU. If the driver or a GPU does not support a function, only its field is missing.

use std::time::Instant;

use gpuprobe_event::gpu_health::GpuHealth;
use gpuprobe_event::gpu_state::{EccErrors, EncoderSessions, GpuId, GpuMemory};
use gpuprobe_event::{GpuState, PciAddress, Uuid};
use nvml_wrapper::enum_wrappers::device::{
    Clock, EccCounter, MemoryError, PcieUtilCounter, PerformanceState, TemperatureSensor,
};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::sys_exports::field_id::NVML_FI_DEV_MEMORY_TEMP;
use nvml_wrapper::{Device, Nvml};

use super::gpu_activity_reader::ActivityReader;
use super::gpu_health_reader::health;
use super::gpu_processes::merged;
use super::mig_reader::MigReader;
use super::raw_values::{fields, jpeg_percent, optical_flow_percent};
use super::seldom::Seldom;

/// The clocks of [`gpuprobe_event::gpu_state::Clock::ALL`], in that order.
const CLOCKS: [Clock; 4] = [Clock::Graphics, Clock::SM, Clock::Memory, Clock::Video];
/// NVML reports throughput in KB/s.
const KB: u64 = 1000;

/// The GPUs that NVML can see.
pub(super) struct Reader<'a> {
    gpus: Vec<Gpu<'a>>,
    /// The number of GPUs that NVML reported, including those that it cannot open.
    count: u32,
}

struct Gpu<'a> {
    device: Device<'a>,
    id: GpuId,
    /// The newest sample of process utilization that was read, on NVML's clock.
    seen_until: u64,
    has_gpm: bool,
    activity: ActivityReader<'a>,
    mig: MigReader<'a>,
    health: Seldom<GpuHealth>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(nvml: &'a Nvml) -> Result<Self, NvmlError> {
        let count = nvml.device_count()?;
        let open = |index: u8| {
            let device = nvml.device_by_index(index.into()).ok()?;
            let id = id(&device, index);
            Some(Gpu {
                has_gpm: device.gpm_support().unwrap_or(false),
                device,
                id,
                seen_until: 0,
                activity: ActivityReader::default(),
                mig: MigReader::default(),
                health: Seldom::default(),
            })
        };
        let gpus = (0..u8::try_from(count).unwrap_or(u8::MAX)).filter_map(open).collect();
        Ok(Self { gpus, count })
    }

    pub(super) fn devices(&self) -> impl Iterator<Item = (GpuId, Device<'a>)> + use<'a, '_> {
        let reopen = |gpu: &Gpu<'a>| {
            Some((gpu.id.clone(), gpu.device.nvml().device_by_index(gpu.id.index.into()).ok()?))
        };
        self.gpus.iter().filter_map(reopen)
    }

    /// The GPU of an event. One that fell off the bus answers no queries any more, but its handle is the same.
    pub(super) fn id_of(&self, device: &Device<'_>) -> Option<&GpuId> {
        // SAFETY: the handles are compared, never used.
        let is_it = |gpu: &&Gpu<'_>| unsafe { gpu.device.handle() == device.handle() };
        self.gpus.iter().find(is_it).map(|gpu| &gpu.id)
    }

    /// The state of each GPU. Fails if the library fails as a whole, or if the number of GPUs has changed.
    pub(super) fn read(&mut self, nvml: &Nvml) -> Result<Vec<GpuState>, NvmlError> {
        if nvml.device_count()? != self.count {
            return Err(NvmlError::NotFound);
        }
        let now = Instant::now();
        Ok(self.gpus.iter_mut().map(|gpu| gpu.read(now)).collect())
    }
}

fn id(device: &Device<'_>, index: u8) -> GpuId {
    let pci = device.pci_info().ok();
    GpuId {
        index,
        uuid: device.uuid().ok().and_then(|uuid| Uuid::parse(&uuid)),
        pci: pci.and_then(|pci| PciAddress::parse(&pci.bus_id)),
        name: device.name().unwrap_or_default(),
    }
}

impl Gpu<'_> {
    fn read(&mut self, now: Instant) -> GpuState {
        let device = &self.device;
        let busy = device.utilization_rates().ok();
        let sample = if self.has_gpm { device.gpm_sample().ok() } else { None };
        GpuState {
            id: self.id.clone(),
            busy_percent: busy.as_ref().map(|busy| busy.gpu),
            memory_busy_percent: busy.as_ref().map(|busy| busy.memory),
            memory: memory(device),
            celsius: device.temperature(TemperatureSensor::Gpu).ok(),
            memory_celsius: memory_celsius(device),
            power_mw: device.power_usage().ok(),
            power_limit_mw: device.enforced_power_limit().ok(),
            energy_mj: device.total_energy_consumption().ok(),
            clocks_mhz: CLOCKS.map(|clock| device.clock_info(clock).ok()),
            throttled: device.current_throttle_reasons().ok().map(|reasons| reasons.bits()),
            pcie_rx_bytes_per_second: throughput(device, PcieUtilCounter::Receive),
            pcie_tx_bytes_per_second: throughput(device, PcieUtilCounter::Send),
            pcie_generation: device.current_pcie_link_gen().ok(),
            pcie_width: device.current_pcie_link_width().ok(),
            pcie_replays: device.pcie_replay_counter().ok(),
            ecc: ecc(device, EccCounter::Volatile),
            ecc_lifetime: ecc(device, EccCounter::Aggregate),
            fan_percent: device.fan_speed(0).ok(),
            performance_state: device
                .performance_state()
                .ok()
                .filter(|state| *state != PerformanceState::Unknown)
                .map(|state| state.as_c()),
            activity: sample.and_then(|sample| self.activity.read(sample)),
            video_percent: [
                device.encoder_utilization().ok().map(|encoder| encoder.utilization),
                device.decoder_utilization().ok().map(|decoder| decoder.utilization),
                jpeg_percent(device),
                optical_flow_percent(device),
            ],
            encoder_sessions: encoder_sessions(device),
            mig: self.mig.read(device, self.has_gpm, now),
            health: self.health.get(now, || health(device)).clone(),
            processes: self.processes(),
        }
    }

    fn processes(&mut self) -> Vec<gpuprobe_event::GpuProcess> {
        let device = &self.device;
        let lists = [
            device.running_compute_processes(),
            device.running_graphics_processes(),
            device.mps_running_compute_processes(),
        ];
        // this also fails if nothing has happened since
        let samples = device.process_utilization_stats(self.seen_until).unwrap_or_default();
        let newest = samples.iter().map(|sample| sample.timestamp).max();
        self.seen_until = newest.unwrap_or(self.seen_until);
        merged(&lists.map(Result::unwrap_or_default), &samples)
    }
}

/// The newer function also reports the memory that the driver reserves; drivers before 510 have only the older one.
pub(super) fn memory(device: &Device<'_>) -> Option<GpuMemory> {
    if let Ok(memory) = device.memory_info() {
        return Some(GpuMemory {
            used_bytes: memory.used,
            free_bytes: memory.free,
            reserved_bytes: Some(memory.reserved),
            total_bytes: memory.total,
        });
    }
    let function = device.nvml().lib().nvmlDeviceGetMemoryInfo.as_ref().ok()?;
    // SAFETY: the handle belongs to this library, and the function fills in a plain struct of the declared type, for
    // which zeroes are valid.
    let (result, memory) = unsafe {
        let mut memory = std::mem::zeroed();
        (function(device.handle(), &mut memory), memory)
    };
    (result == 0).then_some(GpuMemory {
        used_bytes: memory.used,
        free_bytes: memory.free,
        reserved_bytes: None,
        total_bytes: memory.total,
    })
}

fn memory_celsius(device: &Device<'_>) -> Option<u32> {
    let [celsius] = fields(device, 0, [NVML_FI_DEV_MEMORY_TEMP]);
    // GPUs without this sensor report 0
    celsius.and_then(|celsius| u32::try_from(celsius).ok()).filter(|celsius| *celsius > 0)
}

fn encoder_sessions(device: &Device<'_>) -> Option<EncoderSessions> {
    let sessions = device.encoder_stats().ok()?;
    Some(EncoderSessions {
        count: sessions.session_count,
        frames_per_second: sessions.average_fps,
        latency_us: sessions.average_latency,
    })
}

fn throughput(device: &Device<'_>, direction: PcieUtilCounter) -> Option<u64> {
    device.pcie_throughput(direction).ok().map(|kb| u64::from(kb) * KB)
}

fn ecc(device: &Device<'_>, counter: EccCounter) -> EccErrors {
    let of = |kind| device.total_ecc_errors(kind, counter).ok();
    EccErrors { corrected: of(MemoryError::Corrected), uncorrected: of(MemoryError::Uncorrected) }
}
