//! Functions of the kernel: what the driver's are for, by parts of their names.

use crate::catalogue::{Class, Function, ResultKind, Roles};
use crate::hook::Signature;
use crate::{Api, FunctionId};

/// Calls of the kernel on the driver's devices: the rows of `kernel.tbl`.
const SYSTEM_CALLS: [&str; 4] = ["ioctl", "mmap", "open", "poll"];

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

/// Whether a row of the kernel is a call on the driver's devices, and no function.
pub fn is_system_call(name: &str) -> bool {
    SYSTEM_CALLS.contains(&name)
}

/// The row of a function of the kernel. Its arguments are the kernel's own, and told where the user has named them; what
/// it returns the kernel knows best.
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
    let said = Some((hook.result, hook.result_type)).filter(|said| said.0 != ResultKind::Unknown);
    let said = said.filter(|said| said.0 != returned.0);
    let (result, result_type) = said.unwrap_or(returned);
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
