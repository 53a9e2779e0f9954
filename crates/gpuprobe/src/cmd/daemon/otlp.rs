//! Pushing to a receiver of OpenTelemetry.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result, bail};
use gpuprobe_output::otlp::{Headers, PushSettings, Receiver, Resource};

use crate::cli::DaemonArgs;
use crate::cli::daemon_settings::require_trusted;
use crate::terminal::notes::note;

/// What is pushed and where to; `None` if nothing is. Reads the files that the options name, which needs privileges
/// that are given up later. `endpoint` is the URL of the metrics.
pub(super) fn settings(args: &DaemonArgs, endpoint: &str) -> Result<Option<PushSettings>> {
    let otlp = &args.otlp;
    let Some(url) = &otlp.url else {
        let others = [
            ("--otlp-headers-file", otlp.headers_file.is_some()),
            ("--otlp-ca-file", otlp.ca_file.is_some()),
            ("--otlp-attribute", !otlp.attributes.is_empty()),
        ];
        if let Some((name, _)) = others.iter().find(|(_, is_given)| *is_given) {
            bail!(
                "{name} has no use without --otlp: give the URL of a receiver, such as --otlp http://host:4318"
            );
        }
        return Ok(None);
    };
    let files = [&otlp.headers_file, &otlp.ca_file];
    files.into_iter().flatten().try_for_each(|file| require_trusted(file))?;
    let headers = otlp.headers_file.as_ref().map(headers).transpose()?.unwrap_or_default();
    let receiver = Receiver::new(url, otlp.ca_file.as_deref(), headers).context("--otlp")?;
    let resource = Resource::new(defaults(endpoint).into_iter().chain(otlp.attributes.iter().cloned()));
    Ok(Some(PushSettings {
        receiver,
        resource,
        interval: otlp.interval,
        temporality: otlp.temporality,
        started: SystemTime::now(),
        report: |text| note!("gpuprobe: {text}"),
    }))
}

fn headers(file: &PathBuf) -> Result<Headers> {
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    match Headers::parse(&text) {
        Ok(headers) => Ok(headers),
        Err(error) => bail!("{}: {error}", file.display()),
    }
}

/// The attributes of the resource that options can replace. Those without a value are left out.
fn defaults(endpoint: &str) -> Vec<(String, String)> {
    let read = |path: &str| fs::read_to_string(Path::new(path)).unwrap_or_default().trim().to_owned();
    let host = read("/proc/sys/kernel/hostname");
    // a daemon keeps it over a restart, and two daemons of a host have different ports
    let instance = endpoint.rsplit(':').next().map(|port| format!("{host}:{port}"));
    let all = [
        ("service.name", "gpuprobe".to_owned()),
        ("service.version", env!("CARGO_PKG_VERSION").to_owned()),
        ("service.instance.id", instance.unwrap_or_default()),
        ("host.name", host),
        ("host.id", read("/etc/machine-id")),
        ("os.type", "linux".to_owned()),
    ];
    all.map(|(key, value)| (key.to_owned(), value)).into()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::Cli;

    fn of(words: &[&str]) -> Result<Option<PushSettings>> {
        settings(
            &Cli::try_parse_from([&["gpuprobe"], words].concat()).unwrap().daemon,
            "http://127.0.0.1:9000",
        )
    }

    fn error(words: &[&str]) -> String {
        format!("{:#}", of(words).unwrap_err())
    }

    #[test]
    fn options_replace_attributes_and_need_a_receiver() {
        assert!(of(&[]).unwrap().is_none());
        let set = of(&["--otlp", "http://[::1]:1/x", "--otlp-attribute", "host.name=a b"]).unwrap().unwrap();
        let resource = format!("{:?}", set.resource);
        assert!(resource.contains("(\"host.name\", \"a b\")"), "{resource}");
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        let instance = format!("(\"service.instance.id\", \"{}:9000\")", host.trim());
        assert!(resource.contains(&instance), "{resource}");
        assert_eq!(set.interval.as_secs(), 15);
        assert!(
            error(&["--otlp-attribute", "a=b"]).starts_with("--otlp-attribute has no use without --otlp")
        );
        assert!(error(&["--otlp", "host:1"]).starts_with("--otlp: host:1: "));
    }

    #[test]
    fn a_file_that_cannot_be_used_is_named() {
        let url = ["--otlp", "https://localhost"];
        let missing = error(&[&url[..], &["--otlp-headers-file", "/nowhere"]].concat());
        assert!(missing.starts_with("cannot read /nowhere"), "{missing}");
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "secret\n").unwrap();
        let path = file.to_str().unwrap();
        let wrong = error(&[&url[..], &["--otlp-headers-file", path]].concat());
        assert_eq!(wrong, format!("{path}: line 1 is not `Name: value`"));
        let wrong = error(&[&url[..], &["--otlp-ca-file", path]].concat());
        assert_eq!(wrong, format!("--otlp: {path}: it has no certificate"));
    }
}
