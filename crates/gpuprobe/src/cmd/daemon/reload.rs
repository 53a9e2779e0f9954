//! Applies new settings to the running daemon. Counters are kept: settings that were used to load the BPF programs
//! take effect after a restart, which is reported.

use std::io::ErrorKind;
use std::path::PathBuf;

use gpuprobe_output::{HttpError, SeriesSettings};

use super::{Daemon, open_endpoint};
use crate::cli::{DaemonArgs, OnDemandArgs, daemon_settings};
use crate::terminal::notes::note;

impl Daemon {
    /// Reads the settings again. If they are invalid, nothing changes.
    pub(super) fn reload(&mut self) {
        let words: Vec<_> = std::env::args_os().collect();
        if let Some(file) = self.args.config.as_ref().filter(|file| !file.exists()) {
            note!("gpuprobe: the settings are unchanged: {} no longer exists", file.display());
            return;
        }
        match daemon_settings::read(&words) {
            Ok(new) => self.apply(&new),
            Err(error) => note!("gpuprobe: the settings are unchanged: {error:#}"),
        }
    }

    fn apply(&mut self, new: &DaemonArgs) {
        let mut later = needing_restart(&self.args, new);
        // with a budget at the start, its links exist already
        later.retain(|name| *name != "budget" || self.observer.probes.budget.is_none());
        let mut unchanged = self.attach_more(&new.paths);
        self.observer.set_warm_up(new.warm_up);
        self.observer.set_rescan(new.rescan);
        self.observer.set_state_interval(new.refresh);
        self.observer.processes.set_retention(new.max_exited, new.keep_exited);
        self.latest.set_series(SeriesSettings { aggregate: self.args.aggregate, ..new.series() });
        self.observer.probes.verbose = new.verbose;
        self.observer.probes.set_budget(new.budget);
        self.watch.set_rescan(new.rescan);
        self.on_demand.iter().for_each(|on_demand| on_demand.set_times(&new.on_demand));
        let fixed = self.args.clone();
        let OnDemandArgs { time, time_limit, .. } = new.on_demand;
        self.args = DaemonArgs {
            warm_up: new.warm_up,
            rescan: new.rescan,
            max_exited: new.max_exited,
            max_series_processes: new.max_series_processes,
            keep_exited: new.keep_exited,
            verbose: new.verbose,
            refresh: new.refresh,
            budget: self.observer.probes.budget.as_ref().and(new.budget),
            display_interval: new.display_interval,
            on_demand: OnDemandArgs { time, time_limit, ..self.args.on_demand.clone() },
            ..fixed
        };
        unchanged.extend(self.serve_as(new));
        note!("gpuprobe: {}", outcome(&unchanged, &later));
    }

    /// Probes new files. Returns those that failed; they are tried again at the next reload.
    fn attach_more(&mut self, paths: &[PathBuf]) -> Vec<String> {
        let Self { observer, watch, args, .. } = self;
        let mut refused = Vec::new();
        watch.during(|_| {
            for path in paths {
                if args.paths.contains(path) {
                    continue;
                }
                match observer.probes.attach_file(path) {
                    Ok(()) => args.paths.push(path.clone()),
                    Err(error) => refused.push(format!("path ({error:#})")),
                }
            }
        });
        refused
    }

    /// Serves metrics with new settings. If that fails, serves as before and returns the reason.
    fn serve_as(&mut self, new: &DaemonArgs) -> Option<String> {
        let DaemonArgs { metrics_addr, web_config, .. } = new.clone();
        let same_address = metrics_addr == self.args.metrics_addr;
        if same_address && web_config == self.args.web_config && self.server.is_some() {
            return None;
        }
        let name = if same_address { "web_config" } else { "metrics_addr" };
        // two servers cannot share an address; a new address is tried before the old one, which may be lost, is given
        // up
        if same_address {
            drop(self.server.take());
        }
        let wanted = DaemonArgs { metrics_addr, web_config, ..self.args.clone() };
        let error = self.serve(wanted).err()?;
        if self.server.is_none()
            && let Err(error) = self.serve(self.args.clone())
        {
            note!("gpuprobe: metrics are no longer served until the next SIGHUP: {}", why(&error));
        }
        Some(format!("{name} ({})", why(&error)))
    }

    fn serve(&mut self, args: DaemonArgs) -> Result<(), HttpError> {
        let endpoint = open_endpoint(&args)?;
        let url = endpoint.url();
        self.server = Some(endpoint.serve(self.latest.clone(), self.on_request())?);
        self.args = args;
        note!("gpuprobe: metrics on {url}/metrics");
        Ok(())
    }
}

