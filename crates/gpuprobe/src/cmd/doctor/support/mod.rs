//! `gpuprobe doctor --support`: one archive with what a bug report needs.

mod settings;
mod this_machine;

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use gpuprobe_discover::{KernelLog, gpu_processes, gpu_time_libraries};
use gpuprobe_output::http_client::DaemonClient;
use gpuprobe_output::support::{Redactor, archive, own_metrics};
use gpuprobe_output::timestamp::timestamp;

use super::Report;
use crate::cli::{DaemonArgs, DoctorArgs, daemon_settings};
use crate::terminal::stdout::print;

/// The folder of all files in the archive.
const FOLDER: &str = "gpuprobe-support";
/// Messages of the Linux kernel that contain one of these are about GPUs, BPF or gpuprobe.
const RELEVANT: [&str; 11] = [
    "nvidia",
    "nvrm",
    "xid",
    "uprobe",
    "uretprobe",
    "bpf",
    "btf",
    "gpuprobe",
    "libcuda",
    "libcudart",
    "lockdown",
];

pub(super) fn run(args: &DoctorArgs, report: &Report) -> Result<u8> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let path = args.output.clone().unwrap_or_else(|| default_path(now));
    let names = this_machine::process_names(Path::new("/proc"));
    let redactor = if args.full {
        Redactor::new(None, names)
    } else {
        Redactor::with_random_key(names).context("there are no random numbers for the hashes of names")?
    };
    let files = files(args, report, &redactor)?;
    let bytes = archive(&files, now).context("cannot pack the archive")?;
    // not over a file, and not through a link of another user
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    let cannot = || format!("cannot write {}: name a new file with -o", path.display());
    options.open(&path).and_then(|mut file| file.write_all(&bytes)).with_context(cannot)?;
    let listed: Vec<&str> =
        files.iter().map(|(name, _)| name.rsplit_once('/').map_or(name.as_str(), |(_, file)| file)).collect();
    print(&format!(
        "{}: {}\nIt is for a bug report. {}; look at it before you send it.\n",
        path.display(),
        listed.join(", "),
        removed(args.full)
    ))?;
    Ok(0)
}

fn default_path(now: u64) -> PathBuf {
    let stamp = timestamp(now as f64, 0).replace([' ', ':', '-'], "");
    let seconds = stamp.split('.').next().unwrap_or_default();
    PathBuf::from(format!("{FOLDER}-{seconds}.tar.gz"))
}

fn removed(is_full: bool) -> &'static str {
    match is_full {
        true => "It contains the names of processes and home folders (--full), but no passwords",
        false => {
            "Names of processes and home folders are hashed (--full keeps them), and it contains no passwords"
        }
    }
}

fn files(args: &DoctorArgs, report: &Report, redactor: &Redactor) -> Result<Vec<(String, Vec<u8>)>> {
    let mut doctor = String::new();
    report.text(&mut doctor)?;
    let settings = daemon_settings::file().map_or_else(
        || "# there is no settings file\n".to_owned(),
        |file| settings::without_secrets(&fs::read_to_string(&file).unwrap_or_default()),
    );
    let texts = [
        ("README.txt", readme(args.full)),
        ("doctor.txt", redactor.paths(&doctor)),
        ("doctor.json", redactor.paths(&format!("{:#}\n", report.json()))),
        ("versions.txt", this_machine::versions(&report.nvml)),
        ("settings.toml", redactor.paths(&settings)),
        ("daemon.txt", redactor.paths(&daemon(args))),
        ("kernel-log.txt", kernel_log(redactor)),
        ("processes.txt", processes(redactor)),
    ];
    Ok(texts.map(|(name, text)| (format!("{FOLDER}/{name}"), text.into_bytes())).into())
}

fn readme(is_full: bool) -> String {
    format!(
        "What `gpuprobe doctor --support` collected for a bug report. {}.\n\n\
         doctor.txt, doctor.json  what this machine supports, and the libraries that were found\n\
         versions.txt             of gpuprobe, Linux and NVIDIA's driver, and settings of the Linux kernel\n\
         settings.toml            the settings file of the daemon, without comments and secrets\n\
         daemon.txt               what a running daemon reports about itself, such as losses\n\
         kernel-log.txt           messages of the Linux kernel about GPUs, BPF and probes\n\
         processes.txt            the processes that use a GPU\n",
        removed(is_full)
    )
}

/// What a running daemon reports about itself, or why nothing is known.
fn daemon(args: &DoctorArgs) -> String {
    let found = url(args).and_then(|url| {
        let password = args.password_file.as_ref().map(fs::read_to_string).transpose()?;
        let client = DaemonClient::new(&url, args.ca_file.as_deref(), password.as_deref())?;
        Ok(String::from_utf8_lossy(&client.metrics()?).into_owned())
    });
    match found {
        Ok(metrics) => own_metrics(&metrics),
        Err(error) => format!("no figures of a daemon: {error:#}\n"),
    }
}

/// The address of a daemon on this host, as its settings have it.
fn url(args: &DoctorArgs) -> Result<String> {
    if let Some(url) = &args.connect {
        return Ok(url.clone());
    }
    let DaemonArgs { metrics_addr, web_config, .. } =
        daemon_settings::read(&["gpuprobe".into(), "daemon".into()])?;
    anyhow::ensure!(web_config.is_none(), "its endpoint has TLS or passwords: give its URL with --connect");
    let host = if metrics_addr.ip().is_unspecified() {
        "localhost".to_owned()
    } else {
        metrics_addr.ip().to_string()
    };
    let host = if host.contains(':') { format!("[{host}]") } else { host };
    Ok(format!("http://{host}:{}", metrics_addr.port()))
}

fn kernel_log(redactor: &Redactor) -> String {
    let is_relevant = |text: &str| {
        let text = text.to_ascii_lowercase();
        RELEVANT.iter().any(|word| text.contains(word))
    };
    let logged = match KernelLog::open().and_then(|mut log| log.messages(is_relevant)) {
        Ok(logged) => logged,
        Err(error) => return format!("the kernel log cannot be read: {error}\n"),
    };
    let line = |(at, text): &(std::time::Duration, String)| {
        format!("[{:12.6}] {}\n", at.as_secs_f64(), redactor.message(text))
    };
    let mut text: String = logged.messages.iter().map(line).collect();
    if logged.is_cut {
        text.push_str("there was no time to read the newest messages\n");
    }
    if text.is_empty() {
        text.push_str("no messages about GPUs, BPF or probes\n");
    }
    text
}

fn processes(redactor: &Redactor) -> String {
    let proc_root = Path::new("/proc");
    let mut text = String::from("pid\tname\tagent\n");
    for pid in gpu_processes(proc_root) {
        let Some(name) = this_machine::name(proc_root, pid) else { continue };
        let has_agent = gpu_time_libraries(proc_root, pid).is_ok_and(|found| found.agent.is_some());
        text.push_str(&format!(
            "{pid}\t{}\t{}\n",
            redactor.name(&name),
            if has_agent { "yes" } else { "no" }
        ));
    }
    text
}
