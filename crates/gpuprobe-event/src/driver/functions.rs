//! Catalogue rows for functions and tracepoints of the Linux kernel, classified by parts of their names.

use crate::catalogue::{Class, Function, ResultKind, Roles};
use crate::hook::Signature;
use crate::{Api, FunctionId};

/// System calls on the NVIDIA devices: the rows of `kernel.tbl`.
const SYSTEM_CALLS: [&str; 4] = ["ioctl", "mmap", "open", "poll"];

/// Parts of the names of functions that schedule, switch contexts or handle faults.
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

/// Functions that are called very often and carry little information; a star matches any ending.
const NOISY: [&str; 3] = ["nvidia_poll", "nv_post_event", "nvidia_isr*"];

/// The class of a function of the Linux kernel.
pub fn function_class(name: &str) -> Class {
    // "default" contains "fault"
    let name = name.to_ascii_lowercase().replace("default", "");
    let is_scheduler = SCHEDULER.iter().any(|part| name.contains(part));
    if is_scheduler { Class::Scheduler } else { Class::Driver }
}

/// Whether a function is called so often, and with so little information, that it is probed only if named exactly.
pub fn is_noisy(name: &str) -> bool {
    NOISY.iter().any(|noisy| match noisy.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => name == *noisy,
    })
}

/// Whether a row is a system call on the NVIDIA devices, and not a function.
pub fn is_system_call(name: &str) -> bool {
    SYSTEM_CALLS.contains(&name)
}

/// The row of a function of the Linux kernel. Its arguments are shown if a hook names them. `returned` is the result
/// according to the kernel's type information; a hook with another kind of result overrides it.
pub fn function_row(
    id: FunctionId,
    name: &'static str,
    returned: (ResultKind, &'static str),
    hook: Option<&Signature>,
) -> Function {
    let row = Function {
        id,
        api: Api::Kernel,
        name,
        base: name,
        versions: "",
        result: returned.0,
        result_type: returned.1,
        args: None,
        class: function_class(name),
        roles: Roles::default(),
        pointee: None,
        hot: is_noisy(name),
    };
    let Some(hook) = hook else { return row };
    let hooked = Some((hook.result, hook.result_type)).filter(|hooked| hooked.0 != ResultKind::Unknown);
    let hooked = hooked.filter(|hooked| hooked.0 != returned.0);
    let (result, result_type) = hooked.unwrap_or(returned);
    let class = if hook.class == Class::Other { row.class } else { hook.class };
    Function { result, result_type, class, args: hook.args.clone(), pointee: hook.pointee, ..row }
}

/// The row of a tracepoint.
pub fn tracepoint_row(id: FunctionId, name: &'static str, hook: &Signature) -> Function {
    let class = if hook.class == Class::Other { Class::Driver } else { hook.class };
    Function { class, hot: false, ..function_row(id, name, (ResultKind::Moment, ""), Some(hook)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_that_switch_contexts_or_handle_faults_are_of_the_scheduler() {
        let names = ["uvm_perf_thrashing_fault", "nv_sched_runlist", "kfifoRunlistSet", "schedule"];
        assert!(names.iter().all(|name| function_class(name) == Class::Scheduler));
        assert!(
            ["nvidia_ioctl", "uvm_va_block_map", "nv_set_default"]
                .iter()
                .all(|name| function_class(name) == Class::Driver)
        );
    }

    #[test]
    fn noisy_functions_are_known_by_name_or_prefix() {
        assert!(["nvidia_poll", "nv_post_event", "nvidia_isr_kthread_bh"].iter().all(|name| is_noisy(name)));
        assert!(!is_noisy("nvidia_polling") && !is_noisy("nvidia_ioctl"));
    }
}
