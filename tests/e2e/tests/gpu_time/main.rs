//! GPU times: what the stand-in CUPTI reports is compared with its ledger.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod cupti_failures;
mod endings;
mod impossible_gpu_times;
mod live_lines;
mod nvtx;
mod other_users;
mod records;
mod running;
mod sampled_seconds;
mod work;
