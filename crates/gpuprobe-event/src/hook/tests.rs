use super::*;
use crate::catalogue::{ArgKind, Place as ArgPlace, ResultKind};
use crate::counters::CopyDirection;
use crate::decode::{OutRead, Words, arguments, effect, error_name, out_reads, text_arg, told_error};
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

/// A hook on `f` of `libx.so*` that says this as well.
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
fn an_allocation_that_returns_its_address_leaves_its_status_behind() {
    let f = row(CREATE);
    assert_eq!((f.class, f.result, f.roles.size), (Class::Alloc, ResultKind::Pointer, Some(2)));
    assert!(f.roles.out_is_result);
    assert_eq!(out_reads(&f), [OutRead { arg: 4, offset: 0, bytes: 4 }]);
    let args = f.args.as_deref().unwrap();
    assert_eq!(args[4].x86_64, ArgPlace::Register { first: 4, count: 1 });

    let words = |out| Words {
        registers: &[0x10, 0x4, 4096, 0, 0x7f00, 0],
        outs: [out, None, None, None],
        ..Words::default()
    };
    let shown = |out| arguments(&f, &words(out)).unwrap().pop().unwrap().1;
    assert_eq!(shown(Some(0xffff_ffc3)), Value::Int(-61));
    assert_eq!(shown(None), Value::Hex(0x7f00), "the pointer, where nothing was read");
    assert_eq!(told_error(&f, 0, &words(Some(0xffff_ffc3))).unwrap(), "error -61");
    assert_eq!(told_error(&f, 0, &words(None)).unwrap(), "returned NULL");
    assert_eq!(told_error(&f, 0x55, &words(Some(0))), None);
}

