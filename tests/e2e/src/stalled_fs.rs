//! A FUSE file system that stops answering, with a program that runs from it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use gpuprobe_standin::Cuda;
use nix::mount::{MntFlags, umount2};

use crate::process::Talk;
use crate::{compile, fixtures};

pub fn compile(name: &str, program: &Path) {
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-Wall", "-Wextra", "-Werror", "-o"]).arg(program).arg(compile::source(name)).arg("-ldl");
    let status = cc.status().unwrap_or_else(|e| panic!("cc: {e}"));
    assert!(status.success(), "{name}: {status}");
}

/// A mounted file system. Dropping this unmounts it, even if processes wait for it.
#[derive(Debug)]
pub struct FileSystem {
    /// Dropped first: processes that wait for the file system can exit only after that.
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

    pub fn file(&self, name: &str) -> PathBuf {
        self.mount.join(name)
    }

    /// Starts a program that runs from it and uses its library. Returns the process id.
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

    /// From now on it accepts requests and answers none.
    pub fn stall(&mut self) {
        self.server().go_on();
        assert_eq!(self.server().line(), "stalled");
    }

    /// Waits for a request that came after the stall.
    pub fn wait_asked(&mut self) {
        assert_eq!(self.server().line(), "asked");
    }
}

impl Drop for FileSystem {
    fn drop(&mut self) {
        // when the server exits, every pending request fails
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
