//! Reads the line of an out-of-memory error.

use super::earlier::Earlier;
use super::{most, nanoseconds, number, small};
use crate::ids::{SiteId, Tgid, Tid};
use crate::out_of_memory::{GpuHolder, OutOfMemoryEvent, TensorHolder};
use crate::trace::json::{Json, Object};

/// The objects of a list.
fn items<'a>(object: Object<'a>, field: &str) -> impl Iterator<Item = Object<'a>> {
    let list = object.get(field).and_then(Json::as_list);
    list.into_iter().flatten().take(most::ENTRIES).filter_map(Json::as_object)
}

impl Earlier {
    pub(super) fn out_of_memory(&mut self, object: Object<'_>) -> Option<OutOfMemoryEvent> {
        let largest = items(object, "largest").filter_map(|site| {
            let call_site = self.names.share(site.get("call_site")?.as_str()?, most::FUNCTION);
            Some(TensorHolder { call_site, tensors: number(site, "tensors")?, bytes: number(site, "bytes")? })
        });
        let largest = largest.collect();
        let others = items(object, "others").filter_map(|other| {
            let process = self.names.share(other.get("process")?.as_str()?, most::NAME);
            Some(GpuHolder { tgid: Tgid(small(other, "pid")?), process, bytes: number(other, "bytes")? })
        });
        let others = others.collect();
        let call_site = object.get("call_site").and_then(Json::as_str).unwrap_or_default();
        Some(OutOfMemoryEvent {
            id: number(object, "event_id")?,
            at_ns: nanoseconds(object)?,
            tgid: Tgid(small(object, "pid")?),
            tid: Tid(small(object, "tid")?),
            process: self.names.share(object.get("process")?.as_str()?, most::NAME),
            gpu: number(object, "gpu").and_then(|gpu| u8::try_from(gpu).ok()),
            requested_bytes: number(object, "requested")?,
            in_use_bytes: number(object, "allocated")?,
            reserved_bytes: number(object, "reserved")?,
            free_bytes: number(object, "free"),
            site: SiteId::UNKNOWN,
            call_site: self.names.share(call_site, most::FUNCTION),
            largest,
            others,
        })
    }
}
