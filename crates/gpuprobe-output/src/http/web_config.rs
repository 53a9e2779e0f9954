//! The web config: users, TLS and headers, from a file in the format that Prometheus and its exporters share, so that
//! one file can serve a whole host. It is read again when it, or a file that it names, has changed.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use axum::http::{HeaderName, HeaderValue};
use serde::Deserialize;
use tokio_rustls::TlsAcceptor;

use super::auth::Users;
use super::tls;

/// The largest file that is read.
const MOST_BYTES: u64 = 1 << 20;
/// The highest bcrypt cost that is accepted: each step doubles the time, and this one takes seconds.
const MOST_COST: u32 = 16;
/// Headers that may be set, the same as in other exporters.
const HEADERS: [&str; 5] = [
    "Content-Security-Policy",
    "X-Frame-Options",
    "X-Content-Type-Options",
    "X-XSS-Protection",
    "Strict-Transport-Security",
];

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a section of keys and values")]
struct File {
    tls_server_config: Option<TlsSection>,
    http_server_config: Option<HttpSection>,
    basic_auth_users: Option<Users>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a section of keys and values")]
pub(super) struct TlsSection {
    pub(super) cert_file: Option<String>,
    pub(super) key_file: Option<String>,
    pub(super) client_auth_type: Option<String>,
    pub(super) client_ca_file: Option<String>,
    pub(super) min_version: Option<String>,
    pub(super) max_version: Option<String>,
    pub(super) prefer_server_cipher_suites: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a section of keys and values")]
struct HttpSection {
    /// Accepted but not used: a connection has one request, for which HTTP/1 is enough.
    #[serde(rename = "http2")]
    _http2: Option<bool>,
    headers: Option<BTreeMap<String, String>>,
}

/// The settings of the file.
#[derive(Clone, Default)]
pub(super) struct Access {
    pub(super) tls: Option<TlsAcceptor>,
    /// If empty, no password is required.
    pub(super) users: Users,
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
}

impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<_> = self.users.keys().collect();
        f.debug_struct("Access").field("tls", &self.tls.is_some()).field("users", &names).finish()
    }
}

/// Distinguishes versions of a file: device, inode, modification time and size. `None` if there is no file.
type Stamp = Option<(u64, u64, i64, i64, u64)>;

fn stamp(path: &Path) -> Stamp {
    let metadata = fs::metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino(), metadata.mtime(), metadata.mtime_nsec(), metadata.size()))
}

/// Reads files that the web config names, and remembers the version of each.
#[derive(Debug)]
pub(super) struct Source<'a> {
    folder: &'a Path,
    seen: Vec<(PathBuf, Stamp)>,
}

impl<'a> Source<'a> {
    fn new(folder: &'a Path) -> Self {
        Self { folder, seen: Vec::new() }
    }

    /// Reads the file that a key names.
    pub(super) fn read(&mut self, key: &str, name: &str) -> Result<Vec<u8>, String> {
        self.bytes(&self.folder.join(name)).map_err(|error| format!("{key} {name}: {error}"))
    }

    fn bytes(&mut self, path: &Path) -> Result<Vec<u8>, String> {
        // taken before the file is read, so that a change while it is read is noticed the next time
        self.seen.push((path.to_owned(), stamp(path)));
        let text = |error: std::io::Error| error.to_string();
        // opening a pipe would block until another process writes to it
        if !fs::metadata(path).map_err(text)?.is_file() {
            return Err("is not a file".to_owned());
        }
        let mut bytes = Vec::new();
        fs::File::open(path)
            .and_then(|file| file.take(MOST_BYTES + 1).read_to_end(&mut bytes))
            .map_err(text)?;
        if bytes.len() as u64 > MOST_BYTES {
            return Err(format!("has more than {MOST_BYTES} bytes"));
        }
        Ok(bytes)
    }
}

/// The current settings, and the version of every file that was read.
fn load(path: &Path) -> (Result<Access, String>, Vec<(PathBuf, Stamp)>) {
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut source = Source::new(folder);
    let access = access(path, &mut source);
    (access.map_err(|error| format!("web config {}: {}", path.display(), one_line(&error))), source.seen)
}

