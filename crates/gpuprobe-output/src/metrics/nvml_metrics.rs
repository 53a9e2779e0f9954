//! Metrics of GPUs, and of processes on them, from NVML. A value that NVML does not report has no series.

use gpuprobe_analysis::{GpuUser, Snapshot};
use gpuprobe_event::GpuState;
use gpuprobe_event::gpu_activity::Activity;
use gpuprobe_event::gpu_state::{Clock, EccErrors, Engine, THROTTLE_REASONS};

use super::collect::{begin_named, begin_process};
use super::metric::{Kind, Metric, metric, process_labels, with_unit};
use super::samples::Samples;

pub(super) const GPU: &[&str] = &["gpu", "uuid", "name"];
pub(super) const ECC: &[&str] = &["gpu", "uuid", "name", "severity"];
const USER: &[&str] = process_labels!["gpu"];

/// A value and how many of its digits are decimal places.
pub(super) type Reading = Option<(u64, u8)>;

const fn gauge(
    family: &'static str,
    unit: &'static str,
    help: &'static str,
    collect: fn(&Snapshot, &mut Samples),
) -> Metric {
    with_unit(metric(family, Kind::Gauge, GPU, help, collect), unit)
}

pub(super) const METRICS: &[Metric] = &[
    metric(
        "gpuprobe_nvml_up",
        Kind::Gauge,
        &[],
        "Whether NVML answers; without it there are no metrics of GPUs.",
        up,
    ),
    gauge(
        "gpuprobe_gpu_utilization_ratio",
        "ratio",
        "Share of the last sampling period, a second or less, in which a CUDA kernel ran on the GPU.",
        |snapshot, samples| each(snapshot, samples, |gpu| percent(gpu.busy_percent)),
    ),
    gauge(
        "gpuprobe_gpu_memory_utilization_ratio",
        "ratio",
        "Share of the last sampling period in which its memory was read or written.",
        |snapshot, samples| each(snapshot, samples, |gpu| percent(gpu.memory_busy_percent)),
    ),
    gauge("gpuprobe_gpu_memory_used_bytes", "bytes", "Memory in use.", |snapshot, samples| {
        each(snapshot, samples, |gpu| whole(gpu.memory?.used_bytes))
    }),
    gauge("gpuprobe_gpu_memory_free_bytes", "bytes", "Memory not in use.", |snapshot, samples| {
        each(snapshot, samples, |gpu| whole(gpu.memory?.free_bytes))
    }),
    gauge(
        "gpuprobe_gpu_memory_reserved_bytes",
        "bytes",
        "Memory reserved by the driver and the firmware.",
        |snapshot, samples| each(snapshot, samples, |gpu| whole(gpu.memory?.reserved_bytes?)),
    ),
    gauge("gpuprobe_gpu_memory_total_bytes", "bytes", "Total memory of the GPU.", |snapshot, samples| {
        each(snapshot, samples, |gpu| whole(gpu.memory?.total_bytes))
    }),
    gauge("gpuprobe_gpu_temperature_celsius", "celsius", "Temperature of the chip.", |snapshot, samples| {
        each(snapshot, samples, |gpu| whole(gpu.celsius?))
    }),
    gauge(
        "gpuprobe_gpu_memory_temperature_celsius",
        "celsius",
        "Temperature of the memory.",
        |snapshot, samples| each(snapshot, samples, |gpu| whole(gpu.memory_celsius?)),
    ),
    gauge("gpuprobe_gpu_power_watts", "watts", "Power drawn.", |snapshot, samples| {
        each(snapshot, samples, |gpu| milli(gpu.power_mw?))
    }),
    gauge("gpuprobe_gpu_power_limit_watts", "watts", "The power limit.", |snapshot, samples| {
        each(snapshot, samples, |gpu| milli(gpu.power_limit_mw?))
    }),
    with_unit(
        metric(
            "gpuprobe_gpu_energy_joules",
            Kind::Counter,
            GPU,
            "Energy used since the NVIDIA kernel module was loaded.",
            |snapshot, samples| each(snapshot, samples, |gpu| milli(gpu.energy_mj?)),
        ),
        "joules",
    ),
    with_unit(
        metric(
            "gpuprobe_gpu_clock_hertz",
            Kind::Gauge,
            &["gpu", "uuid", "name", "clock"],
            "Frequency of a clock.",
            clocks,
        ),
        "hertz",
    ),
    metric(
        "gpuprobe_gpu_throttled",
        Kind::Gauge,
        &["gpu", "uuid", "name", "reason"],
        "Whether the clocks are reduced for this reason.",
        throttled,
    ),
    with_unit(
        metric(
            "gpuprobe_gpu_activity_ratio",
            Kind::Gauge,
            &["gpu", "uuid", "name", "part"],
            "How much a part of the GPU was used since the reading before, of what is possible, by GPM (Hopper and later).",
            activity,
        ),
        "ratio",
    ),
    metric(
        "gpuprobe_gpu_traffic_bytes_per_second",
        Kind::Gauge,
        &["gpu", "uuid", "name", "link", "direction"],
        "PCIe and NVLink traffic since the reading before, by GPM (Hopper and later).",
        traffic,
    ),
    metric(
        "gpuprobe_gpu_pcie_bytes_per_second",
        Kind::Gauge,
        &["gpu", "uuid", "name", "direction"],
        "PCIe traffic in the last 20 ms: rx from the host, tx to the host.",
        pcie,
    ),
    metric(
        "gpuprobe_gpu_pcie_link_generation",
        Kind::Gauge,
        GPU,
        "Current generation of the PCIe link.",
        |snapshot, samples| each(snapshot, samples, |gpu| whole(gpu.pcie_generation?)),
    ),
    metric(
        "gpuprobe_gpu_pcie_link_width",
        Kind::Gauge,
        GPU,
        "Current number of lanes of the PCIe link.",
        |snapshot, samples| each(snapshot, samples, |gpu| whole(gpu.pcie_width?)),
    ),
    metric(
        "gpuprobe_gpu_pcie_replays",
        Kind::Counter,
        GPU,
        "PCIe packets that were sent again.",
        |snapshot, samples| each(snapshot, samples, |gpu| whole(gpu.pcie_replays?)),
    ),
    metric(
        "gpuprobe_gpu_ecc_errors",
        Kind::Counter,
        ECC,
        "ECC errors of the memory since the NVIDIA kernel module was loaded.",
        |snapshot, samples| ecc(snapshot, samples, |gpu| gpu.ecc),
    ),
    metric(
        "gpuprobe_gpu_ecc_lifetime_errors",
        Kind::Counter,
        ECC,
        "ECC errors of the memory in the lifetime of the GPU.",
        |snapshot, samples| ecc(snapshot, samples, |gpu| gpu.ecc_lifetime),
    ),
    gauge(
        "gpuprobe_gpu_fan_ratio",
        "ratio",
        "Intended speed of the fan, as a share of its maximum.",
        |snapshot, samples| each(snapshot, samples, |gpu| percent(gpu.fan_percent)),
    ),
    metric(
        "gpuprobe_gpu_performance_state",
        Kind::Gauge,
        GPU,
        "Performance state: 0 is the fastest, 15 the slowest.",
        |snapshot, samples| each(snapshot, samples, |gpu| whole(gpu.performance_state?)),
    ),
    metric(
        "gpuprobe_xid_errors",
        Kind::Counter,
        &["gpu", "xid"],
        "XID errors since gpuprobe started, by number.",
        xids,
    ),
    with_unit(
        metric(
            "gpuprobe_gpu_process_memory_bytes",
            Kind::Gauge,
            USER,
            "All memory of a process on a GPU, as NVML reports it.",
            |snapshot, samples| users(snapshot, samples, |user| user.memory_bytes),
        ),
        "bytes",
    ),
    with_unit(
        metric(
            "gpuprobe_gpu_process_utilization_ratio",
            Kind::Gauge,
            process_labels!["gpu", "engine"],
            "Share of the last sampling period in which a process used an engine of a GPU; not always reported by NVML.",
            process_utilization,
        ),
        "ratio",
    ),
    with_unit(
        metric(
            "gpuprobe_memory_unexplained_bytes",
            Kind::Gauge,
            USER,
            "Memory of a process on a GPU that no call explains: its context, code, memory of libraries, managed memory, and \
             memory allocated before the probes were attached.",
            |snapshot, samples| users(snapshot, samples, GpuUser::unexplained_bytes),
        ),
        "bytes",
    ),
    with_unit(
        metric(
            "gpuprobe_memory_seen_above_nvml_bytes",
            Kind::Gauge,
            USER,
            "Live bytes of device memory beyond what NVML reports for the process: NVML is read at another time, or counts them \
             with the process that shares them.",
            |snapshot, samples| users(snapshot, samples, GpuUser::seen_above_bytes),
        ),
        "bytes",
    ),
];

