//! The user that a started command runs as: with sudo the user who ran it, not root.

use std::ffi::{CString, OsString};

use anyhow::{Context, Result, bail};
use gpuprobe_discover::sudo_user;
use nix::unistd::{Gid, Uid, User, geteuid, getgrouplist};

use crate::cli::UserArgs;
use crate::terminal::notes::note;

/// Whose ids the command gets.
#[derive(Debug, PartialEq, Eq)]
enum Choice<'a> {
    /// Those of gpuprobe.
    Unchanged,
    /// Those of the user who ran sudo.
    Sudo { uid: u32, gid: u32 },
    /// Those of the user with this name or number.
    Named(&'a str),
}

/// Chooses by the options and the user who ran sudo.
fn choose(args: &UserArgs, is_root: bool, sudo: Option<(u32, u32)>) -> Result<Choice<'_>> {
    match (args.user.as_deref(), sudo) {
        (Some(_), _) if !is_root => bail!("--user needs root: only root can start a command as another user"),
        (None, _) if args.as_root && !is_root => bail!("--as-root needs root: try sudo"),
        (Some(name), _) => Ok(Choice::Named(name)),
        (None, Some((uid, gid))) if is_root && !args.as_root => Ok(Choice::Sudo { uid, gid }),
        _ => Ok(Choice::Unchanged),
    }
}

/// A user with the groups and the environment that a login would give.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CommandUser {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: Vec<u32>,
    name: String,
    home: OsString,
    shell: Option<OsString>,
}

impl CommandUser {
    /// The user that the options and the environment select; `None` if the command keeps the ids of gpuprobe.
    pub(crate) fn selected(args: &UserArgs) -> Result<Option<Self>> {
        match choose(args, geteuid().is_root(), sudo_user())? {
            Choice::Unchanged => Ok(None),
            Choice::Sudo { uid, gid } => {
                let user = Self::of_sudo(uid, gid)?;
                note!("gpuprobe: the command runs as {}, who ran sudo (--as-root: as root)", user.name);
                Ok(Some(user))
            }
            Choice::Named(name) => Self::named(name).map(Some),
        }
    }

    fn of_sudo(uid: u32, gid: u32) -> Result<Self> {
        let user = User::from_uid(Uid::from_raw(uid)).ok().flatten();
        match user {
            Some(user) => Self::with_groups(user, gid),
            // an account of a network service that does not answer
            None => Ok(Self::without_account(uid, gid)),
        }
    }

    fn named(name: &str) -> Result<Self> {
        let by_name = User::from_name(name).ok().flatten();
        let by_number = || User::from_uid(Uid::from_raw(name.parse().ok()?)).ok().flatten();
        let user = by_name.or_else(by_number);
        let user = user.with_context(|| format!("--user: there is no user {name}"))?;
        let gid = user.gid.as_raw();
        Self::with_groups(user, gid)
    }

    fn with_groups(user: User, gid: u32) -> Result<Self> {
        let cannot = || format!("cannot find the groups of {}", user.name);
        let name = CString::new(user.name.as_str()).with_context(cannot)?;
        let groups = getgrouplist(&name, Gid::from_raw(gid)).with_context(cannot)?;
        Ok(Self {
            uid: user.uid.as_raw(),
            gid,
            groups: groups.into_iter().map(Gid::as_raw).collect(),
            home: user.dir.into_os_string(),
            shell: Some(user.shell.into_os_string()).filter(|shell| !shell.is_empty()),
            name: user.name,
        })
    }

    fn without_account(uid: u32, gid: u32) -> Self {
        let name = std::env::var("SUDO_USER").unwrap_or_else(|_| uid.to_string());
        Self { uid, gid, groups: vec![gid], name, home: "/".into(), shell: None }
    }

    /// The environment variables that name the user: sudo has set them to those of root.
    pub(crate) fn environment(&self) -> Vec<(&'static str, OsString)> {
        let name = || OsString::from(&self.name);
        let mut variables = vec![("HOME", self.home.clone()), ("USER", name()), ("LOGNAME", name())];
        variables.extend(self.shell.clone().map(|shell| ("SHELL", shell)));
        variables
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(user: Option<&str>, as_root: bool) -> UserArgs {
        UserArgs { user: user.map(str::to_owned), as_root }
    }

    #[test]
    fn the_user_follows_from_the_options_and_sudo() {
        let sudo = Some((1000, 1001));
        let of_sudo = Choice::Sudo { uid: 1000, gid: 1001 };
        for (user, as_root, is_root, sudo, expected) in [
            (None, false, true, sudo, of_sudo),
            // root in a container, or with capabilities only
            (None, false, true, None, Choice::Unchanged),
            (None, false, false, None, Choice::Unchanged),
            (None, false, false, sudo, Choice::Unchanged),
            (None, true, true, sudo, Choice::Unchanged),
            (None, true, true, None, Choice::Unchanged),
            (Some("alice"), false, true, sudo, Choice::Named("alice")),
            (Some("alice"), false, true, None, Choice::Named("alice")),
        ] {
            assert_eq!(choose(&args(user, as_root), is_root, sudo).unwrap(), expected);
        }
        for refused in [args(Some("alice"), false), args(None, true)] {
            let error = choose(&refused, false, None).unwrap_err().to_string();
            assert!(error.contains("needs root") && error.lines().count() == 1, "{error}");
        }
    }

    #[test]
    fn a_user_has_groups_and_an_environment() {
        let root = CommandUser::named("root").unwrap();
        assert_eq!(root, CommandUser::named("0").unwrap());
        assert!(root.uid == 0 && root.groups.contains(&0));
        assert!(root.environment().contains(&("LOGNAME", "root".into())));
        let error = CommandUser::named("no-such-user").unwrap_err().to_string();
        assert_eq!(error, "--user: there is no user no-such-user");
        let unknown = CommandUser::of_sudo(3_999_999_999, 5).unwrap();
        assert_eq!((unknown.uid, unknown.gid, unknown.groups.as_slice()), (3_999_999_999, 5, &[5][..]));
    }
}
