//! Out-of-memory errors as text.

use std::fmt::Write;

use gpuprobe_event::OutOfMemoryEvent;

use crate::units::{bytes, count};

/// One line: what was asked for, what there was, and where.
pub fn line(event: &OutOfMemoryEvent) -> String {
    let gpu = event.gpu.map_or_else(|| "a GPU".to_owned(), |gpu| format!("GPU {gpu}"));
    let mut out = format!(
        "out of memory on {gpu}: {} {} asked for {}, {} were in use and {} reserved",
        event.process,
        event.tgid,
        bytes(event.requested_bytes),
        bytes(event.in_use_bytes),
        bytes(event.reserved_bytes)
    );
    if let Some(free) = event.free_bytes {
        write!(out, ", {} were free", bytes(free)).ok();
    }
    if !event.call_site.is_empty() {
        write!(out, "; at {}", event.call_site).ok();
    }
    out
}

/// What had the memory, a line each: the largest call sites of the process, and other processes.
pub fn holders(event: &OutOfMemoryEvent) -> Vec<String> {
    let sites = event.largest.iter().map(|site| {
        format!(
            "{} in {} from {}",
            bytes(site.bytes),
            count(site.tensors, "tensor", "tensors"),
            site.call_site
        )
    });
    let others = event.others.iter();
    let others =
        others.map(|other| format!("{} of process {} {}", bytes(other.bytes), other.tgid, other.process));
    sites.chain(others).collect()
}

#[cfg(test)]
mod tests {
    use gpuprobe_event::{GpuHolder, TensorHolder, Tgid};

    use super::*;

    #[test]
    fn everything_that_is_known_is_in_the_text() {
        let known = OutOfMemoryEvent {
            tgid: Tgid(7),
            process: "train".into(),
            gpu: Some(1),
            requested_bytes: 2 << 30,
            in_use_bytes: 1 << 20,
            reserved_bytes: 3 << 20,
            free_bytes: Some(512),
            call_site: "step (train.py:9)".into(),
            largest: vec![TensorHolder { call_site: "keep (train.py:3)".into(), tensors: 1, bytes: 4096 }],
            others: vec![GpuHolder { tgid: Tgid(8), process: "other".into(), bytes: 8192 }],
            ..OutOfMemoryEvent::default()
        };
        assert_eq!(
            line(&known),
            "out of memory on GPU 1: train 7 asked for 2.0 GiB, 1.0 MiB were in use and 3.0 MiB reserved, 512 B were \
             free; at step (train.py:9)"
        );
        assert_eq!(
            holders(&known),
            ["4.0 KiB in 1 tensor from keep (train.py:3)", "8.0 KiB of process 8 other"]
        );
        let unknown = OutOfMemoryEvent { process: "p".into(), ..OutOfMemoryEvent::default() };
        assert_eq!(
            line(&unknown),
            "out of memory on a GPU: p 0 asked for 0 B, 0 B were in use and 0 B reserved"
        );
        assert!(holders(&unknown).is_empty());
    }
}
