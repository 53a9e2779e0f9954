//! What `--gpu-time` finds on this machine.

use std::path::{Path, PathBuf};

use gpuprobe_discover::{gpu_processes, gpu_time_libraries};
use serde_json::{Value, json};

use crate::session::gpu_time::agent_file::{self, CUDA_INJECTION};

/// The agent's file, and the processes that have loaded it.
pub(super) struct GpuTimeSupport {
    /// The file, or why there is none.
    agent: Result<PathBuf, String>,
    loaded: Vec<u32>,
    /// The process that was asked about.
    pid: Option<u32>,
}

impl GpuTimeSupport {
    pub(super) fn find(proc_root: &Path, pid: Option<u32>) -> Self {
        let has_agent =
            |pid: &u32| gpu_time_libraries(proc_root, *pid).is_ok_and(|found| found.agent.is_some());
        let asked = pid.map_or_else(|| gpu_processes(proc_root), |pid| vec![pid]);
        Self {
            agent: agent_file::find().map_err(|error| error.to_string()),
            loaded: asked.into_iter().filter(has_agent).collect(),
            pid,
        }
    }

    pub(super) fn text(&self) -> String {
        let how = |path: &Path| format!("start it with {CUDA_INJECTION}={}", path.display());
        match (&self.agent, self.pid, &*self.loaded) {
            (_, Some(pid), [_]) => {
                format!("process {pid} has loaded the agent: `record -d {pid} --gpu-time`")
            }
            (Ok(path), Some(pid), _) => format!("process {pid} has not loaded the agent: {}", how(path)),
            (Ok(path), None, []) => format!("agent {}; no process has loaded it", path.display()),
            (Ok(path), None, loaded) => {
                let pids: Vec<String> = loaded.iter().map(u32::to_string).collect();
                format!("agent {}, loaded by {}", path.display(), pids.join(", "))
            }
            (Err(why), ..) => format!("none (optional): {}", why.trim_start_matches("--gpu-time: ")),
        }
    }

    pub(super) fn json(&self) -> Value {
        json!({"agent": self.agent.as_ref().ok(), "loaded": self.loaded})
    }
}
