use gpuprobe_event::{DeviceSyscall, Effect};

use super::*;
use crate::recording::functions::Functions;
use crate::samples::{call, inside, took, unfinished};

/// An ioctl with this command and duration.
fn ioctl(id: u64, command: impl Into<Name>, ns: u64) -> Call {
    let device = Some(Name::Borrowed("nvidiactl"));
    let effect = Effect::DeviceSyscall(DeviceSyscall { device, command: Some(command.into()) });
    Call { id, effect, class: Class::Driver, ..took(call(Api::Kernel, "ioctl", 0), ns) }
}

fn fed(calls: &[Call]) -> KernelModuleSummary {
    let (mut driver, mut functions) = (KernelModuleCalls::default(), Functions::default());
    for call in calls {
        driver.feed(call);
        if !call.is_in_linux() {
            functions.feed(call);
        }
    }
    driver.report(&functions.report())
}

fn cuda(api: Api, name: &'static str, id: u64, ns: u64) -> Call {
    Call { id, ..took(call(api, name, 0), ns) }
}

#[test]
fn time_in_the_kernel_module_counts_for_every_call_around_it() {
    let summary = fed(&[
        inside(ioctl(3, "NV_ESC_RM_ALLOC", 100), 2),
        inside(ioctl(4, "NV_ESC_RM_FREE", 30), 2),
        inside(cuda(Api::Driver, "cuMemAlloc_v2", 2, 200), 1),
        inside(ioctl(5, "NV_ESC_RM_FREE", 7), 1),
        cuda(Api::Runtime, "cudaMalloc", 1, 1000),
        cuda(Api::Runtime, "cudaMalloc", 6, 50),
    ]);
    let [outer, inner] = summary.layers.as_slice() else { panic!("{summary:?}") };
    assert_eq!((outer.name.as_ref(), outer.calls, outer.entered), ("cudaMalloc", 2, 1));
    assert_eq!((outer.driver, outer.total_ns, outer.user_ns()), (Spent { calls: 3, ns: 137 }, 1050, 913));
    assert_eq!((inner.name.as_ref(), inner.driver.ns, inner.user_ns()), ("cuMemAlloc_v2", 130, 70));
    let of = |layer: &Layer| -> Vec<_> {
        layer.commands.iter().map(|c| (c.command.to_string(), c.spent.ns)).collect()
    };
    let shares = [("NV_ESC_RM_ALLOC".to_owned(), 100), ("NV_ESC_RM_FREE".to_owned(), 37)];
    assert_eq!((of(outer).as_slice(), outer.other), (&shares[..], Spent::default()));
    assert_eq!(summary.calls_of("ioctl"), Spent { calls: 3, ns: 137 });
    assert_eq!((summary.outside, summary.scheduler()), (Spent::default(), None));
}

#[test]
fn a_kernel_function_inside_an_ioctl_is_not_added_again() {
    let function = |class| Call { id: 4, class, ..took(call(Api::Kernel, "uvm_va_block_migrate", 0), 60) };
    let summary = fed(&[
        inside(function(Class::Scheduler), 3),
        inside(ioctl(3, "UVM_MIGRATE", 100), 1),
        cuda(Api::Driver, "cuMemPrefetchAsync", 1, 300),
        function(Class::Driver),
    ]);
    assert_eq!(summary.layers[0].driver, Spent { calls: 1, ns: 100 });
    assert_eq!(summary.scheduler(), Some(Spent { calls: 2, ns: 120 }));
    assert_eq!(summary.outside, Spent { calls: 1, ns: 60 });
}

#[test]
fn an_instant_is_counted_but_is_no_request_to_the_kernel_module() {
    let instant = Call { outcome: Outcome::Instant, ..call(Api::Kernel, "sched:sched_switch", 0) };
    let summary = fed(&[inside(instant.clone(), 1), instant, cuda(Api::Driver, "cuInit", 1, 300)]);
    assert_eq!((summary.layers.len(), summary.outside), (0, Spent::default()));
    let [row] = summary.commands.as_slice() else { panic!("{summary:?}") };
    assert_eq!((row.calls, row.mean_ns(), row.p50_ns, row.total_ns), (2, None, None, 0));
}

#[test]
fn the_total_in_the_call_record_takes_precedence_over_the_calls_inside() {
    let recorded = DeviceTime { calls: 5, ns: 90 };
    let mut alloc = cuda(Api::Driver, "cuMemAlloc_v2", 1, 100);
    alloc.driver = Some(recorded);
    let summary = fed(&[inside(ioctl(2, "NV_ESC_RM_ALLOC", 60), 1), alloc.clone()]);
    let [layer] = summary.layers.as_slice() else { panic!("{summary:?}") };
    assert_eq!((layer.entered, layer.driver, layer.other), (1, recorded.into(), Spent { calls: 4, ns: 30 }));
    // also if no call into the kernel module was recorded
    let summary = fed(&[alloc]);
    assert_eq!((summary.layers[0].user_ns(), summary.layers[0].other), (10, recorded.into()));
    assert!(summary.commands.is_empty() && !summary.is_empty());
}

#[test]
fn waiting_outside_of_calls_is_summed_separately_and_comes_last() {
    let poll = Call { class: Class::Driver, ..took(call(Api::Kernel, "poll", 1), 100_000_000) };
    let failed = Call { error: Some("NV_ERR_INVALID_CLASS".into()), ..ioctl(2, "NV_ESC_RM_ALLOC", 10) };
    let open = unfinished(ioctl(4, "NV_ESC_RM_ALLOC", 0));
    let summary = fed(&[poll, failed, ioctl(3, "NV_ESC_RM_ALLOC", 30), open]);
    assert_eq!((summary.waited.calls, summary.waited.ns), (1, 100_000_000));
    assert_eq!(summary.outside, Spent { calls: 3, ns: 40 });
    let [alloc, poll] = summary.commands.as_slice() else { panic!("{summary:?}") };
    assert!(poll.waits() && !alloc.waits());
    assert_eq!((alloc.calls, alloc.failures, alloc.unfinished), (3, 1, 1));
    assert_eq!((alloc.mean_ns(), alloc.max_ns), (Some(20), 30));
}

#[test]
fn commands_and_open_calls_are_bounded() {
    let mut driver = KernelModuleCalls::default();
    for i in 0..MOST_OPEN as u64 + 10 {
        driver.feed(&inside(ioctl(i, format!("command {i}"), u64::MAX), 1 << 40 | i));
    }
    assert!(driver.open.len() <= MOST_OPEN);
    let summary = driver.report(&[]);
    assert_eq!(summary.commands.len(), MOST_COMMANDS + 1);
    assert_eq!(summary.calls_of("ioctl"), Spent { calls: MOST_OPEN as u64 + 10, ns: u64::MAX });
    driver.clear(Tgid(100));
    assert!(driver.open.is_empty());
}
