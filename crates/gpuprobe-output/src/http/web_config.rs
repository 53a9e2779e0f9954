//! Who may ask and how, from a file in the form that Prometheus and its exporters share, so that one file serves all of a
//! host. It is read again when it, or a file that it names, has changed.

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

/// The longest file that is read.
const MOST_BYTES: u64 = 1 << 20;
/// The highest cost of a password's hash: with each step it takes twice as long, and this one takes seconds.
const MOST_COST: u32 = 16;
/// Headers that an answer may be given, as elsewhere.
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
    /// Taken and not used: this endpoint has one request a connection, for which HTTP/1 is enough.
    #[serde(rename = "http2")]
    _http2: Option<bool>,
    headers: Option<BTreeMap<String, String>>,
}

/// What the file comes to.
#[derive(Clone, Default)]
pub(super) struct Access {
    pub(super) tls: Option<TlsAcceptor>,
    /// Everybody may ask where it is empty.
    pub(super) users: Users,
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
}

impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<_> = self.users.keys().collect();
        f.debug_struct("Access").field("tls", &self.tls.is_some()).field("users", &names).finish()
    }
}

/// What tells one state of a file from another; `None` where there is no file.
type Stamp = Option<(u64, u64, i64, i64, u64)>;

fn stamp(path: &Path) -> Stamp {
    let about = fs::metadata(path).ok()?;
    Some((about.dev(), about.ino(), about.mtime(), about.mtime_nsec(), about.size()))
}

/// Reads files by their names in the web config, and remembers how each was then.
#[derive(Debug)]
pub(super) struct Source<'a> {
    folder: &'a Path,
    seen: Vec<(PathBuf, Stamp)>,
}

impl<'a> Source<'a> {
    fn new(folder: &'a Path) -> Self {
        Self { folder, seen: Vec::new() }
    }

    /// The file that a key names.
    pub(super) fn read(&mut self, key: &str, name: &str) -> Result<Vec<u8>, String> {
        self.bytes(&self.folder.join(name)).map_err(|error| format!("{key} {name}: {error}"))
    }

    fn bytes(&mut self, path: &Path) -> Result<Vec<u8>, String> {
        // before it is read: what changes meanwhile is seen the next time
        self.seen.push((path.to_owned(), stamp(path)));
        let said = |error: std::io::Error| error.to_string();
        // to open a pipe would wait for somebody to write
        if !fs::metadata(path).map_err(said)?.is_file() {
            return Err("is not a file".to_owned());
        }
        let mut bytes = Vec::new();
        fs::File::open(path)
            .and_then(|file| file.take(MOST_BYTES + 1).read_to_end(&mut bytes))
            .map_err(said)?;
        if bytes.len() as u64 > MOST_BYTES {
            return Err(format!("has more than {MOST_BYTES} bytes"));
        }
        Ok(bytes)
    }
}

/// The file as it is now, and every file that was looked at.
fn load(path: &Path) -> (Result<Access, String>, Vec<(PathBuf, Stamp)>) {
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut source = Source::new(folder);
    let access = access(path, &mut source);
    (access.map_err(|error| format!("web config {}: {}", path.display(), one_line(&error))), source.seen)
}

fn access(path: &Path, source: &mut Source<'_>) -> Result<Access, String> {
    let bytes = source.bytes(path)?;
    let text = String::from_utf8(bytes).map_err(|error| error.to_string())?;
    // an empty file is one that asks for nothing
    let file: Option<File> = yaml_serde::from_str(&text).map_err(|error| error.to_string())?;
    let file = file.unwrap_or_default();
    let tls = match &file.tls_server_config {
        Some(section) => Some(TlsAcceptor::from(Arc::new(tls::server_config(section, source)?))),
        None => None,
    };
    let users = file.basic_auth_users.unwrap_or_default();
    users.iter().try_for_each(|(name, hash)| sound(name, hash))?;
    let headers = file.http_server_config.and_then(|section| section.headers).unwrap_or_default();
    let headers: Result<_, _> = headers.iter().filter(|(_, value)| !value.is_empty()).map(header).collect();
    Ok(Access { tls, users, headers: headers? })
}

/// Whether passwords can be compared with this hash, in a time that can be waited for.
fn sound(name: &str, hash: &str) -> Result<(), String> {
    const MAKE: &str = "`htpasswd -nBC 10 NAME` makes one";
    // the hash is a secret that is not to be told
    let parts: Result<bcrypt::HashParts, _> = hash.parse();
    match parts.map(|parts| parts.get_cost()) {
        Err(_) => Err(format!("basic_auth_users: what {name} has is no bcrypt hash: {MAKE}")),
        Ok(cost) if cost > MOST_COST => Err(format!(
            "basic_auth_users: the hash of {name} has cost {cost}, and more than {MOST_COST} takes too long: {MAKE}"
        )),
        Ok(_) => Ok(()),
    }
}

fn header((name, value): (&String, &String)) -> Result<(HeaderName, HeaderValue), String> {
    if !HEADERS.iter().any(|known| known.eq_ignore_ascii_case(name)) {
        return Err(format!("headers: {name} cannot be set: there are {}", HEADERS.join(", ")));
    }
    let bad = |error: &dyn Display| format!("headers: {name}: {error}");
    let name: HeaderName = name.parse().map_err(|error| bad(&error))?;
    Ok((name, value.parse().map_err(|error| bad(&error))?))
}

/// Errors are told in one line.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The file, followed.
#[derive(Debug)]
pub(super) struct WebConfig {
    path: Option<PathBuf>,
    complain: fn(&str),
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    access: Arc<Access>,
    seen: Vec<(PathBuf, Stamp)>,
}

impl WebConfig {
    /// Reads the file, where there is one; an error tells all that somebody has to know in one line.
    pub(super) fn open(path: Option<PathBuf>, complain: fn(&str)) -> Result<Self, String> {
        let state = match &path {
            None => State::default(),
            Some(path) => {
                let (access, seen) = load(path);
                State { access: Arc::new(access?), seen }
            }
        };
        Ok(Self { path, complain, state: Mutex::new(state) })
    }

    /// What holds for a connection that begins now. Where a changed file is wrong, what held before it does so still.
    pub(super) fn access(&self) -> Arc<Access> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(path) = &self.path
            && state.seen.iter().any(|(file, before)| stamp(file) != *before)
        {
            let (access, seen) = load(path);
            state.seen = seen;
            match access {
                // who trusts that nobody listens in must not find out otherwise
                Ok(access) if access.tls.is_some() != state.access.tls.is_some() => {
                    let what = if access.tls.is_some() { "on" } else { "off" };
                    (self.complain)(&format!(
                        "web config {}: TLS cannot be turned {what} while this runs: restart gpuprobe; until then the former holds",
                        path.display()
                    ));
                }
                Ok(access) => state.access = Arc::new(access),
                Err(error) => (self.complain)(&format!("{error}; until then the former holds")),
            }
        }
        Arc::clone(&state.access)
    }
}

#[cfg(test)]
mod tests;
