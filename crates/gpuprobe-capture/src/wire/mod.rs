//! The structs and numbers of `bpf/gpuprobe.h`, generated from the type information of the BPF object, and the
//! conversion between structs and bytes.
//!
//! Three members of `gp_call` are unions. The `effect` of the call, or its function, says which member is valid:
//! - `detail`: `allocated` for an allocation, `released` for freed physical memory, `graph` for a graph launch whose
//!   kernels are known, `copy` for a copy, and `device` for a system call on an NVIDIA device file.
//! - `stack`: arguments that are not in registers; `ended` for a call that destroyed a context; the start of the
//!   argument of an ioctl; `path` for an open.
//! - `pointee`: the struct or text that an argument points to; `parts` for a batch of copies.

use std::io::{self, Read};

use flate2::read::GzDecoder;

/// Implements [`Wire`] for the structs and unions that the build script has found to be plain.
macro_rules! wire {
    ($($name:ident),* $(,)?) => {
        $(
            // SAFETY: generated as repr(C) from a C struct or union that has only integers without gaps, by its type
            // information; any bits are a valid value.
            unsafe impl Wire for $name {}
        )*
    };
}

mod generated {
    #![allow(
        dead_code,
        unreachable_pub,
        missing_debug_implementations,
        clippy::all,
        clippy::allow_attributes_without_reason,
        clippy::undocumented_unsafe_blocks,
        clippy::wildcard_imports,
        clippy::unwrap_used,
        clippy::use_self,
        clippy::too_many_lines,
        clippy::map_err_ignore,
        reason = "generated code"
    )]
    include!(concat!(env!("OUT_DIR"), "/wire.skel.rs"));
}

/// What the build script generated from the object: its structs and numbers, and the names of its maps and programs.
mod contract {
    #![allow(
        dead_code,
        unused_imports,
        reason = "generated: the BPF programs have more than user space needs"
    )]

    use super::Wire;

    include!(concat!(env!("OUT_DIR"), "/contract.rs"));
}

pub(crate) mod device_rows;
pub(crate) mod object_handles;

pub(crate) use contract::*;

/// The number under which the calls of an attached library file are sent. Numbers are reused.
pub(crate) type LibraryNumber = u16;

/// The compiled programs. They are compressed in the binary.
pub(crate) fn object() -> io::Result<Vec<u8>> {
    let compressed: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/gpuprobe.bpf.o.gz"));
    let mut object = Vec::new();
    GzDecoder::new(compressed).read_to_end(&mut object)?;
    Ok(object)
}

/// A struct that may be made of any bytes.
///
/// # Safety
///
/// The type is `repr(C)`, has no padding that is read, and every bit pattern of it is valid.
#[diagnostic::on_unimplemented(
    message = "`{Self}` may not be made of arbitrary bytes",
    note = "a wire struct has only integers, without gaps: `contract.rs` in OUT_DIR says what is wrong with this one"
)]
pub(crate) unsafe trait Wire: Copy + Default {}

// SAFETY: an integer, for which any bits are valid.
unsafe impl Wire for u64 {}

// SAFETY: bytes, each of which may have any value.
unsafe impl Wire for [u8; 16] {}

// SAFETY: as for u64.
unsafe impl Wire for u32 {}

/// Makes a struct of bytes. Missing bytes are zero, because records are cut after the last used byte; extra bytes are
/// ignored.
pub(crate) fn from_bytes<T: Wire>(bytes: &[u8]) -> T {
    let mut value = T::default();
    let length = bytes.len().min(size_of::<T>());
    // SAFETY: both regions are valid for `length` bytes and do not overlap; T: Wire allows any bytes.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), std::ptr::from_mut(&mut value).cast::<u8>(), length);
    }
    value
}

/// The bytes of a struct.
pub(crate) fn as_bytes<T: Wire>(value: &T) -> &[u8] {
    // SAFETY: the region is the value itself, borrowed for as long as the slice; T: Wire has no hidden padding.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast::<u8>(), size_of::<T>()) }
}

/// Numbers that the headers compute from others.
pub(crate) mod derived {
    use super::number;

    /// Marks a spare entry in `gp_live.since_ns`: its address was freed.
    pub(crate) const SPARE: u64 = 1 << number::SPARE_BIT;
    /// Marks a context number that stands for a GPU, for memory outside of contexts. The low half is the GPU.
    pub(crate) const OF_DEVICE: u64 = 1 << number::OF_DEVICE_BIT;
    /// Marks a context number that stands for the tensors on a GPU. The low half is the GPU.
    pub(crate) const OF_TENSORS: u64 = 1 << number::OF_TENSORS_BIT;
    pub(crate) const SCRAMBLE: u64 = (number::SCRAMBLE_HIGH as u64) << 32 | number::SCRAMBLE_LOW as u64;
    pub(crate) const SHORT_STACK: usize = number::FEW_STACK_PAGES * number::STACK_PAGE;
}

/// Flags of a call of which nothing is known but its entry.
pub(crate) const UNOBSERVED_AND_BEGUN: u16 = number::CALL_UNOBSERVED | number::CALL_BEGUN;

