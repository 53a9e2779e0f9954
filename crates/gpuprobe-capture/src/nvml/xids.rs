//! Errors that GPUs report (XIDs), by NVML's events. In a burst NVML may tell the last of them several times instead of
//! each once; the number of errors is right all the same.

use std::thread;
use std::time::Instant;

use gpuprobe_event::gpu_state::{GpuId, XidCount};
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, EventSet, Nvml};

use super::read::Reader;

/// Begins to listen to every GPU that tells of errors; `None` where no one does.
pub(super) fn listen<'a>(nvml: &'a Nvml, devices: impl Iterator<Item = Device<'a>>) -> Option<EventSet<'a>> {
    let tells = |device: &Device<'_>| {
        let types = device.supported_event_types();
        types.is_ok_and(|types| types.contains(EventTypes::CRITICAL_XID_ERROR))
    };
    let mut devices = devices.filter(tells).peekable();
    devices.peek()?;
    let mut set = nvml.create_event_set().ok()?;
    for device in devices {
        set = device.register_events(EventTypes::CRITICAL_XID_ERROR, set).ok()?;
    }
    Some(set)
}

/// All errors since the beginning, also those before the library was loaded anew.
#[derive(Debug, Default)]
pub(super) struct Xids(Vec<XidCount>);

impl Xids {
    pub(super) fn counts(&self) -> Vec<XidCount> {
        self.0.clone()
    }

    /// Counts what comes until then.
    pub(super) fn wait(&mut self, events: Option<&EventSet<'_>>, reader: &Reader<'_>, until: Instant) {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let milliseconds = u32::try_from(left.as_millis()).unwrap_or(u32::MAX).max(1);
            match events.map(|events| events.wait(milliseconds)) {
                Some(Ok(event)) => {
                    if let (Some(id), Some(xid)) = (reader.id_of(&event.device), number(event.event_data)) {
                        self.add(id, xid);
                    }
                }
                Some(Err(NvmlError::Timeout)) => {}
                // it would fail at once again
                Some(Err(_)) | None => thread::sleep(left),
            }
        }
    }

    fn add(&mut self, id: &GpuId, xid: u64) {
        match self.0.iter_mut().find(|known| known.id == *id && known.xid == xid) {
            Some(known) => known.count += 1,
            None => self.0.push(XidCount { id: id.clone(), xid, count: 1 }),
        }
    }
}

/// The number of an error; `None` for an event that is none. One without a number is told as 999, as NVML does.
fn number(data: Option<XidError>) -> Option<u64> {
    const UNKNOWN: u64 = 999;
    data.map(|xid| match xid {
        XidError::Value(xid) => xid,
        XidError::Unknown => UNKNOWN,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_counted_by_gpu_and_number() {
        let gpu = |index| GpuId { index, ..GpuId::default() };
        let mut xids = Xids::default();
        for (index, xid) in [(0, 79), (1, 79), (0, 48), (0, 79)] {
            xids.add(&gpu(index), xid);
        }
        let counts: Vec<_> = xids.counts().iter().map(|c| (c.id.index, c.xid, c.count)).collect();
        assert_eq!(counts, [(0, 79, 2), (1, 79, 1), (0, 48, 1)]);
        assert_eq!(number(Some(XidError::Unknown)), Some(999));
        assert_eq!(number(None), None);
    }
}
