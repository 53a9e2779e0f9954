//! Turns successive readings into views: rates, shares and short histories.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use gpuprobe_event::LossCause;
use gpuprobe_event::gpu_activity::{Part, Traffic};
use gpuprobe_event::gpu_state::{Clock, THROTTLE_REASONS};

use super::details::{Details, Source};
use super::live_growth::LiveGrowth;
use super::reading::{CallSiteReading, GpuReading, ProcessReading, Reading, XidReading};
use super::rows::{GpuRow, PendingCall, ProcessId, ProcessRow, View, XidRow};

/// An idle GPU lowers its clocks, and settings of the operator do: both are no problem.
const HARMLESS: [&str; 3] = ["gpu_idle", "applications_clocks_setting", "display_clock_setting"];

/// The readings of one host that a view needs. Readings are shared: a clone has the histories only.
#[derive(Clone, Debug)]
pub struct LiveView {
    host: usize,
    /// How many readings the histories of GPUs have.
    points: usize,
    before: Option<Arc<Reading>>,
    latest: Arc<Reading>,
    gpus: HashMap<u8, GpuPoints>,
    growth: LiveGrowth,
}

#[derive(Clone, Debug, Default)]
struct GpuPoints {
    points: VecDeque<GpuPoint>,
    /// Readings without the GPU, since the last one with it.
    missed: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct GpuPoint {
    busy_percent: Option<u32>,
    memory_percent: Option<u32>,
}

fn push<T>(history: &mut VecDeque<T>, point: T, most: usize) {
    while history.len() >= most.max(1) {
        history.pop_front();
    }
    history.push_back(point);
}

/// Every daemon finds processes that ran before it; totals include processes that are no longer listed.
fn is_not_counted_as_lost(cause: &str) -> bool {
    [LossCause::LateAttach, LossCause::ForgottenEarly].iter().any(|other| other.as_str() == cause)
}

impl LiveView {
    /// A view of one host, with histories of this many readings.
    pub fn new(host: usize, points: usize) -> Self {
        Self {
            host,
            points,
            before: None,
            latest: Arc::default(),
            gpus: HashMap::new(),
            growth: LiveGrowth::default(),
        }
    }

    /// A view of two readings, whose growth has been followed elsewhere.
    pub fn of_readings(before: Option<Reading>, latest: Reading, growth: LiveGrowth) -> Self {
        let mut view = Self::new(0, 2);
        before.into_iter().chain([latest]).for_each(|reading| view.take(reading));
        Self { growth, ..view }
    }

    /// Takes the next reading. A reading with the time of the last one replaces nothing: it is the same.
    pub fn take(&mut self, reading: Reading) {
        if self.before.is_some() && reading.unix_seconds == self.latest.unix_seconds {
            return;
        }
        for gpu in &reading.gpu_states.gpus {
            let state = &gpu.state;
            let memory_percent = state.memory.as_ref().map(|m| percent(m.used_bytes, m.total_bytes));
            let point = GpuPoint { busy_percent: state.busy_percent, memory_percent };
            let history = self.gpus.entry(gpu.gpu).or_default();
            push(&mut history.points, point, self.points);
            history.missed = 0;
        }
        // NVML may fail for a while: a GPU is forgotten when nothing of its history is left
        for (gpu, history) in &mut self.gpus {
            if reading.gpu_states.gpus.iter().all(|row| row.gpu != *gpu) {
                push(&mut history.points, GpuPoint::default(), self.points);
                history.missed += 1;
            }
        }
        self.gpus.retain(|_, history| history.missed < self.points);
        let running = reading.processes.iter().filter(|process| process.exited_at_ns.is_none());
        let live = running.map(|process| (process.key(), process.live_bytes()));
        self.growth.take(reading.unix_seconds, live);
        self.before = Some(std::mem::replace(&mut self.latest, Arc::new(reading)));
    }

    /// Whether there are two readings, so that there are rates.
    pub fn has_rates(&self) -> bool {
        self.elapsed_seconds().is_some()
    }

