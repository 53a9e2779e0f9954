//! Names as people write them. Mangled names come from programs, which may have made them up: nothing here takes more
//! than a bounded time and space.

use std::fmt::{self, Write};

use cpp_demangle::{DemangleOptions, ParseOptions, Symbol};

/// Longer names are left as they are.
const LONGEST: usize = 4096;
/// So are those that grow beyond this: a few bytes of substitutions can stand for gigabytes.
const LONGEST_DEMANGLED: usize = 4 * LONGEST;
const DEEPEST: u32 = 96;

/// A text that refuses to grow beyond its bound.
#[derive(Default)]
struct Bounded(String);

impl Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > LONGEST_DEMANGLED {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

/// A C++ name demangled; any other as it is.
pub fn demangle(name: &str) -> String {
    try_demangle(name).unwrap_or_else(|| name.to_owned())
}

fn try_demangle(name: &str) -> Option<String> {
    if name.len() > LONGEST || !name.starts_with("_Z") {
        return None;
    }
    let parse = ParseOptions::default().recursion_limit(DEEPEST);
    let symbol = Symbol::new_with_options(name, &parse).ok()?;
    let mut text = Bounded::default();
    let show = DemangleOptions::default().recursion_limit(DEEPEST);
    symbol.structured_demangle(&mut text, &show).ok()?;
    Some(text.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_cxx_are_demangled_and_others_left() {
        assert_eq!(demangle("_Z9vectorAddPKfS0_Pfi"), "vectorAdd(float const*, float const*, float*, int)");
        assert_eq!(demangle("_Z4fillIiEvPT_S0_m"), "void fill<int>(int*, int, unsigned long)");
        for plain in ["sm80_xmma_gemm_f32f32", "_Znonsense", "", "_Z"] {
            assert_eq!(demangle(plain), plain);
        }
    }

    #[test]
    fn names_that_were_made_up_take_little() {
        // every substitution doubles what stands before it
        let mut bomb = String::from("_Z1fI1aIccEE");
        for i in 0..60u32 {
            let digit = char::from_digit(i % 36, 36).unwrap_or('0').to_ascii_uppercase();
            bomb.push_str(&format!("1bIS{digit}_S{digit}_E"));
        }
        assert!(demangle(&bomb).len() <= LONGEST_DEMANGLED);
        let deep = format!("_Z1f{}i", "P".repeat(4000));
        assert!(demangle(&deep).len() <= LONGEST_DEMANGLED);
    }
}
