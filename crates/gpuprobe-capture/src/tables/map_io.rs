//! Reads and empties whole BPF hash maps, and the first rows of arrays, with few system calls.
//!
//! The iterator of libbpf-rs is not used: it takes a short batch for the last one, but the Linux kernel returns short
//! batches whenever the next bucket does not fit, and it cannot read per-CPU hash maps.

use std::os::fd::AsRawFd;

use libbpf_rs::{ErrorKind, MapCore, MapFlags, MapType, libbpf_sys};

use crate::error::CaptureError;
use crate::wire::{Wire, from_bytes};

pub(crate) const READ: &str = "read a BPF table";
pub(crate) const WRITE: &str = "write a BPF table";

/// Buffer size for the values of one batch; a per-CPU value of a large machine has tens of kilobytes.
const BATCH_BYTES: usize = 1 << 20;
/// More than any bucket has, and no more than is worth a system call.
const BATCH_ENTRIES: std::ops::RangeInclusive<usize> = 64..=8192;
/// The Linux kernel pads the value of each CPU to this.
const CPU_VALUE_ALIGN: usize = 8;

/// Calls `then` with every entry of a hash map: the key and the value, or the values of all CPUs one after the other,
/// each [`cpu_value_bytes`] long. Entries that are added or removed meanwhile may be missing or not.
pub(crate) fn each_entry(map: &impl MapCore, mut then: impl FnMut(&[u8], &[u8])) -> Result<(), CaptureError> {
    let (key_bytes, value_bytes) = (map.key_size() as usize, value_bytes(map)?);
    let mut take = |keys: &[u8], values: &[u8]| {
        for (key, value) in keys.chunks_exact(key_bytes).zip(values.chunks_exact(value_bytes)) {
            then(key, value);
        }
    };
    // a limit, because a trie whose last key read is removed meanwhile is read from its start again; larger than the
    // map, because a shortened last batch could be too small for a bucket
    let most = (map.max_entries() as usize).saturating_add(*BATCH_ENTRIES.end());
    if lookup_batches(map, value_bytes, most, &mut take)? { Ok(()) } else { one_by_one(map, take) }
}

/// The first rows of an array, one after the other, each [`value_bytes`] long.
pub(crate) fn first_rows(map: &impl MapCore, rows: usize) -> Result<Vec<u8>, CaptureError> {
    let value_bytes = value_bytes(map)?;
    let mut all = Vec::with_capacity(rows * value_bytes);
    if !lookup_batches(map, value_bytes, rows, |_, values| all.extend_from_slice(values))? {
        for row in 0..rows as u32 {
            all.extend(row_of(map, row)?.unwrap_or_else(|| vec![0; value_bytes]));
        }
    }
    Ok(all)
}

/// One row of an array, with the values of all CPUs one after the other.
pub(crate) fn row_of(map: &impl MapCore, row: u32) -> Result<Option<Vec<u8>>, CaptureError> {
    value_of(map, &row.to_ne_bytes())
}

fn value_of(map: &impl MapCore, key: &[u8]) -> Result<Option<Vec<u8>>, CaptureError> {
    if is_per_cpu(map) {
        let values = map.lookup_percpu(key, MapFlags::ANY).map_err(CaptureError::bpf(READ))?;
        return Ok(values.map(|cpus| cpus.concat()));
    }
    map.lookup(key, MapFlags::ANY).map_err(CaptureError::bpf(READ))
}

/// Fills a row of an array with zeros.
pub(crate) fn clear_row(map: &impl MapCore, row: u32) -> Result<(), CaptureError> {
    let key = row.to_ne_bytes();
    let cleared = if is_per_cpu(map) {
        let cpus = libbpf_rs::num_possible_cpus().map_err(CaptureError::bpf("count the CPUs"))?;
        map.update_percpu(&key, &vec![vec![0; map.value_size() as usize]; cpus], MapFlags::ANY)
    } else {
        map.update(&key, &vec![0; map.value_size() as usize], MapFlags::ANY)
    };
    cleared.map_err(CaptureError::bpf(WRITE))
}

/// The padded size of the value of one CPU.
pub(crate) fn cpu_value_bytes(map: &impl MapCore) -> usize {
    (map.value_size() as usize).next_multiple_of(CPU_VALUE_ALIGN)
}

fn is_per_cpu(map: &impl MapCore) -> bool {
    matches!(map.map_type(), MapType::PercpuHash | MapType::PercpuArray)
}

/// The size of a value, of all CPUs together.
pub(crate) fn value_bytes(map: &impl MapCore) -> Result<usize, CaptureError> {
    if !is_per_cpu(map) {
        return Ok(map.value_size() as usize);
    }
    let cpus = libbpf_rs::num_possible_cpus().map_err(CaptureError::bpf("count the CPUs"))?;
    Ok(cpu_value_bytes(map) * cpus)
}