#[test]
fn parts_follow_from_kinds_or_are_named() {
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
fn a_copy_goes_as_its_name_or_its_argument_says_and_may_wait() {
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
fn a_launch_has_its_dimensions_in_a_struct_or_in_three_numbers() {
    let f =
        row("class = \"launch\"\nargs = [\"f:ptr\", \"g:dim3\", \"b:dim3\"]\nlaunches = \"f\"\ngrid = \"g\"");
    let registers = [7, 0x3_0000_0002, 4, 0x9, 0x1, 0];
    let told = effect(&f, &Words { registers: &registers, ..Words::default() });
    assert_eq!(told.launch().map(|launch| (launch.grid, launch.block)), Some((Some([2, 3, 4]), None)));
    let f = row("class = \"launch\"\nargs = [\"x:u32\", \"y:u32\", \"z:u32\", \"f:ptr\"]\ngrid = \"x\"");
    let told = effect(&f, &Words { registers: &[5, 6, 7, 1, 0, 0], ..Words::default() });
    assert_eq!(told.launch().unwrap().grid, Some([5, 6, 7]));
    assert_eq!(f.args.unwrap()[3].kind, ArgKind::Pointer);
}

#[test]
fn what_is_wrong_is_told_with_its_line_and_what_would_be_right() {
    let cases = [
        (hook("class = \"aloc\""), "h.toml:4: unknown class `aloc`: one of alloc, free, "),
        (hook("clas = \"alloc\""), "h.toml:4: `clas` is no key: one of library, function, "),
        (hook("args = [\n\"a:i32\",\n\"b:int\"]"), "h.toml:6: unknown kind `int` of `b`: one of ptr, hex, "),
        (hook("args = [\"a\"]"), "h.toml:4: `a` is no argument: write `name:kind`"),
        (hook("args = [\"a:i32\", \"a:i32\"]"), "h.toml:4: there is another `a`"),
        (hook("args = \"a:i32\""), "h.toml:4: `args` is a list of texts in quotes"),
        (hook("returns = \"int\""), "h.toml:4: unknown result `int`: one of status, ptr, "),
        (hook("\nclass = \"alloc\"\nargs = [\"p:out_ptr\"]"), "h.toml:5: class alloc needs its bytes"),
        (
            hook("class = \"alloc\"\nargs = [\"n:size\"]"),
            "h.toml:4: class alloc needs the address that it gives",
        ),
        (hook("class = \"free\"\nargs = [\"n:size\"]"), "h.toml:4: class free needs an argument of kind ptr"),
        (hook("error = \"e\"\nargs = [\"x:i32\"]"), "h.toml:4: `e` is no argument of this hook: it has x"),
        (hook("args = [\"x:i32\"]\nerror = \"x\""), "h.toml:5: `x` is no status: make it an out_i32"),
        (hook("names = \"return\"\nreturns = \"i32\""), "h.toml:4: what is returned is no address"),
        (hook("launches = \"a\"\nargs = [\"a:ptr\"]"), "h.toml:4: `launches` is for class launch"),
        (hook("async = 1"), "h.toml:4: `async` is true or false"),
        (hook("memory = \"x\""), "h.toml:4: unknown memory `x`: one of device, "),
        (hook("library = \"liby.so\""), "h.toml:4: duplicate key"),
        (hook("") + &hook(""), "h.toml:7: `f` is hooked at h.toml:1 already"),
        ("[[hook]]\nfunction = \"f\"".to_owned(), "h.toml:1: a hook has `library` and `function`, or "),
        ("[[hook]]\nlibrary = \"[\"\nfunction = \"f\"".to_owned(), "h.toml:2: `[` is no glob: "),
        ("[[hook]]\ntracepoint = \"x\"".to_owned(), "h.toml:2: a tracepoint is written as `group:name`"),
        ("hook = 1".to_owned(), "h.toml:1: a file of hooks has [[hook]] tables and nothing else"),
        ("\n[hooks]".to_owned(), "h.toml:2: a file of hooks has [[hook]] tables"),
        ("[[hook]]\nlibrary = ".to_owned(), "h.toml:2: "),
    ];
    for (text, expected) in cases {
        let told = refused(&text);
        assert!(told.starts_with(expected), "{text}\n{told}\n{expected}");
        assert_eq!(told.lines().count(), 1, "{told}");
    }
    let outs: Vec<_> = (0..5).map(|n| format!("\"a{n}:out_u64\"")).collect();
    assert!(refused(&hook(&format!("args = [{}]", outs.join(", ")))).contains("at most 4 arguments"));
}

#[test]
fn the_kernel_has_hooks_of_its_own() {
    let text = "[[hook]]\nkernel = true\nfunction = \"uvm_*\"\nclass = \"scheduler\"\nargs = [\"a:ptr\"]\n\
                [[hook]]\ntracepoint = \"nvidia:nvidia_dev_xid\"\n";
    let hooks = parsed(text);
    let [function, tracepoint] = hooks.kernel() else { panic!("{hooks:?}") };
    assert!(matches!(&function.point, KernelPoint::Function(glob) if glob.matches("uvm_fault")));
    assert_eq!((function.signature.class, function.place.line), (Class::Scheduler, 1));
    let KernelPoint::Tracepoint { group, name } = &tracepoint.point else { panic!("{tracepoint:?}") };
    assert_eq!((group.as_str(), name.as_str()), ("nvidia", "nvidia_dev_xid"));
    assert_eq!(hooks.of_kernel("uvm_fault").map(|hook| hook.place.line), Some(1));
    assert!(hooks.of_kernel("nvidia_dev_xid").is_none());
    assert!(hooks.libraries().is_empty() && !hooks.is_empty());
}

#[test]
fn what_a_hook_of_the_kernel_does_not_say_the_kernel_does() {
    let kernel = |more: &str| {
        parsed(&format!("[[hook]]\nkernel = true\nfunction = \"f\"\n{more}")).kernel()[0].clone()
    };
    let long = (ResultKind::Errno, "long");
    let row = |more: &str, returned| {
        let f = function_row(FunctionId(1), "uvm_fault", returned, Some(&kernel(more).signature));
        (f.api, f.class, f.result, f.result_type, text_arg(&f))
    };
    assert_eq!(row("", long), (Api::Kernel, Class::Scheduler, ResultKind::Errno, "long", None));
    let said = row("class = \"driver\"\nargs = [\"a:i32\", \"b:str\"]\nreturns = \"status\"", long);
    assert_eq!(
        said,
        (Api::Kernel, Class::Driver, ResultKind::Errno, "long", Some(1)),
        "it knows how wide it is"
    );
    let unknown = (ResultKind::Unknown, "?");
    assert_eq!(row("returns = \"status\"", unknown).2, ResultKind::Errno);
    assert_eq!(row("returns = \"ptr\"", long).2, ResultKind::Pointer);
    let tracepoint = tracepoint_row(FunctionId(1), "sched:sched_switch", &kernel("").signature);
    assert_eq!((tracepoint.class, tracepoint.result), (Class::Driver, ResultKind::Moment));
}

#[test]
fn what_cannot_be_seen_in_the_kernel_is_refused_with_its_line() {
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
            "h.toml:4: class alloc is for functions of libraries: one of driver, ",
        ),
        (function, "memory = \"pool\"".to_owned(), "h.toml:4: `memory` is for functions of libraries"),
        (
            function,
            "args = [\"a:u64\",\n\"b:out_i32\"]".to_owned(),
            "h.toml:5: `out_i32` is for functions of libraries",
        ),
        (function, args(9), "h.toml:1"),
        (function, args(6), ""),
        (tracepoint, args(12), ""),
        (tracepoint, args(13), "h.toml:15: no tracepoint has so many arguments"),
        (tracepoint, "returns = \"i32\"".to_owned(), "h.toml:3: a tracepoint returns nothing"),
        (tracepoint, tracepoint.to_owned(), "h.toml:4: `g:t` is hooked at h.toml:1 already"),
        (function, function.to_owned(), "h.toml:6: `f` is hooked at h.toml:1 already"),
    ];
    for (first, more, expected) in cases {
        let told = Hooks::default().parse("h.toml", &format!("{first}{more}"));
        let told = told.err().map_or_else(String::new, |error| error.to_string());
        assert!(
            told.starts_with(expected) && told.is_empty() == expected.is_empty(),
            "{more}\n{told}\n{expected}"
        );
    }
}

