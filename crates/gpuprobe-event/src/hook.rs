//! Hooks: functions of any library or of the Linux kernel that the user has named in hook files. Each becomes a row
//! of the catalogue and is then treated like the rows of the tables. Nothing here reads a file: text goes in, rows
//! come out.

mod parse_file;
mod signature;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Mutex, PoisonError};

use glob::Pattern;
use thiserror::Error;

pub use self::signature::Signature;
use crate::catalogue::{Api, Class, Function, catalogue};
use crate::ids::FunctionId;

/// An error in a hook file.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{source_line}: {message}")]
pub struct HookError {
    pub source_line: SourceLine,
    /// What is wrong, and what would be right.
    pub message: String,
}

/// A line of a hook file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceLine {
    /// As the user named it.
    pub file: String,
    /// Counted from 1.
    pub line: usize,
}

impl fmt::Display for SourceLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// A hook on functions of libraries.
#[derive(Clone, Debug)]
pub struct LibraryHook {
    /// Matches file names.
    pub library: Pattern,
    /// Matches functions.
    pub function: Pattern,
    /// Its class and arguments.
    pub signature: Signature,
    /// Where the hook is defined.
    pub source_line: SourceLine,
}

impl LibraryHook {
    /// Whether it names one function, as opposed to a pattern.
    pub fn is_exact(&self) -> bool {
        is_name(&self.function)
    }
}

fn is_name(pattern: &Pattern) -> bool {
    !pattern.as_str().contains(['*', '?', '['])
}

/// Of the matching hooks, one that names the function, else the first.
fn best<T>(mut fitting: impl Iterator<Item = T>, names: impl Fn(&T) -> bool) -> Option<T> {
    let first = fitting.next()?;
    if names(&first) {
        return Some(first);
    }
    Some(fitting.find(names).unwrap_or(first))
}

/// What a hook in the Linux kernel is attached to.
#[derive(Clone, Debug, PartialEq)]
pub enum LinuxHookPoint {
    /// Functions of the Linux kernel and its modules.
    Function(Pattern),
    /// One tracepoint.
    Tracepoint {
        /// The group, such as `nvidia`.
        group: String,
        /// The name in the group.
        name: String,
    },
}

impl LinuxHookPoint {
    /// Whether it matches this function.
    pub fn takes(&self, function: &str) -> bool {
        matches!(self, Self::Function(pattern) if pattern.matches(function))
    }

    /// Whether it names one function, as opposed to a pattern.
    pub fn is_exact(&self) -> bool {
        matches!(self, Self::Function(pattern) if is_name(pattern))
    }
}

impl fmt::Display for LinuxHookPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Function(pattern) => f.write_str(pattern.as_str()),
            Self::Tracepoint { group, name } => write!(f, "{group}:{name}"),
        }
    }
}

/// A hook on functions of the Linux kernel, or on a tracepoint.
#[derive(Clone, Debug)]
pub struct LinuxHook {
    pub point: LinuxHookPoint,
    /// Its class and arguments.
    pub signature: Signature,
    /// Where the hook is defined.
    pub source_line: SourceLine,
}

/// All hooks of all files.
#[derive(Debug, Default)]
pub struct Hooks {
    libraries: Vec<LibraryHook>,
    kernel: Vec<LinuxHook>,
    rows: Mutex<Rows>,
}

#[derive(Debug, Default)]
struct Rows {
    /// By hook and function name; `None` if there was no room for a row.
    ids: HashMap<(usize, String), Option<FunctionId>>,
    /// The hooks that matched a function.
    used: HashSet<usize>,
}

impl Hooks {
    pub fn parse(&mut self, file: &str, text: &str) -> Result<(), HookError> {
        parse_file::file(self, file, text)
    }

    /// Whether there are no hooks.
    pub fn is_empty(&self) -> bool {
        self.libraries.is_empty() && self.kernel.is_empty()
    }

    /// Hooks on libraries, in the order of the files.
    pub fn libraries(&self) -> &[LibraryHook] {
        &self.libraries
    }

    /// Hooks in the Linux kernel.
    pub fn linux(&self) -> &[LinuxHook] {
        &self.kernel
    }

    /// The hook on a function of the Linux kernel.
    pub fn linux_hook(&self, function: &str) -> Option<&LinuxHook> {
        best(self.kernel.iter().filter(|hook| hook.point.takes(function)), |hook| hook.point.is_exact())
    }

    /// The classes of the hooked library functions.
    pub fn classes(&self) -> impl Iterator<Item = Class> + '_ {
        self.libraries.iter().map(|hook| hook.signature.class)
    }

    /// Whether a file of this name may have hooked functions.
    pub fn fit_library(&self, file_name: &str) -> bool {
        self.libraries.iter().any(|hook| hook.library.matches(file_name))
    }

    /// Whether a hook names a function of a file exactly.
    pub fn name_exactly(&self, file_name: &str, function: &str) -> bool {
        self.hook_of(file_name, function).is_some_and(|(_, hook)| hook.is_exact())
    }

    /// Whether a function of a file is hooked. A function of the catalogue (`is_known`) must be named exactly.
    pub fn fit(&self, file_name: &str, function: &str, is_known: bool) -> bool {
        self.hook_of(file_name, function).is_some_and(|(_, hook)| hook.is_exact() || !is_known)
    }

    /// The row of a function of a file, created at the first call; `None` if there is no room.
    pub fn function(&self, file_name: &str, function: &str) -> Option<FunctionId> {
        let (index, hook) = self.hook_of(file_name, function)?;
        let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        let make = || {
            let row = catalogue().add_late(|id| hook.signature.row(id, Api::Hook, function))?;
            Some(row.id)
        };
        rows.used.insert(index);
        *rows.ids.entry((index, function.to_owned())).or_insert_with(make)
    }

    /// The number of matching functions without room for a row.
    pub fn without_room(&self) -> usize {
        let rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        rows.ids.values().filter(|id| id.is_none()).count()
    }

    /// The library hooks that matched no function.
    pub fn unused(&self) -> Vec<&LibraryHook> {
        let rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        let unused = |(index, _): &(usize, &LibraryHook)| !rows.used.contains(index);
        self.libraries.iter().enumerate().filter(unused).map(|(_, hook)| hook).collect()
    }

    /// The hook of a function: one that names it, else the first that matches.
    fn hook_of(&self, file_name: &str, function: &str) -> Option<(usize, &LibraryHook)> {
        let fits = |hook: &LibraryHook| hook.library.matches(file_name) && hook.function.matches(function);
        let fitting = self.libraries.iter().enumerate().filter(|(_, hook)| fits(hook));
        best(fitting, |(_, hook)| hook.is_exact())
    }
}

impl Signature {
    /// The row of one function. Its name is leaked and lives as long as the program.
    pub fn row(&self, id: FunctionId, api: Api, name: &str) -> Function {
        let name: &'static str = Box::leak(name.to_owned().into_boxed_str());
        Function {
            id,
            api,
            name,
            base: name,
            versions: "-",
            result: self.result,
            result_type: self.result_type,
            args: self.args.clone(),
            class: self.class,
            roles: self.roles,
            pointee: self.pointee,
            hot: false,
        }
    }
}

#[cfg(test)]
mod tests;
