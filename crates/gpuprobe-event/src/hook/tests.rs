use super::*;
use crate::catalogue::{ArgKind, ArgLoc, ResultKind};
use crate::counters::CopyDirection;
use crate::decode::{OutRead, Words, arguments, effect, error_name, out_reads, output_error, text_arg};
use crate::driver::{function_row, tracepoint_row};
use crate::event::Value;

fn parsed(text: &str) -> Hooks {
    let mut hooks = Hooks::default();
    hooks.parse("h.toml", text).unwrap_or_else(|error| panic!("{error}"));
    hooks
}

fn refused(text: &str) -> String {
    Hooks::default().parse("h.toml", text).unwrap_err().to_string()
}

/// A hook on `f` of `libx.so*` with these additional lines.
fn hook(more: &str) -> String {
    format!("[[hook]]\nlibrary = \"libx.so*\"\nfunction = \"f\"\n{more}\n")
}

fn row(more: &str) -> Function {
    parsed(&hook(more)).libraries()[0].signature.row(FunctionId(1), Api::Hook, "f")
}

const CREATE: &str = r#"
class = "alloc"
args = ["context:handle", "flags:hex", "size:size", "host_ptr:ptr", "errcode_ret:out_i32"]
returns = "ptr"
error = "errcode_ret"
"#;

#[test]
fn an_allocation_that_returns_its_address_has_its_status_in_an_argument() {
    let f = row(CREATE);
    assert_eq!((f.class, f.result, f.roles.size), (Class::Alloc, ResultKind::Pointer, Some(2)));
    assert!(f.roles.out_is_result);
    assert_eq!(out_reads(&f), [OutRead { arg: 4, offset: 0, bytes: 4 }]);
    let args = f.args.as_deref().unwrap();
    assert_eq!(args[4].x86_64, ArgLoc::Register { first: 4, count: 1 });

    let words = |out| Words {
        registers: &[0x10, 0x4, 4096, 0, 0x7f00, 0],
        outs: [out, None, None, None],
        ..Words::default()
    };
    let shown = |out| arguments(&f, &words(out)).unwrap().pop().unwrap().1;
    assert_eq!(shown(Some(0xffff_ffc3)), Value::Int(-61));
    assert_eq!(shown(None), Value::Hex(0x7f00), "the pointer, if nothing was read");
    assert_eq!(output_error(&f, 0, &words(Some(0xffff_ffc3))).unwrap(), "error -61");
    assert_eq!(output_error(&f, 0, &words(None)).unwrap(), "returned NULL");
    assert_eq!(output_error(&f, 0x55, &words(Some(0))), None);
}

#[test]
fn roles_follow_from_kinds_or_are_named() {
    let f = row("class = \"alloc\"\nargs = [\"p:out_ptr\", \"n:size\"]\nreturns = \"status\"");
    assert_eq!((f.roles.out, f.roles.size, f.roles.out_is_result), (Some(0), Some(1), false));
    assert_eq!(error_name(&f, -5).unwrap(), "error -5");
    assert_eq!(error_name(&f, 0), None);

    let f = row(
        "class = \"alloc\"\nargs = [\"n:u64\", \"each:u64\"]\nreturns = \"ptr\"\nsize = \"each\"\ncount = \"n\"",
    );
    assert_eq!((f.roles.width, f.roles.height, f.roles.size), (Some(1), Some(0), None));

    let f = row("class = \"free\"\nargs = [\"context:handle\", \"p:ptr\"]\nptr = \"p\"");
    assert_eq!((f.roles.ptr, f.result), (Some(1), ResultKind::Unknown));

    let f = row(
        "class = \"module\"\nargs = [\"k:out_ptr\", \"other:str\", \"name:str\"]\nnames = \"k\"\nname = \"name\"",
    );
    assert_eq!((f.roles.func_out, f.roles.name, text_arg(&f)), (Some(0), Some(2), Some(2)));
}

