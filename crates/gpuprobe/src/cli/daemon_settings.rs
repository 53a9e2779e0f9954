//! The daemon's settings: the command line, and a file for what the command line does not set. Each key of the file is
//! the long name of an option, so the options are the only list of settings.

use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use gpuprobe_capture::is_privileged;
use gpuprobe_discover::{Owners, trusted};
use gpuprobe_output::units::printable;
use toml::de::{DeTable, DeValue};

use super::daemon_args::DaemonArgs;
use super::on_demand_args::OnDemandArgs;
use super::otlp_args::OtlpArgs;

/// Read if it exists and --config does not name another.
const DEFAULT_FILE: &str = "/etc/gpuprobe/gpuprobe.toml";
/// Options that make sense only on the command line.
const NOT_IN_A_FILE: [&str; 3] = ["config", "help", "version"];
/// The argument of --record-dir.
/// If one of these is on the command line, the file sets none of them.
const FEATURES: [&str; 3] = ["memleak", "cudatrace", "bandwidth-util"];

/// The settings of a daemon that was started with these arguments.
pub(crate) fn read(words: &[OsString]) -> Result<DaemonArgs> {
    let words: Vec<_> = match words {
        [program, first, rest @ ..] if first == "daemon" => [std::slice::from_ref(program), rest].concat(),
        words => words.to_vec(),
    };
    let given = command().try_get_matches_from(&words)?;
    let named = given.get_one::<PathBuf>("config").cloned();
    let Some(file) = named.or_else(file) else {
        check_together(&given)?;
        return Ok(DaemonArgs::from_arg_matches(&given)?);
    };
    require_trusted(&file)?;
    let text = fs::read_to_string(&file)
        .with_context(|| format!("cannot read {}: name another file with --config", file.display()))?;
    // the file may contain control characters, and errors go to a terminal
    let wrong = |message: &str| anyhow!("in {}: {}", file.display(), printable(message));
    let more = of_file(&text, &given).map_err(|error| wrong(&format!("{error:#}")))?;
    let all = command().try_get_matches_from(words.into_iter().chain(more));
    let all = all.map_err(|error| wrong(&first_line(&error)))?;
    check_together(&all)?;
    Ok(DaemonArgs { config: Some(file), ..DaemonArgs::from_arg_matches(&all)? })
}

/// The settings file of the service, if there is one.
pub(crate) fn file() -> Option<PathBuf> {
    Some(PathBuf::from(DEFAULT_FILE)).filter(|file| file.exists())
}

/// Refuses a file that controls a privileged daemon and that other users can write.
pub(crate) fn require_trusted(file: &Path) -> Result<()> {
    if !is_privileged() {
        return Ok(());
    }
    match trusted(file, &Owners::default().or_sudo_user()) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            bail!(
                "{} is refused: {error}: only root may be able to write it and its directories",
                file.display()
            )
        }
        // other errors are reported when the file is read
        _ => Ok(()),
    }
}

fn command() -> Command {
    DaemonArgs::augment_args(Command::new("gpuprobe"))
}

/// Refuses settings of recordings and of OTLP if there are none, and contradictory ones. One of them may be in the file and
/// the other on the command line.
fn check_together(all: &ArgMatches) -> Result<()> {
    let is_set = |arg: &Arg| all.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
    let named = Command::new("gpuprobe");
    for (command, main, what) in [
        (OnDemandArgs::augment_args(named.clone()), "record-dir", "name a directory for recordings"),
        (OtlpArgs::augment_args(named), "otlp", "name a receiver"),
    ] {
        let set: Vec<_> =
            command.get_arguments().filter(|arg| is_set(arg)).filter_map(Arg::get_long).collect();
        if let Some(option) = set.first()
            && !set.contains(&main)
        {
            bail!("--{option} does nothing without --{main}: {what} with --{main}");
        }
    }
    let args = OnDemandArgs::from_arg_matches(all)?;
    if args.time > args.time_limit && all.value_source("time") == Some(ValueSource::CommandLine) {
        bail!("--record-time is longer than --record-time-limit: give a longer limit, or less time");
    }
    Ok(())
}

/// The arguments that a file adds: those that the command line does not set.
fn of_file(text: &str, given: &ArgMatches) -> Result<Vec<OsString>> {
    let table = DeTable::parse(text).map_err(|error| {
        let line = error.span().map(|span| line_of(text, &span)).unwrap_or(1);
        anyhow!("line {line}: {}", error.message())
    })?;
    let command = command();
    let is_given = |arg: &Arg| given.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
    let is_feature = |arg: &Arg| FEATURES.contains(&arg.get_long().unwrap_or_default());
    let names_features = command.get_arguments().any(|arg| is_feature(arg) && is_given(arg));
    let mut words = Vec::new();
    for (key, value) in table.get_ref() {
        let line = line_of(text, &key.span());
        let at = || format!("line {line}");
        let arg = option(&command, key.get_ref()).with_context(at)?;
        let more = words_of(arg, value.get_ref()).with_context(at)?;
        // parsed one by one, so that an error can name its line
        let single = [OsString::from("gpuprobe")].into_iter().chain(more.iter().cloned());
        if let Err(error) = command.clone().try_get_matches_from(single) {
            bail!("line {line}: {}", first_line(&error));
        }
        let is_overruled = is_given(arg) || (names_features && is_feature(arg));
        if !is_overruled {
            words.extend(more);
        }
    }
    Ok(words)
}

