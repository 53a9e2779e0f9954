//! The files of hooks that the user names.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use gpuprobe_event::Hooks;
use gpuprobe_event::catalogue::MOST_FUNCTIONS;
use gpuprobe_event::hook::LibraryHook;

/// Nobody writes more by hand.
const MOST_BYTES: u64 = 1 << 20;

/// Reads the files.
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

/// Of the hooks that have found nothing, those of each library: where the first was written, and why. `seen` are names of
/// files that hooks are about.
pub(crate) fn why_unused(hooks: &Hooks, seen: &BTreeSet<String>) -> Vec<(String, String)> {
    let mut by_library: BTreeMap<&str, Vec<&LibraryHook>> = BTreeMap::new();
    for hook in hooks.unused() {
        by_library.entry(hook.library.as_str()).or_default().push(hook);
    }
    let mut told = Vec::new();
    for (library, unused) in by_library {
        let [first, ..] = unused.as_slice() else { continue };
        let fitting: Vec<_> =
            seen.iter().filter(|name| first.library.matches(name)).map(String::as_str).collect();
        let (names, it) = (named(&unused), if unused.len() > 1 { "them" } else { "it" });
        let why = match fitting.as_slice() {
            [] => format!("{names}: no library {library} has {it} yet"),
            files => format!(
                "{names}: not in {}: what is static, inlined or stripped has no symbol (`nm -D` lists those there are)",
                files.join(", ")
            ),
        };
        told.push((first.place.to_string(), why));
    }
    if let (1.., [first, ..]) = (hooks.without_room(), hooks.libraries()) {
        let why = format!(
            "{} functions that hooks fit are not probed: there is room for {MOST_FUNCTIONS}, with those of CUDA",
            hooks.without_room()
        );
        told.push((first.place.to_string(), why));
    }
    told
}

/// `hook f`, or the first of them and how many more there are.
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
    fn hooks_without_a_function_are_told_by_library() {
        let hook =
            |library: &str, name: &str| format!("[[hook]]\nlibrary = \"{library}\"\nfunction = \"{name}\"\n");
        let mut hooks = Hooks::default();
        let text: String = ["a", "b", "c", "d", "e"].iter().map(|name| hook("liba*", name)).collect();
        hooks.parse("h", &(hook("libb*", "f") + &text)).unwrap();
        let seen = ["libb.so.1".to_owned()].into();
        let told = why_unused(&hooks, &seen);
        assert_eq!(
            told[0],
            ("h:4".to_owned(), "hooks a, b, c and 2 more: no library liba* has them yet".to_owned())
        );
        assert!(told[1].1.starts_with("hook f: not in libb.so.1: what is static, inlined"), "{told:?}");
        assert_eq!(told.len(), 2);
        hooks.function("libb.so.1", "f");
        assert_eq!(why_unused(&hooks, &seen).len(), 1);
    }

    #[test]
    fn what_is_wrong_in_a_file_is_told_with_its_name() {
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
