//! The rows of the catalogue for system calls on NVIDIA device files.

use gpuprobe_event::{Api, FunctionId, catalogue};

use super::number;

/// The first system call in the catalogue. They are in the order of `gp_device_syscall`.
pub(crate) fn first_row() -> Option<FunctionId> {
    catalogue().lookup(Api::Kernel, None, "ioctl").map(|f| f.id)
}

/// The number of a system call, if this row is one.
pub(crate) fn call_of(id: FunctionId) -> Option<u32> {
    id.0.checked_sub(first_row()?.0).filter(|call| *call < number::DEVICE_SYSCALLS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::tests::members;

    #[test]
    fn system_calls_are_in_the_order_of_the_catalogue() {
        let members = members("gp_device_syscall", "");
        let (last, calls) = members.split_last().unwrap();
        assert_eq!(*last, "DEVICE_SYSCALLS");
        let first = first_row().unwrap().0;
        for (id, name) in (first..).zip(calls) {
            assert_eq!(catalogue().get(FunctionId(id)).unwrap().name, name.to_ascii_lowercase());
        }
    }
}