    pub fn view(&self) -> View {
        let reading = &self.latest;
        let mut losses: Vec<_> = reading
            .losses
            .iter()
            .filter(|loss| loss.count > 0)
            .map(|loss| (loss.cause.clone(), loss.count))
            .collect();
        losses.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        let xid = |xid: &XidReading| XidRow { host: self.host, gpu: xid.gpu, xid: xid.xid, count: xid.count };
        let sampled = reading.budget.iter().flat_map(|budget| &budget.sampled);
        let own = |reading: &Reading| reading.self_metrics.as_ref().map(|own| own.cpu_ns);
        View {
            hosts: Vec::new(),
            unix_seconds: reading.unix_seconds,
            is_nvml_up: reading.gpu_states.is_up,
            gpus: reading.gpu_states.gpus.iter().map(|gpu| self.gpu_row(gpu)).collect(),
            processes: self.process_rows(),
            xids: reading.gpu_states.xids.iter().map(xid).collect(),
            lost: losses
                .iter()
                .filter(|(cause, _)| !is_not_counted_as_lost(cause))
                .fold(0, |sum, (_, count)| sum.saturating_add(*count)),
            losses,
            budget: reading.budget.as_ref().and_then(|budget| budget.share),
            estimated: sampled.map(|sampled| sampled.function.clone()).collect(),
            own_cpu_share: self.share(own(reading), self.before.as_deref().and_then(own)),
            own_resident_bytes: reading.self_metrics.as_ref().map(|own| own.resident_bytes),
        }
    }

    /// The details of a process, if it is listed.
    pub fn details(&self, id: ProcessId) -> Option<Details> {
        let is_it = |process: &&ProcessReading| process.key() == (id.pid, id.instance);
        if id.host != self.host {
            return None;
        }
        let process = self.latest.processes.iter().find(is_it)?;
        let before = self.before.as_ref().and_then(|before| before.processes.iter().find(is_it));
        let sites = self
            .latest
            .call_sites
            .iter()
            .find(|sites| sites.pid == process.pid && sites.name == process.name);
        let gpu_time = self.latest.gpu_times.iter().find(|time| time.pid == process.pid);
        Some(Details::new(&Source {
            process,
            before,
            sites,
            gpu_time,
            elapsed_seconds: self.elapsed_seconds(),
            estimates: self.latest.estimates(process),
            is_estimated: &|function| self.latest.is_estimated(function),
        }))
    }

    /// The time between the last two readings; `None` if there is only one, or the clock was set back.
    fn elapsed_seconds(&self) -> Option<f64> {
        let before = self.before.as_ref().filter(|before| before.unix_seconds > 0.0)?;
        Some(self.latest.unix_seconds - before.unix_seconds).filter(|seconds| *seconds > 0.0)
    }

    /// Nanoseconds as a share of the time since the reading before.
    fn share(&self, now_ns: Option<u64>, before_ns: Option<u64>) -> Option<f64> {
        Some(now_ns?.checked_sub(before_ns?)? as f64 / 1e9 / self.elapsed_seconds()?)
    }

    fn gpu_row(&self, gpu: &GpuReading) -> GpuRow {
        let state = &gpu.state;
        let clock = |clock: Clock| state.clocks_mhz.get(clock as usize).copied().flatten();
        let history = self.gpus.get(&gpu.gpu);
        let points = || history.into_iter().flat_map(|history| &history.points);
        let throttled = THROTTLE_REASONS
            .iter()
            .filter(|(name, bit)| state.throttled.unwrap_or(0) & bit != 0 && !HARMLESS.contains(name));
        let xids = self.latest.gpu_states.xids.iter().filter(|xid| xid.gpu == gpu.gpu);
        let activity = state.activity.as_ref();
        GpuRow {
            host: self.host,
            gpu: gpu.gpu,
            name: state.id.name.clone(),
            busy_percent: state.busy_percent,
            memory_busy_percent: state.memory_busy_percent,
            used_bytes: state.memory.as_ref().map(|memory| memory.used_bytes),
            total_bytes: state.memory.as_ref().map(|memory| memory.total_bytes),
            watts: state.power_mw.map(|mw| f64::from(mw) / 1e3),
            limit_watts: state.power_limit_mw.map(|mw| f64::from(mw) / 1e3),
            celsius: state.celsius,
            sm_mhz: clock(Clock::Sm),
            memory_mhz: clock(Clock::Memory),
            throttled: throttled.map(|(name, _)| *name).collect(),
            pcie_rx_bytes_per_second: state.pcie_rx_bytes_per_second,
            pcie_tx_bytes_per_second: state.pcie_tx_bytes_per_second,
            activity: known(Part::ALL.map(Part::as_str), activity.map(|it| &it.shares)),
            traffic: known(Traffic::ALL.map(Traffic::as_str), activity.map(|it| &it.bytes_per_second)),
            xids: xids.fold(0, |sum, xid| sum.saturating_add(xid.count)),
            busy_history: points().map(|point| point.busy_percent).collect(),
            memory_history: points().map(|point| point.memory_percent).collect(),
        }
    }

