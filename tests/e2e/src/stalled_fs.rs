//! A file system that stops answering, with a program that runs from it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use gpuprobe_standin::Cuda;
use nix::mount::{MntFlags, umount2};

use crate::fixtures;
use crate::process::Talk;

/// Where C sources of these tests are.
fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("c").join(name)
}

/// Compiles one of these programs.
pub fn compile(name: &str, program: &Path) {
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-Wall", "-Wextra", "-Werror", "-o"]).arg(program).arg(source(name)).arg("-ldl");
    let status = cc.status().unwrap_or_else(|e| panic!("cc: {e}"));
    assert!(status.success(), "{name}: {status}");
}

/// The file system. It is gone when this goes, whatever waits for it.
#[derive(Debug)]
pub struct FileSystem {
    /// Taken down first: what waits for it can be ended only then.
    server: Option<Talk>,
    /// Programs that run from it.
    pub programs: Vec<Talk>,
    mount: PathBuf,
    _folder: tempfile::TempDir,
}

impl FileSystem {
    /// Mounts one that has `churn` and a library for it, and answers. Needs `/dev/fuse`.
    pub fn mount() -> Self {
        let folder = fixtures::folder();
        let [files, mount] = ["files", "mount"].map(|name| folder.path().join(name));
        for made in [&files, &mount] {
            fs::create_dir(made).unwrap_or_else(|e| panic!("{}: {e}", made.display()));
        }
        fixtures::copies(&fixtures::standins(Cuda::Cuda12), &files, &["libcuda.so.1"]);
        compile("churn.c", &files.join("churn"));
        let program = folder.path().join("stalled_fs");
        compile("stalled_fs.c", &program);
        let mut server = Talk::start(Command::new(program).arg(&files).arg(&mount));
        assert_eq!(server.line(), "mounted", "{}", server.stderr());
        Self { server: Some(server), programs: Vec::new(), mount, _folder: folder }
    }

    /// A file of it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.mount.join(name)
    }

    /// Starts a program that runs from it and works with its library; its process id.
    pub fn start_program(&mut self) -> u32 {
        let mut talk = Talk::start(Command::new(self.file("churn")).arg(self.file("libcuda.so.1")));
        assert_eq!(talk.line(), "begun", "{}", talk.stderr());
        let pid = talk.pid();
        self.programs.push(talk);
        pid
    }

    fn server(&mut self) -> &mut Talk {
        self.server.as_mut().unwrap_or_else(|| panic!("it was taken down"))
    }

    /// From now on it takes requests and answers none.
    pub fn stall(&mut self) {
        self.server().go_on();
        assert_eq!(self.server().line(), "stalled");
    }

    /// Waits until somebody has asked it something since.
    pub fn wait_asked(&mut self) {
        assert_eq!(self.server().line(), "asked");
    }
}

impl Drop for FileSystem {
    fn drop(&mut self) {
        // its end fails every request that waits
        drop(self.server.take());
        let is_mounted = |path: &Path| {
            let device = |path: &Path| fs::symlink_metadata(path).map(|meta| meta.dev()).ok();
            device(path) != path.parent().and_then(device)
        };
        if is_mounted(&self.mount) {
            umount2(&self.mount, MntFlags::MNT_DETACH).ok();
        }
    }
}
