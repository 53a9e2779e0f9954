//! Functions of the kernel: what the driver's are for, by parts of their names.

use crate::catalogue::{Class, Function, ResultKind, Roles};
use crate::{Api, FunctionId};

/// Parts of the names of functions that decide what runs next, switch to it, or serve a fault.
const SCHEDULER: [&str; 10] = [
    "sched",
    "runlist",
    "timeslice",
    "preempt",
    "ctxsw",
    "ctx_switch",
    "context_switch",
    "channel_switch",
    "task_switch",
    "fault",
];

/// Functions that are called all the time and say little; with a star, those that begin so.
const NOISY: [&str; 3] = ["nvidia_poll", "nv_post_event", "nvidia_isr*"];

/// What a function of the kernel is for.
pub fn function_class(name: &str) -> Class {
    // a default is no fault
    let name = name.to_ascii_lowercase().replace("default", "");
    let is_scheduler = SCHEDULER.iter().any(|part| name.contains(part));
    if is_scheduler { Class::Scheduler } else { Class::Driver }
}

/// Whether a function is called so often, and says so little, that only its own name asks for it.
pub fn is_noisy(name: &str) -> bool {
    NOISY.iter().any(|noisy| match noisy.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => name == *noisy,
    })
}

/// The row of a function of the kernel. Its arguments are the kernel's own and not told.
pub fn function_row(
    id: FunctionId,
    name: &'static str,
    (result, result_type): (ResultKind, &'static str),
) -> Function {
    Function {
        id,
        api: Api::Kernel,
        name,
        base: name,
        versions: "",
        result,
        result_type,
        args: None,
        class: function_class(name),
        roles: Roles::default(),
        pointee: None,
        hot: is_noisy(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_that_switch_and_serve_faults_are_the_schedulers() {
        let names = ["uvm_perf_thrashing_fault", "nv_sched_runlist", "kfifoRunlistSet", "schedule"];
        assert!(names.iter().all(|name| function_class(name) == Class::Scheduler));
        assert!(
            ["nvidia_ioctl", "uvm_va_block_map", "nv_set_default"]
                .iter()
                .all(|name| function_class(name) == Class::Driver)
        );
    }

    #[test]
    fn what_is_noisy_is_known_by_name_or_beginning() {
        assert!(["nvidia_poll", "nv_post_event", "nvidia_isr_kthread_bh"].iter().all(|name| is_noisy(name)));
        assert!(!is_noisy("nvidia_polling") && !is_noisy("nvidia_ioctl"));
    }
}
