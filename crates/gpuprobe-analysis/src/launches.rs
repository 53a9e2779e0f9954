//! Kernel and graph launches. A launch call's time is not GPU time, so only their number is told here.

use gpuprobe_event::{Call, Class};
use serde::Serialize;

/// Launches that succeeded, each counted once at its outermost call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LaunchSummary {
    /// Calls that launch a kernel.
    pub kernels: u64,
    /// Calls that launch a graph, whatever it holds.
    pub graphs: u64,
}

impl LaunchSummary {
    pub(crate) fn feed(&mut self, call: &Call) {
        if call.parent.is_some() || call.duration_ns().is_none() || call.failed() {
            return;
        }
        match call.class {
            Class::Launch => self.kernels += 1,
            Class::GraphLaunch => self.graphs += 1,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use gpuprobe_event::Api;

    use super::*;
    use crate::samples::{call, inside};

    #[test]
    fn a_launch_is_counted_once_at_its_outermost_call() {
        let launch = |api, status| Call { class: Class::Launch, ..call(api, "launch", status) };
        let mut launches = LaunchSummary::default();
        launches.feed(&inside(launch(Api::Driver, 0), 1));
        launches.feed(&launch(Api::Runtime, 0));
        launches.feed(&launch(Api::Runtime, 700));
        launches.feed(&Call { class: Class::GraphLaunch, ..launch(Api::Runtime, 0) });
        assert_eq!(launches, LaunchSummary { kernels: 1, graphs: 1 });
    }
}
