//! Reads the state of every GPU of AMD's. If the library or a GPU does not support a function, only its field is missing.

use std::ffi::{CStr, c_char};
use std::fs;
use std::path::Path;

use gpuprobe_event::gpu_state::{EccErrors, GpuId, GpuMemory};
use gpuprobe_event::{GpuProcess, GpuState, Tgid};

use super::raw_state::{
    celsius, fan_percent, megahertz, millijoules, milliwatts, pci_address, process_bytes,
};
use super::rocm_smi_library::{RocmSmi, Status, Words, rocm_smi_file, status_name};

/// A folder for each process that uses AMD's GPUs for computing.
const PROCESSES: &str = "/sys/class/kfd/kfd/proc";
/// Numbers of AMD's header.
const VRAM: u32 = 0;
const EDGE: u32 = 0;
const JUNCTION: u32 = 1;
const MEMORY_TEMPERATURE: u32 = 2;
const CURRENT: u32 = 0;
const SYSTEM_CLOCK: u32 = 0;
const MEMORY_CLOCK: u32 = 4;
/// The memory controllers.
const UMC: u64 = 1;
const FIRST_SENSOR: u32 = 0;
const MOST_NAME_BYTES: usize = 128;
const MOST_GPUS: usize = 256;

/// The GPUs that ROCm SMI can see.
pub(crate) struct AmdGpuReader {
    library: RocmSmi,
    gpus: Vec<GpuId>,
}

impl AmdGpuReader {
    /// Loads the library, which then looks for GPUs. The error says what is missing.
    pub(crate) fn open() -> Result<Self, String> {
        let file = rocm_smi_file()?;
        let library = RocmSmi::load(&file)?;
        let failed = |status| format!("{} cannot read the GPUs: {}", file.display(), status_name(status));
        let init = library.init.ok_or_else(|| format!("{} has no rsmi_init", file.display()))?;
        // SAFETY: the argument has no flags.
        match unsafe { init(0) } {
            0 => {}
            status => return Err(failed(status)),
        }
        let count = filled(library.count, |count, to| {
            // SAFETY: the function writes one number.
            unsafe { count(to) }
        });
        let count = count.unwrap_or(0).min(u8::MAX.into());
        let gpus = (0..u8::try_from(count).unwrap_or(u8::MAX)).map(|index| id(&library, index)).collect();
        Ok(Self { library, gpus })
    }

    /// How many GPUs there are.
    pub(crate) fn count(&self) -> usize {
        self.gpus.len()
    }

    /// The state of each GPU.
    pub(crate) fn read(&self) -> Vec<GpuState> {
        let pids = processes(Path::new(PROCESSES));
        self.gpus.iter().map(|id| self.state(id, &pids)).collect()
    }

    fn state(&self, id: &GpuId, pids: &[u32]) -> GpuState {
        let library = &self.library;
        let gpu = u32::from(id.index);
        GpuState {
            id: id.clone(),
            busy_percent: of_gpu(library.busy, gpu),
            memory_busy_percent: of_gpu(library.memory_busy, gpu),
            memory: self.memory(gpu),
            // the newer ones have no sensor at the edge
            celsius: self.celsius(gpu, EDGE).or_else(|| self.celsius(gpu, JUNCTION)),
            memory_celsius: self.celsius(gpu, MEMORY_TEMPERATURE),
            power_mw: of_sensor(library.average_power, gpu, FIRST_SENSOR)
                .or_else(|| of_gpu(library.current_power, gpu))
                .and_then(milliwatts),
            power_limit_mw: of_sensor(library.power_cap, gpu, FIRST_SENSOR).and_then(milliwatts),
            energy_mj: self.energy(gpu),
            clocks_mhz: [self.clock(gpu, SYSTEM_CLOCK), None, self.clock(gpu, MEMORY_CLOCK), None],
            pcie_replays: of_gpu(library.replays, gpu).and_then(|replays| u32::try_from(replays).ok()),
            ecc: self.ecc(gpu),
            fan_percent: self.fan(gpu),
            processes: pids.iter().filter_map(|pid| self.process(gpu, *pid)).collect(),
            ..GpuState::default()
        }
    }

    fn memory(&self, gpu: u32) -> Option<GpuMemory> {
        let total_bytes = of_sensor(self.library.memory_total, gpu, VRAM)?;
        let used_bytes = of_sensor(self.library.memory_used, gpu, VRAM)?;
        let free_bytes = total_bytes.saturating_sub(used_bytes);
        Some(GpuMemory { used_bytes, free_bytes, reserved_bytes: None, total_bytes })
    }

    fn celsius(&self, gpu: u32, sensor: u32) -> Option<u32> {
        let thousandths = filled(self.library.temperature, |function, to| {
            // SAFETY: the function writes one number.
            unsafe { function(gpu, sensor, CURRENT, to) }
        });
        thousandths.and_then(celsius)
    }

    fn energy(&self, gpu: u32) -> Option<u64> {
        let (mut unit, mut at) = (0.0, 0);
        let count = filled(self.library.energy, |function, to| {
            // SAFETY: the function writes three numbers.
            unsafe { function(gpu, to, &mut unit, &mut at) }
        });
        count.and_then(|count| millijoules(count, unit))
    }

