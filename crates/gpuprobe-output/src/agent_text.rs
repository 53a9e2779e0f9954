//! Words for the states of the agent inside a process.

use gpuprobe_event::agent::Collection;

/// What a state means.
pub(crate) fn sentence(collection: Collection) -> &'static str {
    match collection {
        Collection::Collecting => "GPU times are collected",
        Collection::Stopped => "GPU times are no longer collected",
        Collection::Refused => "GPU times cannot be collected",
        Collection::LetGo => "GPU times are no longer collected, because another tool uses CUPTI",
        Collection::Failed => "the collection of GPU times failed",
    }
}
