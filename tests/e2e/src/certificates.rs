//! Certificates for the TLS tests, made with openssl.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::{finish, shown};

#[derive(Clone, Debug)]
pub struct Certificate {
    pub cert: PathBuf,
    pub key: PathBuf,
}

/// A self-signed authority.
pub fn authority(folder: &Path, name: &str) -> Certificate {
    made(folder, name, None)
}

/// A certificate for 127.0.0.1, signed by an authority.
pub fn signed(folder: &Path, name: &str, by: &Certificate) -> Certificate {
    made(folder, name, Some(by))
}

fn made(folder: &Path, name: &str, by: Option<&Certificate>) -> Certificate {
    let file = |end: &str| folder.join(format!("{name}.{end}"));
    let made = Certificate { cert: file("crt"), key: file("key") };
    let (cert, key, subject) = (shown(&made.cert), shown(&made.key), format!("/CN={name}"));
    let mut command = Command::new("openssl");
    command.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]);
    command.args(["-days", "2", "-subj", &subject, "-keyout", &key, "-out", &cert]);
    if let Some(by) = by {
        command.args(["-CA", &shown(&by.cert), "-CAkey", &shown(&by.key)]);
        command.args([
            "-addext",
            "subjectAltName=IP:127.0.0.1",
            "-addext",
            "basicConstraints=critical,CA:FALSE",
        ]);
    }
    let finished = finish(&mut command);
    assert_eq!(finished.status, 0, "openssl: {}", finished.stderr);
    made
}
