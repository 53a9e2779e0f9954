//! Short names of call sites. The full names are shown when the pointer is on them.

/// The parts of a function name that are shown: its class or namespace, and itself.
const MOST_PARTS: usize = 2;

/// A call site, `inner < outer`, without arguments, template arguments, offsets, files and outer namespaces.
pub(super) fn brief(call_site: &str) -> String {
    // call sites whose frames are all equal are numbered
    let is_number = |(_, number): &(&str, &str)| number.parse::<u64>().is_ok();
    let numbered = call_site.rsplit_once(" #").filter(is_number);
    let (call_site, number) = numbered.map_or((call_site, None), |(name, number)| (name, Some(number)));
    let frames: Vec<_> = call_site.split(" < ").map(frame).collect();
    frames.join(" < ") + &number.map(|number| format!(" #{number}")).unwrap_or_default()
}

fn frame(text: &str) -> String {
    const ANONYMOUS: &str = "(anonymous namespace)::";
    let text = text.replace(ANONYMOUS, "");
    let (mut name, mut depth) = (String::new(), 0_u32);
    for (at, c) in text.char_indices() {
        match c {
            // the arguments end the name, but not those of `operator()`
            '(' if depth == 0 && !name.ends_with("operator") => break,
            '<' if !name.ends_with("operator") => depth += 1,
            '>' if depth > 0 => depth -= 1,
            // a return type is before the name; a file is after it
            ' ' if depth == 0 && !text[at..].starts_with(" (") => name.clear(),
            _ if depth == 0 => name.push(c),
            _ => {}
        }
    }
    let name = name.split_once("+0x").filter(|(name, _)| !is_module(name)).map_or(&*name, |(name, _)| name);
    let parts: Vec<_> = name.split("::").collect();
    let short = parts[parts.len().saturating_sub(MOST_PARTS)..].join("::");
    // better the full text than nothing
    if short.trim().is_empty() { text } else { short.trim().to_owned() }
}

/// Whether it is a file, whose offset is all that is known.
fn is_module(name: &str) -> bool {
    name.contains(".so")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_shortened_but_remain_distinct_functions() {
        let cases = [
            ("cublasCreate_v2+0x2bd (libcublas.so.13)", "cublasCreate_v2"),
            ("at::cuda::getWorkspace()+0x9d (libtorch.so) < main (app.cc:12)", "cuda::getWorkspace < main"),
            (
                "void at::cuda::blas::gemm<float, a::b<c>>(char, at::Op<float>::type)+0x44 (x.so)",
                "blas::gemm",
            ),
            (
                "c10::Native::DeviceAllocator::alloc_block(c10::(anonymous namespace)::P&, bool)+0xcb (l.so)",
                "DeviceAllocator::alloc_block",
            ),
            ("at::(anonymous namespace)::Host::slow(unsigned long, void**)+0xc3 (l.so)", "Host::slow"),
            ("libtorch_cpu.so+0x6933c9f", "libtorch_cpu.so+0x6933c9f"),
            ("unknown", "unknown"),
            ("load+0x1 (app) #2", "load #2"),
            ("f() < g()+0x1 (app) #x", "f < g"),
            ("", ""),
            ("(((<<<", "(((<<<"),
        ];
        for (full, short) in cases {
            assert_eq!(brief(full), short, "{full}");
        }
    }
}