    fn process_rows(&self) -> Vec<ProcessRow> {
        let before: HashMap<(u32, u64), &ProcessReading> =
            self.before.iter().flat_map(|b| &b.processes).map(|p| (p.key(), p)).collect();
        let row = |process: &ProcessReading| self.process_row(process, before.get(&process.key()).copied());
        self.latest.processes.iter().map(row).collect()
    }

    fn process_row(&self, process: &ProcessReading, before: Option<&ProcessReading>) -> ProcessRow {
        let elapsed = self.elapsed_seconds();
        let rate = |of: fn(&ProcessReading) -> u64| {
            // a process that was not there before has made everything since then
            let before = before.map_or(0, of);
            Some(of(process).saturating_sub(before) as f64 / elapsed?)
        };
        let states = &self.latest.gpu_states;
        let has_exited = process.exited_at_ns.is_some();
        let uses = || states.users.iter().filter(|user| !has_exited && user.pid == process.pid);
        let mut gpus: Vec<u8> = uses().map(|user| user.gpu).chain(process.gpus()).collect();
        gpus.sort_unstable();
        gpus.dedup();
        let busy = uses().filter_map(|user| user.busy_percent.as_ref()?.first().copied());
        let is_same = |pid: u32, name: &str| !has_exited && pid == process.pid && name == process.name;
        let pending = self.latest.pending_of(process);
        let estimates = self.latest.estimates(process);
        let mut sites = self.latest.call_sites.iter().filter(|sites| is_same(sites.pid, &sites.name));
        let costs = self.latest.budget.iter().flat_map(|budget| &budget.processes);
        let mut costs = costs.filter(|cost| (cost.pid, cost.instance) == process.key());
        ProcessRow {
            id: ProcessId { host: self.host, pid: process.pid, instance: process.instance },
            name: process.name.clone(),
            uid: process.uid,
            container: process.container.as_ref().map(|container| match &container.pod {
                Some(pod) => format!("{}/{}", pod.namespace, pod.name),
                None => container.id.chars().take(12).collect(),
            }),
            gpus,
            gpu_percent: busy.reduce(u32::saturating_add),
            live_bytes: process.live_bytes(),
            peak_bytes: process.memory.peak_bytes,
            growth_per_second: self.growth.of(process.key()),
            launches: process.launches(),
            launches_per_second: rate(ProcessReading::launches),
            has_estimated_launches: estimates.launches,
            copies: process.copies(),
            copies_per_second: rate(ProcessReading::copies),
            copied_bytes_per_second: rate(ProcessReading::copied_bytes),
            has_estimated_copies: estimates.copies,
            // what was counted of an open call is not counted again when it returns
            calls_share: rate(ProcessReading::call_ns).map(|ns| ns / 1e9),
            has_estimated_calls: estimates.calls,
            errors: process.errors(),
            errors_per_second: rate(ProcessReading::errors),
            has_estimated_errors: estimates.errors,
            pending: pending.map(|call| PendingCall { function: call.function.clone(), age_ns: call.age_ns }),
            has_suspect: sites.any(|sites| sites.call_sites.iter().any(CallSiteReading::is_suspect)),
            cost_share: costs.next().map(|cost| cost.share),
            has_exited,
        }
    }
}

/// The values of these names that are there, in the order of the names.
fn known<V: Copy, const N: usize>(
    names: [&'static str; N],
    values: Option<&BTreeMap<String, V>>,
) -> Vec<(&'static str, V)> {
    names.into_iter().filter_map(|name| Some((name, *values?.get(name)?))).collect()
}

fn percent(part: u64, whole: u64) -> u32 {
    if whole == 0 { 0 } else { (part.min(whole) as f64 / whole as f64 * 100.0).round() as u32 }
}