#[test]
fn a_name_goes_before_a_glob_and_each_function_that_is_found_has_its_row() {
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
    assert_eq!(hooks.function("libx.so.2", "gb"), Some(class("gb").id), "in another file it is the same");
    assert_eq!(catalogue().lookup(Api::Hook, None, "gb").unwrap().id, class("gb").id);
    assert_eq!(hooks.function("liby.so", "gb"), None);
    assert!(hooks.unused().is_empty());
}

#[test]
fn nothing_that_is_written_ends_us() {
    let all = format!("{}{}", hook(CREATE), hook("class = \"launch\"").replace("\"f\"", "\"g\""));
    for at in (0..all.len()).filter(|at| all.is_char_boundary(*at)) {
        // whatever it says, it says it in one line
        let cut = Hooks::default().parse("h", &all[..at]).err().map_or(1, |e| e.to_string().lines().count());
        let put = format!("{}\"{}", &all[..at], &all[at..]);
        let put = Hooks::default().parse("h", &put).err().map_or(1, |e| e.to_string().lines().count());
        assert_eq!((cut, put), (1, 1), "at {at}");
    }
}

#[test]
fn control_characters_of_a_file_are_not_in_the_error() {
    for text in ["\"\\u001b[2J\" = 1", "[[hook]]\n\"\\u001b[2J\" = 1", "[[hook]]\nlibrary = \"[\\u0007\""] {
        let error = Hooks::default().parse("h", text).unwrap_err().to_string();
        assert!(!error.chars().any(char::is_control), "{error:?}");
    }
}

#[test]
fn the_examples_are_sound() {
    for (file, text) in [
        ("opencl.toml", include_str!("../../../../examples/hooks/opencl.toml")),
        ("hip.toml", include_str!("../../../../examples/hooks/hip.toml")),
    ] {
        let mut hooks = Hooks::default();
        hooks.parse(file, text).unwrap_or_else(|error| panic!("{error}"));
        for class in [Class::Alloc, Class::Free, Class::Memcpy, Class::Launch, Class::Sync] {
            assert!(hooks.classes().any(|known| known == class), "{file} has no {class}");
        }
    }
}