/// The option of a key.
fn option<'a>(command: &'a Command, key: &str) -> Result<&'a Arg> {
    let long = key.replace('_', "-");
    let known = command.get_arguments().find(|arg| has_name(arg, &long));
    known
        .filter(|_| !NOT_IN_A_FILE.contains(&long.as_str()))
        .with_context(|| format!("`{key}` is not a setting: `gpuprobe daemon --help` lists them"))
}

/// Whether this is the long name of an option, or its earlier name.
fn has_name(arg: &Arg, long: &str) -> bool {
    arg.get_long() == Some(long) || arg.get_all_aliases().is_some_and(|names| names.contains(&long))
}

/// An entry of the file as command-line arguments.
fn words_of(arg: &Arg, value: &DeValue<'_>) -> Result<Vec<OsString>> {
    let long = arg.get_long().unwrap_or_default();
    let word = |text: &str| OsString::from(format!("--{long}={text}"));
    let is_switch = matches!(arg.get_action(), ArgAction::SetTrue);
    let may_be_bare = is_switch || arg.get_num_args().is_some_and(|values| values.min_values() == 0);
    match value {
        DeValue::Boolean(wanted) if may_be_bare => {
            Ok(wanted.then(|| format!("--{long}").into()).into_iter().collect())
        }
        _ if is_switch => bail!("`{long}` must be true or false"),
        DeValue::Array(values) if matches!(arg.get_action(), ArgAction::Append) => {
            values.iter().map(|value| scalar(long, value.get_ref()).map(|text| word(&text))).collect()
        }
        value => Ok(vec![word(&scalar(long, value)?)]),
    }
}

fn scalar(long: &str, value: &DeValue<'_>) -> Result<String> {
    Ok(match value {
        DeValue::String(text) => text.to_string(),
        // TOML allows any base and underscores
        DeValue::Integer(number) => i128::from_str_radix(number.as_str(), number.radix())
            .with_context(|| format!("`{long}` is too large"))?
            .to_string(),
        DeValue::Float(number) => number.to_string(),
        _ => bail!("`{long}` takes one value"),
    })
}

fn line_of(text: &str, span: &Range<usize>) -> usize {
    1 + text.bytes().take(span.start).filter(|byte| *byte == b'\n').count()
}