    fn clock(&self, gpu: u32, clock: u32) -> Option<u32> {
        let frequencies = struct_of(self.library.clock, |function, to| {
            // SAFETY: the struct has more room than the function uses.
            unsafe { function(gpu, clock, to) }
        });
        frequencies.as_ref().and_then(megahertz)
    }

    fn ecc(&self, gpu: u32) -> EccErrors {
        let counts = struct_of(self.library.ecc, |function, to| {
            // SAFETY: the struct has more room than the function uses.
            unsafe { function(gpu, UMC, to) }
        });
        let count = |at: usize| counts.as_ref().map(|counts| counts[at]);
        EccErrors { corrected: count(0), uncorrected: count(1) }
    }

    fn fan(&self, gpu: u32) -> Option<u32> {
        let speed = filled(self.library.fan, |function, to| {
            // SAFETY: the function writes one number.
            unsafe { function(gpu, FIRST_SENSOR, to) }
        });
        fan_percent(speed?, of_sensor(self.library.fan_most, gpu, FIRST_SENSOR)?)
    }

    /// What a process uses of a GPU; `None` if it does not use it.
    fn process(&self, gpu: u32, pid: u32) -> Option<GpuProcess> {
        let gpus = self.gpus_of(pid);
        if !gpus.contains(&gpu) {
            return None;
        }
        let on_gpu = struct_of(self.library.process_on, |function, to| {
            // SAFETY: the struct has more room than the function uses.
            unsafe { function(pid, gpu, to) }
        });
        // older releases only know the sum over all GPUs
        let on_gpu = on_gpu.or_else(|| {
            let is_only = gpus.len() == 1;
            let all = struct_of(self.library.process, |function, to| {
                // SAFETY: the struct has more room than the function uses.
                unsafe { function(pid, to) }
            });
            all.filter(|_| is_only)
        });
        let memory_bytes = on_gpu.as_ref().map(process_bytes);
        Some(GpuProcess { pid: Tgid(pid), memory_bytes, busy_percent: None })
    }

    /// The GPUs that a process uses.
    fn gpus_of(&self, pid: u32) -> Vec<u32> {
        let mut list = [0; MOST_GPUS];
        let mut count = MOST_GPUS as u32;
        let Some(function) = self.library.gpus_of_process else { return Vec::new() };
        // SAFETY: the count is that of the list.
        let status = unsafe { function(pid, list.as_mut_ptr(), &mut count) };
        let count = if status == 0 { usize::try_from(count).unwrap_or(0) } else { 0 };
        list.iter().take(count).copied().collect()
    }
}

fn id(library: &RocmSmi, index: u8) -> GpuId {
    let pci = of_gpu(library.pci, index.into()).map(pci_address);
    GpuId { index, uuid: None, pci, name: name(library, index.into()).unwrap_or_default() }
}

fn name(library: &RocmSmi, gpu: u32) -> Option<String> {
    let mut text = [0_u8; MOST_NAME_BYTES];
    // SAFETY: the length is that of the text.
    let status = unsafe { library.name?(gpu, text.as_mut_ptr().cast::<c_char>(), text.len()) };
    let text = CStr::from_bytes_until_nul(&text).ok()?;
    (status == 0).then(|| text.to_string_lossy().into_owned())
}

/// The value that a function sets, if it succeeds.
fn filled<F, T: Default>(function: Option<F>, call: impl FnOnce(F, &mut T) -> Status) -> Option<T> {
    let mut value = T::default();
    (call(function?, &mut value) == 0).then_some(value)
}

/// The same for a struct.
fn struct_of<F>(function: Option<F>, call: impl FnOnce(F, &mut Words) -> Status) -> Option<Words> {
    let mut words = [0; 64];
    (call(function?, &mut words) == 0).then_some(words)
}

fn of_gpu<T: Default>(function: Option<unsafe extern "C" fn(u32, *mut T) -> Status>, gpu: u32) -> Option<T> {
    // SAFETY: the function writes one value.
    filled(function, |function, to| unsafe { function(gpu, to) })
}

fn of_sensor(
    function: Option<unsafe extern "C" fn(u32, u32, *mut u64) -> Status>,
    gpu: u32,
    sensor: u32,
) -> Option<u64> {
    // SAFETY: the function writes one number.
    filled(function, |function, to| unsafe { function(gpu, sensor, to) })
}

/// The processes that have a folder there.
fn processes(folder: &Path) -> Vec<u32> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut pids: Vec<u32> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    pids
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_the_folders_with_a_number() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["4711", "12", "x", "-3", "99999999999"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        assert_eq!(processes(folder.path()), [12, 4711]);
        assert!(processes(Path::new("/nowhere")).is_empty());
    }

    /// The library of a distribution on a machine without its GPUs.
    #[test]
    fn the_real_library_says_that_there_is_no_gpu() {
        if rocm_smi_file().is_err() || super::super::has_amdgpu() {
            return;
        }
        let error = AmdGpuReader::open().err().unwrap_or_default();
        assert!(error.ends_with("cannot read the GPUs: RSMI_STATUS_INIT_ERROR"), "{error}");
    }
}
