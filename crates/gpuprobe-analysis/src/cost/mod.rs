//! What probing costs: measured by the benchmark, predicted for running processes, and limited by a budget.

pub mod benchmark;
pub mod budget;
pub mod prediction;