/// Reads up to `wanted` entries in batches; `false` if the Linux kernel does not support it, and then nothing was
/// read.
fn lookup_batches(
    map: &impl MapCore,
    value_bytes: usize,
    mut wanted: usize,
    mut take: impl FnMut(&[u8], &[u8]),
) -> Result<bool, CaptureError> {
    let key_bytes = map.key_size() as usize;
    let most = (BATCH_BYTES / value_bytes.max(1)).clamp(*BATCH_ENTRIES.start(), *BATCH_ENTRIES.end());
    let (mut keys, mut values) = (vec![0_u8; most * key_bytes], vec![0_u8; most * value_bytes]);
    // the position from which the Linux kernel continues: the number of a bucket or row, or the last key of a trie
    let note = key_bytes.max(size_of::<u32>());
    let (mut from, mut next) = (None::<Vec<u8>>, vec![0_u8; note]);
    loop {
        let mut count = most.min(wanted) as u32;
        let begin = from.as_mut().map_or(std::ptr::null_mut(), Vec::as_mut_ptr);
        // SAFETY: `keys` and `values` have room for `count` entries of this map, as the Linux kernel lays them out;
        // the positions have room for the four bytes or the key that it reads and writes; null options are the
        // defaults.
        let failed = unsafe {
            libbpf_sys::bpf_map_lookup_batch(
                map.as_fd().as_raw_fd(),
                begin.cast(),
                next.as_mut_ptr().cast(),
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
        wanted -= count.min(wanted);
        // there are no more entries
        if failed != 0 || wanted == 0 {
            return Ok(true);
        }
        from = Some(next.clone());
    }
}

fn one_by_one(map: &impl MapCore, mut take: impl FnMut(&[u8], &[u8])) -> Result<(), CaptureError> {
    // if the last key read is removed meanwhile, the Linux kernel starts again at the first
    let keys: std::collections::HashSet<_> = map.keys().take(map.max_entries() as usize).collect();
    for key in keys {
        if let Some(value) = value_of(map, &key)? {
            take(&key, &value);
        }
    }
    Ok(())
}

/// Deletes contiguous keys. Keys that are not there are ignored.
pub(crate) fn delete_all(map: &impl MapCore, keys: &[u8]) -> Result<(), CaptureError> {
    let key_bytes = map.key_size() as usize;
    for some in keys.chunks(*BATCH_ENTRIES.end() * key_bytes) {
        let count = (some.len() / key_bytes) as u32;
        // a batch ends at the first key that is not there
        if map.delete_batch(some, count, MapFlags::ANY, MapFlags::ANY).is_err() {
            some.chunks_exact(key_bytes).try_for_each(|key| delete(map, key))?;
        }
    }
    Ok(())
}

/// Deletes a key, if it is there.
fn delete(map: &impl MapCore, key: &[u8]) -> Result<(), CaptureError> {
    match map.delete(key) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(CaptureError::Bpf { what: WRITE, source: error })
        }
        _ => Ok(()),
    }
}

