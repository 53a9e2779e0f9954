//! Reads the effect of a call from the fields of its line. The class of the function decides which fields count.

use std::sync::Arc;

use super::{dim3, hex_field, most, number, scaled, text};
use crate::catalogue::{Api, Class, Space};
use crate::copy_kind::{CopyDirection, HostMemory};
use crate::effect::{
    Allocation, CopyPart, DeviceSyscall, Effect, Free, GraphLaunch, Launch, MemoryAmount, Replaced, Transfer,
};
use crate::event::DeviceTime;
use crate::ids::SiteId;
use crate::trace::json::{Json, Object};

/// Whether calls of this class allocate or free memory.
pub(super) fn counts_memory(class: Class) -> bool {
    matches!(class, Class::Alloc | Class::HostRegister) || frees(class)
}

fn frees(class: Class) -> bool {
    matches!(class, Class::Free | Class::HostUnregister)
}

/// The effect of a call.
pub(super) fn effect(object: Object<'_>, api: Api, class: Class, kernel: Option<Arc<str>>) -> Effect {
    let captured = flag(object, "captured").unwrap_or(false);
    let kernels = number(object, "kernels");
    match class {
        Class::Launch => Effect::Launch(Launch {
            kernel,
            kernels: kernels.unwrap_or(1),
            grid: object.get("grid").and_then(dim3),
            block: object.get("block").and_then(dim3),
            shared: number(object, "shared").unwrap_or(0),
            captured,
        }),
        Class::GraphLaunch => Effect::GraphLaunch(GraphLaunch {
            kernels,
            graph: number(object, "graph"),
            // the reader adds them: they are in the line of the first launch
            contents: None,
            disabled: number(object, "disabled").unwrap_or(0),
            conditional: number(object, "conditional").unwrap_or(0),
            incomplete: flag(object, "incomplete").unwrap_or(false),
            captured,
        }),
        Class::Memcpy | Class::Memset => Effect::Transfer(Transfer { captured, ..transfer(object, class) }),
        _ if api == Api::Kernel => {
            let call = DeviceSyscall {
                device: text(object, "dev", most::NAME),
                command: text(object, "cmd", most::NAME),
            };
            if call == DeviceSyscall::default() { Effect::None } else { Effect::DeviceSyscall(call) }
        }
        _ => memory_effect(object, class),
    }
}

fn site(object: Object<'_>) -> Option<SiteId> {
    number(object, "site").and_then(|site| u32::try_from(site).ok()).map(SiteId)
}

/// The call site of a call that does not have one in its effect.
pub(super) fn own_site(object: Object<'_>, effect: &Effect) -> Option<SiteId> {
    site(object).filter(|_| !matches!(effect, Effect::Alloc(_) | Effect::Free(_)))
}

/// The effect of a call on live memory.
fn memory_effect(object: Object<'_>, class: Class) -> Effect {
    let ended = memory(object, "freed_with_context");
    if !ended.is_empty() {
        return Effect::ContextEnd(ended);
    }
    let (size, freed) = (number(object, "size"), number(object, "freed"));
    let address = hex_field(object, "ptr");
    let kind = object.get("kind").and_then(Json::as_str).map_or(Space::Unknown, Space::from_word);
    let gpu = number(object, "gpu").and_then(|gpu| u8::try_from(gpu).ok());
    let site = site(object);
    if let Some(bytes) = size {
        // in traces of earlier versions an allocation has the replaced bytes as `freed`
        let replaced_kind = object.get("replaced_kind").and_then(Json::as_str).map_or(kind, Space::from_word);
        let replaced = number(object, "replaced").or(freed);
        let replaced = replaced.map(|bytes| Replaced { bytes, kind: replaced_kind });
        let live_bytes = number(object, "live");
        return Effect::Alloc(Allocation { bytes, address, kind, gpu, site, replaced, live_bytes });
    }
    let allocations = number(object, "freed_allocations").unwrap_or(1);
    let freed = freed.map(|bytes| MemoryAmount { kind, allocations, bytes });
    if freed.is_some() || frees(class) && address.is_some() {
        return Effect::Free(Free { address, freed, gpu, site });
    }
    Effect::None
}

fn transfer(object: Object<'_>, class: Class) -> Transfer {
    let (direction, host) = copied(object, class);
    let name = object.get("name").and_then(Json::as_str).unwrap_or_default();
    Transfer {
        direction,
        host,
        // traces of earlier versions have it only in the name
        is_async: flag(object, "async").unwrap_or_else(|| name.contains("Async")),
        bytes: number(object, "size"),
        parts: object.get("parts").and_then(Json::as_list).map(parts).unwrap_or_default(),
        captured: false,
        without_driver: flag(object, "without_driver").unwrap_or(false),
        copied: number(object, "copied"),
    }
}

/// Direction and host memory.
fn copied(object: Object<'_>, class: Class) -> (CopyDirection, HostMemory) {
    let word = |field: &str| object.get(field).and_then(Json::as_str);
    let direction = match class {
        Class::Memset => CopyDirection::Fill,
        _ => word("kind").and_then(CopyDirection::from_word).unwrap_or(CopyDirection::Unknown),
    };
    let host = word("host").and_then(HostMemory::from_word);
    (direction, host.unwrap_or_else(|| HostMemory::unknown_for(direction)))
}

/// The copies of a batch.
fn parts<'a>(list: impl Iterator<Item = Json<'a>>) -> Vec<CopyPart> {
    let part = |json: Json<'_>| {
        let object = json.as_object()?;
        let (direction, host) = copied(object, Class::Memcpy);
        Some(CopyPart { direction, host, copies: number(object, "copies")?, bytes: number(object, "size")? })
    };
    list.take(most::ENTRIES).filter_map(part).collect()
}

/// Fields of format 3 and their names in formats 1 and 2.
const EARLIER_FIELDS: [(&str, &str); 2] = [("live", "held"), ("freed_with_context", "ended")];

/// The number of allocations and the bytes by kind.
pub(super) fn memory(object: Object<'_>, field: &str) -> Vec<MemoryAmount> {
    let kind = |(kind, json): (&str, Json<'_>)| {
        let [allocations, bytes] = json.as_array()?;
        let kind = Space::from_word(kind);
        Some(MemoryAmount { kind, allocations: allocations.as_u64()?, bytes: bytes.as_u64()? })
    };
    let earlier = EARLIER_FIELDS.iter().find(|(now, _)| *now == field).and_then(|(_, name)| object.get(name));
    let kinds = object.get(field).or(earlier).and_then(Json::as_object);
    kinds.into_iter().flat_map(Object::iter).take(most::ENTRIES).filter_map(kind).collect()
}

/// System calls on the NVIDIA devices during a call.
pub(super) fn driver_time(object: Object<'_>) -> Option<DeviceTime> {
    Some(DeviceTime { calls: number(object, "driver_calls")?, ns: scaled(object.get("driver_us")?, 3)? })
}

fn flag(object: Object<'_>, field: &str) -> Option<bool> {
    object.get(field)?.as_bool()
}