/// Why the running daemon cannot serve with these settings.
fn why(error: &HttpError) -> String {
    match error {
        HttpError::Listen { source, .. } if source.kind() == ErrorKind::PermissionDenied => {
            format!("{error}: the daemon gave up the privilege for it after the start, so restart gpuprobe")
        }
        error => error.to_string(),
    }
}

/// The result of a reload.
fn outcome(unchanged: &[String], later: &[&str]) -> String {
    let mut text = "settings read again".to_owned();
    for (what, names) in [("; unchanged: ", unchanged.join(", ")), ("; after a restart: ", later.join(", "))]
    {
        if !names.is_empty() {
            text.push_str(what);
            text.push_str(&names);
        }
    }
    text
}

/// The changed settings that need a restart.
fn needing_restart(old: &DaemonArgs, new: &DaemonArgs) -> Vec<&'static str> {
    let all = [
        ("memleak", old.memleak != new.memleak),
        ("addresses", old.addresses != new.addresses),
        ("tensors", old.tensors != new.tensors),
        ("gpu_time", old.gpu_time != new.gpu_time),
        ("stacks", old.stacks != new.stacks),
        ("cudatrace", old.cudatrace != new.cudatrace),
        ("bandwidth_util", old.bandwidth_util != new.bandwidth_util),
        ("driver", old.driver != new.driver),
        ("pid", old.pids != new.pids),
        ("hooks", old.hooks != new.hooks),
        ("calls_only", old.calls_only != new.calls_only),
        ("all_launch_returns", old.all_launch_returns != new.all_launch_returns),
        ("runtime_failures", old.runtime_failures != new.runtime_failures),
        // other settings may need the same file, so it is not detached
        ("path", old.paths.iter().any(|path| !new.paths.contains(path))),
        ("attach", old.attach != new.attach),
        // functions have no links of their own
        ("budget", old.budget.is_none() && new.budget.is_some()),
        ("max_processes", old.max_processes != new.max_processes),
        ("max_allocations", old.max_allocations != new.max_allocations),
        ("max_counters", old.max_counters != new.max_counters),
        ("max_kernels", old.max_kernels != new.max_kernels),
        ("otlp", old.otlp.url != new.otlp.url),
        ("otlp_interval", old.otlp.interval != new.otlp.interval),
        ("otlp_headers_file", old.otlp.headers_file != new.otlp.headers_file),
        ("otlp_ca_file", old.otlp.ca_file != new.otlp.ca_file),
        ("otlp_temporality", old.otlp.temporality != new.otlp.temporality),
        ("otlp_attribute", old.otlp.attributes != new.otlp.attributes),
        ("record_dir", old.on_demand.dir != new.on_demand.dir),
        ("record_dir_size", old.on_demand.dir_size != new.on_demand.dir_size),
        ("aggregate", old.aggregate != new.aggregate),
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
    const AT_ONCE: [&str; 13] = [
        "path",
        "warm-up",
        "rescan",
        "max-exited",
        "max-series-processes",
        "keep-exited",
        "verbose",
        "refresh",
        "display-interval",
        "record-time",
        "record-time-limit",
        "metrics-addr",
        "web-config",
    ];

    #[test]
    fn the_result_lists_unchanged_and_later_settings() {
        assert_eq!(outcome(&[], &[]), "settings read again");
        let refused = ["path (no)".to_owned(), "web_config (none)".to_owned()];
        assert_eq!(
            outcome(&refused, &["attach", "pid"]),
            "settings read again; unchanged: path (no), web_config (none); after a restart: attach, pid"
        );
        assert_eq!(needing_restart(&of(&["-p", "/x", "-p", "/y"]), &of(&["-p", "/y", "-p", "/z"])), ["path"]);
    }

    #[test]
    fn every_setting_takes_effect_at_once_or_is_reported_to_need_a_restart() {
        let command = DaemonArgs::augment_args(Command::new("gpuprobe"));
        let (mut at_once, old) = (Vec::new(), of(&[]));
        for arg in command.get_arguments().filter(|arg| arg.get_long().is_some_and(|long| long != "config")) {
            let long = arg.get_long().unwrap();
            let option = format!("--{long}");
            let values = ["multi", "127.0.0.1:7", "77", "7", "/x", "7%", "delta", "k=v", "pod"];
            let mut tries = values.iter().map(|value| vec![option.as_str(), value]).collect::<Vec<_>>();
            tries.push(vec![&option]);
            let parsed = |words: &Vec<&str>| {
                let words = [&["gpuprobe"], words.as_slice()].concat();
                let matches = DaemonArgs::augment_args(Command::new("gpuprobe")).try_get_matches_from(words);
                DaemonArgs::from_arg_matches(&matches.ok()?).ok()
            };
            let new =
                tries.iter().find_map(parsed).unwrap_or_else(|| panic!("{long} takes none of {values:?}"));
            match needing_restart(&old, &new).as_slice() {
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
