//! What the threads of processes wait for, and which process of a job differs from the others.

pub mod sample;