#[test]
fn the_direction_of_a_copy_is_fixed_or_in_an_argument() {
    let copy =
        "class = \"memcpy\"\nargs = [\"dst:ptr\", \"src:ptr\", \"n:size\", \"how:i32\", \"waits:u32\"]\n";
    let fixed = row(&format!("{copy}kind = \"H2D\"\nwaits = \"waits\""));
    let by_argument = row(&format!("{copy}kind = \"how\"\ndst = \"dst\"\nsrc = \"src\""));
    let words = |how, waits| [1, 2, 64, how, waits, 0];
    let of = |f: &Function, registers: [u64; 6]| {
        let effect = effect(f, &Words { registers: &registers, ..Words::default() });
        effect.transfer().map(|transfer| (transfer.direction, transfer.is_async))
    };
    assert_eq!(of(&fixed, words(0, 1)), Some((CopyDirection::HostToDevice, false)));
    assert_eq!(of(&fixed, words(0, 0)), Some((CopyDirection::HostToDevice, true)));
    assert_eq!(of(&by_argument, words(2, 0)), Some((CopyDirection::DeviceToHost, false)));
}

#[test]
fn launch_dimensions_are_a_struct_or_three_numbers() {
    let f =
        row("class = \"launch\"\nargs = [\"f:ptr\", \"g:dim3\", \"b:dim3\"]\nlaunches = \"f\"\ngrid = \"g\"");
    let registers = [7, 0x3_0000_0002, 4, 0x9, 0x1, 0];
    let decoded = effect(&f, &Words { registers: &registers, ..Words::default() });
    assert_eq!(decoded.launch().map(|launch| (launch.grid, launch.block)), Some((Some([2, 3, 4]), None)));
    let f = row("class = \"launch\"\nargs = [\"x:u32\", \"y:u32\", \"z:u32\", \"f:ptr\"]\ngrid = \"x\"");
    let decoded = effect(&f, &Words { registers: &[5, 6, 7, 1, 0, 0], ..Words::default() });
    assert_eq!(decoded.launch().unwrap().grid, Some([5, 6, 7]));
    assert_eq!(f.args.unwrap()[3].kind, ArgKind::Pointer);
}

