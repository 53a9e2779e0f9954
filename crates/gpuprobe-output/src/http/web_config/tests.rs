use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

/// The hash of `secret` at the lowest cost.
const HASH: &str = "$2y$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW";

fn opened(text: &str) -> Result<Arc<Access>, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("web.yml");
    fs::write(&path, text).unwrap();
    WebConfig::open(Some(path), |_| {}).map(|config| config.access())
}

#[test]
fn an_empty_file_has_no_settings() {
    for text in ["", "# nothing\n", "{}", "basic_auth_users:\n", "http_server_config:\n  http2: false\n"] {
        let access = opened(text).unwrap();
        assert!(access.tls.is_none() && access.users.is_empty() && access.headers.is_empty(), "{text}");
    }
    assert!(WebConfig::open(None, |_| {}).unwrap().access().users.is_empty());
}

#[test]
fn users_and_headers_are_read() {
    let text = format!(
        "basic_auth_users:\n  ann: {HASH}\nhttp_server_config:\n  headers:\n    X-Frame-Options: deny\n    X-XSS-Protection: ''\n"
    );
    let access = opened(&text).unwrap();
    assert_eq!(access.users, Users::from([("ann".to_owned(), HASH.to_owned())]));
    let headers: Vec<_> = access.headers.iter().map(|(n, v)| (n.as_str(), v.to_str().unwrap())).collect();
    assert_eq!(headers, [("x-frame-options", "deny")]);
    assert!(!format!("{access:?}").contains(HASH), "hashes are not printed");
}

#[test]
fn an_error_names_its_key_in_one_line() {
    let cases = [
        ("nonsense: 1", "nonsense"),
        ("tls_server_config:\n  cipher_suites: []", "cipher_suites"),
        ("http_server_config:\n  headers:\n    X-Other: 1", "X-Other"),
        ("http_server_config:\n  headers:\n    X-Frame-Options: \"a\\nb\"", "X-Frame-Options"),
        ("basic_auth_users: [1]", "basic_auth_users"),
        ("basic_auth_users:\n  ann: plain", "ann"),
        ("basic_auth_users:\n  ann: $2y$31$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW", "cost 31"),
        ("tls_server_config:\n  cert_file: a.pem", "key_file"),
        ("tls_server_config: {}", "cert_file"),
        ("tls_server_config:\n  cert_file: a.pem\n  key_file: b.pem", "cert_file a.pem"),
        ("tls_server_config: {cert_file: a, key_file: b, min_version: TLS10}", "min_version TLS10"),
        (
            "tls_server_config: {cert_file: a, key_file: b, min_version: TLS13, max_version: TLS12}",
            "min_version",
        ),
        ("tls_server_config: {cert_file: a, key_file: b, client_auth_type: Maybe}", "client_auth_type Maybe"),
        ("tls_server_config: {cert_file: a, key_file: b, client_ca_file: c}", "client_ca_file"),
        (
            "tls_server_config: {cert_file: a, key_file: b, client_auth_type: RequireAndVerifyClientCert}",
            "client_ca_file",
        ),
        ("basic_auth_users: [", "line"),
        ("\u{1}", "web.yml"),
        ("basic_auth_users: {ann: 1, ann: 2}", "basic_auth_users"),
    ];
    for (text, named) in cases {
        let error = opened(text).unwrap_err();
        assert!(error.contains(named) && error.contains("web.yml"), "{text:?}: {error}");
        assert!(!error.contains('\n') && !error.contains("plain"), "{error}");
    }
}

#[test]
fn a_folder_a_missing_file_and_a_large_file_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let open = |path: PathBuf| WebConfig::open(Some(path), |_| {}).unwrap_err();
    assert!(open(folder.path().to_owned()).ends_with("is not a file"));
    assert!(open(folder.path().join("none")).contains("No such file"));
    let long = folder.path().join("long");
    fs::write(&long, "#".repeat(2 << 20)).unwrap();
    assert!(open(long).contains("more than"));
}

#[test]
fn a_changed_file_applies_to_the_next_connection_unless_it_is_invalid() {
    static COMPLAINTS: AtomicUsize = AtomicUsize::new(0);
    let complaints = || COMPLAINTS.load(Ordering::Relaxed);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("web.yml");
    let write = |text: &str| fs::write(&path, text).unwrap();
    write(&format!("basic_auth_users:\n  ann: {HASH}\n"));
    let config = WebConfig::open(Some(path.clone()), |_| {
        COMPLAINTS.fetch_add(1, Ordering::Relaxed);
    })
    .unwrap();
    let names = || config.access().users.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(), ["ann"]);
    write(&format!("basic_auth_users:\n  robert: {HASH}\n"));
    assert_eq!(names(), ["robert"]);
    write("nonsense");
    assert_eq!((names(), names()), (vec!["robert".to_owned()], vec!["robert".to_owned()]));
    assert_eq!(complaints(), 1, "each change is reported once");
    fs::remove_file(&path).unwrap();
    assert_eq!(names(), ["robert"]);
    assert_eq!(complaints(), 2);
    write(&format!("basic_auth_users:\n  eve: {HASH}\n"));
    assert_eq!(names(), ["eve"]);
}
