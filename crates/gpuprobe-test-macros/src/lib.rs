//! `#[bpf_test]`: a test on real BPF that declares what it needs, the tiers it runs on, and whether it may share the host.
//!
//! | option | meaning |
//! |---|---|
//! | `needs(overlay, program("su"), ...)` | what must be there besides BPF: functions of `gpuprobe_e2e::needs` |
//! | `tiers` | one `#[test]` for each tier: `NAME::session`, `NAME::multi` and `NAME::perf` |
//! | `tiers(session, multi)` | one `#[test]` for each of these tiers |
//! | `tiers(best)` | one `#[test]`, on the best tier that works on this host |
//! | `alone` | no other test of the same binary runs at the same time |
//! | `together` | other tests marked `together` may run at the same time, tests marked `alone` may not |
//!
//! With `tiers` the function takes one parameter, the name of the tier: `fn calls_are_counted(tier: &str)`. A test that
//! cannot run prints why and passes, unless `GPUPROBE_REQUIRE` names what it lacks.
#![forbid(unsafe_code)]

mod expand;
mod options;

use proc_macro::TokenStream;

/// See the documentation of this crate.
#[proc_macro_attribute]
pub fn bpf_test(options: TokenStream, item: TokenStream) -> TokenStream {
    expand::bpf_test(options.into(), item.into()).into()
}