fn up(snapshot: &Snapshot, samples: &mut Samples) {
    if let Some(is_up) = snapshot.gpu_states.is_up {
        samples.number(&[], is_up.into());
    }
}

pub(super) fn whole(n: impl Into<u64>) -> Reading {
    Some((n.into(), 0))
}

fn milli(n: impl Into<u64>) -> Reading {
    Some((n.into(), 3))
}

fn percent(n: Option<u32>) -> Reading {
    Some((n?.into(), 2))
}

pub(super) fn flag(is_so: Option<bool>) -> Reading {
    whole(is_so?)
}

pub(super) fn each(snapshot: &Snapshot, samples: &mut Samples, value: impl Fn(&GpuState) -> Reading) {
    each_of(snapshot, |labels, gpu| {
        if let Some((n, places)) = value(gpu) {
            samples.decimal(&labels, n, places);
        }
    });
}

pub(super) fn each_of(snapshot: &Snapshot, mut then: impl FnMut([&str; 3], &GpuState)) {
    for gpu in &snapshot.gpu_states.gpus {
        let id = &gpu.state.id;
        let (number, uuid) = (gpu.gpu.to_string(), id.uuid.map(|uuid| uuid.to_string()).unwrap_or_default());
        then([&number, &uuid, &id.name], &gpu.state);
    }
}

