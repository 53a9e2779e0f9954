//! Short names of CUDA kernels: without result type, namespaces and parameters, and with folded template arguments.
//! Kernels that would have the same short name keep the template arguments in which they differ.

use std::collections::HashMap;

/// What replaces folded template arguments.
const FOLDED: &str = "..";
/// How deep template arguments inside template arguments are shown, at most.
const DEEPEST: usize = 3;
/// Longer names are not taken apart; no compiler produces them.
const LONGEST: usize = 1 << 16;

/// The short names of different kernels, in the same order. They differ from each other.
pub fn short_names<S: AsRef<str>>(names: &[S]) -> Vec<String> {
    let parsed: Vec<_> = names.iter().map(|name| Parsed::of(name.as_ref())).collect();
    let mut texts: Vec<_> = parsed.iter().map(Parsed::shortest).collect();
    for depth in 0..=DEEPEST {
        for group in equal(&texts) {
            let rows: Vec<_> = group.iter().map(|&i| parsed[i].args_at(depth)).collect();
            for (&i, row) in group.iter().zip(&rows) {
                let is_equal = |at: usize| rows.iter().all(|other| other.get(at) == row.get(at));
                texts[i] = parsed[i].with_args(row, |at| is_equal(at) && parsed[i].says_little(at));
            }
        }
    }
    for group in equal(&texts) {
        group.into_iter().for_each(|i| texts[i] = names[i].as_ref().to_owned());
    }
    texts
}

/// The short name of one kernel.
pub fn short_name(name: &str) -> String {
    Parsed::of(name).shortest()
}

/// The indices of equal texts, for each text that occurs more than once.
fn equal(texts: &[String]) -> Vec<Vec<usize>> {
    let mut groups: HashMap<&str, Vec<usize>> = HashMap::new();
    for (i, text) in texts.iter().enumerate() {
        groups.entry(text).or_default().push(i);
    }
    groups.into_values().filter(|group| group.len() > 1).collect()
}

/// The name of a kernel, taken apart.
#[derive(Debug)]
struct Parsed<'a> {
    /// The function, without its namespaces.
    base: &'a str,
    /// Its template arguments.
    args: Vec<&'a str>,
}

impl<'a> Parsed<'a> {
    /// A name that is not a C++ name stays as it is.
    fn of(name: &'a str) -> Self {
        Self::try_of(name).unwrap_or(Self { base: name, args: Vec::new() })
    }

    fn try_of(name: &'a str) -> Option<Self> {
        if name.len() > LONGEST || !is_balanced(name) {
            return None;
        }
        let without_parameters = match name.strip_suffix(')') {
            Some(_) => name.get(..opening(name)?)?,
            None => name,
        };
        // the result type is before the last space
        let scoped = split(without_parameters, " ").pop()?;
        let (base, args) = last_component(scoped)?;
        Some(Self { base, args })
    }

    /// With those template arguments that are types of the program.
    fn shortest(&self) -> String {
        let row = self.args_at(0);
        self.with_args(&row, |at| self.says_little(at))
    }

    fn says_little(&self, at: usize) -> bool {
        self.args.get(at).is_none_or(|arg| says_little(arg))
    }

    fn args_at(&self, depth: usize) -> Vec<String> {
        self.args.iter().map(|arg| short_arg(arg, depth)).collect()
    }

    fn with_args(&self, row: &[String], is_folded: impl Fn(usize) -> bool) -> String {
        if row.is_empty() {
            return self.base.to_owned();
        }
        let mut shown: Vec<&str> = Vec::new();
        for (at, arg) in row.iter().enumerate() {
            match is_folded(at) {
                true if shown.last() == Some(&FOLDED) => {}
                true => shown.push(FOLDED),
                false => shown.push(arg),
            }
        }
        format!("{}<{}>", self.base, shown.join(", "))
    }
}