fn access(path: &Path, source: &mut Source<'_>) -> Result<Access, String> {
    let bytes = source.bytes(path)?;
    let text = String::from_utf8(bytes).map_err(|error| error.to_string())?;
    // an empty file has no settings
    let file: Option<File> = yaml_serde::from_str(&text).map_err(|error| error.to_string())?;
    let file = file.unwrap_or_default();
    let tls = match &file.tls_server_config {
        Some(section) => Some(TlsAcceptor::from(Arc::new(tls::server_config(section, source)?))),
        None => None,
    };
    let users = file.basic_auth_users.unwrap_or_default();
    users.iter().try_for_each(|(name, hash)| check_hash(name, hash))?;
    let headers = file.http_server_config.and_then(|section| section.headers).unwrap_or_default();
    let headers: Result<_, _> = headers.iter().filter(|(_, value)| !value.is_empty()).map(header).collect();
    Ok(Access { tls, users, headers: headers? })
}

/// Checks that a hash is valid and can be compared in reasonable time.
fn check_hash(name: &str, hash: &str) -> Result<(), String> {
    const MAKE: &str = "`htpasswd -nBC 10 NAME` prints one";
    // an error message must not contain the hash
    let parts: Result<bcrypt::HashParts, _> = hash.parse();
    match parts.map(|parts| parts.get_cost()) {
        Err(_) => Err(format!("basic_auth_users: the password of {name} is not a bcrypt hash: {MAKE}")),
        Ok(cost) if cost > MOST_COST => Err(format!(
            "basic_auth_users: the hash of {name} has cost {cost}, and a cost above {MOST_COST} takes too long: {MAKE}"
        )),
        Ok(_) => Ok(()),
    }
}

fn header((name, value): (&String, &String)) -> Result<(HeaderName, HeaderValue), String> {
    if !HEADERS.iter().any(|known| known.eq_ignore_ascii_case(name)) {
        return Err(format!("headers: {name} cannot be set; supported headers: {}", HEADERS.join(", ")));
    }
    let bad = |error: &dyn Display| format!("headers: {name}: {error}");
    let name: HeaderName = name.parse().map_err(|error| bad(&error))?;
    Ok((name, value.parse().map_err(|error| bad(&error))?))
}

/// An error message as one line.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The settings, which follow changes of the file.
#[derive(Debug)]
pub(super) struct WebConfig {
    path: Option<PathBuf>,
    report_problem: fn(&str),
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    access: Arc<Access>,
    seen: Vec<(PathBuf, Stamp)>,
}

impl WebConfig {
    /// Reads the file, if there is one. An error is one complete line.
    pub(super) fn open(path: Option<PathBuf>, report_problem: fn(&str)) -> Result<Self, String> {
        let state = match &path {
            None => State::default(),
            Some(path) => {
                let (access, seen) = load(path);
                State { access: Arc::new(access?), seen }
            }
        };
        Ok(Self { path, report_problem, state: Mutex::new(state) })
    }

    /// The settings for a new connection. If a changed file is invalid, the previous settings stay in force.
    pub(super) fn access(&self) -> Arc<Access> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(path) = &self.path
            && state.seen.iter().any(|(file, before)| stamp(file) != *before)
        {
            let (access, seen) = load(path);
            state.seen = seen;
            match access {
                // turning TLS off without a restart would expose clients that rely on it
                Ok(access) if access.tls.is_some() != state.access.tls.is_some() => {
                    let what = if access.tls.is_some() { "on" } else { "off" };
                    (self.report_problem)(&format!(
                        "web config {}: TLS cannot be turned {what} while gpuprobe runs: restart it; until then the previous settings stay in force",
                        path.display()
                    ));
                }
                Ok(access) => state.access = Arc::new(access),
                Err(error) => (self.report_problem)(&format!("{error}; the previous settings stay in force")),
            }
        }
        Arc::clone(&state.access)
    }
}

#[cfg(test)]
mod tests;