fn clocks(snapshot: &Snapshot, samples: &mut Samples) {
    const MHZ: u64 = 1_000_000;
    each_of(snapshot, |[gpu, uuid, name], state| {
        for (clock, mhz) in Clock::ALL.into_iter().zip(state.clocks_mhz) {
            if let Some(mhz) = mhz {
                samples.number(&[gpu, uuid, name, clock.as_str()], u64::from(mhz) * MHZ);
            }
        }
    });
}

fn throttled(snapshot: &Snapshot, samples: &mut Samples) {
    each_of(snapshot, |[gpu, uuid, name], state| {
        let Some(bits) = state.throttled else { return };
        for (reason, bit) in THROTTLE_REASONS {
            samples.number(&[gpu, uuid, name, reason], (bits & bit != 0).into());
        }
    });
}

fn activity(snapshot: &Snapshot, samples: &mut Samples) {
    each_of(snapshot, |[gpu, uuid, name], state| {
        for (part, share) in state.activity.iter().flat_map(Activity::shares) {
            samples.decimal(&[gpu, uuid, name, part.as_str()], share.millionths().into(), 6);
        }
    });
}

fn traffic(snapshot: &Snapshot, samples: &mut Samples) {
    each_of(snapshot, |[gpu, uuid, name], state| {
        for (traffic, rate) in state.activity.iter().flat_map(Activity::traffic) {
            let (link, direction) = traffic.labels();
            samples.number(&[gpu, uuid, name, link, direction], rate);
        }
    });
}

fn pcie(snapshot: &Snapshot, samples: &mut Samples) {
    each_of(snapshot, |[gpu, uuid, name], state| {
        for (direction, rate) in
            [("rx", state.pcie_rx_bytes_per_second), ("tx", state.pcie_tx_bytes_per_second)]
        {
            if let Some(rate) = rate {
                samples.number(&[gpu, uuid, name, direction], rate);
            }
        }
    });
}

fn ecc(snapshot: &Snapshot, samples: &mut Samples, errors: fn(&GpuState) -> EccErrors) {
    by_severity(snapshot, samples, |gpu| {
        let EccErrors { corrected, uncorrected } = errors(gpu);
        (corrected, uncorrected)
    });
}

/// Two counts of each GPU: of corrected and of uncorrected errors.
pub(super) fn by_severity(
    snapshot: &Snapshot,
    samples: &mut Samples,
    counts: impl Fn(&GpuState) -> (Option<u64>, Option<u64>),
) {
    each_of(snapshot, |[gpu, uuid, name], state| {
        let (corrected, uncorrected) = counts(state);
        for (severity, count) in [("corrected", corrected), ("uncorrected", uncorrected)] {
            if let Some(count) = count {
                samples.number(&[gpu, uuid, name, severity], count);
            }
        }
    });
}

fn xids(snapshot: &Snapshot, samples: &mut Samples) {
    for errors in &snapshot.gpu_states.xids {
        samples.number(&[&errors.gpu.to_string(), &errors.xid.to_string()], errors.count);
    }
}

/// Begins the series of a process. Of a process that made no call only the name is known.
fn begin_user(samples: &mut Samples, snapshot: &Snapshot, user: &GpuUser) {
    match snapshot.running(user.pid) {
        Some(process) => begin_process(samples, process),
        None => begin_named(samples, user.pid, &user.name, None),
    }
}

fn users(snapshot: &Snapshot, samples: &mut Samples, value: impl Fn(&GpuUser) -> Option<u64>) {
    for user in &snapshot.gpu_states.users {
        if let Some(bytes) = value(user) {
            begin_user(samples, snapshot, user);
            samples.number(&[&user.gpu.to_string()], bytes);
        }
    }
}

fn process_utilization(snapshot: &Snapshot, samples: &mut Samples) {
    for user in &snapshot.gpu_states.users {
        begin_user(samples, snapshot, user);
        for (engine, percent) in Engine::ALL.into_iter().zip(user.busy_percent.into_iter().flatten()) {
            samples.decimal(&[&user.gpu.to_string(), engine.as_str()], percent.into(), 2);
        }
    }
}
