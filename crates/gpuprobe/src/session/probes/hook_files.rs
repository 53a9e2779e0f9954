//! Reads hook files and reports hooks that match nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use gpuprobe_event::Hooks;
use gpuprobe_event::catalogue::MOST_FUNCTIONS;
use gpuprobe_event::hook::LibraryHook;

/// Largest accepted hook file.
const MOST_BYTES: u64 = 1 << 20;

pub(crate) fn read(files: &[PathBuf]) -> Result<Arc<Hooks>> {
    let mut hooks = Hooks::default();
    for file in files {
        let text = text_of(file).with_context(|| format!("cannot read the hooks in {}", file.display()))?;
        hooks.parse(&file.display().to_string(), &text)?;
    }
    Ok(Arc::new(hooks))
}

fn text_of(file: &Path) -> Result<String> {
    let mut text = String::new();
    File::open(file)?.take(MOST_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MOST_BYTES {
        bail!("it is larger than {MOST_BYTES} bytes");
    }
    Ok(text)
}

/// For each library whose hooks match nothing: where the first of them is defined, and the reason. `seen` are the
/// names of the files that hooks apply to.
pub(crate) fn unused_hooks(hooks: &Hooks, seen: &BTreeSet<String>) -> Vec<(String, String)> {
    let mut by_library: BTreeMap<&str, Vec<&LibraryHook>> = BTreeMap::new();
    for hook in hooks.unused() {
        by_library.entry(hook.library.as_str()).or_default().push(hook);
    }
    let mut unused_lines = Vec::new();
    for (library, unused) in by_library {
        let [first, ..] = unused.as_slice() else { continue };
        let fitting: Vec<_> =
            seen.iter().filter(|name| first.library.matches(name)).map(String::as_str).collect();
        let (names, it) = (named(&unused), if unused.len() > 1 { "them" } else { "it" });
        let why = match fitting.as_slice() {
            [] => format!("{names}: no library {library} has {it} yet"),
            files => format!(
                "{names}: not in {}: static, inlined or stripped functions have no symbol (`nm -D` lists the symbols)",
                files.join(", ")
            ),
        };
        unused_lines.push((first.source_line.to_string(), why));
    }
    if let (1.., [first, ..]) = (hooks.without_room(), hooks.libraries()) {
        let why = format!(
            "{} functions that match hooks are not probed: the limit is {MOST_FUNCTIONS} including those of CUDA",
            hooks.without_room()
        );
        unused_lines.push((first.source_line.to_string(), why));
    }
    unused_lines
}

/// `hook f`, or the first names and the number of others.
fn named(hooks: &[&LibraryHook]) -> String {
    const MOST: usize = 3;
    let names: Vec<_> = hooks.iter().take(MOST).map(|hook| hook.function.as_str()).collect();
    let more = hooks.len().saturating_sub(MOST);
    let word = if hooks.len() > 1 { "hooks" } else { "hook" };
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{word} {}{more}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use gpuprobe_event::HookError;

    use super::*;

    #[test]
    fn unused_hooks_are_grouped_by_library() {
        let hook =
            |library: &str, name: &str| format!("[[hook]]\nlibrary = \"{library}\"\nfunction = \"{name}\"\n");
        let mut hooks = Hooks::default();
        let text: String = ["a", "b", "c", "d", "e"].iter().map(|name| hook("liba*", name)).collect();
        hooks.parse("h", &(hook("libb*", "f") + &text)).unwrap();
        let seen = ["libb.so.1".to_owned()].into();
        let unused_lines = unused_hooks(&hooks, &seen);
        assert_eq!(
            unused_lines[0],
            ("h:4".to_owned(), "hooks a, b, c and 2 more: no library liba* has them yet".to_owned())
        );
        assert!(
            unused_lines[1].1.starts_with("hook f: not in libb.so.1: static, inlined"),
            "{unused_lines:?}"
        );
        assert_eq!(unused_lines.len(), 2);
        hooks.function("libb.so.1", "f");
        assert_eq!(unused_hooks(&hooks, &seen).len(), 1);
    }

    #[test]
    fn an_error_in_a_hook_file_names_the_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "\n[[hook]]\ntracepoint = \"nvidia\"\n").unwrap();
        let error = read(&[file.path().to_owned()]).unwrap_err();
        let expected = format!("{}:3: a tracepoint is written as", file.path().display());
        assert!(error.is::<HookError>() && error.to_string().starts_with(&expected), "{error}");
        let missing = read(&["/nowhere".into()]).unwrap_err();
        assert!(
            format!("{missing:#}").starts_with("cannot read the hooks in /nowhere: No such"),
            "{missing:#}"
        );
    }
}
