//! The options in the parentheses of `#[bpf_test(...)]`.

use proc_macro2::Span;
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{Error, Ident, LitStr, Result, Token, parenthesized};

pub(crate) const TIERS: [&str; 3] = ["session", "multi", "perf"];

/// Needs without an argument, and needs with one: functions of `gpuprobe_e2e::needs`.
const PLAIN_NEEDS: [&str; 3] = ["fuse", "kernel_log", "overlay"];
const NEEDS_WITH_ARGUMENT: [&str; 2] = ["program", "tier"];

#[derive(Default)]
pub(crate) struct Options {
    pub(crate) needs: Vec<Need>,
    pub(crate) tiers: Option<Tiers>,
    pub(crate) sharing: Option<Ident>,
}

/// One item of `needs(...)`.
pub(crate) struct Need {
    pub(crate) name: Ident,
    pub(crate) argument: Option<LitStr>,
}

pub(crate) enum Tiers {
    /// One test for each of these.
    Each(Vec<Ident>),
    /// One test, on the best tier of the host.
    Best,
}

impl Parse for Options {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let mut options = Self::default();
        while !input.is_empty() {
            let name: Ident = input.parse()?;
            match name.to_string().as_str() {
                "needs" if options.needs.is_empty() => options.needs = needs(&name, input)?,
                "tiers" if options.tiers.is_none() => options.tiers = Some(tiers(input)?),
                "alone" | "together" if options.sharing.is_none() => options.sharing = Some(name),
                "needs" | "tiers" => {
                    return Err(Error::new(name.span(), format!("`{name}` is written twice")));
                }
                "alone" | "together" => {
                    return Err(Error::new(name.span(), "a test is either `alone` or `together`, once"));
                }
                _ => {
                    let message = format!(
                        "unknown option `{name}`; the options are `needs(...)`, `tiers`, `alone` and `together`"
                    );
                    return Err(Error::new(name.span(), message));
                }
            }
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        Ok(options)
    }
}

fn needs(name: &Ident, input: ParseStream<'_>) -> Result<Vec<Need>> {
    if !input.peek(syn::token::Paren) {
        return Err(Error::new(name.span(), "`needs` takes a list: `needs(overlay, program(\"su\"))`"));
    }
    let list;
    parenthesized!(list in input);
    let needs = Punctuated::<Need, Token![,]>::parse_terminated(&list)?;
    if needs.is_empty() {
        return Err(Error::new(
            name.span(),
            "`needs()` is empty: every `bpf_test` needs BPF, leave this out",
        ));
    }
    Ok(needs.into_iter().collect())
}

impl Parse for Need {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let name: Ident = input.parse()?;
        let text = name.to_string();
        let takes_argument = NEEDS_WITH_ARGUMENT.contains(&text.as_str());
        if text == "bpf" {
            return Err(Error::new(name.span(), "every `bpf_test` needs BPF, leave this out"));
        }
        if !takes_argument && !PLAIN_NEEDS.contains(&text.as_str()) {
            let known = [&PLAIN_NEEDS[..], &NEEDS_WITH_ARGUMENT].concat().join(", ");
            return Err(Error::new(name.span(), format!("unknown need `{text}`; the needs are: {known}")));
        }
        let has_argument = input.peek(syn::token::Paren);
        if has_argument != takes_argument {
            let expected = if takes_argument { "takes one string" } else { "takes no argument" };
            return Err(Error::new(name.span(), format!("`{text}` {expected}")));
        }
        let argument = if has_argument { Some(string(input)?) } else { None };
        if let (true, Some(tier)) = (text == "tier", &argument) {
            check_tier(&tier.value(), tier.span())?;
        }
        Ok(Self { name, argument })
    }
}

fn string(input: ParseStream<'_>) -> Result<LitStr> {
    let inside;
    parenthesized!(inside in input);
    let text = inside.parse()?;
    if inside.is_empty() { Ok(text) } else { Err(inside.error("expected one string")) }
}

fn tiers(input: ParseStream<'_>) -> Result<Tiers> {
    if !input.peek(syn::token::Paren) {
        return Ok(Tiers::Each(TIERS.iter().map(|tier| Ident::new(tier, Span::call_site())).collect()));
    }
    let list;
    let parentheses = parenthesized!(list in input);
    let names = Punctuated::<Ident, Token![,]>::parse_terminated(&list)?;
    let names: Vec<Ident> = names.into_iter().collect();
    match &names[..] {
        [] => Err(Error::new(parentheses.span.join(), "`tiers()` is empty; write `tiers` for all three")),
        [best] if best == "best" => Ok(Tiers::Best),
        _ => {
            for (n, tier) in names.iter().enumerate() {
                check_tier(&tier.to_string(), tier.span())?;
                if names[..n].contains(tier) {
                    return Err(Error::new(tier.span(), format!("tier `{tier}` is written twice")));
                }
            }
            Ok(Tiers::Each(names))
        }
    }
}

fn check_tier(tier: &str, span: Span) -> Result<()> {
    if TIERS.contains(&tier) {
        return Ok(());
    }
    let message = format!("unknown tier `{tier}`; the tiers are {}, or `best` by itself", TIERS.join(", "));
    Err(Error::new(span, message))
}