/// The message of a clap error without its usage text.
fn first_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let first = text.lines().next().unwrap_or_default();
    first.strip_prefix("error: ").unwrap_or(first).to_owned()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn with_file(text: &str, options: &[&str]) -> Result<DaemonArgs> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        let config = file.path().to_str().unwrap();
        let words = [&["gpuprobe", "daemon", "--config", config], options].concat();
        read(&words.iter().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn the_file_sets_what_the_command_line_does_not() {
        let text = "# all kinds of values\nmetrics_addr = \"127.0.0.1:1\"\nrefresh = 0.5\nmax-exited = 0x10\n\
                    memleak = true\ncudatrace = false\npath = [\"/a b\", \"/c\"]\npid = 7\nattach = \"multi\"\n";
        let all = with_file(text, &[]).unwrap();
        assert_eq!((all.metrics_addr.port(), all.refresh), (1, Duration::from_millis(500)));
        assert_eq!((all.max_exited, all.memleak, all.cudatrace), (16, true, false));
        assert_eq!((all.paths.len(), all.pids.as_slice()), (2, [7].as_slice()));
        assert_eq!(all.display_interval, Duration::from_secs(5), "the default applies if neither sets it");

        let won = with_file(text, &["--cudatrace", "-p", "/d", "--refresh", "2"]).unwrap();
        assert_eq!(
            (won.memleak, won.cudatrace),
            (false, true),
            "features on the command line replace those of the file"
        );
        assert_eq!((won.paths, won.refresh), (vec![PathBuf::from("/d")], Duration::from_secs(2)));
        assert_eq!(won.metrics_addr.port(), 1);
    }

    #[test]
    fn settings_of_recordings_need_a_directory() {
        let without = |option: &str| format!("--{option} does nothing without --record-dir: ");
        for (option, value) in [("record-dir-size", "2M"), ("record-time", "1s"), ("record-time-limit", "1h")]
        {
            let given = [format!("--{option}"), value.to_owned()];
            let given = given.each_ref().map(String::as_str);
            let error = with_file("", &given).unwrap_err().to_string();
            assert!(error.starts_with(&without(option)), "{error}");
            let line = format!("{option} = \"{value}\"\n");
            let error = with_file(&line, &[]).unwrap_err().to_string();
            assert!(error.starts_with(&without(option)), "{error}");
            with_file(&line, &["--record-dir", "/d"]).unwrap();
            with_file("record-dir = \"/d\"", &given).unwrap();
        }
        assert!(
            with_file("", &["--record-dir-size", "1K"]).unwrap_err().to_string().contains("give at least 1M")
        );
    }

    #[test]
    fn settings_of_otlp_need_a_receiver_and_a_recording_is_within_its_limit() {
        let error = |options: &[&str]| with_file("", options).unwrap_err().to_string();
        let without = "--otlp-interval does nothing without --otlp: ";
        assert!(error(&["--otlp-interval", "5s"]).starts_with(without));
        with_file("otlp = \"http://h:4318\"", &["--otlp-interval", "5s"]).unwrap();
        let both = ["--record-dir", "/d", "--record-time", "8s", "--record-time-limit", "5s"];
        assert!(error(&both).contains("longer than --record-time-limit"));
        with_file("", &["--record-dir", "/d", "--record-time-limit", "5s"]).unwrap();
    }

    #[test]
    fn the_settings_of_the_package_are_valid_and_open_nothing_to_other_hosts() {
        let packaged = include_str!("../../../../packaging/gpuprobe.toml");
        let set = with_file(packaged, &[]).unwrap();
        assert_eq!(set.metrics_addr, with_file("", &[]).unwrap().metrics_addr, "the default");
        assert!(set.metrics_addr.ip().is_loopback());
        // examples are valid, too
        let examples =
            packaged.lines().filter_map(|line| line.strip_prefix('#').filter(|l| !l.starts_with(' ')));
        for example in examples {
            // some are of use only with a directory for recordings, or a receiver
            let set = with_file(example, &["--record-dir", "/d", "--otlp", "http://h:4318"]);
            assert!(set.is_ok(), "{example}");
        }
    }

    #[test]
    fn driver_is_a_switch_or_a_list_of_globs_and_kernel_its_earlier_name() {
        let driver = |text: &str| with_file(text, &[]).unwrap().driver;
        assert_eq!(driver("driver = true"), [""]);
        assert_eq!(driver("kernel = true"), [""]);
        assert_eq!(driver("driver = false"), [""; 0]);
        assert_eq!(driver("driver = \"uvm_*\""), ["uvm_*"]);
        assert_eq!(driver("driver = [\"uvm_*\", \"nvidia_*\"]"), ["uvm_*", "nvidia_*"]);
    }

    #[test]
    fn an_error_in_the_file_names_its_line() {
        for (text, expected) in [
            (
                "\nrefresh = 0\n",
                "line 2: invalid value '0' for '--refresh <TIME>': give a time greater than 0, such as 10",
            ),
            ("refresh = [1]", "line 1: `refresh` takes one value"),
            ("refrehs = 1", "line 1: `refrehs` is not a setting"),
            ("config = \"x\"", "line 1: `config` is not a setting"),
            ("memleak = 1", "line 1: `memleak` must be true or false"),
            ("[metrics]\naddr = 1", "line 1: `metrics` is not a setting"),
            ("# \nrefresh = ", "line 2: "),
            ("refresh = 1\nrefresh = 2", "line 2: "),
            ("attach = \"best\"", "line 1: invalid value 'best'"),
            ("attach = \"a\tb\"", "line 1: invalid value 'a\\tb'"),
            ("\"\\u001b[2J\" = 1", "line 1: `\\u{1b}[2J` is not a setting"),
        ] {
            let error = format!("{:#}", with_file(text, &[]).unwrap_err());
            assert!(error.contains(expected), "{text:?}: {error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
        let missing = read(&["gpuprobe", "--config", "/nowhere"].map(OsString::from)).unwrap_err();
        assert!(format!("{missing:#}").starts_with("cannot read /nowhere: name another"), "{missing:#}");
    }

    #[test]
    fn root_refuses_a_file_that_other_users_can_write() {
        use std::os::unix::fs::PermissionsExt;
        if !is_privileged() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("gpuprobe.toml");
        fs::write(&file, "refresh = 2").unwrap();
        let words = ["gpuprobe".into(), "--config".into(), file.clone().into_os_string()];
        let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        set(&file, 0o644);
        assert_eq!(read(&words).unwrap().refresh, Duration::from_secs(2));
        for (path, mode) in [(file.as_path(), 0o666), (folder.path(), 0o777)] {
            set(path, mode);
            let error = format!("{:#}", read(&words).unwrap_err());
            let expected = format!("is refused: other users can write {} (mode {mode:04o})", path.display());
            assert!(error.contains(&expected) && error.lines().count() == 1, "{error}");
            set(path, mode & !0o022);
        }
        std::os::unix::fs::chown(&file, Some(65534), None).unwrap();
        let error = format!("{:#}", read(&words).unwrap_err());
        assert!(error.contains("belongs to another user (uid 65534)"), "{error}");
    }

    #[test]
    fn a_wrong_value_is_refused_even_if_the_command_line_overrides_it() {
        let error = with_file("refresh = \"x\"", &["--refresh", "1"]).unwrap_err();
        assert!(format!("{error:#}").contains("line 1"), "{error:#}");
    }
}
