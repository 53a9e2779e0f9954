//! What the macro makes of good options, and the errors for bad ones.

use std::str::FromStr;

use proc_macro2::TokenStream;

use super::bpf_test;

const PLAIN: &str = "fn f() { body(); }";
const WITH_TIER: &str = "fn f(tier: &str) { body(tier); }";

fn tokens(text: &str) -> TokenStream {
    TokenStream::from_str(text).unwrap_or_else(|e| panic!("{text}: {e}"))
}

fn expanded(options: &str, function: &str) -> String {
    bpf_test(tokens(options), tokens(function)).to_string()
}

fn assert_expands(options: &str, function: &str, expected: &str) {
    assert_eq!(expanded(options, function), tokens(expected).to_string(), "#[bpf_test({options})]");
}

fn assert_refused(options: &str, function: &str, message: &str) {
    let expanded = expanded(options, function);
    assert!(expanded.contains("compile_error"), "#[bpf_test({options})] {function}: {expanded}");
    // the message is a string literal of the output
    let literal = proc_macro2::Literal::string(message).to_string();
    let inside = literal.trim_matches('"');
    assert!(expanded.contains(inside), "#[bpf_test({options})] {function}: {expanded}");
}

#[test]
fn a_plain_test_needs_bpf() {
    assert_expands(
        "",
        PLAIN,
        "#[test] fn f() { if !(::gpuprobe_e2e::needs::bpf()) { return; } { body(); } }",
    );
}

#[test]
fn needs_are_checked_before_the_lock_is_taken() {
    assert_expands(
        r#"alone, needs(overlay, program("su"))"#,
        PLAIN,
        r#"#[test] fn f() {
            if !(::gpuprobe_e2e::needs::bpf() && ::gpuprobe_e2e::needs::overlay()
                && ::gpuprobe_e2e::needs::program("su")) { return; }
            let _lock = ::gpuprobe_e2e::alone();
            { body(); }
        }"#,
    );
}

#[test]
fn each_tier_is_a_test_of_its_own() {
    let test = |tier: &str| {
        format!(
            r#"#[test] fn {tier}() {{
                if !(::gpuprobe_e2e::needs::bpf() && ::gpuprobe_e2e::needs::tier("{tier}")) {{ return; }}
                let _lock = ::gpuprobe_e2e::together();
                super::f("{tier}");
            }}"#
        )
    };
    let module = |tiers: &[&str]| {
        let tests: String = tiers.iter().map(|tier| test(tier)).collect();
        format!("{WITH_TIER} mod f {{ {tests} }}")
    };
    assert_expands("tiers, together", WITH_TIER, &module(&["session", "multi", "perf"]));
    assert_expands("tiers(multi, session), together,", WITH_TIER, &module(&["multi", "session"]));
}

#[test]
fn the_best_tier_is_looked_up_when_the_test_runs() {
    assert_expands(
        "tiers(best)",
        WITH_TIER,
        "fn f(tier: &str) { body(tier); }
        mod f {
            #[test] fn best() {
                if !(::gpuprobe_e2e::needs::bpf()) { return; }
                super::f(::gpuprobe_e2e::tiers::best());
            }
        }",
    );
}

#[test]
fn a_condition_on_the_function_is_one_on_its_tests() {
    let expanded = expanded("tiers", &format!("/// Text.\n#[cfg(unix)] {WITH_TIER}"));
    assert_eq!(expanded.matches("cfg (unix)").count(), 2, "{expanded}");
    assert_eq!(expanded.matches("Text.").count(), 1, "{expanded}");
}

#[test]
fn unknown_options_are_named_with_the_known_ones() {
    assert_refused("quickly", PLAIN, "unknown option `quickly`; the options are `needs(...)`, `tiers`, ");
    assert_refused(
        "needs(gpu)",
        PLAIN,
        "unknown need `gpu`; the needs are: fuse, kernel_log, overlay, program, tier",
    );
    assert_refused("tiers(kprobe)", WITH_TIER, "unknown tier `kprobe`; the tiers are session, multi, perf, ");
    assert_refused("tiers(best, perf)", WITH_TIER, "unknown tier `best`; ");
    assert_refused(r#"needs(tier("best"))"#, PLAIN, "unknown tier `best`; ");
}

#[test]
fn options_that_repeat_or_contradict_are_refused() {
    assert_refused("alone, together", PLAIN, "either `alone` or `together`");
    assert_refused("alone, alone", PLAIN, "either `alone` or `together`");
    assert_refused("tiers, tiers", WITH_TIER, "`tiers` is written twice");
    assert_refused("needs(overlay), needs(overlay)", PLAIN, "`needs` is written twice");
    assert_refused("tiers(perf, perf)", WITH_TIER, "tier `perf` is written twice");
    assert_refused("needs(bpf)", PLAIN, "every `bpf_test` needs BPF");
}

#[test]
fn arguments_that_are_missing_or_too_many_are_refused() {
    assert_refused("needs", PLAIN, "`needs` takes a list");
    assert_refused("needs()", PLAIN, "`needs()` is empty");
    assert_refused("needs(program)", PLAIN, "`program` takes one string");
    assert_refused("needs(program(su))", PLAIN, "expected string literal");
    assert_refused(r#"needs(program("su", "bash"))"#, PLAIN, "expected one string");
    assert_refused(r#"needs(overlay("x"))"#, PLAIN, "`overlay` takes no argument");
    assert_refused("tiers()", WITH_TIER, "`tiers()` is empty; write `tiers` for all three");
    assert_refused("alone together", PLAIN, "expected `,`");
}

#[test]
fn functions_that_are_no_test_are_refused() {
    assert_refused("", WITH_TIER, "a `bpf_test` without `tiers` takes no parameter");
    assert_refused("tiers", PLAIN, "a `bpf_test` with `tiers` takes one parameter: `tier: &str`");
    assert_refused("", "fn f() -> u32 { 1 }", "a `bpf_test` returns nothing");
    assert_refused("", "async fn f() {}", "a `bpf_test` is not async");
    assert_refused("", "#[test] fn f() {}", "`bpf_test` adds `#[test]` itself");
    assert_refused("", "struct S;", "expected `fn`");
}