/// Whether a template argument is a number, or a type of the language or of the standard library.
fn says_little(arg: &str) -> bool {
    const PLAIN: [&str; 15] = [
        "bool",
        "char",
        "short",
        "int",
        "long",
        "float",
        "double",
        "void",
        "unsigned",
        "signed",
        "const",
        "true",
        "false",
        "__half",
        "__nv_bfloat16",
    ];
    let arg = without_cast(arg).trim_end_matches(['*', '&', ' ']);
    let is_number = arg.starts_with(|c: char| c.is_ascii_digit() || c == '-');
    is_number
        || arg.is_empty()
        || arg.starts_with("std::")
        || arg.split(' ').all(|word| PLAIN.contains(&word))
}

/// A template argument without namespaces, with its own template arguments to a depth.
fn short_arg(arg: &str, depth: usize) -> String {
    let plain = without_cast(arg);
    // pointers and `const` are kept as they are
    let (scoped, suffix) = match plain.find(['*', '&']) {
        Some(at) if !plain.contains(['<', '(']) => plain.split_at(at),
        _ => (plain, ""),
    };
    if !scoped.contains("::") && !scoped.contains('<') {
        return plain.to_owned();
    }
    let Some((base, args)) = last_component(scoped) else { return plain.to_owned() };
    let args: Vec<_> = match depth {
        0 => Vec::new(),
        depth => args.iter().map(|arg| short_arg(arg, depth - 1)).collect(),
    };
    let args = if args.is_empty() { String::new() } else { format!("<{}>", args.join(", ")) };
    format!("{base}{args}{suffix}")
}

/// `1` of `(unsigned long)1`.
fn without_cast(arg: &str) -> &str {
    let rest = arg.strip_prefix('(').and_then(|rest| rest.split_once(')')).map(|(_, rest)| rest);
    rest.filter(|rest| !rest.is_empty() && !rest.starts_with([':', '(', ' '])).unwrap_or(arg)
}

/// The last part of `a::b<c>` that has a name, with its template arguments. Lambdas and call operators have none.
fn last_component(scoped: &str) -> Option<(&str, Vec<&str>)> {
    let has_name = |part: &&&str| {
        !part.is_empty()
            && !part.starts_with("operator")
            && **part != "const"
            && !part.starts_with(['{', '('])
    };
    let parts = split(scoped, "::");
    let part = parts.iter().rev().find(has_name)?;
    // a function around a lambda has parameters, and perhaps a result type
    let part = first_at_top(part, '(').and_then(|at| part.get(..at)).unwrap_or(part);
    let part = split(part, " ").pop().unwrap_or(part);
    let Some(inner) = part.strip_suffix('>') else { return Some((part, Vec::new())) };
    let open = first_at_top(inner, '<')?;
    let args = split(inner.get(open + 1..)?, ",").into_iter().map(str::trim).collect();
    Some((inner.get(..open)?, args))
}

fn change(c: u8) -> i32 {
    match c {
        b'<' | b'(' | b'{' | b'[' => 1,
        b'>' | b')' | b'}' | b']' => -1,
        _ => 0,
    }
}

fn is_balanced(name: &str) -> bool {
    let mut depth = 0;
    name.bytes().all(|c| {
        depth += change(c);
        depth >= 0
    }) && depth == 0
}

/// Splits at a separator outside of all brackets.
fn split<'a>(text: &'a str, separator: &str) -> Vec<&'a str> {
    let (mut parts, mut from, mut depth) = (Vec::new(), 0, 0);
    for (at, c) in text.bytes().enumerate() {
        depth += change(c);
        if depth == 0 && at >= from && text.as_bytes()[at..].starts_with(separator.as_bytes()) {
            parts.push(text.get(from..at).unwrap_or_default());
            from = at + separator.len();
        }
    }
    parts.push(text.get(from..).unwrap_or_default());
    parts
}

