//! Writes failed calls, out-of-memory errors and XIDs as OTLP log records.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use gpuprobe_analysis::Snapshot;
use gpuprobe_event::{Evidence, OutOfMemoryEvent, PciAddress, XidEvent};

use super::failures::{Failed, NewFailures};
use super::message::{Attribute, Resource, any_value, item, key_value, record};
use super::payload::{Payload, Signal};
use super::points::snapshot_ns;
use crate::metrics::clean;
use crate::proto::{fixed64, text, uint};
use crate::units::{count, printable};

/// Records that are sent at once. More are counted as dropped.
pub(super) const MOST_RECORDS: usize = 500;
/// Events that are kept until they are sent. More are counted as dropped.
const MOST_EVENTS: usize = 256;
/// The number and the name of a severity.
const WARN: (u64, &str) = (13, "WARN");
const ERROR: (u64, &str) = (17, "ERROR");

/// An attribute with its own value.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Owned {
    Text(String),
    Integer(u64),
}

/// A log record before it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Record {
    at_ns: u64,
    severity: (u64, &'static str),
    event: &'static str,
    body: String,
    attributes: Vec<(&'static str, Owned)>,
    /// The GPU of an XID and the number of the XID.
    xid: Option<(PciAddress, u32)>,
}

/// Out-of-memory errors and XIDs on their way from the thread that reads them.
#[derive(Debug, Default)]
pub struct LogEvents(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    records: Vec<Record>,
    dropped: u64,
}

fn unix_ns(ago: Duration) -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().saturating_sub(ago);
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

impl LogEvents {
    /// An XID, some time ago.
    pub fn xid(&self, xid: &XidEvent, ago: Duration) {
        let mut attributes = vec![
            ("gpuprobe.xid", Owned::Integer(xid.number.into())),
            ("gpuprobe.pci", Owned::Text(printable(&xid.gpu).into_owned())),
            ("hw.type", Owned::Text("gpu".to_owned())),
        ];
        // only a process that the driver names: the others are in the text
        let named = xid.processes.iter().find(|process| process.evidence == Evidence::Named);
        if let Some(process) = named {
            attributes.push(("process.pid", Owned::Integer(process.tgid.0.into())));
            attributes.push(("process.executable.name", Owned::Text(clean(&process.process))));
        }
        self.add(Record {
            at_ns: unix_ns(ago),
            severity: ERROR,
            event: "gpuprobe.xid",
            body: printable(&crate::xid_line(xid)).into_owned(),
            attributes,
            xid: PciAddress::parse(&xid.gpu).map(|gpu| (gpu, xid.number)),
        });
    }

    /// An out-of-memory error, some time ago.
    pub fn out_of_memory(&self, error: &OutOfMemoryEvent, ago: Duration) {
        let mut attributes = vec![
            ("process.pid", Owned::Integer(error.tgid.0.into())),
            ("process.executable.name", Owned::Text(clean(&error.process))),
            ("gpuprobe.requested_bytes", Owned::Integer(error.requested_bytes)),
            ("gpuprobe.in_use_bytes", Owned::Integer(error.in_use_bytes)),
            ("gpuprobe.reserved_bytes", Owned::Integer(error.reserved_bytes)),
        ];
        attributes.extend(error.free_bytes.map(|free| ("gpuprobe.free_bytes", Owned::Integer(free))));
        if !error.call_site.is_empty() {
            attributes.push(("gpuprobe.site", Owned::Text(clean(&error.call_site))));
        }
        self.add(Record {
            at_ns: unix_ns(ago),
            severity: ERROR,
            event: "gpuprobe.out_of_memory",
            body: printable(&crate::out_of_memory_line(error)).into_owned(),
            attributes,
            xid: None,
        });
    }

    /// Events that are not written one by one, because there are too many.
    pub fn more(&self, events: u64) {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.dropped = waiting.dropped.saturating_add(events);
    }

    fn add(&self, record: Record) {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.records.len() < MOST_EVENTS {
            waiting.records.push(record);
        } else {
            waiting.dropped += 1;
        }
    }

    fn take(&self) -> Waiting {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Writes the records of one interval after the other.
#[derive(Debug)]
pub(super) struct LogsWriter {
    resource: Resource,
    failures: NewFailures,
    /// XIDs that were reported, by GPU and number.
    xids: HashMap<(u8, u64), u64>,
}

impl LogsWriter {
    pub(super) fn new(resource: Resource) -> Self {
        Self { resource, failures: NewFailures::default(), xids: HashMap::new() }
    }

    /// The records since the snapshot before, and how many were dropped because there are too many.
    pub(super) fn write(&mut self, snapshot: &Snapshot, events: &LogEvents) -> (Option<Payload>, u64) {
        let Waiting { mut records, mut dropped } = events.take();
        let at_ns = snapshot_ns(snapshot);
        let reported: Vec<_> = records.iter().filter_map(|record| record.xid).collect();
        records.extend(self.unreported_xids(snapshot, &reported, at_ns));
        let failed = self.failures.since_last(snapshot);
        let room = MOST_RECORDS.saturating_sub(records.len());
        dropped += failed.len().saturating_sub(room) as u64;
        records.extend(failed.iter().take(room).map(|failed| of_failure(failed, at_ns)));
        if records.is_empty() {
            return (None, dropped);
        }
        let ids: HashMap<PciAddress, String> =
            snapshot.gpus.iter().filter_map(|gpu| Some((gpu.pci, gpu.uuid?.to_string()))).collect();
        let observed_ns = unix_ns(Duration::ZERO);
        let mut out = Vec::new();
        for record in &records {
            let id = record.xid.and_then(|(pci, _)| ids.get(&pci));
            item(&mut out, &written(record, id.map(String::as_str), observed_ns));
        }
        let request = self.resource.request(&out);
        (Some(Payload::new(Signal::Logs, &request, records.len() as u64)), dropped)
    }
}

impl LogsWriter {
    /// XIDs that are only known as a number, because NVML counts them or there were too many at once.
    fn unreported_xids(
        &mut self,
        snapshot: &Snapshot,
        reported: &[(PciAddress, u32)],
        at_ns: u64,
    ) -> Vec<Record> {
        let gpu_at = |pci| snapshot.gpus.iter().find(|gpu| gpu.pci == pci);
        for (pci, number) in reported {
            if let Some(gpu) = gpu_at(*pci) {
                *self.xids.entry((gpu.index, (*number).into())).or_default() += 1;
            }
        }
        let mut records = Vec::new();
        for errors in &snapshot.gpu_states.xids {
            let reported = self.xids.entry((errors.gpu, errors.xid)).or_default();
            let new = errors.count.saturating_sub(*reported);
            if new == 0 {
                continue;
            }
            *reported = errors.count;
            let number = u32::try_from(errors.xid).ok();
            let meaning = number.and_then(gpuprobe_event::driver::xid);
            let meaning = meaning.map_or_else(String::new, |known| format!(": {}", known.meaning));
            let times = count(new, "time", "times");
            let pci = snapshot.gpus.iter().find(|gpu| gpu.index == errors.gpu).map(|gpu| gpu.pci);
            records.push(Record {
                at_ns,
                severity: ERROR,
                event: "gpuprobe.xid",
                body: format!("XID {} on GPU {}, {times}{meaning}", errors.xid, errors.gpu),
                attributes: vec![
                    ("gpuprobe.xid", Owned::Integer(errors.xid)),
                    ("gpuprobe.gpu", Owned::Text(errors.gpu.to_string())),
                    ("gpuprobe.count", Owned::Integer(new)),
                    ("hw.type", Owned::Text("gpu".to_owned())),
                ],
                xid: pci.zip(number),
            });
        }
        records
    }
}

/// One record for all failures of a function with the same error in a process.
fn of_failure(failed: &Failed, at_ns: u64) -> Record {
    let Failed { process, pid, container, function, error, count: new } = failed;
    let who = pid.map_or_else(|| format!("{process}, which has exited"), |pid| format!("{process} {pid}"));
    let times = count(*new, "time", "times");
    let mut attributes = vec![
        ("process.executable.name", Owned::Text(clean(process))),
        ("gpuprobe.function", Owned::Text((*function).to_owned())),
        ("error.type", Owned::Text((*error).to_owned())),
        ("gpuprobe.count", Owned::Integer(*new)),
    ];
    attributes.extend(pid.map(|pid| ("process.pid", Owned::Integer(pid.0.into()))));
    if let Some(container) = container {
        attributes.push(("container.id", Owned::Text(container.id.clone())));
        if let Some(pod) = &container.pod {
            attributes.push(("k8s.container.name", Owned::Text(pod.container.clone())));
            attributes.push(("k8s.pod.name", Owned::Text(pod.name.clone())));
            attributes.push(("k8s.namespace.name", Owned::Text(pod.namespace.clone())));
        }
    }
    Record {
        at_ns,
        severity: WARN,
        event: "gpuprobe.call_errors",
        body: printable(&format!("{function} failed {times} with {error} in {who}")).into_owned(),
        attributes,
        xid: None,
    }
}

fn written(record: &Record, gpu: Option<&str>, observed_ns: u64) -> Vec<u8> {
    let mut out = Vec::new();
    fixed64(&mut out, record::TIME, record.at_ns);
    uint(&mut out, record::SEVERITY, record.severity.0);
    text(&mut out, record::SEVERITY_TEXT, record.severity.1);
    any_value(&mut out, record::BODY, Attribute::Text(&record.body));
    for (key, value) in &record.attributes {
        let value = match value {
            Owned::Text(value) => Attribute::Text(value),
            Owned::Integer(value) => Attribute::Integer(*value),
        };
        key_value(&mut out, record::ATTRIBUTES, key, value);
    }
    if let Some(gpu) = gpu {
        key_value(&mut out, record::ATTRIBUTES, "hw.id", Attribute::Text(gpu));
    }
    fixed64(&mut out, record::OBSERVED, observed_ns);
    text(&mut out, record::EVENT_NAME, record.event);
    out
}

#[cfg(test)]
mod tests {
    use gpuprobe_analysis::GpuErrors;
    use gpuprobe_event::{HostGpu, Uuid};

    use super::super::received::logs_of;
    use super::*;

    fn snapshot(xids: u64) -> Snapshot {
        let pci = PciAddress { domain: 0, bus: 15, device: 0, function: 0 };
        let gpu = HostGpu { index: 4, uuid: Some(Uuid([0x11; 16])), pci, minor: None, is_parted: false };
        let mut snapshot = Snapshot { unix_seconds: 9.0, gpus: vec![gpu], ..Snapshot::default() };
        snapshot.gpu_states.xids = vec![GpuErrors { gpu: 4, xid: 31, count: xids }];
        snapshot
    }

    /// The event names and texts of the records, and the id of the GPU of each.
    fn texts(payload: Option<Payload>) -> Vec<String> {
        use opentelemetry_proto::tonic::common::v1::{AnyValue, any_value};
        let text = |value: &Option<AnyValue>| match value.as_ref().and_then(|any| any.value.as_ref()) {
            Some(any_value::Value::StringValue(text)) => text.clone(),
            other => panic!("{other:?}"),
        };
        let Some(payload) = payload else { return Vec::new() };
        let records = logs_of(&payload.body).resource_logs.remove(0).scope_logs.remove(0).log_records;
        assert_eq!(records.len() as u64, payload.items);
        let id = |record: &opentelemetry_proto::tonic::logs::v1::LogRecord| {
            text(&record.attributes.iter().find(|pair| pair.key == "hw.id").unwrap().value)
        };
        records.iter().map(|record| format!("{} | {}", text(&record.body), id(record))).collect()
    }

    #[test]
    fn each_xid_is_reported_once_whether_it_is_an_event_or_a_count() {
        let (mut writer, events) = (LogsWriter::new(Resource::new([])), LogEvents::default());
        let (gpu, message) = ("0000:0f:00.0".into(), "m".into());
        let xid = XidEvent { id: 1, at_ns: 0, number: 31, gpu, message, processes: Vec::new() };
        let mut write = |xids| {
            let (payload, dropped) = writer.write(&snapshot(xids), &events);
            assert_eq!(dropped, 0);
            texts(payload)
        };
        events.xid(&xid, Duration::ZERO);
        let all = write(3);
        assert_eq!(all.len(), 2, "{all:?}");
        let id = "GPU-11111111-1111-1111-1111-111111111111";
        assert!(all[0].starts_with("XID 31 on GPU 0000:0f:00.0: ") && all[0].ends_with(id), "{}", all[0]);
        assert!(all[1].starts_with("XID 31 on GPU 4, 2 times: ") && all[1].ends_with(id), "{}", all[1]);
        assert_eq!(write(3), [""; 0]);
        // the event may be there before it is in a snapshot
        events.xid(&xid, Duration::ZERO);
        assert_eq!(write(3).len(), 1);
        assert_eq!(write(4), [""; 0]);
    }
}
