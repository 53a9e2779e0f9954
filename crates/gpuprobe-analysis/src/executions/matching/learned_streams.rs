//! Which of CUPTI's numbers a stream has. CUPTI does not say it, but matched executions show it.

use std::collections::HashMap;

use gpuprobe_event::Tid;
use gpuprobe_event::agent::{Activity, ActivityKind};

use super::correlated::Correlated;
use crate::executions::submission::Submission;

/// A stream as calls name it: its handle, and the thread if the handle may mean another stream in each thread.
type StreamKey = (u64, Option<Tid>);
/// A stream as CUPTI names it: the numbers of its context and of the stream in it.
type StreamNumber = (u32, u32);

/// How the streams of a submission and of an execution compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Agreement {
    Differs,
    Unknown,
    Agrees,
}

#[derive(Clone, Copy, Debug)]
struct Learned {
    number: StreamNumber,
    /// How many matches more confirmed than contradicted it.
    strength: u32,
}

/// What matches have shown about the streams of a process.
#[derive(Clone, Debug, Default)]
pub(super) struct LearnedStreams {
    numbers: HashMap<StreamKey, Learned>,
    /// The handle of each number that is certain.
    handles: HashMap<StreamNumber, u64>,
}

impl LearnedStreams {
    const MOST: usize = 1 << 12;
    const CERTAIN: u32 = 4;
    const STRONGEST: u32 = 16;

    pub(super) fn agreement(&self, submission: &Submission, executed: &Correlated) -> Agreement {
        let Some(key) = key_of(submission) else { return Agreement::Unknown };
        // a graph may use other streams beside that of its launch
        executed
            .activities
            .iter()
            .map(|(activity, _)| self.compare(key, activity))
            .max()
            .unwrap_or(Agreement::Unknown)
    }

    fn compare(&self, key: StreamKey, activity: &Activity) -> Agreement {
        let number = (activity.context, activity.stream);
        match self.numbers.get(&key).filter(|known| known.strength >= Self::CERTAIN) {
            Some(known) if known.number == number => Agreement::Agrees,
            Some(_) => Agreement::Differs,
            // one stream has one handle
            None if self.handles.get(&number).is_some_and(|handle| *handle != key.0) => Agreement::Differs,
            None => Agreement::Unknown,
        }
    }

    /// An execution was matched with this submission. Some matches are wrong, and a handle may get another stream after
    /// its own was destroyed, so most matches decide.
    pub(super) fn learn(&mut self, submission: &Submission, executed: &Correlated) {
        let (Some(key), Some(number)) = (key_of(submission), number_of(executed)) else { return };
        if self.numbers.len() >= Self::MOST && !self.numbers.contains_key(&key) {
            (self.numbers, self.handles) = (HashMap::new(), HashMap::new());
        }
        let known = self.numbers.entry(key).or_insert(Learned { number, strength: 0 });
        if known.number == number {
            known.strength = (known.strength + 1).min(Self::STRONGEST);
        } else if known.strength > 1 {
            known.strength -= 1;
        } else {
            *known = Learned { number, strength: 1 };
        }
        if is_of_one_stream(key.0) && known.strength == Self::CERTAIN {
            self.handles.insert(known.number, key.0);
        }
    }
}

/// The handles 0, 1 and 2 are the default streams, of the thread or of the current context.
fn is_of_one_stream(handle: u64) -> bool {
    handle > 2
}

fn key_of(submission: &Submission) -> Option<StreamKey> {
    let handle = submission.stream?;
    Some((handle, Some(submission.tid).filter(|_| !is_of_one_stream(handle))))
}

/// The stream of an execution, if it is certainly that of its call.
fn number_of(executed: &Correlated) -> Option<StreamNumber> {
    let (first, _) = executed.activities.first()?;
    let is_launch = first.graph == 0 || first.kind == ActivityKind::Graph;
    is_launch.then_some((first.context, first.stream))
}
