use std::io::Write;
use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};

use super::*;

const OTHER_USER: u32 = 65534;

fn set_mode_of(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn mode_of(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

/// A directory that all users can write, without the sticky bit: there the Linux kernel itself prevents nothing.
fn shared() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    set_mode_of(folder.path(), 0o777);
    folder
}

fn write(path: &Path, access: Access) -> io::Result<()> {
    create(path, access)?.file.write_all(b"new")
}

fn error_of(path: &Path) -> String {
    write(path, Access::Private).unwrap_err().to_string()
}

#[test]
fn a_new_file_is_private_unless_requested_otherwise() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    write(&at("private"), Access::Private).unwrap();
    assert_eq!(mode_of(&at("private")), 0o600);
    write(&at("requested"), Access::Exactly(0o664)).unwrap();
    assert_eq!(mode_of(&at("requested")), 0o664, "regardless of the umask");
    write(&at("like"), Access::like(&[at("private")])).unwrap();
    assert_eq!(mode_of(&at("like")), 0o600);
    assert_eq!(Access::like(&[at("requested")]), Access::Like(0o664));
    assert_eq!(Access::like(&["-".into()]), Access::Private);
}

#[test]
fn an_existing_own_file_is_overwritten_and_keeps_its_permissions() {
    for folder in [tempfile::tempdir().unwrap(), shared()] {
        let path = folder.path().join("t");
        fs::write(&path, "much longer than the new content").unwrap();
        set_mode_of(&path, 0o640);
        write(&path, Access::Private).unwrap();
        assert_eq!((fs::read_to_string(&path).unwrap(), mode_of(&path)), ("new".to_owned(), 0o640));
        write(&path, Access::Exactly(0o604)).unwrap();
        assert_eq!(mode_of(&path), 0o604);
    }
}

#[test]
fn an_own_link_is_followed() {
    let folder = shared();
    let (target, link) = (folder.path().join("target"), folder.path().join("link"));
    symlink("target", &link).unwrap();
    let created = create(&link, Access::Private).unwrap();
    assert_eq!(created.folder.path_of(&created.name), target.canonicalize().unwrap());
    symlink("around", folder.path().join("around")).unwrap();
    assert!(create(&folder.path().join("around"), Access::Private).is_err());
    for wrong in ["/tmp/", "/", "..", ""] {
        assert!(create(Path::new(wrong), Access::Private).is_err(), "{wrong}");
    }
    assert!(create(Path::new("/dev/null"), Access::Private).unwrap().file.write_all(b"x").is_ok());
}

#[test]
fn planted_files_and_links_are_refused() {
    if !geteuid().is_root() {
        return;
    }
    let (folder, own) = (shared(), tempfile::tempdir().unwrap());
    let (victim, at) = (own.path().join("victim"), |name: &str| folder.path().join(name));
    fs::write(&victim, "root's").unwrap();
    symlink(&victim, at("link")).unwrap();
    lchown(at("link"), Some(OTHER_USER), None).unwrap();
    assert!(error_of(&at("link")).contains("symbolic link of another user"));
    fs::write(at("file"), "other user's").unwrap();
    chown(at("file"), Some(OTHER_USER), None).unwrap();
    assert!(error_of(&at("file")).contains("belongs to another user"), "{}", error_of(&at("file")));
    // a link to a directory in the path
    symlink(own.path(), at("folder")).unwrap();
    lchown(at("folder"), Some(OTHER_USER), None).unwrap();
    assert!(error_of(&at("folder/victim")).contains("symbolic link of another user"));
    nix::unistd::mkfifo(&at("fifo"), Mode::S_IRWXU).unwrap();
    chown(at("fifo"), Some(OTHER_USER), None).unwrap();
    assert!(error_of(&at("fifo")).contains("belongs to another user"));
    assert_eq!(fs::read_to_string(&victim).unwrap(), "root's");
    assert_eq!(fs::read_to_string(at("file")).unwrap(), "other user's");
    // in a private directory they cannot have been planted
    set_mode_of(folder.path(), 0o755);
    write(&at("file"), Access::Private).unwrap();
    write(&at("link"), Access::Private).unwrap();
    assert_eq!(fs::read_to_string(&victim).unwrap(), "new");
}

#[test]
fn a_hard_link_in_a_shared_directory_is_refused() {
    let (folder, own) = (shared(), tempfile::tempdir_in("/tmp").unwrap());
    let victim = own.path().join("victim");
    fs::write(&victim, "root's").unwrap();
    fs::hard_link(&victim, folder.path().join("t")).unwrap();
    assert!(error_of(&folder.path().join("t")).contains("hard link"));
    assert_eq!(fs::read_to_string(&victim).unwrap(), "root's");
}

#[test]
fn a_generated_name_avoids_a_planted_file() {
    let (folder, own) = (shared(), tempfile::tempdir().unwrap());
    let victim = own.path().join("victim");
    fs::write(&victim, "root's").unwrap();
    symlink(&victim, folder.path().join("t.2.jsonl.zst")).unwrap();
    fs::write(folder.path().join("t.3.jsonl"), "of an earlier recording").unwrap();
    let opened = Folder::open(folder.path()).unwrap();
    let (mut file, name) = opened.create("t.2.jsonl.zst".as_ref(), Access::Private).unwrap();
    file.write_all(b"new").unwrap();
    let text = name.to_string_lossy();
    assert!(text.starts_with("t.2-") && text.ends_with(".jsonl.zst") && text.len() == 30, "{text}");
    assert_eq!(
        (fs::read_to_string(&victim).unwrap(), mode_of(&opened.path_of(&name))),
        ("root's".into(), 0o600)
    );
    let (_, again) = opened.create("t.3.jsonl".as_ref(), Access::Private).unwrap();
    assert_eq!(again, "t.3.jsonl");
    assert_eq!(fs::read_to_string(folder.path().join("t.3.jsonl")).unwrap(), "");
}

#[test]
fn only_the_same_file_is_removed_and_links_are_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let opened = Folder::open(folder.path()).unwrap();
    let (file, name) = opened.create("t".as_ref(), Access::Private).unwrap();
    let id = FileId::of(&file).unwrap();
    fs::rename(folder.path().join("t"), folder.path().join("moved")).unwrap();
    fs::write(folder.path().join("t"), "another").unwrap();
    assert!(opened.remove(&name, id).is_err());
    assert!(opened.has(&name));
    opened.remove("moved".as_ref(), id).unwrap();
    for target in ["a", "b"] {
        opened.point("latest".as_ref(), target.as_ref()).unwrap();
        assert_eq!(fs::read_link(folder.path().join("latest")).unwrap(), Path::new(target));
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "no temporary name is left");
}

#[test]
fn a_descriptor_path_can_be_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t");
    let file = File::create(&path).unwrap();
    use std::os::fd::AsRawFd;
    for name in ["/dev/fd", "/proc/self/fd"] {
        write(&Path::new(name).join(file.as_raw_fd().to_string()), Access::Private).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
    }
}

#[test]
fn a_link_planted_in_a_resolved_path_is_not_followed() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().canonicalize().unwrap().join(name);
    fs::create_dir_all(at("real/inner")).unwrap();
    symlink(at("real"), at("link")).unwrap();
    assert!(open_without_links(&at("real/inner")).is_ok());
    // as if a directory had been replaced after it was resolved
    let refused = open_without_links(&at("link/inner")).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(Errno::ENOTDIR as i32));
}
