//! From the options and the function to the tests.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{Attribute, Error, Ident, ItemFn, Result, ReturnType};

use crate::options::{Options, Tiers};

/// The tests, or the error that the compiler shall show.
pub(crate) fn bpf_test(options: TokenStream, item: TokenStream) -> TokenStream {
    let parsed = syn::parse2(options).and_then(|options| Ok((options, syn::parse2(item)?)));
    parsed
        .and_then(|(options, function)| tests(&options, &function))
        .unwrap_or_else(Error::into_compile_error)
}

fn tests(options: &Options, function: &ItemFn) -> Result<TokenStream> {
    check(options, function)?;
    let name = &function.sig.ident;
    let (needs, guard) = (needs(options), guard(options));
    let Some(tiers) = &options.tiers else {
        let ItemFn { attrs, sig, block, .. } = function;
        return Ok(quote! {
            #(#attrs)*
            #[test]
            #sig {
                if !(#needs) {
                    return;
                }
                #guard
                #block
            }
        });
    };
    let cfg: Vec<&Attribute> = function.attrs.iter().filter(|attr| attr.path().is_ident("cfg")).collect();
    let tests = match tiers {
        Tiers::Best => vec![quote! {
            #[test]
            fn best() {
                if !(#needs) {
                    return;
                }
                #guard
                super::#name(::gpuprobe_e2e::tiers::best());
            }
        }],
        Tiers::Each(tiers) => tiers.iter().map(|tier| on_tier(name, tier, &needs, &guard)).collect(),
    };
    // a module and a function may have the same name
    Ok(quote! {
        #function
        #(#cfg)*
        mod #name {
            #(#tests)*
        }
    })
}

fn on_tier(function: &Ident, tier: &Ident, needs: &TokenStream, guard: &TokenStream) -> TokenStream {
    let text = tier.to_string();
    quote! {
        #[test]
        fn #tier() {
            if !(#needs && ::gpuprobe_e2e::needs::tier(#text)) {
                return;
            }
            #guard
            super::#function(#text);
        }
    }
}

fn check(options: &Options, function: &ItemFn) -> Result<()> {
    let sig = &function.sig;
    if let Some(test) = function.attrs.iter().find(|attr| attr.path().is_ident("test")) {
        return Err(Error::new_spanned(test, "`bpf_test` adds `#[test]` itself"));
    }
    if let ReturnType::Type(..) = sig.output {
        return Err(Error::new_spanned(&sig.output, "a `bpf_test` returns nothing"));
    }
    if let Some(asyncness) = &sig.asyncness {
        return Err(Error::new_spanned(asyncness, "a `bpf_test` is not async"));
    }
    match (&options.tiers, sig.inputs.len()) {
        (Some(_), 1) | (None, 0) => Ok(()),
        (Some(_), _) => {
            Err(Error::new_spanned(&sig.ident, "a `bpf_test` with `tiers` takes one parameter: `tier: &str`"))
        }
        (None, _) => Err(Error::new_spanned(&sig.inputs, "a `bpf_test` without `tiers` takes no parameter")),
    }
}

/// The condition under which the test runs. BPF comes first: the other checks may need root.
fn needs(options: &Options) -> TokenStream {
    let others = options.needs.iter().map(|need| {
        let (name, argument) = (&need.name, need.argument.iter());
        quote! { ::gpuprobe_e2e::needs::#name(#(#argument)*) }
    });
    quote! { ::gpuprobe_e2e::needs::bpf() #(&& #others)* }
}

/// The lock that keeps other tests of the same binary away.
fn guard(options: &Options) -> TokenStream {
    options.sharing.as_ref().map_or_else(TokenStream::new, |lock| {
        quote! { let _lock = ::gpuprobe_e2e::#lock(); }
    })
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