/// The first bracket of a kind that is not inside others.
fn first_at_top(text: &str, bracket: char) -> Option<usize> {
    let mut depth = 0;
    text.bytes().position(|c| {
        let is_found = depth == 0 && char::from(c) == bracket;
        depth += change(c);
        is_found
    })
}

/// Where the bracket opens that the last character closes.
fn opening(text: &str) -> Option<usize> {
    let mut depth = 0;
    text.bytes().rposition(|c| {
        depth += change(c);
        depth == 0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILL: &str = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, \
         std::array<char*, (unsigned long)1> >(int, at::native::FillFunctor<float>, std::array<char*, (unsigned long)1>)";
    const GELU: &str = "void at::native::vectorized_elementwise_kernel<4, \
         at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&, at::native::GeluType)::{lambda()#2}::operator()() \
         const::{lambda(float)#1}, std::array<char*, (unsigned long)2> >(int, std::array<char*, (unsigned long)2>)";

    #[test]
    fn namespaces_parameters_and_uninteresting_arguments_are_folded() {
        for (name, short) in [
            ("axpy", "axpy"),
            ("void axpy(float*, int)", "axpy"),
            ("sm80_xmma_gemm_f32f32_f32f32_f32_nt_n", "sm80_xmma_gemm_f32f32_f32f32_f32_nt_n"),
            (FILL, "vectorized_elementwise_kernel<.., FillFunctor, ..>"),
            (GELU, "vectorized_elementwise_kernel<.., GeluCUDAKernelImpl, ..>"),
            (
                "void at::native::(anonymous namespace)::norm<float, (unsigned int)32, false>(long)",
                "norm<..>",
            ),
            (
                "void cutlass::Kernel2<cutlass_80_sgemm_nn>(cutlass_80_sgemm_nn::Params)",
                "Kernel2<cutlass_80_sgemm_nn>",
            ),
            ("void f<ns::A*, int const*>(int)", "f<A*, ..>"),
            ("", ""),
        ] {
            assert_eq!(short_name(name), short, "{name}");
        }
    }

    #[test]
    fn kernels_with_the_same_short_name_keep_what_differs() {
        let short = |names: &[&str]| short_names(names);
        assert_eq!(
            short(&[
                "void a::k<32, int, true, false>(int)",
                "void a::k<32, int, true, true>(int)",
                "void z()"
            ]),
            ["k<.., false>", "k<.., true>", "z"]
        );
        assert_eq!(
            short(&["void k<n::Op<float, n::Sum<int> > >()", "void k<n::Op<float, n::Mean<int> > >()"]),
            ["k<Op<float, Sum>>", "k<Op<float, Mean>>"]
        );
        assert_eq!(short(&["void k<2, n::Fill>()", "void k<4, n::Fill>()"]), ["k<2, Fill>", "k<4, Fill>"]);
        // only the parameters or the namespaces differ
        assert_eq!(short(&["void a::k(int)", "void a::k(long)"]), ["void a::k(int)", "void a::k(long)"]);
        assert_eq!(short(&["void a::k<1>()", "void a::k<1, 2>()"]), ["k<..>", "k<.., 2>"]);
    }

    #[test]
    fn hostile_names_are_kept_and_differ() {
        let names = [
            "<",
            ">",
            "(",
            ")",
            "::",
            "a<b",
            "operator<",
            "f<>",
            "f< >",
            "()",
            "é<ü::ö>(ß)",
            "void ",
            "a(b)c)",
            "{}()",
        ];
        let short = short_names(&names);
        let different: std::collections::HashSet<_> = short.iter().collect();
        assert_eq!(different.len(), names.len(), "{short:?}");
        assert_eq!(short_name(&"<".repeat(1 << 17)).len(), 1 << 17);
        let deep = format!("f{}{}", "<a::b".repeat(9000), ">".repeat(9000));
        assert!(short_names(&[deep.clone(), format!("{deep} ")]).iter().all(|name| !name.is_empty()));
    }
}
