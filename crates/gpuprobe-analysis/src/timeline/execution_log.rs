//! Individual executions for a timeline that can be zoomed. Of too many, the longest are kept.

use gpuprobe_event::Execution;

/// The executions of a recording, or the longest of them.
#[derive(Debug, Default)]
pub struct ExecutionLog {
    /// Longest first in a finished log.
    pub executions: Vec<Execution>,
    /// The number of executions that are not in `executions`.
    pub left_out: u64,
    /// All executions that took longer than this are in `executions`.
    pub left_out_ns: u64,
}

impl ExecutionLog {
    const MOST: usize = 30_000;

    pub(crate) fn take(&mut self, execution: &Execution) {
        if self.left_out > 0 && execution.duration_ns() <= self.left_out_ns {
            self.left_out += 1;
            return;
        }
        self.executions.push(execution.clone());
        if self.executions.len() > 2 * Self::MOST {
            self.shrink();
        }
    }

    pub(crate) fn finish(mut self) -> Self {
        self.shrink();
        self
    }

    /// Keeps the longest ones.
    fn shrink(&mut self) {
        self.executions.sort_by_key(|one| (std::cmp::Reverse(one.duration_ns()), one.start_ns));
        if let Some(longest) = self.executions.get(Self::MOST) {
            self.left_out_ns = longest.duration_ns().max(self.left_out_ns);
            // those as long as the longest one dropped are dropped too, so that the limit is a duration
            let kept = self.executions.partition_point(|one| one.duration_ns() > self.left_out_ns);
            self.left_out += (self.executions.len() - kept) as u64;
            self.executions.truncate(kept);
        }
    }
}

#[cfg(test)]
mod tests {
    use gpuprobe_event::{ExecutionKind, Tgid};

    use super::*;

    #[test]
    fn of_too_many_executions_the_longest_are_kept() {
        let mut log = ExecutionLog::default();
        let count = 250_007;
        for at in 0..count {
            let start_ns = at * 1_000_000;
            log.take(&Execution {
                id: at,
                tgid: Tgid(1),
                process: "app".into(),
                kind: ExecutionKind::Graph,
                start_ns,
                // every duration once, in no order
                end_ns: start_ns + at * 7919 % count,
                gpu: 0,
                context: 1,
                stream: 7,
                correlation: 1,
                graph: None,
                submission: None,
            });
        }
        let log = log.finish();
        assert_eq!(log.executions.len() as u64 + log.left_out, count);
        assert!(log.executions.len() <= ExecutionLog::MOST && log.executions.len() > ExecutionLog::MOST / 2);
        assert!(log.executions.iter().all(|one| one.duration_ns() > log.left_out_ns));
    }
}