/// Whether a call is a launch whose return is not probed and which is taken to have succeeded.
pub(crate) fn is_end_assumed(call: &gp_call) -> bool {
    call.flags & UNOBSERVED_AND_BEGUN == number::CALL_UNOBSERVED
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fmt::Debug;

    use gpuprobe_event::counters::{self, CopyDirection, GapKind, HostMemory};
    use gpuprobe_event::driver::DeviceKind;
    use gpuprobe_event::{Launch, LossCause, Space, decode};

    use super::*;

    #[test]
    fn limits_are_the_same_in_bpf_and_user_space() {
        assert_eq!(number::OUTS, decode::MAX_OUTS);
        assert_eq!(number::STACK_WORDS, decode::MAX_STACK_WORDS);
        assert_eq!(number::POINTEE, decode::MAX_POINTEE);
        assert_eq!(number::BUCKETS, counters::LATENCY_BUCKETS);
        assert_eq!(number::MOST_LAUNCHED as u64, Launch::MOST_KERNELS);
    }

    /// The members of an enum without `GP_` and the prefix, in the order of their numbers: 0, 1, 2 and so on.
    pub(crate) fn members(name: &str, prefix: &str) -> Vec<&'static str> {
        let (_, members) = ENUMS.iter().find(|(found, _)| *found == name).unwrap();
        let own = |(index, (member, value)): (usize, &(&'static str, u64))| {
            assert_eq!(index as u64, *value, "{member}");
            let member = member.trim_start_matches("GP_");
            member.strip_prefix(prefix).unwrap_or(member)
        };
        members.iter().enumerate().map(own).collect()
    }

    /// `AfterSync` is `AFTER_SYNC`.
    fn in_capitals(variant: impl Debug) -> String {
        let mut name = String::new();
        for letter in format!("{variant:?}").chars() {
            if letter.is_uppercase() && !name.is_empty() {
                name.push('_');
            }
            name.push(letter.to_ascii_uppercase());
        }
        name
    }

    fn all_in_capitals<T: Debug + Copy>(variants: &[T]) -> Vec<String> {
        variants.iter().copied().map(in_capitals).collect()
    }

    #[test]
    fn causes_of_loss_are_the_same_in_bpf_and_user_space() {
        let members = members("gp_loss", "LOSS_");
        let (last, causes) = members.split_last().unwrap();
        assert_eq!(*last, "CAUSES");
        for (index, name) in causes.iter().enumerate() {
            assert_eq!(LossCause::from_index(index).unwrap().as_str(), name.to_ascii_lowercase());
        }
    }

    #[test]
    fn kinds_of_memory_devices_and_gaps_are_the_same_in_bpf_and_user_space() {
        let spaces = members("gp_space", "SPACE_");
        let (last, spaces) = spaces.split_last().unwrap();
        assert_eq!(*last, "SPACES");
        assert_eq!(spaces, all_in_capitals(&Space::ALL));
        assert_eq!(members("gp_device_kind", "DEVICE_"), all_in_capitals(&DeviceKind::ALL));
        let gaps = members("gp_gap_kind", "");
        let (last, gaps) = gaps.split_last().unwrap();
        assert_eq!(*last, "GAP_KINDS");
        assert_eq!(gaps, all_in_capitals(GapKind::ALL));
    }

    #[test]
    fn kinds_of_copies_are_the_same_in_bpf_and_user_space() {
        let kinds = members("gp_copy_kind", "");
        let (directions, rules) = kinds.split_at(CopyDirection::ALL.len());
        assert_eq!(rules, ["BY_ARGUMENT", "BY_ADDRESS"]);
        for (member, direction) in directions.iter().zip(CopyDirection::ALL) {
            let names = [direction.as_str().to_owned(), in_capitals(direction)];
            assert!(names.iter().any(|name| name == member.trim_end_matches("_COPY")), "{member} {names:?}");
        }
        let hosts = members("gp_host_memory", "");
        let own: Vec<_> = hosts.iter().map(|host| host.trim_end_matches("_HOST")).collect();
        let ours = HostMemory::ALL.iter().map(|host| match host {
            HostMemory::Nothing => "NO".to_owned(),
            host => in_capitals(host),
        });
        assert_eq!(own, ours.collect::<Vec<_>>());
    }

    #[test]
    fn constants_have_the_type_of_their_fields() {
        let call =
            gp_call { kind: number::RECORD_CALL, flags: number::CALL_NESTED_ACTION, ..gp_call::default() };
        assert_eq!((call.kind, call.flags), (1, 64));
        assert_eq!((number::NO_DEVICE, number::ACTION_ALLOC, number::SPACES), (255u8, 1u8, 6u8));
        assert_eq!((number::NO_STACKS, number::STACK_WORDS), (1u32, 12usize));
        assert_eq!(derived::SCRAMBLE, 0x9e37_79b9_7f4a_7c15);
        // user space makes the fingerprints of code objects in the same way
        assert_eq!(derived::SCRAMBLE, gpuprobe_discover::python::FINGERPRINT_FACTOR);
        assert_eq!(number::PYTHON_TABLE_WORDS, gpuprobe_discover::python::FINGERPRINT_TABLE_WORDS);
        assert_eq!(number::PYTHON_FILE_WORDS, gpuprobe_discover::python::FINGERPRINT_FILE_WORDS);
    }

    #[test]
    fn short_records_are_filled_with_zero() {
        let call: gp_call = from_bytes(&[1, 0, 0, 0, 9, 0, 0, 0, 77]);
        assert_eq!((call.kind, call.function, call.id, call.pointee.bytes()[159]), (1, 9, 77, 0));
        assert_eq!(as_bytes(&call).len(), size_of::<gp_call>());
    }
}
