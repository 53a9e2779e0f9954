//! Figures of a live view for successive readings.

use super::reading::{
    BudgetReading, CopyReading, FailureReading, FunctionReading, GpuOpsReading, KernelReading,
    ProcessReading, Reading, SampledReading,
};
use super::{LiveView, ProcessId, ProcessRow};

const SECOND: u64 = 1_000_000_000;

fn function(api: &str, function: &str, class: &str, total_ns: u64) -> FunctionReading {
    let (api, function, class) = (api.to_owned(), function.to_owned(), class.to_owned());
    FunctionReading { api, function, class, calls: 1, total_ns, ..FunctionReading::default() }
}

fn reading(unix_seconds: f64, functions: Vec<FunctionReading>) -> Reading {
    let name = "app".to_owned();
    let process = ProcessReading { pid: 7, instance: 1, name, functions, ..ProcessReading::default() };
    Reading { unix_seconds, processes: vec![process], ..Reading::default() }
}

/// One process that waits, with the time of its returned waits and of its pending ones.
fn waits(unix_seconds: f64, returned_ns: u64, open_ns: u64) -> Reading {
    let functions = vec![function("driver", "cuStreamSynchronize", "sync", returned_ns)];
    let mut reading = reading(unix_seconds, functions);
    reading.processes[0].open_ns = open_ns;
    reading
}

fn row_after(view: &mut LiveView, reading: Reading) -> ProcessRow {
    view.take(reading);
    view.view().processes.remove(0)
}

/// A call of seven seconds, read every two: each second of it is counted once, in its own interval.
#[test]
fn a_call_that_takes_longer_than_an_update_is_counted_in_each() {
    let mut view = LiveView::new(0, 60);
    let readings = [
        (waits(10.0, SECOND, 0), None),
        (waits(12.0, SECOND, SECOND), Some(0.5)),
        (waits(14.0, SECOND, 3 * SECOND), Some(1.0)),
        (waits(16.0, SECOND, 5 * SECOND), Some(1.0)),
        // it has returned, and another one has begun
        (waits(18.0, 8 * SECOND, SECOND / 2), Some(1.25)),
        (waits(20.0, 9 * SECOND, 0), Some(0.25)),
        (waits(22.0, 9 * SECOND, 0), Some(0.0)),
    ];
    let expected: Vec<_> = readings.iter().map(|(_, share)| *share).collect();
    let shares: Vec<_> =
        readings.into_iter().map(|(reading, _)| row_after(&mut view, reading).calls_share).collect();
    assert_eq!(shares, expected);
    // it exits in a call, whose time is never counted
    view.take(waits(24.0, 9 * SECOND, 2 * SECOND));
    let mut exited = waits(26.0, 9 * SECOND, 0);
    exited.processes[0].exited_at_ns = Some(1);
    assert_eq!(row_after(&mut view, exited).calls_share, Some(0.0));
}

#[test]
fn calls_of_the_driver_inside_of_other_calls_are_counted_once() {
    let functions = |ns: u64| {
        vec![
            function("driver", "cuLaunchKernel", "launch", ns),
            function("nccl", "ncclAllReduce", "comm", 10 * ns),
            function("kernel", "ioctl", "other", ns),
        ]
    };
    let mut view = LiveView::new(0, 60);
    view.take(reading(1.0, functions(0)));
    assert_eq!(row_after(&mut view, reading(3.0, functions(SECOND))).calls_share, Some(0.5));
}

/// Every figure of a function that is sampled is marked, and no other.
#[test]
fn figures_of_sampled_functions_are_estimates() {
    let functions = vec![
        function("driver", "cuLaunchKernel", "launch", 1),
        function("driver", "cuMemcpyHtoD_v2", "memcpy", 1),
        function("driver", "cuMemAlloc_v2", "alloc", 1),
    ];
    let mut latest = reading(1.0, functions);
    let failure = |function: &str| FailureReading {
        function: function.to_owned(),
        count: 1,
        ..FailureReading::default()
    };
    latest.processes[0].failures = vec![failure("cuMemAlloc_v2")];
    latest.processes[0].gpu_ops = GpuOpsReading {
        kernels: vec![KernelReading::default()],
        copies: vec![CopyReading::default()],
        ..GpuOpsReading::default()
    };
    let marks = |sampled: &str, reading: &Reading| {
        let mut view = LiveView::new(0, 60);
        let sampled = vec![SampledReading { function: sampled.to_owned() }];
        let budget = Some(BudgetReading { sampled, ..BudgetReading::default() });
        let row = row_after(&mut view, Reading { budget, ..reading.clone() });
        let of_row = [
            row.has_estimated_launches,
            row.has_estimated_copies,
            row.has_estimated_calls,
            row.has_estimated_errors,
        ];
        let details = view.details(ProcessId { host: 0, pid: 7, instance: 1 }).unwrap();
        let of_details =
            [details.kernels[0].is_estimated, details.copies[0].is_estimated, details.errors[0].is_estimated];
        (of_row, of_details)
    };
    assert_eq!(marks("cuLaunchKernel", &latest), ([true, false, true, false], [true, false, false]));
    assert_eq!(marks("cuMemcpyHtoD_v2", &latest), ([false, true, true, false], [false, true, false]));
    assert_eq!(marks("cuCtxSynchronize", &latest), ([false; 4], [false; 3]));
    latest.processes[0].failures = vec![failure("cuLaunchKernel")];
    assert_eq!(marks("cuLaunchKernel", &latest), ([true, false, true, true], [true, false, true]));
}