#[test]
fn errors_name_the_line_and_what_would_be_right() {
    let cases = [
        (hook("class = \"aloc\""), "h.toml:4: unknown class `aloc`: one of alloc, free, "),
        (hook("clas = \"alloc\""), "h.toml:4: `clas` is not a known key: one of library, function, "),
        (hook("args = [\n\"a:i32\",\n\"b:int\"]"), "h.toml:6: unknown kind `int` of `b`: one of ptr, hex, "),
        (hook("args = [\"a\"]"), "h.toml:4: `a` is not an argument: write `name:kind`"),
        (hook("args = [\"a:i32\", \"a:i32\"]"), "h.toml:4: duplicate argument `a`"),
        (hook("args = \"a:i32\""), "h.toml:4: `args` must be a list of strings"),
        (hook("returns = \"int\""), "h.toml:4: unknown result `int`: one of status, ptr, "),
        (hook("\nclass = \"alloc\"\nargs = [\"p:out_ptr\"]"), "h.toml:5: class alloc needs a size"),
        (hook("class = \"alloc\"\nargs = [\"n:size\"]"), "h.toml:4: class alloc needs the allocated address"),
        (hook("class = \"free\"\nargs = [\"n:size\"]"), "h.toml:4: class free needs an argument of kind ptr"),
        (
            hook("error = \"e\"\nargs = [\"x:i32\"]"),
            "h.toml:4: `e` is not an argument of this hook: it has x",
        ),
        (hook("args = [\"x:i32\"]\nerror = \"x\""), "h.toml:5: `x` is not a status: make it an out_i32"),
        (hook("names = \"return\"\nreturns = \"i32\""), "h.toml:4: the return value is not an address"),
        (hook("launches = \"a\"\nargs = [\"a:ptr\"]"), "h.toml:4: `launches` is only for class launch"),
        (hook("async = 1"), "h.toml:4: `async` must be true or false"),
        (hook("memory = \"x\""), "h.toml:4: unknown memory `x`: one of device, "),
        (hook("library = \"liby.so\""), "h.toml:4: duplicate key"),
        (hook("") + &hook(""), "h.toml:7: `f` is already hooked at h.toml:1"),
        ("[[hook]]\nfunction = \"f\"".to_owned(), "h.toml:1: a hook has `library` and `function`, or "),
        ("[[hook]]\nlibrary = \"[\"\nfunction = \"f\"".to_owned(), "h.toml:2: `[` is not a glob: "),
        ("[[hook]]\ntracepoint = \"x\"".to_owned(), "h.toml:2: a tracepoint is written as `group:name`"),
        ("hook = 1".to_owned(), "h.toml:1: a hook file contains only [[hook]] tables"),
        ("\n[hooks]".to_owned(), "h.toml:2: a hook file contains only [[hook]] tables"),
        ("[[hook]]\nlibrary = ".to_owned(), "h.toml:2: "),
    ];
    for (text, expected) in cases {
        let error = refused(&text);
        assert!(error.starts_with(expected), "{text}\n{error}\n{expected}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
    let outs: Vec<_> = (0..5).map(|n| format!("\"a{n}:out_u64\"")).collect();
    assert!(refused(&hook(&format!("args = [{}]", outs.join(", ")))).contains("at most 4 arguments"));
}

#[test]
fn hooks_in_the_linux_kernel_are_separate() {
    let text = "[[hook]]\nkernel = true\nfunction = \"uvm_*\"\nclass = \"scheduler\"\nargs = [\"a:ptr\"]\n\
                [[hook]]\ntracepoint = \"nvidia:nvidia_dev_xid\"\n";
    let hooks = parsed(text);
    let [function, tracepoint] = hooks.linux() else { panic!("{hooks:?}") };
    assert!(matches!(&function.point, LinuxHookPoint::Function(glob) if glob.matches("uvm_fault")));
    assert_eq!((function.signature.class, function.source_line.line), (Class::Scheduler, 1));
    let LinuxHookPoint::Tracepoint { group, name } = &tracepoint.point else { panic!("{tracepoint:?}") };
    assert_eq!((group.as_str(), name.as_str()), ("nvidia", "nvidia_dev_xid"));
    assert_eq!(hooks.linux_hook("uvm_fault").map(|hook| hook.source_line.line), Some(1));
    assert!(hooks.linux_hook("nvidia_dev_xid").is_none());
    assert!(hooks.libraries().is_empty() && !hooks.is_empty());
}

#[test]
fn the_linux_kernel_provides_what_a_hook_does_not_say() {
    let kernel =
        |more: &str| parsed(&format!("[[hook]]\nkernel = true\nfunction = \"f\"\n{more}")).linux()[0].clone();
    let long = (ResultKind::Errno, "long");
    let row = |more: &str, returned| {
        let f = function_row(FunctionId(1), "uvm_fault", returned, Some(&kernel(more).signature));
        (f.api, f.class, f.result, f.result_type, text_arg(&f))
    };
    assert_eq!(row("", long), (Api::Kernel, Class::Scheduler, ResultKind::Errno, "long", None));
    let hooked = row("class = \"driver\"\nargs = [\"a:i32\", \"b:str\"]\nreturns = \"status\"", long);
    assert_eq!(
        hooked,
        (Api::Kernel, Class::Driver, ResultKind::Errno, "long", Some(1)),
        "its type information has the width"
    );
    let unknown = (ResultKind::Unknown, "?");
    assert_eq!(row("returns = \"status\"", unknown).2, ResultKind::Errno);
    assert_eq!(row("returns = \"ptr\"", long).2, ResultKind::Pointer);
    let tracepoint = tracepoint_row(FunctionId(1), "sched:sched_switch", &kernel("").signature);
    assert_eq!((tracepoint.class, tracepoint.result), (Class::Driver, ResultKind::Moment));
}

#[test]
fn hooks_on_what_cannot_be_read_in_the_linux_kernel_are_errors() {
    let function = "[[hook]]\nkernel = true\nfunction = \"f\"\n";
    let tracepoint = "[[hook]]\ntracepoint = \"g:t\"\n";
    let args = |count: usize| {
        let args: Vec<_> = (0..count).map(|n| format!("\"a{n}:u64\"")).collect();
        format!("args = [{}]", args.join(",\n"))
    };
    let cases = [
        (
            function,
            "class = \"alloc\"".to_owned(),
            "h.toml:4: class alloc is only for library functions: one of driver, ",
        ),
        (function, "memory = \"pool\"".to_owned(), "h.toml:4: `memory` is only for library functions"),
        (
            function,
            "args = [\"a:u64\",\n\"b:out_i32\"]".to_owned(),
            "h.toml:5: `out_i32` is only for library functions",
        ),
        (function, args(9), "h.toml:1"),
        (function, args(6), ""),
        (tracepoint, args(12), ""),
        (tracepoint, args(13), "h.toml:15: a tracepoint has at most 12 arguments"),
        (tracepoint, "returns = \"i32\"".to_owned(), "h.toml:3: a tracepoint returns nothing"),
        (tracepoint, tracepoint.to_owned(), "h.toml:4: `g:t` is already hooked at h.toml:1"),
        (function, function.to_owned(), "h.toml:6: `f` is already hooked at h.toml:1"),
    ];
    for (first, more, expected) in cases {
        let error = Hooks::default().parse("h.toml", &format!("{first}{more}"));
        let error = error.err().map_or_else(String::new, |error| error.to_string());
        assert!(
            error.starts_with(expected) && error.is_empty() == expected.is_empty(),
            "{more}\n{error}\n{expected}"
        );
    }
}

#[test]
fn a_name_has_priority_over_a_glob_and_each_found_function_has_a_row() {
    let any = "[[hook]]\nlibrary = \"libx.so*\"\nfunction = \"g*\"\n";
    let hooks = parsed(&format!("{any}{}", hook("").replace("\"f\"", "\"ga\"\nclass = \"sync\"")));
    assert!(hooks.fit_library("libx.so.1.2") && !hooks.fit_library("liby.so"));
    assert!(hooks.name_exactly("libx.so", "ga") && !hooks.name_exactly("libx.so", "gb"));
    assert!(hooks.fit("libx.so", "gb", false) && !hooks.fit("libx.so", "gb", true), "the catalogue knows gb");
    assert!(hooks.fit("libx.so", "ga", true) && !hooks.fit("libx.so", "f", false));
    assert_eq!(hooks.unused().len(), 2);

    let class = |name: &str| catalogue().get(hooks.function("libx.so.1", name).unwrap()).unwrap();
    assert_eq!((class("ga").class, class("gb").class, class("gb").name), (Class::Sync, Class::Other, "gb"));
    assert_ne!(class("ga").id, class("gb").id);
    assert_eq!(
        hooks.function("libx.so.2", "gb"),
        Some(class("gb").id),
        "the row is the same in another file"
    );
    assert_eq!(catalogue().lookup(Api::Hook, None, "gb").unwrap().id, class("gb").id);
    assert_eq!(hooks.function("liby.so", "gb"), None);
    assert!(hooks.unused().is_empty());
}

#[test]
fn no_hook_file_panics() {
    let all = format!("{}{}", hook(CREATE), hook("class = \"launch\"").replace("\"f\"", "\"g\""));
    for at in (0..all.len()).filter(|at| all.is_char_boundary(*at)) {
        // an error is always one line
        let cut = Hooks::default().parse("h", &all[..at]).err().map_or(1, |e| e.to_string().lines().count());
        let put = format!("{}\"{}", &all[..at], &all[at..]);
        let put = Hooks::default().parse("h", &put).err().map_or(1, |e| e.to_string().lines().count());
        assert_eq!((cut, put), (1, 1), "at {at}");
    }
}

#[test]
fn errors_contain_no_control_characters() {
    for text in ["\"\\u001b[2J\" = 1", "[[hook]]\n\"\\u001b[2J\" = 1", "[[hook]]\nlibrary = \"[\\u0007\""] {
        let error = Hooks::default().parse("h", text).unwrap_err().to_string();
        assert!(!error.chars().any(char::is_control), "{error:?}");
    }
}

#[test]
fn the_example_hook_file_is_valid() {
    let mut hooks = Hooks::default();
    let text = include_str!("../../../../examples/hooks/cublas.toml");
    hooks.parse("cublas.toml", text).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(hooks.libraries().len(), 8);
}
