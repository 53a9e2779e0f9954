//! New settings for a daemon that runs. What is counted goes on: a setting that the kernel side was loaded with takes
//! effect when the daemon is started again, and that is told.

use std::time::Duration;

use super::{Daemon, open_endpoint};
use crate::cli::DaemonArgs;
use crate::notes::note;
use crate::settings;

impl Daemon {
    /// Reads the settings again. Where they are wrong, everything stays as it is.
    pub(super) fn reload(&mut self) {
        let words: Vec<_> = std::env::args_os().collect();
        if let Some(file) = self.args.config.as_ref().filter(|file| !file.exists()) {
            note!("gpuprobe: the settings stay as they were: {} is not there any more", file.display());
            return;
        }
        match settings::read(&words) {
            Ok(new) => self.apply(&new),
            Err(error) => note!("gpuprobe: the settings stay as they were: {error:#}"),
        }
    }

    fn apply(&mut self, new: &DaemonArgs) {
        let later = after_a_restart(&self.args, new);
        for path in new.paths.iter().filter(|path| !self.args.paths.contains(path)) {
            if let Err(error) = self.observer.probes.attach_file(path) {
                note!("gpuprobe: {error:#}");
            }
        }
        self.observer.set_warm_up(new.warm_up);
        self.observer.look_every(Duration::from_secs(new.rescan));
        self.observer.processes.keep_ended(new.max_ended, new.keep_ended);
        self.observer.probes.verbose = new.verbose;
        self.watch.look_every(new.rescan);
        let fixed = self.args.clone();
        self.args = DaemonArgs {
            paths: new.paths.clone(),
            warm_up: new.warm_up,
            rescan: new.rescan,
            max_ended: new.max_ended,
            keep_ended: new.keep_ended,
            verbose: new.verbose,
            refresh: new.refresh,
            display_interval: new.display_interval,
            ..fixed
        };
        self.serve_as(new);
        if later.is_empty() {
            note!("gpuprobe: settings read again");
        } else {
            note!("gpuprobe: settings read again; after a restart: {}", later.join(", "));
        }
    }

    /// Serves as these settings say; where that cannot be, as before.
    fn serve_as(&mut self, new: &DaemonArgs) {
        let of = |args: &DaemonArgs| (args.metrics_addr, args.web_config.clone());
        if of(&self.args) == of(new) && self.server.is_some() {
            return;
        }
        let DaemonArgs { metrics_addr, web_config, .. } = new.clone();
        let wanted = DaemonArgs { metrics_addr, web_config, ..self.args.clone() };
        // two cannot have the same address; another one is tried before the old is given up, which may not be had again
        if wanted.metrics_addr == self.args.metrics_addr {
            drop(self.server.take());
        }
        for args in [&wanted, &self.args.clone()] {
            let served = open_endpoint(args).and_then(|endpoint| {
                let url = endpoint.url();
                Ok((url, endpoint.serve(self.latest.clone())?))
            });
            match served {
                Ok((url, server)) => {
                    note!("gpuprobe: metrics on {url}/metrics");
                    self.server = Some(server);
                    self.args = args.clone();
                    return;
                }
                Err(error) => note!("gpuprobe: {error:#}"),
            }
            if self.server.is_some() {
                return;
            }
        }
    }
}

/// The settings that differ and were needed when the daemon began.
fn after_a_restart(old: &DaemonArgs, new: &DaemonArgs) -> Vec<&'static str> {
    let all = [
        ("memleak", old.memleak != new.memleak),
        ("cudatrace", old.cudatrace != new.cudatrace),
        ("bandwidth_util", old.bandwidth_util != new.bandwidth_util),
        ("pid", old.pids != new.pids),
        ("hooks", old.hooks != new.hooks),
        ("attach", old.attach != new.attach),
        ("max_processes", old.max_processes != new.max_processes),
        ("max_allocations", old.max_allocations != new.max_allocations),
        ("max_counters", old.max_counters != new.max_counters),
        ("max_kernels", old.max_kernels != new.max_kernels),
        ("container_logs", old.container_logs != new.container_logs),
        ("nvml", old.nvml.nvml != new.nvml.nvml),
        ("driver_folder", old.nvml.driver_folder != new.nvml.driver_folder),
    ];
    all.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
}

#[cfg(test)]
mod tests {
    use clap::{Args, Command, FromArgMatches};

    use super::*;

    fn of(words: &[&str]) -> DaemonArgs {
        let command = DaemonArgs::augment_args(Command::new("gpuprobe"));
        let words = [&["gpuprobe"], words].concat();
        DaemonArgs::from_arg_matches(&command.try_get_matches_from(words).unwrap()).unwrap()
    }

    /// Settings that take effect at once.
    const AT_ONCE: [&str; 10] = [
        "path",
        "warm-up",
        "rescan",
        "max-ended",
        "keep-ended",
        "verbose",
        "refresh",
        "display-interval",
        "metrics-addr",
        "web-config",
    ];

    #[test]
    fn every_setting_takes_effect_at_once_or_is_told_to_take_a_restart() {
        let command = DaemonArgs::augment_args(Command::new("gpuprobe"));
        let (mut at_once, old) = (Vec::new(), of(&[]));
        for arg in command.get_arguments().filter(|arg| arg.get_long().is_some_and(|long| long != "config")) {
            let long = arg.get_long().unwrap();
            let option = format!("--{long}");
            let values = ["multi", "127.0.0.1:7", "77", "/x"];
            let mut tries = values.iter().map(|value| vec![option.as_str(), value]).collect::<Vec<_>>();
            tries.push(vec![&option]);
            let parsed = |words: &Vec<&str>| {
                let words = [&["gpuprobe"], words.as_slice()].concat();
                let matches = DaemonArgs::augment_args(Command::new("gpuprobe")).try_get_matches_from(words);
                DaemonArgs::from_arg_matches(&matches.ok()?).ok()
            };
            let new =
                tries.iter().find_map(parsed).unwrap_or_else(|| panic!("{long} takes none of {values:?}"));
            match after_a_restart(&old, &new).as_slice() {
                [] => at_once.push(long),
                names => assert_eq!(names, [long.replace('-', "_")]),
            }
        }
        at_once.sort_unstable();
        let mut expected = AT_ONCE.to_vec();
        expected.sort_unstable();
        assert_eq!(at_once, expected);
    }
}
