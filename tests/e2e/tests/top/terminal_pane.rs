//! A terminal with a shell, by tmux.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use gpuprobe_e2e::process::{PATIENCE, until};

/// A pane of a tmux server of its own. Dropping it ends the server.
pub(crate) struct Pane {
    server: String,
}

impl Pane {
    /// A shell on a screen of this size.
    pub(crate) fn open(width: u16, height: u16) -> Self {
        static OPENED: AtomicU32 = AtomicU32::new(0);
        let number = OPENED.fetch_add(1, Ordering::Relaxed);
        let pane = Self { server: format!("gpuprobe-{}-{number}", std::process::id()) };
        let (width, height) = (width.to_string(), height.to_string());
        let size = ["-x", &width, "-y", &height];
        pane.tmux(&[&["new-session", "-d"][..], &size, &["env", "PS1=ready> ", "bash", "--norc"]].concat());
        pane.until("the shell", |screen| screen.contains("ready>"));
        pane
    }

    fn tmux(&self, args: &[&str]) -> String {
        let mut command = Command::new("tmux");
        command.args(["-u", "-L", &self.server, "-f", "/dev/null"]).args(args);
        command.env("LC_ALL", "C.UTF-8").env_remove("TMUX");
        let done = command.output().unwrap();
        assert!(done.status.success(), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8_lossy(&done.stdout).into_owned()
    }

    /// Types a text as it is.
    pub(crate) fn type_text(&self, text: &str) {
        self.tmux(&["send-keys", "-l", text]);
    }

    /// Presses keys, by their names in tmux.
    pub(crate) fn press(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys"], keys].concat());
    }

    /// Types a line and presses Enter.
    pub(crate) fn run(&self, line: &str) {
        self.type_text(line);
        self.press(&["Enter"]);
    }

    pub(crate) fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    pub(crate) fn resize(&self, width: u16, height: u16) {
        self.tmux(&["resize-window", "-x", &width.to_string(), "-y", &height.to_string()]);
    }

    /// Waits until the screen is as wanted, and returns it.
    pub(crate) fn until(&self, what: &str, is_wanted: impl Fn(&str) -> bool) -> String {
        until(PATIENCE, what, || Some(self.screen()).filter(|screen| is_wanted(screen)))
    }

    /// Waits until the shell has the terminal again, as it was before.
    pub(crate) fn assert_restored(&self) {
        let is_free = || {
            (self.tmux(&["display", "-p", "#{alternate_on} #{cursor_flag}"]).trim() == "0 1").then_some(())
        };
        until(PATIENCE, "the first screen and the cursor", is_free);
        self.run(
            "clear; stty -a | tr ' ' '\\n' | grep -xE 'icanon;?|echo;?|isig;?' | sort | xargs echo state:",
        );
        self.until("the terminal echoes, edits lines and sends signals", |screen| {
            screen.contains("state: echo icanon isig")
        });
    }
}

impl Drop for Pane {
    fn drop(&mut self) {
        Command::new("tmux").args(["-L", &self.server, "kill-server"]).output().ok();
    }
}
