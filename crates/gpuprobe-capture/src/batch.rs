//! Whole hashes of the kernel, read and emptied with few system calls.
//!
//! Not by the iterator of libbpf-rs: it takes a short batch for the last one, though the kernel returns short ones
//! wherever the next bucket does not fit, and it cannot read per-CPU hashes.

use std::os::fd::{AsFd, AsRawFd};

use libbpf_rs::{ErrorKind, Map, MapCore, MapFlags, MapType, libbpf_sys};

use crate::error::CaptureError;
use crate::wire::{Wire, as_bytes, from_bytes};

pub(crate) const READ: &str = "read a table of the kernel side";
pub(crate) const WRITE: &str = "write a table of the kernel side";

/// Room for the values of one batch; a per-CPU value of a large machine has tens of kilobytes.
const BATCH_BYTES: usize = 4 << 20;
/// More than a bucket ever holds, and no more than is worth a system call.
const BATCH_ENTRIES: std::ops::RangeInclusive<usize> = 64..=8192;
/// A kernel pads each CPU's value to this.
const CPU_VALUE_ALIGN: usize = 8;

/// Hands over every entry of a hash: the key and the value, or the values of all CPUs one after the other, each
/// [`cpu_value_bytes`] long. What comes or goes meanwhile may be among them or not.
pub(crate) fn each_entry(map: &Map<'_>, mut then: impl FnMut(&[u8], &[u8])) -> Result<(), CaptureError> {
    let (key_bytes, value_bytes) = (map.key_size() as usize, value_bytes(map)?);
    let mut take = |keys: &[u8], values: &[u8]| {
        for (key, value) in keys.chunks_exact(key_bytes).zip(values.chunks_exact(value_bytes)) {
            then(key, value);
        }
    };
    if lookup_batches(map, value_bytes, &mut take)? { Ok(()) } else { one_by_one(map, take) }
}

/// The room that the value of one CPU takes.
pub(crate) fn cpu_value_bytes(map: &Map<'_>) -> usize {
    (map.value_size() as usize).next_multiple_of(CPU_VALUE_ALIGN)
}

fn is_per_cpu(map: &Map<'_>) -> bool {
    map.map_type() == MapType::PercpuHash
}

fn value_bytes(map: &Map<'_>) -> Result<usize, CaptureError> {
    if !is_per_cpu(map) {
        return Ok(map.value_size() as usize);
    }
    let cpus = libbpf_rs::num_possible_cpus().map_err(CaptureError::bpf("count the CPUs"))?;
    Ok(cpu_value_bytes(map) * cpus)
}

/// Reads in batches; `false` where the kernel refuses to, and then nothing was handed over.
fn lookup_batches(
    map: &Map<'_>,
    value_bytes: usize,
    mut take: impl FnMut(&[u8], &[u8]),
) -> Result<bool, CaptureError> {
    let key_bytes = map.key_size() as usize;
    let most = (BATCH_BYTES / value_bytes.max(1)).clamp(*BATCH_ENTRIES.start(), *BATCH_ENTRIES.end());
    let (mut keys, mut values) = (vec![0_u8; most * key_bytes], vec![0_u8; most * value_bytes]);
    // the kernel's note of where to go on: the number of a bucket
    let (mut from, mut next) = (None::<u32>, 0_u32);
    loop {
        let mut count = most as u32;
        let begin = from.as_mut().map_or(std::ptr::null_mut(), std::ptr::from_mut);
        // SAFETY: `keys` and `values` have room for `count` entries of this map, as the kernel lays them out; the
        // notes are the four bytes that it reads and writes for a hash; null options are the defaults.
        let failed = unsafe {
            libbpf_sys::bpf_map_lookup_batch(
                map.as_fd().as_raw_fd(),
                begin.cast(),
                std::ptr::from_mut(&mut next).cast(),
                keys.as_mut_ptr().cast(),
                values.as_mut_ptr().cast(),
                &raw mut count,
                std::ptr::null(),
            )
        };
        if failed != 0 && failed != -libc::ENOENT {
            let source = libbpf_rs::Error::from_raw_os_error(-failed);
            return if from.is_none() { Ok(false) } else { Err(CaptureError::Bpf { what: READ, source }) };
        }
        let count = count as usize;
        take(&keys[..count * key_bytes], &values[..count * value_bytes]);
        // the kernel has no more
        if failed != 0 {
            return Ok(true);
        }
        from = Some(next);
    }
}

fn one_by_one(map: &Map<'_>, mut take: impl FnMut(&[u8], &[u8])) -> Result<(), CaptureError> {
    // a key that goes while it is the last one read makes the kernel begin anew
    let keys: std::collections::HashSet<_> = map.keys().take(map.max_entries() as usize).collect();
    for key in keys {
        let value = if is_per_cpu(map) {
            let values = map.lookup_percpu(&key, MapFlags::ANY).map_err(CaptureError::bpf(READ))?;
            values.map(|cpus| cpus.concat())
        } else {
            map.lookup(&key, MapFlags::ANY).map_err(CaptureError::bpf(READ))?
        };
        if let Some(value) = value {
            take(&key, &value);
        }
    }
    Ok(())
}

/// Deletes keys; those that are gone already are as good as deleted.
pub(crate) fn delete_all<K: Wire>(map: &Map<'_>, keys: &[K]) -> Result<(), CaptureError> {
    for some in keys.chunks(*BATCH_ENTRIES.end()) {
        let bytes: Vec<u8> = some.iter().flat_map(as_bytes).copied().collect();
        // a batch ends at the first key that is not there
        if map.delete_batch(&bytes, some.len() as u32, MapFlags::ANY, MapFlags::ANY).is_err() {
            some.iter().try_for_each(|key| delete(map, as_bytes(key)))?;
        }
    }
    Ok(())
}

/// Deletes a key; one that is gone already is as good as deleted.
fn delete(map: &Map<'_>, key: &[u8]) -> Result<(), CaptureError> {
    match map.delete(key) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(CaptureError::Bpf { what: WRITE, source: error })
        }
        _ => Ok(()),
    }
}

/// Every entry of a hash with one value per key.
pub(crate) fn entries<K: Wire, V: Wire>(map: &Map<'_>) -> Result<Vec<(K, V)>, CaptureError> {
    let mut all = Vec::new();
    each_entry(map, |key, value| all.push((from_bytes(key), from_bytes(value))))?;
    Ok(all)
}
