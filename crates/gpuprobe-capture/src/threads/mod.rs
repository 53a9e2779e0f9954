//! Samples the threads of processes with a BPF task iterator: no probes, no ptrace, and nothing is stopped.

mod return_watch;
mod thread_iterator;
mod thread_resolver;
mod thread_sampler;

pub use thread_iterator::ThreadIterator;
pub use thread_sampler::{SampledThreads, ThreadSampler, ThreadSamples};
