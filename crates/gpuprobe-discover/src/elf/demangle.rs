//! Demangles C++ and Rust names. A mangled name of 4 KB can expand to more text than there is memory, because it
//! refers to its own parts by number. So the output is bounded, and a cut name is marked.

use std::fmt::{self, Write};

use cpp_demangle::{DemangleOptions, Symbol};
use gpuprobe_event::cut::{MARK_BYTES, head, mark};

/// The longest name in bytes. Deep templates have some hundreds.
const LIMIT: usize = 4096;

/// The demangled name; the name itself if it is not mangled.
pub fn demangled(name: &str) -> String {
    let mut text = Bounded::default();
    let written = match rustc_demangle::try_demangle(name) {
        Ok(found) => write!(text, "{found:#}"),
        Err(_) => match Symbol::new(name) {
            Ok(found) => found.structured_demangle(&mut text, &DemangleOptions::default()),
            Err(_) => text.write_str(name),
        },
    };
    match written {
        Ok(()) => text.text,
        Err(fmt::Error) if text.full => text.text + &mark(name),
        Err(fmt::Error) => name.to_owned(),
    }
}

/// Accepts text up to a limit and then returns an error, which ends the demangling.
#[derive(Default)]
struct Bounded {
    text: String,
    full: bool,
}

impl Write for Bounded {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        let room = LIMIT - MARK_BYTES - self.text.len();
        if more.len() <= room {
            self.text.push_str(more);
            return Ok(());
        }
        self.text.push_str(head(more, room));
        self.full = true;
        Err(fmt::Error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_demangled() {
        for (mangled, name) in [
            ("_ZN3gpu5scaleEif", "gpu::scale(int, float)"),
            (
                "_ZNSt6vectorIiSaIiEE9push_backERKi",
                "std::vector<int, std::allocator<int> >::push_back(int const&)",
            ),
            ("_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE", "core::fmt::Write::write_fmt"),
            ("cudaMalloc", "cudaMalloc"),
            ("_Z", "_Z"),
            ("", ""),
        ] {
            assert_eq!(demangled(mangled), name, "{mangled}");
        }
    }

    #[test]
    fn a_name_that_expands_without_end_is_cut() {
        // f(A<int, int>, B<first, first>, ...): each argument is twice as long as the one before
        let mut mangled = String::from("_Z1f1AIiiE");
        for (index, level) in (0..40).enumerate() {
            let previous = if index == 0 { "S0_".to_owned() } else { format!("S{}_", base36(2 * index)) };
            mangled += &format!("3B{level:02}I{previous}{previous}E");
        }
        let name = demangled(&mangled);
        assert_eq!(name.len(), LIMIT);
        assert!(name.starts_with("f(A<int, int>, ") && name.ends_with(&mark(&mangled)), "{name:.200}");
        assert_ne!(demangled(&format!("{mangled}i")), name, "another name with the same beginning");
    }

    fn base36(number: usize) -> String {
        let digit = |n: usize| char::from(b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"[n % 36]);
        if number < 36 {
            digit(number).to_string()
        } else {
            format!("{}{}", digit(number / 36), digit(number))
        }
    }

    #[test]
    fn a_long_name_is_cut_between_characters() {
        let long = format!("a{}", "é".repeat(3000));
        let name = demangled(&long);
        assert_eq!(name.len(), LIMIT - 1, "an odd number of bytes is left, and a character takes two");
        assert!(name.ends_with(&format!("é{}", mark(&long))));
    }
}
