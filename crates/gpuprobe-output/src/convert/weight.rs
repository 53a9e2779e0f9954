//! What the numbers of folded stacks count.

use gpuprobe_analysis::{Slice, site_calls};

/// What the numbers of folded stacks count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Weight {
    /// Microseconds in a call itself, without the calls inside it.
    #[default]
    Time,
    /// Microseconds in calls that wait for the GPU.
    Waiting,
    /// Launches of CUDA kernels and graphs.
    Launches,
    /// Calls.
    Calls,
    /// Bytes allocated.
    Allocated,
}

impl Weight {
    pub const ALL: [Self; 5] = [Self::Time, Self::Waiting, Self::Launches, Self::Calls, Self::Allocated];

    /// The name on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Time => "time",
            Self::Waiting => "waiting",
            Self::Launches => "launches",
            Self::Calls => "calls",
            Self::Allocated => "allocated",
        }
    }

    /// The weight of a call, and of those that it stands for if it was sampled; of times, in nanoseconds.
    pub(super) fn of(self, slice: &Slice) -> u64 {
        let call = &slice.call;
        let of_one = match self {
            Self::Time => slice.end_ns.saturating_sub(slice.start_ns),
            Self::Waiting => site_calls::waiting_ns(call).unwrap_or(0),
            Self::Launches => site_calls::launches(call),
            Self::Calls => 1,
            Self::Allocated if call.took_effect() => call.effect.allocation().map_or(0, |made| made.bytes),
            Self::Allocated => 0,
        };
        of_one.saturating_mul(u64::from(call.weight))
    }

    /// Whether the outermost of several calls with a weight stands for those inside it: one launch of the CUDA runtime
    /// is one of the CUDA driver as well.
    pub(super) fn is_of_outermost(self) -> bool {
        matches!(self, Self::Waiting | Self::Launches | Self::Allocated)
    }

    /// The number in the output.
    pub(super) fn shown(self, sum: u64) -> u64 {
        match self {
            // a stack that took any time is shown with 1 us at least
            Self::Time | Self::Waiting => (sum.saturating_add(500) / 1000).max(1),
            Self::Launches | Self::Calls | Self::Allocated => sum,
        }
    }
}

#[cfg(test)]
mod tests {
    use gpuprobe_event::trace::{Line, Reader};

    use super::*;
    use crate::{Conversion, Target};

    const TRACE: &str = r#"{"type":"meta","format":3,"gpuprobe":"0.1.0","host":"node","kernel":"6.18.0","clock":"monotonic","start_unix":1.0,"command":[]}
{"event_id":1,"ts":0.000010,"type":"launch","name":"cuLaunchKernel","phase":"X","pid":7,"tid":7,"process":"p","duration_us":2.000,"api":"driver","ret":0,"weight":4}
{"event_id":2,"ts":0.000020,"type":"sync","name":"cuStreamSynchronize","phase":"X","pid":7,"tid":7,"process":"p","duration_us":5.000,"api":"driver","ret":0,"weight":3}
{"event_id":3,"ts":0.000040,"type":"memory","name":"cuMemAlloc_v2","phase":"X","pid":7,"tid":7,"process":"p","duration_us":1.000,"api":"driver","ret":0,"weight":5,"size":100,"ptr":"0x10","kind":"device"}
{"event_id":4,"ts":0.000050,"type":"memory","name":"cuMemAlloc_v2","phase":"X","pid":7,"tid":7,"process":"p","duration_us":1.000,"api":"driver","ret":2,"error":"CUDA_ERROR_OUT_OF_MEMORY","weight":2,"size":900,"kind":"device"}
{"event_id":5,"ts":0.000061,"type":"launch","name":"cuLaunchKernel","phase":"X","pid":7,"tid":7,"process":"p","duration_us":1.000,"api":"driver","ret":0,"parent":6,"nested":true,"weight":4}
{"event_id":6,"ts":0.000060,"type":"launch","name":"cudaLaunchKernel","phase":"X","pid":7,"tid":7,"process":"p","duration_us":9.000,"api":"runtime","ret":0}
"#;

    fn folded(weight: Weight) -> Vec<(String, u64)> {
        let mut reader = Reader::new(TRACE.as_bytes()).unwrap();
        let mut out = Vec::new();
        let mut conversion = Conversion::new(Target::Folded(weight), reader.meta(), &mut out).unwrap();
        while let Some(line) = reader.read().unwrap() {
            let Line::Event(event) = line else { continue };
            conversion.feed(event).unwrap();
        }
        conversion.finish(None).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines = text.lines().map(|line| {
            let (stack, n) = line.rsplit_once(' ').unwrap();
            (stack.splitn(3, ';').last().unwrap().to_owned(), n.parse().unwrap())
        });
        lines.collect()
    }

    #[test]
    fn a_call_counts_for_all_calls_that_it_stands_for() {
        let expect = |weight, expected: &[(&str, u64)]| {
            let expected: Vec<_> = expected.iter().map(|(stack, n)| ((*stack).to_owned(), *n)).collect();
            assert_eq!(folded(weight), expected, "{weight:?}");
        };
        let inner = "cudaLaunchKernel;cuLaunchKernel";
        // the calls inside may be estimated to take longer than the call around them
        expect(
            Weight::Time,
            &[
                ("cuLaunchKernel", 8),
                ("cuMemAlloc_v2", 7),
                ("cuStreamSynchronize", 15),
                ("cudaLaunchKernel", 5),
                (inner, 4),
            ],
        );
        expect(
            Weight::Calls,
            &[
                ("cuLaunchKernel", 4),
                ("cuMemAlloc_v2", 7),
                ("cuStreamSynchronize", 3),
                ("cudaLaunchKernel", 1),
                (inner, 4),
            ],
        );
        expect(Weight::Launches, &[("cuLaunchKernel", 4), ("cudaLaunchKernel", 1)]);
        expect(Weight::Waiting, &[("cuStreamSynchronize", 15)]);
        expect(Weight::Allocated, &[("cuMemAlloc_v2", 500)]);
    }
}
