//! GPU errors (XIDs), from NVML's events. In a burst NVML may report the last error several times instead of each
//! once; the number of errors is still right.

use std::thread;
use std::time::Instant;

use gpuprobe_event::gpu_state::{GpuId, XidCount};
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, EventSet, Nvml};

use super::gpu_reader::Reader;

/// An event set for all of these GPUs, or the index of the one that refused. The set is consumed then, and another
/// must be made.
fn register<'a>(
    nvml: &'a Nvml,
    devices: &[(GpuId, Device<'a>)],
) -> Result<EventSet<'a>, (Option<usize>, NvmlError)> {
    let mut set = nvml.create_event_set().map_err(|error| (None, error))?;
    for (at, (_, device)) in devices.iter().enumerate() {
        let registered = device.register_events(EventTypes::CRITICAL_XID_ERROR, set);
        set = registered.map_err(|refused| (Some(at), refused.error))?;
    }
    Ok(set)
}

/// The counts since the start, also from before the library was loaded again.
#[derive(Debug, Default)]
pub(super) struct Xids {
    counts: Vec<XidCount>,
    /// GPUs whose errors cannot be counted, and for which there was a message.
    refusing: Vec<GpuId>,
    unreported: Vec<String>,
}

impl Xids {
    /// Listens to every GPU that supports error events; `None` if there is none. If a GPU refuses in spite of that,
    /// only its own errors are missing.
    pub(super) fn listen<'a>(&mut self, nvml: &'a Nvml, reader: &Reader<'a>) -> Option<EventSet<'a>> {
        let reports_xids = |(_, device): &(GpuId, Device<'_>)| {
            let types = device.supported_event_types();
            types.is_ok_and(|types| types.contains(EventTypes::CRITICAL_XID_ERROR))
        };
        let mut devices: Vec<_> = reader.devices().filter(reports_xids).collect();
        while !devices.is_empty() {
            match register(nvml, &devices) {
                Ok(set) => return Some(set),
                Err((Some(at), error)) => self.refuses(devices.remove(at).0, &error),
                Err((None, _)) => return None,
            }
        }
        None
    }

    fn refuses(&mut self, gpu: GpuId, error: &NvmlError) {
        if !self.refusing.contains(&gpu) {
            let GpuId { index, name, .. } = &gpu;
            self.unreported.push(format!(
                "errors (XIDs) of NVML's GPU {index}, {name}, are not counted, those of other GPUs are: {error}"
            ));
            self.refusing.push(gpu);
        }
    }

    /// Messages about GPUs whose errors cannot be counted, once each.
    pub(super) fn refusals(&mut self) -> Vec<String> {
        std::mem::take(&mut self.unreported)
    }

    pub(super) fn counts(&self) -> Vec<XidCount> {
        self.counts.clone()
    }

    /// Counts errors until this instant.
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
                // another wait would fail at once
                Some(Err(_)) | None => thread::sleep(left),
            }
        }
    }

    fn add(&mut self, id: &GpuId, xid: u64) {
        match self.counts.iter_mut().find(|known| known.id == *id && known.xid == xid) {
            Some(known) => known.count += 1,
            None => self.counts.push(XidCount { id: id.clone(), xid, count: 1 }),
        }
    }
}

/// The number of an error; `None` if the event is no error. NVML uses 999 for errors without a number.
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

    #[test]
    fn a_gpu_that_refuses_is_reported_once_even_if_the_library_is_loaded_again() {
        let gpu = |index| GpuId { index, name: "stand-in".to_owned(), ..GpuId::default() };
        let mut xids = Xids::default();
        for index in [1, 1, 2] {
            xids.refuses(gpu(index), &NvmlError::NotSupported);
        }
        let messages = xids.refusals();
        assert_eq!(messages.len(), 2);
        assert!(
            messages[0].starts_with("errors (XIDs) of NVML's GPU 1, stand-in, are not counted"),
            "{messages:?}"
        );
        xids.refuses(gpu(2), &NvmlError::NotSupported);
        assert_eq!(xids.refusals(), [""; 0]);
    }
}
