//! `gpuprobe daemon`: its figures, its endpoint and its settings.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod daemon_figures;
mod daemon_http;
mod failure_points;
mod failures;
mod given_processes;
mod nvml;
mod pending_calls;
mod recordings_on_demand;
mod settings;