/// Every entry of a hash map with one value per key.
pub(crate) fn entries<K: Wire, V: Wire>(map: &impl MapCore) -> Result<Vec<(K, V)>, CaptureError> {
    let mut all = Vec::new();
    each_entry(map, |key, value| all.push((from_bytes(key), from_bytes(value))))?;
    Ok(all)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use libbpf_rs::MapHandle;
    use libbpf_sys::bpf_map_create_opts;

    use super::*;

    /// A hash map of numbers; `None` without the privilege to make one.
    fn hash(kind: MapType, entries: u32) -> Option<MapHandle> {
        let options = bpf_map_create_opts { sz: size_of::<bpf_map_create_opts>() as _, ..Default::default() };
        match MapHandle::create(kind, Some("gp_test"), 8, 8, entries, &options) {
            Ok(map) => Some(map),
            Err(error) => {
                eprintln!("not tested: {error}");
                None
            }
        }
    }

    fn all_of(
        map: &MapHandle,
        read: impl FnOnce(&MapHandle, &mut dyn FnMut(&[u8], &[u8])),
    ) -> BTreeMap<u64, Vec<u8>> {
        let mut all = BTreeMap::new();
        read(map, &mut |key, value| {
            let key = u64::from_ne_bytes(key.try_into().unwrap());
            assert_eq!(all.insert(key, value.to_vec()), None, "{key} twice");
        });
        all
    }

    #[test]
    fn every_entry_is_read_once_in_batches_and_one_by_one() {
        // more than some batches, and nearly the size of the map, so that buckets have several entries
        const ENTRIES: u32 = 50_000;
        let Some(map) = hash(MapType::Hash, ENTRIES) else { return };
        for i in 0..u64::from(ENTRIES) {
            map.update(&i.to_ne_bytes(), &(2 * i).to_ne_bytes(), MapFlags::ANY).unwrap();
        }
        let expected: BTreeMap<_, _> =
            (0..u64::from(ENTRIES)).map(|i| (i, (2 * i).to_ne_bytes().to_vec())).collect();
        let batched = all_of(&map, |map, take| {
            assert!(
                lookup_batches(map, 8, usize::MAX, |keys, values| {
                    keys.chunks_exact(8).zip(values.chunks_exact(8)).for_each(|(k, v)| take(k, v));
                })
                .unwrap()
            );
        });
        assert!(batched == expected);
        assert!(all_of(&map, |map, take| each_entry(map, take).unwrap()) == expected);
        assert!(all_of(&map, |map, take| one_by_one(map, take).unwrap()) == expected);
    }

    /// Its positions are keys, which are longer than a number.
    #[test]
    fn a_trie_is_read_completely_in_batches() {
        let options = bpf_map_create_opts {
            sz: size_of::<bpf_map_create_opts>() as _,
            map_flags: libbpf_sys::BPF_F_NO_PREALLOC,
            ..Default::default()
        };
        let Ok(map) = MapHandle::create(MapType::LpmTrie, Some("gp_test"), 24, 16, 50_000, &options) else {
            return;
        };
        // the number of significant bits, and then the bits
        let key = |i: u32| [&160_u32.to_ne_bytes()[..], &[0; 12], &u64::from(i).to_be_bytes()].concat();
        (0..20_000).for_each(|i| map.update(&key(i), &[7; 16], MapFlags::ANY).unwrap());
        let mut all = std::collections::BTreeSet::new();
        each_entry(&map, |key, value| {
            assert_eq!(value, [7; 16]);
            assert!(all.insert(key.to_vec()), "{key:?} twice");
        })
        .unwrap();
        assert_eq!(all, (0..20_000).map(key).collect());
    }

    #[test]
    fn the_values_of_every_cpu_are_read_in_batches_and_one_by_one() {
        let Some(map) = hash(MapType::PercpuHash, 100) else { return };
        let cpus = libbpf_rs::num_possible_cpus().unwrap() as u64;
        for i in 0..100_u64 {
            let values: Vec<_> = (0..cpus).map(|cpu| (i + cpu).to_ne_bytes().to_vec()).collect();
            map.update_percpu(&i.to_ne_bytes(), &values, MapFlags::ANY).unwrap();
        }
        let value = |i: u64| (0..cpus).flat_map(|cpu| (i + cpu).to_ne_bytes()).collect::<Vec<_>>();
        let expected: BTreeMap<_, _> = (0..100).map(|i| (i, value(i))).collect();
        assert_eq!(all_of(&map, |map, take| each_entry(map, take).unwrap()), expected);
        assert_eq!(all_of(&map, |map, take| one_by_one(map, take).unwrap()), expected);
    }

    #[test]
    fn the_first_rows_of_an_array_are_read_in_order_and_cleared() {
        // more than a batch
        const ROWS: u32 = 10_000;
        let options = bpf_map_create_opts { sz: size_of::<bpf_map_create_opts>() as _, ..Default::default() };
        for kind in [MapType::Array, MapType::PercpuArray] {
            let Ok(map) = MapHandle::create(kind, Some("gp_test"), 4, 8, ROWS, &options) else { return };
            let values = value_bytes(&map).unwrap() / 8;
            let row = |i: u32| vec![u64::from(i).to_ne_bytes().to_vec(); values];
            for i in 0..ROWS {
                if values == 1 && kind == MapType::Array {
                    map.update(&i.to_ne_bytes(), &row(i).concat(), MapFlags::ANY).unwrap();
                } else {
                    map.update_percpu(&i.to_ne_bytes(), &row(i), MapFlags::ANY).unwrap();
                }
            }
            for wanted in [1, 9_000, ROWS] {
                let expected: Vec<u8> = (0..wanted).flat_map(|i| row(i).concat()).collect();
                assert!(first_rows(&map, wanted as usize).unwrap() == expected, "{kind:?} {wanted}");
            }
            clear_row(&map, 7).unwrap();
            assert_eq!(row_of(&map, 7).unwrap().unwrap(), vec![0; 8 * values]);
            assert_eq!(row_of(&map, 8).unwrap().unwrap(), row(8).concat());
        }
    }

    #[test]
    fn missing_keys_do_not_prevent_the_deletion_of_others() {
        let Some(map) = hash(MapType::Hash, 100) else { return };
        let key = |i: u64| i.to_ne_bytes();
        (0..10).for_each(|i| map.update(&key(i), &key(i), MapFlags::ANY).unwrap());
        let keys = [3, 77, 4, 5].map(key).concat();
        delete_all(&map, &keys).unwrap();
        let left: Vec<_> = all_of(&map, |map, take| each_entry(map, take).unwrap()).into_keys().collect();
        assert_eq!(left, [0, 1, 2, 6, 7, 8, 9]);
    }
}
