//! `gpuprobe run`, `record` and `report`: what is in a recording.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod call_arguments;
mod command_user;
mod examples;
mod full_speed;
mod internal_calls;
mod launch_records;
mod loss;
mod record_command;
mod report_command;
mod run_command;
mod stacks_of_calls;
mod stop_instant;
