//! Opens the BPF object with these settings, and loads it.

use libbpf_rs::{Object, ObjectBuilder, OpenObject};

use super::config::CaptureConfig;
use super::hooks::first_row as first_tracepoint_row;
use super::libbpf_log::{last_lines, with_log};
use super::map_sizes::{max_entries, rows_by_lane};
use super::probe_programs::{agent_program, entry_count_program, programs, tensor_program};
use crate::error::CaptureError;
use crate::host::clock::boottime_ns;
use crate::host::machine_checks::may_write_back;
use crate::host::open_files::raise_limit;
use crate::host::support::Tier;
use crate::wire::device_rows::first_row;
use crate::wire::object_handles::{open_maps, open_programs};
use crate::wire::{MapName, ProgramName, as_bytes, gp_config, number, object};

/// A process may keep freed addresses in this part of the table of allocations: a free that keeps its entry costs a
/// third of one that deletes it, and so does the next allocation at that address.
const SPARE_PART: u32 = 256;
/// This part of the launch rows is reserved for CUDA kernels on all streams together, for when no other rows are
/// left.
const ROWS_WITHOUT_STREAM: u32 = 4;

pub(crate) fn load(config: &CaptureConfig, tier: Tier) -> Result<Object, CaptureError> {
    // each map and program is a descriptor, and there are a hundred; tasks and probes need more later
    raise_limit();
    let (loaded, log) = with_log(|| open(config, tier).and_then(OpenObject::load));
    loaded.map_err(|source| CaptureError::Load { reason: last_lines(&log), source })
}

fn open(config: &CaptureConfig, tier: Tier) -> libbpf_rs::Result<OpenObject> {
    let mut object = ObjectBuilder::default().name("gpuprobe")?.open_memory(&object()?)?;
    for (name, mut map) in open_maps(&mut object) {
        if let Some(entries) = max_entries(name, config) {
            map.set_max_entries(entries)?;
        }
        if name == MapName::RodataConfig {
            map.set_initial_value(as_bytes(&settings(config)))?;
        }
    }
    choose_programs(&mut object, config, tier);
    Ok(object)
}

/// The settings as the BPF programs read them.
fn settings(config: &CaptureConfig) -> gp_config {
    gp_config {
        only_targets: config.only_targets.into(),
        pause: pause_mode(config.pause_targets),
        wakeup_bytes: config.ring_bytes / 32,
        most_kept: config.live_entries / SPARE_PART,
        rows_by_stream: config.launch_entries - config.launch_entries / ROWS_WITHOUT_STREAM,
        rows_by_lane: rows_by_lane(config),
        follow_forks: config.follow_forks.into(),
        errors_only: config.errors_only.into(),
        outermost_only: config.outermost_only.into(),
        phases: config.phases.into(),
        entry_only: config.entry_only.into(),
        stacks: config.stacks.into(),
        names: config.names.into(),
        launches: config.launches.into(),
        copies: config.copies.into(),
        rows: config.rows.into(),
        annotate_records: config.annotate_records.into(),
        device_syscalls: config.device_syscalls.into(),
        syscall_rows: first_row().map_or(u32::MAX, |row| row.0),
        tracepoint_rows: first_tracepoint_row(&config.tracepoints),
        may_write: may_write_back().into(),
        own_tgid: std::process::id(),
        sites: config.sites.into(),
        call_sites: config.call_sites.into(),
        reserved: [0; 3],
        min_duration_ns: config.min_duration_ns,
        watched_since_ns: boottime_ns(),
    }
}

/// Disables the programs that are not needed.
fn choose_programs(object: &mut OpenObject, config: &CaptureConfig, tier: Tier) {
    let wanted = programs(tier, config.entry_only, config.bare);
    for (name, mut program) in open_programs(object) {
        program.set_autoload(match name {
            ProgramName::OnFork | ProgramName::OnExec | ProgramName::OnExit => true,
            ProgramName::OnXid | ProgramName::OpenCalls | ProgramName::PendingCalls => true,
            ProgramName::OnSyscall | ProgramName::OnSyscallEnd => config.device_syscalls,
            ProgramName::LoaderPerf => config.pause_targets && tier == Tier::Perf,
            ProgramName::LoaderMulti => config.pause_targets && tier != Tier::Perf,
            // a program that uses a feature which the Linux kernel lacks must not be loaded
            ProgramName::EntryCountMulti | ProgramName::EntryCountPerf => {
                config.entry_counts && entry_count_program(tier).0 == name
            }
            ProgramName::TensorMulti | ProgramName::TensorPerf => {
                config.tensors && tensor_program(tier).0 == name
            }
            ProgramName::LosslessMulti => config.lossless,
            ProgramName::FailureMulti => config.failure_points && tier != Tier::Perf,
            ProgramName::AgentMulti | ProgramName::AgentPerf => {
                config.gpu_time && agent_program(tier).0 == name
            }
            // those for Linux functions and tracepoints are loaded in a second object, see `second_object.rs`
            _ => wanted.iter().any(|(wanted, _)| *wanted == name),
        });
    }
}

/// A process that busy-waits in the kernel takes a CPU, so user space needs another one to answer it.
fn pause_mode(pause_targets: bool) -> u8 {
    let single_cpu = std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() == 1);
    match (pause_targets, single_cpu) {
        (false, _) => number::PAUSE_NOT,
        (true, false) => number::PAUSE_BY_WAITING,
        (true, true) => number::PAUSE_BY_STOPPING,
    }
}
